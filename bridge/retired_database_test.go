package bridge

import (
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
		old := s.plan.Load()
		s.reloads(t, with(o, func(o *Options) { o.Databases["main"] = Database{Backend: to} }))
		eventually(t, func() bool { return len(s.plan.Load().databases) == 1 })
		db := old.databases[0]
		eventually(t, func() bool { return !db.Uses(from) && db.CurrentInfo() == from.Info() })
		if d := db.shown(old); d.Address != from.Info().Address {
			t.Errorf("it is shown as %+v", d)
		}
		if _, err := old.stats(t.Context(), "", (*database).ReplicaStats); !backends.Retryable(err) {
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
