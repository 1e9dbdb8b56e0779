package bridge

import (
	"cmp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics returns a collector of the Bridge's metrics, for a registry. A collection queries the databases only for
// the depths of queues; see collectDepths.
func (b *Bridge) Metrics() prometheus.Collector { return collector{b} }

type collector struct{ b *Bridge }

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	c.b.metrics.Describe(to)
	for _, d := range gauges {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	b := c.b
	emit := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	p := b.plan.Load()
	for socket, n := range b.sessionsBySocket(p) {
		emit(sessionsDesc, float64(n), socket)
	}
	emit(drainingDesc, oneIf(b.draining.Load()))
	var depths sync.WaitGroup // all databases at once, so that a slow one delays the collection only once
	for name, db := range p.byName {
		emit(leasesDesc, float64(db.HeldBySessions()), name)
		now := db.Snapshot()
		emit(waitingDesc, float64(now.Claims), name)
		emit(queuedDesc, float64(now.QueuedWrites), name)
		emit(reachableDesc, oneIf(db.Reachable()), name)
		age := db.HeartbeatAge()
		if age < 0 {
			age = time.Since(b.began)
		}
		emit(heartbeatDesc, age.Seconds(), name)
		emit(timeoutDesc, db.SidecarTimeout().Seconds(), name)
		for queue, n := range db.Metrics.Load().ObstaclesByLabel(db.Obstacles()) {
			emit(obstaclesDesc, float64(n), name, queue)
		}
		depths.Go(func() { db.collectDepths(name, to, emit) })
		db.collectPool(name, to)
	}
	depths.Wait()
	for _, db := range p.databases {
		db.account()
	}
	b.metrics.Collect(to)
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// sessionsBySocket counts connections by socket. Those without one count as "stdio".
func (b *Bridge) sessionsBySocket(p *plan) map[string]int {
	n := make(map[string]int)
	for _, s := range p.opts.Sockets {
		n[s.Path] = 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.sessions {
		n[cmp.Or(s.socket, "stdio")]++
	}
	return n
}
