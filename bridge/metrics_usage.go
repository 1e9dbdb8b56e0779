package bridge

import (
	"sync"

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

// usedBy are the counts of what the databases of one name used: more than one, where a reload
// gives the name to another.
type usedBy struct {
	mu  sync.Mutex
	all backends.Usage
	any bool
}

// account adds what the bank used since the last time, to the name that it has. It is called
// before it gets another name, at its end, and whenever somebody wants to know.
func (b *bank) account() {
	used := &b.metrics.Load().used
	b.accounts.Lock()
	defer b.accounts.Unlock()
	u, ok := b.usage()
	if !ok {
		return
	}
	used.mu.Lock()
	defer used.mu.Unlock()
	used.any = true
	used.all.Add(u.Since(b.accounted))
	b.accounted = u
}

// tellPool gives what a database's pool is at this moment.
func (b *bank) tellPool(name string, to chan<- prometheus.Metric) {
	u, ok := b.usage()
	if !ok || u.Max == 0 {
		return
	}
	tell := func(d *prometheus.Desc, v int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), append([]string{name}, labels...)...)
	}
	tell(poolDesc, u.Idle, "idle")
	tell(poolDesc, u.InUse, "in_use")
	tell(poolMaxDesc, u.Max)
}

// tellUsage gives what the databases' Backends told of themselves, by the names that they had.
func (l *databaseLabels) tellUsage(to chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.all {
		d.used.tell(d.name, to)
	}
}

func (used *usedBy) tell(name string, to chan<- prometheus.Metric) {
	used.mu.Lock()
	u, known := used.all, used.any
	used.mu.Unlock()
	if !known {
		return
	}
	tell := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, append([]string{name}, labels...)...)
	}
	tell(poolWaitsDesc, float64(u.Waits))
	tell(poolWaitedDesc, u.Waited.Seconds())
	for i, cause := range backends.RetryCauses {
		tell(retriesDesc, float64(u.Retries[i]), cause)
	}
	buckets, sum := make(map[float64]uint64, len(backends.RoundTripBuckets)), uint64(0)
	for i, most := range backends.RoundTripBuckets {
		sum += u.RoundTrips.Within[i]
		buckets[most.Seconds()] = sum
	}
	to <- prometheus.MustNewConstHistogram(tripsDesc, u.RoundTrips.Count, u.RoundTrips.Sum.Seconds(), buckets, name)
}
