package cluster

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestCapOnGalera checks that a cap holds while sidecars claim through all nodes of a Galera cluster, which compares only writes.
func TestCapOnGalera(t *testing.T) {
	databases.OwnMySQL(t)
	g, err := testserver.StartGalera(testwait.Context(t), 3, testserver.Options{})
	if !available(t, "Galera", err, func() error { return g.Stop() }) {
		return
	}
	capOverNodes(t, g.Nodes)
}

// TestCapOnMultiPrimary is TestCapOnGalera on a replication group of MySQL whose members all accept writes.
func TestCapOnMultiPrimary(t *testing.T) {
	databases.OwnMySQL(t)
	g, err := testserver.StartGroup(testwait.Context(t), 3, true, testserver.Options{})
	if !available(t, "MySQL group replication", err, func() error { return g.Stop() }) {
		return
	}
	capOverNodes(t, g.Nodes)
}

// capOverNodes runs four workers on a sidecar for each node. No more than the cap of them have a job at a time, and each job is run.
func capOverNodes(t *testing.T, nodes []*testserver.MySQL) {
	const limit = 3
	if err := nodes[0].Exec(t.Context(), "CREATE DATABASE e2e"); err != nil {
		t.Fatal(err)
	}
	s := kit.NewSite(t)
	var hosts []*kit.Sidecar
	for i, node := range nodes {
		s.URL = node.URL("e2e")
		hosts = append(hosts, s.Start(fmt.Sprint("s", i+1)))
	}
	operator := hosts[0].Dial()
	operator.Must(kit.Msg{"op": "limit", "queue": "capped", "max_claimed": limit})
	jobs := kit.Size(400)
	operator.Enqueue("capped", jobs)
	var all sync.WaitGroup
	var running, most, done atomic.Int64
	for _, h := range hosts {
		for range 4 {
			c := h.Dial()
			all.Go(func() {
				for done.Load() < int64(jobs) {
					r, err := c.Call(kit.Msg{"op": "claim", "queue": "capped", "wait_ms": 2000})
					if err != nil {
						t.Error(err)
						return
					}
					for _, j := range r.Jobs { // none after an error, such as a conflict with another node
						now := running.Add(1)
						for {
							if m := most.Load(); now <= m || most.CompareAndSwap(m, now) {
								break
							}
						}
						if now > limit {
							t.Errorf("%d jobs run at a time", now)
						}
						c.Must(kit.Msg{"op": "stats", "queue": "capped"}) // so that jobs overlap
						running.Add(-1)
						settle(t, c, j.Lease)
						done.Add(1)
					}
				}
			})
		}
	}
	all.Wait()
	if most.Load() < limit {
		t.Errorf("%d jobs ran at a time, the cap is %d: it isn't used", most.Load(), limit)
	}
	if n := operator.Must(kit.Msg{"op": "stats", "queue": "capped"}).Queues[0]; n.Ready+n.Claimed > 0 || done.Load() != int64(jobs) {
		t.Errorf("%d of %d jobs ran, and %+v are left", done.Load(), jobs, n)
	}
}

// settle acks a job, again after an error that can pass.
func settle(t *testing.T, c *kit.Conn, lease string) {
	for sent := 0; ; sent++ {
		r, err := c.Call(kit.Msg{"op": "ack", "lease": lease})
		switch {
		case err != nil:
			t.Error(err)
			return
		case r.Error == nil, sent > 0 && r.Error.Code == "lease_lost": // by the ack before
			return
		case r.Error.Code == "lease_lost":
			t.Errorf("a lease was lost: %+v", r.Error)
			return
		}
	}
}
