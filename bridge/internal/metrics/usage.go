package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/backends"
)

// The metrics of the usage that backends report.
var (
	poolWaitsDesc  = Gauge("pool_waits_total", "How often a request waited, because all connections of the pool were in use.", LabelDatabase)
	poolWaitedDesc = Gauge("pool_wait_duration_seconds_total", "Time that requests waited for a connection of the pool.", LabelDatabase)
	tripsDesc      = Gauge("database_round_trip_duration_seconds", "Round trips to the database: statements sent together, until all were answered. On SQLite: transactions.", LabelDatabase)
	retriesDesc    = Gauge("transaction_retries_total", "Transactions that were tried again at once. conflict: a deadlock, a serialization failure or a lock that was not free; "+
		"certification: another node of a cluster changed the same rows first; connection: it broke before the commit.", LabelDatabase, labelCause)
)

var oldPrimariesDesc = Gauge("old_primaries_refused_total", "Connections that were refused because they led to an old primary: another server took over from it, and it was not stopped.", LabelDatabase)

// usageCounts add up what the databases of one name used. A reload can give the name to another database.
type usageCounts struct {
	mu    sync.Mutex
	all   backends.Usage
	known bool
}

// AddUsage adds the usage of the database's Backends since the last call.
func (d *Database) AddUsage(u backends.Usage) {
	d.usage.mu.Lock()
	defer d.usage.mu.Unlock()
	d.usage.known = true
	d.usage.all.Add(u)
}

// collectUsage collects the usage of all databases.
func (d *databaseSet) collectUsage(to chan<- prometheus.Metric) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.all {
		one.usage.collect(one.name, to)
	}
}

func (u *usageCounts) collect(name string, to chan<- prometheus.Metric) {
	u.mu.Lock()
	all, known := u.all, u.known
	u.mu.Unlock()
	if !known {
		return
	}
	emit := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, append([]string{name}, labels...)...)
	}
	emit(poolWaitsDesc, float64(all.Waits))
	emit(poolWaitedDesc, all.Waited.Seconds())
	emit(oldPrimariesDesc, float64(all.OldPrimaries))
	for i, cause := range backends.RetryCauses {
		emit(retriesDesc, float64(all.Retries[i]), cause)
	}
	buckets, sum := make(map[float64]uint64, len(backends.RoundTripBuckets)), uint64(0)
	for i, most := range backends.RoundTripBuckets {
		sum += all.RoundTrips.Within[i]
		buckets[most.Seconds()] = sum
	}
	to <- prometheus.MustNewConstHistogram(tripsDesc, all.RoundTrips.Count, all.RoundTrips.Sum.Seconds(), buckets, name)
}

// Describe implements prometheus.Collector.
func (s *Set) Describe(to chan<- *prometheus.Desc) {
	for _, c := range s.all {
		c.Describe(to)
	}
	for _, d := range []*prometheus.Desc{poolWaitsDesc, poolWaitedDesc, oldPrimariesDesc, tripsDesc, retriesDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Set) Collect(to chan<- prometheus.Metric) {
	for _, c := range s.all {
		c.Collect(to)
	}
	s.Databases.collectUsage(to)
}
