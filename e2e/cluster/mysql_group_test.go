package cluster

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestMySQLGroup: a replication group with one primary loses nothing.
func TestMySQLGroup(t *testing.T) { groupRun(t, false) }

// TestMySQLMultiPrimary: a group in which all members accept writes loses nothing either, and no two workers get the same
// job. The sidecars use different members.
func TestMySQLMultiPrimary(t *testing.T) { groupRun(t, true) }

func groupRun(t *testing.T, multiPrimary bool) {
	databases.OwnMySQL(t)
	cluster, err := testserver.StartGroup(testwait.Context(t), 3, multiPrimary, testserver.Options{Settings: map[string]string{
		"group-replication-consistency": "BEFORE_ON_PRIMARY_FAILOVER",
	}})
	if !available(t, "MySQL group replication", err, func() error { return cluster.Stop() }) {
		return
	}
	c := &group{changer: changer{t}, Group: cluster, multiPrimary: multiPrimary}
	e := &events{all: c.events(), between: c.repair(c.Revive)}
	e.steps.check, e.steps.short, e.steps.soak = 8, 8, 120
	sidecars := mysqlSidecars(t, c.Nodes[0], c.Nodes)
	v := e.run(t, sidecars, false, func(t testing.TB) []string {
		if err := c.Nodes[0].Exec(t.Context(), "SET GLOBAL group_replication_consistency = 'BEFORE'"); err != nil {
			t.Fatal(err)
		}
		return mysqlJobs(t, c.Nodes[0])
	})
	if v.LostJobs+v.LostAcks > 0 {
		t.Errorf("group replication lost commits: %v", v.Failovers)
	}
}

// group is a replication group whose members fail.
type group struct {
	changer
	*testserver.Group
	multiPrimary bool
	victim       *testserver.MySQL
}

// events returns all kinds of failovers.
func (g *group) events() []event {
	revive := g.repair(g.Revive)
	thaw := g.repair(func(ctx context.Context) error {
		return errors.Join(g.Without(ctx, g.victim), g.victim.Thaw(), g.Revive(ctx))
	})
	all := []event{
		{"crash", nil, g.failover("crash", func(context.Context) error { return g.victim.Kill9() }), []step{revive}},
		{"freeze", nil, g.failover("freeze", func(context.Context) error { return g.victim.Freeze() }), []step{thaw}},
		{"lost majority", nil, g.failover("lost majority", g.loseMajority), []step{revive}},
	}
	if !g.multiPrimary {
		all = append(all, event{"switchover", nil, g.switchover, nil})
	}
	return all
}

// failover harms the primary and waits for the next one. In a multi-primary group it harms any member.
func (g *group) failover(name string, harm func(context.Context) error) step {
	return func(r *crash.Run) {
		g.must(g.Revive) // a member can also have been excluded on a busy machine
		began := kit.Monotonic()
		g.must(func(ctx context.Context) (err error) {
			if g.victim = g.Nodes[r.Rand.IntN(len(g.Nodes))]; !g.multiPrimary {
				if g.victim, err = g.Primary(ctx); err != nil {
					return err
				}
			}
			if err := harm(ctx); err != nil {
				return err
			}
			if g.multiPrimary { // the others can wait for the victim until they exclude it
				return g.Without(ctx, g.victim)
			}
			_, err = g.Primary(ctx, g.victim)
			return err
		})
		g.serves(r, name, began, false)
	}
}

// loseMajority cuts the victim off by freezing the others until the victim has left the group. No member excludes another one during that time:
// the others miss each other for a moment when they continue, and then all could exclude each other.
func (g *group) loseMajority(ctx context.Context) (err error) {
	others := slices.DeleteFunc(slices.Clone(g.Nodes), func(node *testserver.MySQL) bool { return node == g.victim })
	exclude := func(after string) (err error) {
		for _, node := range g.Nodes {
			err = errors.Join(err, node.Exec(ctx, "SET GLOBAL group_replication_member_expel_timeout = "+after))
		}
		return err
	}
	const leave = "SET GLOBAL group_replication_unreachable_majority_timeout = "
	if err := errors.Join(exclude("3600"), g.victim.Exec(ctx, leave+"1")); err != nil {
		return err
	}
	for _, node := range others {
		err = errors.Join(err, node.Freeze())
	}
	err = errors.Join(err, g.Left(ctx, g.victim))
	for _, node := range others {
		err = errors.Join(err, node.Thaw())
	}
	return errors.Join(err, g.Without(ctx, g.victim), exclude("0"), g.victim.Exec(ctx, leave+"0"))
}

// switchover makes another member the primary as an operator does.
func (g *group) switchover(r *crash.Run) {
	g.must(g.Revive)
	began := kit.Monotonic()
	g.must(func(ctx context.Context) error {
		primary, err := g.Primary(ctx)
		if err != nil {
			return err
		}
		to := primary
		for to == primary {
			to = g.Nodes[r.Rand.IntN(len(g.Nodes))]
		}
		if err := g.Switch(ctx, to); err != nil {
			return err
		}
		_, err = g.Primary(ctx)
		return err
	})
	g.serves(r, "switchover", began, false)
}
