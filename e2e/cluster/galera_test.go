package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestGaleraCrashRun runs a sidecar with workers and a producer on each of three nodes, while nodes
// crash, stop, leave the cluster, fall behind, and have clocks that are set back. Once, all nodes crash together.
func TestGaleraCrashRun(t *testing.T) {
	databases.OwnMySQL(t)
	g, err := testserver.StartGalera(testwait.Context(t), 3, testserver.Options{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := g.Nodes[0].Exec(t.Context(), "CREATE DATABASE e2e"); err != nil {
		t.Fatal(err)
	}
	s := kit.NewSite(t)
	var sidecars []*kit.Sidecar
	for i, node := range g.Nodes {
		s.URL = node.URL("e2e")
		sidecars = append(sidecars, s.Start(fmt.Sprint("s", i+1)))
	}
	jobs, workers, backlog, strikes := 2_000, 8, 200, 10
	switch {
	case testing.Short():
		jobs, workers, backlog, strikes = 1_000, 4, 100, 5
	case kit.Soak:
		jobs, workers, backlog, strikes = 100_000, 32, 1_000, 100
	}
	c := &galeraHarm{Galera: g, behind: map[int]bool{}}
	v := crash.Plan{
		Queue: "crash", Jobs: jobs, Backlog: backlog, Workers: workers * len(sidecars), Sidecars: sidecars,
		Killers: []crash.Killer{
			{Every: 100, Kill: crash.KillWorker},
			{Every: jobs/4 + 3, Kill: crash.KillSidecar},
			{Every: jobs/strikes + 1, Kill: c.strike},
			{Every: jobs/2 + 7, Kill: c.crashAll}, // once
		},
		LockWaits: true,
		OnTick:    func(r *crash.Run) { c.revive(r) },
		RepairAll: func(r *crash.Run) { c.revive(r) },
		Left: func(t testing.TB) []string {
			node := g.Nodes[0]
			_, err := g.Revive(testwait.Context(t)) // a node can have crashed since the last harm
			if err := errors.Join(err, node.Exec(t.Context(), "SET GLOBAL wsrep_sync_wait = 1")); err != nil {
				t.Fatal(err)
			}
			return (&databases.MySQL{MySQL: node, T: t, Name: "e2e"}).Jobs(t)
		},
	}.Run(t)
	kit.Figure(t, "harm, in order: %v", c.done)
	crash.Judge(t, v)
}

// galeraHarm harms a cluster's nodes.
type galeraHarm struct {
	*testserver.Galera
	todo []string // kinds of harm for the next strikes, so that each kind happens
	done []string

	behind map[int]bool // nodes whose clock is set back
}

// strike harms a random node, and returns when the cluster is whole again.
func (g *galeraHarm) strike(r *crash.Run) {
	if len(g.todo) == 0 {
		g.todo = []string{"crash", "freeze", "isolate", "desync", "clock"}
		r.Rand.Shuffle(len(g.todo), func(i, j int) { g.todo[i], g.todo[j] = g.todo[j], g.todo[i] })
	}
	kind, node := g.todo[0], r.Rand.IntN(len(g.Nodes))
	g.todo, g.done = g.todo[1:], append(g.done, fmt.Sprintf("%s node%d", kind, node+1))
	g.revive(r)
	ctx := testwait.Context(r.T)
	r.Killing(crash.Connections, func() {
		err := g.harm(ctx, kind, node)
		if started := g.revive(r); err != nil && !slices.Contains(started, fmt.Sprintf("node%d", node+1)) { // it did not crash by itself
			r.T.Errorf("%s node%d: %v", kind, node+1, err)
		}
	})
	waitForHeartbeats(r)
}

// waitForHeartbeats waits for a heartbeat of each sidecar, now that the cluster is whole. One that was evicted logs it then. If it is
// killed before, nothing explains that others got its jobs.
func waitForHeartbeats(r *crash.Run) {
	whole := kit.Monotonic()
	for _, sc := range r.Sidecars {
		c := kit.Dial(r.T, sc.Socket)
		testwait.Until(r.T, "a heartbeat of "+sc.Name, func() bool {
			since := kit.Since(whole).Milliseconds()
			age := c.Must(kit.Msg{"op": "status"}).Databases[0].HeartbeatAgeMS
			return age >= 0 && age < since
		})
		c.Close()
	}
}

func (g *galeraHarm) harm(ctx context.Context, kind string, node int) error {
	switch kind {
	case "crash":
		return errors.Join(g.Nodes[node].Kill9(), g.Without(ctx, node))
	case "freeze":
		return errors.Join(g.Nodes[node].Freeze(), g.Without(ctx, node), g.Nodes[node].Thaw())
	case "isolate":
		return errors.Join(g.Isolate(ctx, node, true), g.Without(ctx, node), g.Isolate(ctx, node, false))
	case "clock":
		ahead := -2 * time.Second
		if g.behind[node] {
			ahead = 0
		}
		g.behind[node] = !g.behind[node]
		return g.SetClock(ctx, node, ahead)
	default:
		return errors.Join(g.Desync(ctx, node, true), g.Desync(ctx, node, false))
	}
}

// crashAll crashes all nodes.
func (g *galeraHarm) crashAll(r *crash.Run) {
	g.done = append(g.done, "crash all")
	r.Killing(crash.Connections, func() {
		for _, node := range g.Nodes {
			if err := node.Kill9(); err != nil {
				r.T.Error(err)
			}
		}
		g.revive(r)
	})
	waitForHeartbeats(r)
}

// revive starts nodes that crashed, and returns their names. MariaDB's nodes also crash by themselves when transactions conflict.
func (g *galeraHarm) revive(r *crash.Run) []string {
	if !slices.ContainsFunc(g.Nodes, (*testserver.MySQL).Ended) && len(g.done) == 0 {
		return nil
	}
	started, err := g.Revive(testwait.Context(r.T))
	if err != nil {
		for i, node := range g.Nodes {
			log := node.Log()
			r.T.Logf("the log of node%d ends:\n%s", i+1, log[max(0, len(log)-6000):])
		}
		r.T.Fatalf("the cluster is not whole after %v, started %v: %v", g.done, started, err)
	}
	if len(started) > 0 {
		r.T.Logf("after %v, started %v", g.done, started)
	}
	return started
}
