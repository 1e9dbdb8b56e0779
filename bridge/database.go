package bridge

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/bridge/internal/session"
	"github.com/qsidecar/qsidecar/protocol"
)

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
		Memory:         &b.shared.Memory,
		Version:        func() string { return strings.TrimPrefix(b.config.Load().Server, "qsidecar/") },
		Policy:         func(queue string) (backends.Policy, bool) { return b.config.Load().PolicyIn(db.Pipeline, queue) },
		Jitter:         func(queue string) float64 { return b.config.Load().Jitter(queue) * (2*rand.Float64() - 1) },
		Expiry:         func(queue string) backends.Expiry { return b.config.Load().Expiry(queue) },
		MaxPayload:     func() int64 { return int64(b.config.Load().Limits.MaxPayload) },
		ClaimBytes:     func() int64 { return int64(b.config.Load().Limits.ClaimBytes) },
		Trace:          protocol.TraceContext,
		Events:         &b.shared.Events,
		Lost:           func(m lease.Lost, reason string) { reportLost(db.Pipeline, m, reason) },
	})
	return db
}

// reportLost passes on the leases that sessions lost.
func reportLost(db *pipeline.Pipeline, lost lease.Lost, reason string) {
	for account, gone := range lost {
		account.Client.(*session.Session).ReportLost(db, gone, reason)
	}
}

// label assigns the metrics of the config's names to its databases, and creates the counters of the queues that the
// config names. A series that begins at 0 also shows the first job.
func (b *Bridge) label(c *config) {
	named := func(queue string) (bool, int) {
		_, ok := c.opts.Queues[queue]
		return ok, max(c.opts.QueueLabels, 0)
	}
	for name, db := range c.byName {
		d := b.metrics.Databases.Of(name)
		d.Named.Store(&named)
		if db.Metrics.Load() != nil {
			db.account() // under the old name
		}
		db.Metrics.Store(d)
	}
	queues := make(map[*database][]string)
	for name, q := range c.opts.Queues {
		if db := c.byName[q.Database]; db != nil && name != "*" {
			queues[db] = append(queues[db], name)
		}
	}
	for db, names := range queues {
		db.Metrics.Load().AddQueues(names...)
	}
}

// runDatabase runs a database until Run ends, or database.end is called. b.reload is held.
func (b *Bridge) runDatabase(r *running, db *database) {
	ctx, stopHouse := context.WithCancel(r.stop)
	work, stopWork := context.WithCancel(r.work)
	ended := make(chan error, 1)
	db.end = sync.OnceValue(func() error {
		stopHouse()
		stopWork()
		return <-ended
	})
	go func() { ended <- db.Run(ctx, work, r.hard) }()
}

// retire ends a database when the last lease in it has ended, unless a reload puts it back into service.
func (b *Bridge) retire(r *running, db *database) {
	check := time.NewTicker(drainCheck)
	defer check.Stop()
	for {
		select {
		case <-check.C:
		case <-r.stop.Done():
			return // Run ends it with all others
		}
		if db.Leases() > 0 {
			continue
		}
		if b.leaves(db) {
			if err := db.end(); err != nil {
				b.log.Warn("can't leave a removed database", "event", "database_leave_failed", "error", err)
			}
			db.Pipeline.Retire()
			db.account()
			if db.Info.Database == "" {
				return // it was never reached
			}
			b.log.Info("left a removed database", "event", "database_left", "address", db.Info.Address)
		}
		return
	}
}

// leaves removes a retiring database from the config. It returns false if the database is in service again, or if Run
// is stopping, which ends it.
func (b *Bridge) leaves(db *database) bool {
	b.reload.Lock()
	defer b.reload.Unlock()
	c := b.config.Load()
	if b.running == nil || c.serves(db) {
		db.retiring = false
		return false
	}
	b.config.Store(c.without(db))
	return true
}
