package bridge

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/backends"
)

// What backends tell of themselves.
var (
	poolDesc       = gauge("pool_connections", "Connections of the pool, by what they do: idle or in_use. The beat's own, and those of held jobs, are not among them.", labelDatabase, "state")
	poolMaxDesc    = gauge("pool_connections_max", "How many connections the pool may have.", labelDatabase)
	poolWaitsDesc  = gauge("pool_waits_total", "How often all connections of the pool were in use, so that one was waited for.", labelDatabase)
	poolWaitedDesc = gauge("pool_wait_seconds_total", "For how long connections of the pool were waited for.", labelDatabase)
	tripsDesc      = gauge("statement_seconds", "Round trips to the database: statements sent together, until all were answered. On SQLite: transactions.", labelDatabase)
	retriesDesc    = gauge("transaction_retries_total", "Transactions that were tried again at once. conflict: a deadlock, a serialization failure or a lock that was not free; "+
		"connection: it broke before the commit.", labelDatabase, labelCause)
)

// usage is what the database's Backends have used so far, as far as they tell.
func (l *link) usage() (u backends.Usage, ok bool) {
	e, release := l.use()
	defer release()
	m, ok := e.Backend.(backends.Metered)
	if !ok {
		return u, false
	}
	u = m.Usage()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != e { // replaced meanwhile: that one's is in past by now
		return u, false
	}
	u.Add(l.past)
	return u, true
}

// leave keeps what a Backend used that is replaced. l.mu is held.
func (l *link) leave(e *linkEnd) {
	if m, ok := e.Backend.(backends.Metered); ok {
		l.past.Add(m.Usage())
	}
}

// tellUsage gives what a database's Backend tells of itself.
func (b *bank) tellUsage(name string, to chan<- prometheus.Metric) {
	u, ok := b.link.usage()
	if !ok {
		return
	}
	tell := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, v, append([]string{name}, labels...)...)
	}
	if u.Max > 0 {
		tell(poolDesc, prometheus.GaugeValue, float64(u.Idle), "idle")
		tell(poolDesc, prometheus.GaugeValue, float64(u.InUse), "in_use")
		tell(poolMaxDesc, prometheus.GaugeValue, float64(u.Max))
		tell(poolWaitsDesc, prometheus.CounterValue, float64(u.Waits))
		tell(poolWaitedDesc, prometheus.CounterValue, u.Waited.Seconds())
	}
	for i, cause := range backends.RetryCauses {
		tell(retriesDesc, prometheus.CounterValue, float64(u.Retries[i]), cause)
	}
	buckets, sum := make(map[float64]uint64, len(backends.TripBuckets)), uint64(0)
	for i, most := range backends.TripBuckets {
		sum += u.Trips.Within[i]
		buckets[most.Seconds()] = sum
	}
	to <- prometheus.MustNewConstHistogram(tripsDesc, u.Trips.Count, u.Trips.Sum.Seconds(), buckets, name)
}
