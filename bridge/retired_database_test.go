package bridge

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends"
)

// TestRequestsOfAnOlderPlan shows that a request that began before a database was removed gets an error. Before, a
// query of the removed database ended the process.
func TestRequestsOfAnOlderPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := newAddress("BBBBBBBBBBB"), newAddress("CCCCCCCCCCC")
		o := options(from)
		s := start(t, o)
		old := s.config.Load()
		s.reloads(t, with(o, func(o *Options) { o.Databases["main"] = Database{Backend: to} }))
		eventually(t, func() bool { return len(s.config.Load().databases) == 1 })
		db := old.databases[0]
		eventually(t, func() bool { return !db.Uses(from) && db.CurrentInfo() == from.Info() })
		if d := describe(old.Databases[0]); d.Address != from.Info().Address {
			t.Errorf("it is shown as %+v", d)
		}
		if _, err := db.ReplicaStats(t.Context(), ""); !backends.Retryable(err) {
			t.Errorf("stats of it: %v", err)
		}
		if _, err := db.QueuesInDatabase(t.Context(), []backends.Lease{{Job: "1"}}); !backends.Retryable(err) {
			t.Errorf("the queues of its leases: %v", err)
		}
		if db.Adopted("q") || db.ClaimsInTx("q") || db.CheckSettle(backends.Lease{}, nil, true) != nil {
			t.Error("it has adopted tables")
		}
	})
}

// unreadable is a database whose queries for people fail while it is down.
type unreadable struct {
	*address
	down atomic.Bool
}

func (u *unreadable) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	if u.down.Load() {
		return nil, errDown
	}
	return u.address.Stats(ctx, queue)
}

func (u *unreadable) Queues(ctx context.Context, leases []backends.Lease) ([]string, error) {
	if u.down.Load() {
		return nil, errDown
	}
	return u.address.Queues(ctx, leases)
}

// TestRemovedDatabaseIsNotRead shows that a database that was removed, and is down with a lease open in it, doesn't
// keep people from seeing the others.
func TestRemovedDatabaseIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := &unreadable{address: newAddress("BBBBBBBBBBB")}, newAddress("CCCCCCCCCCC")
		o := options(from)
		s := start(t, o)
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"a"}`)
		held := c.claim1("a")
		s.reloads(t, with(o, func(o *Options) { o.Databases["main"] = Database{Backend: to} }))
		c.call(`{"op":"enqueue","queue":"a"}`)
		from.down.Store(true)
		c.call(`{"op":"stats"}`)
		c.call(`{"op":"peek","state":"ready"}`)
		c.call(`{"op":"peek","ids":["1"]}`)
		c.call(`{"op":"ack","lease":%q}`, held.Lease)
	})
}
