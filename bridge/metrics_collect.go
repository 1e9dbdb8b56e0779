package bridge

import (
	"cmp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what the Bridge counts and sees, for a registry. Of a database they
// ask nothing but the depths of its queues; see reader.
func (b *Bridge) Metrics() prometheus.Collector { return collector{b} }

type collector struct{ b *Bridge }

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range c.b.metrics.all {
		m.Describe(to)
	}
	for _, d := range gauges {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	b := c.b
	for _, m := range b.metrics.all {
		m.Collect(to)
	}
	tell := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	p := b.plan.Load()
	for socket, n := range b.sessionsBySocket(p) {
		tell(sessionsDesc, float64(n), socket)
	}
	tell(drainingDesc, oneIf(b.draining.Load()))
	var depths sync.WaitGroup // of all at a time: one that is slow to answer is waited for once
	for name, bank := range p.bankBy {
		tell(heldDesc, float64(bank.heldBySessions()), name)
		now := bank.snapshot()
		tell(waitingDesc, float64(now.claims), name)
		tell(queuedDesc, float64(now.queuedWrites), name)
		tell(reachableDesc, oneIf(bank.reachable()), name)
		age := bank.beatAge()
		if age < 0 {
			age = time.Since(b.began)
		}
		tell(beatDesc, age.Seconds(), name)
		tell(leaseDesc, bank.hostLease().Seconds(), name)
		depths.Go(func() { bank.tellDepths(name, to, tell) })
		bank.tellPool(name, to)
	}
	depths.Wait()
	for _, bank := range p.banks {
		bank.account()
	}
	b.metrics.databases.tellUsage(to)
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// sessionsBySocket counts connections, those of none as "stdio".
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
