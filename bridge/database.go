package bridge

import (
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/protocol"
)

// database is the bridge's side of one database: its pipeline, and the state of reload and metrics.
type database struct {
	*pipeline.Pipeline
	accounts  sync.Mutex     // guards accounted
	accounted backends.Usage // the part of Usage that the metrics have already; see account

	// Bridge.reload guards these.
	retiring bool         // it ends when the last lease in it has ended
	end      func() error // ends the run and returns its error
}

func (b *Bridge) newDatabase(name string, d Database) *database {
	db := &database{}
	db.Pipeline = pipeline.New(pipeline.Config{
		Name:           name,
		Backend:        d.Backend,
		Replica:        d.Replica,
		Done:           d.Done,
		SidecarTimeout: d.SidecarTimeout,
		RestartGrace:   d.RestartGrace,
		Log:            b.log.With("database", name),
		Clock:          b.system.clock,
		Memory:         &b.memory,
		Version:        func() string { return strings.TrimPrefix(b.plan.Load().opts.Server, "qsidecar/") },
		Policy:         func(queue string) (backends.Policy, bool) { return b.plan.Load().policyIn(db, queue) },
		Jitter:         func(queue string) float64 { return b.plan.Load().jitter(queue) * (2*rand.Float64() - 1) },
		MaxPayload:     func() int64 { return int64(b.plan.Load().limits.MaxPayload) },
		ClaimBytes:     func() int64 { return int64(b.plan.Load().limits.ClaimBytes) },
		Trace:          protocol.TraceContext,
		Events:         &b.events,
		Lost:           func(m map[*quota.Session][]lease.Held) { b.reportLost(db, m) },
	})
	return db
}

// follow ends the waits of claims that the plan does not route to this database.
func (b *database) follow(p *plan) {
	b.Reroute(func(queues []string) bool {
		to, wire := p.databaseOf(queues)
		return wire == nil && to == b
	})
}

// label assigns the metrics of the plan's names to its databases, and creates the counters of the queues that the
// plan names. A series that begins at 0 also shows the first job.
func (b *Bridge) label(p *plan) {
	named := func(queue string) (bool, int) {
		_, ok := p.opts.Queues[queue]
		return ok, max(p.opts.QueueLabels, 0)
	}
	for name, db := range p.byName {
		d := b.metrics.Databases.Of(name)
		d.Named.Store(&named)
		if db.Metrics.Load() != nil {
			db.account() // under the old name
		}
		db.Metrics.Store(d)
	}
	queues := make(map[*database][]string)
	for name, q := range p.opts.Queues {
		if db := p.byName[q.Database]; db != nil && name != "*" {
			queues[db] = append(queues[db], name)
		}
	}
	for db, names := range queues {
		db.Metrics.Load().AddQueues(names...)
	}
}

// account adds the usage since the last call to the metrics of the current name. It is called before the name
// changes, when the database ends, and for each collection of the metrics.
func (b *database) account() {
	b.accounts.Lock()
	defer b.accounts.Unlock()
	u, ok := b.Usage()
	if !ok {
		return
	}
	b.Metrics.Load().AddUsage(u.Since(b.accounted))
	b.accounted = u
}

// collectPool sends the current metrics of a database's pool.
func (b *database) collectPool(name string, to chan<- prometheus.Metric) {
	u, ok := b.Usage()
	if !ok || u.Max == 0 {
		return
	}
	emit := func(d *prometheus.Desc, v int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), append([]string{name}, labels...)...)
	}
	emit(poolDesc, u.Idle, "idle")
	emit(poolDesc, u.InUse, "in_use")
	emit(poolMaxDesc, u.Max)
}
