package cluster

import (
	"context"
	"errors"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestMySQLSemiSync: a failover to a replica that the commits waited for loses nothing.
func TestMySQLSemiSync(t *testing.T) { replicationRuns(t, true) }

// TestMySQLAsync: a failover to an asynchronous replica loses the last commits, and nothing else.
func TestMySQLAsync(t *testing.T) { replicationRuns(t, false) }

func replicationRuns(t *testing.T, semiSync bool) {
	databases.OwnMySQL(t)
	for _, kind := range kit.SkipLockedKinds {
		t.Run(string(kind), func(t *testing.T) {
			cluster, err := testserver.StartReplication(testwait.Context(t), kind, 3, semiSync)
			if !available(t, string(kind), err, func() error { return cluster.Stop() }) {
				return
			}
			c := &replication{changer: changer{t}, Replication: cluster, semiSync: semiSync}
			e := &events{all: c.events()}
			e.steps.check, e.steps.short, e.steps.soak = 12, 8, 120 // each event once in make check
			sidecars := mysqlSidecars(t, c.Source, c.Nodes)
			v := e.run(t, sidecars, !semiSync, func(t testing.TB) []string { return mysqlJobs(t, c.Source) })
			if semiSync && v.LostJobs+v.LostAcks > 0 {
				t.Errorf("semi-synchronous replication lost commits: %v", v.Failovers)
			}
		})
	}
}

// replication is a source and its replicas, which change their roles.
type replication struct {
	changer
	*testserver.Replication
	semiSync bool
	began    int64             // when the current failover can lose commits
	old      *testserver.MySQL // the former source
}

// events returns all kinds of failovers.
func (c *replication) events() []event {
	back := c.repair(func(ctx context.Context) error { return c.Return(ctx, c.old) })
	fence := c.repair(func(ctx context.Context) error { return errors.Join(c.old.Kill9(), c.Return(ctx, c.old)) })
	all := []event{
		{"crash", c.lag, c.failover("crash", (*testserver.MySQL).Kill9), []step{back}},
		{"freeze", c.lag, c.failover("freeze", (*testserver.MySQL).Freeze), []step{fence}},
		{"switchover", nil, c.switchover, nil},
	}
	if c.semiSync { // an asynchronous source would go on without a fence
		thaw := c.repair(func(context.Context) error { return c.old.Thaw() })
		all = append(all, event{"return frozen", nil, c.failover("return frozen", (*testserver.MySQL).Freeze), []step{thaw, fence}})
	}
	return all
}

// lag begins to lose commits if the replicas are asynchronous: they receive no more of them. They have some of the source's own
// transactions by then. If all are lost, nothing distinguishes the next source from an old one that returns, and sidecars refuse it.
func (c *replication) lag(*crash.Run) {
	c.began = kit.Monotonic()
	if !c.semiSync {
		c.must(func(ctx context.Context) error {
			return errors.Join(c.Source.Exec(ctx, "CREATE DATABASE own", "DROP DATABASE own"), c.Whole(ctx), c.Detach(ctx))
		})
	}
}

// failover promotes a replica after harm to the source.
func (c *replication) failover(name string, harm func(*testserver.MySQL) error) step {
	return func(r *crash.Run) {
		if c.semiSync {
			c.began = kit.Monotonic()
		}
		c.old = c.Source
		c.must(func(ctx context.Context) error { return errors.Join(harm(c.old), c.Failover(ctx)) })
		c.serves(r, name, c.began, !c.semiSync)
	}
}

// switchover makes another server the source as an operator does.
func (c *replication) switchover(r *crash.Run) {
	began := kit.Monotonic()
	to := c.Nodes[r.Rand.IntN(len(c.Nodes))]
	for to == c.Source {
		to = c.Nodes[r.Rand.IntN(len(c.Nodes))]
	}
	c.must(func(ctx context.Context) error { return c.Switch(ctx, to) })
	c.serves(r, "switchover", began, false)
}
