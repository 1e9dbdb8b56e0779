package backendtest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

var settling = map[string]func(*kit){
	"AckDeletes": func(k *kit) {
		ids := k.put("a")
		k.settle(backends.Ack{Leases: each(k.one())}, 0)
		k.state(ids[0], backends.StateDeleted)
	},
	"Twice": func(k *kit) {
		k.put("a")
		j := k.one()
		k.settle(backends.Ack{Leases: each(j)}, 0)
		k.settle(backends.Ack{Leases: each(j)}, 1)
		k.settle(backends.Nack{Leases: each(j)}, 1)
		k.settle(backends.Release{Leases: each(j), Uncounted: true}, 1)
		k.settle(backends.Extend{Leases: each(j), Bind: me}, 1)
	},
	"TwiceInOneCommit": func(k *kit) {
		k.put("a")
		j := k.one()
		r := k.commit(backends.Batch{Writes: []backends.Write{
			backends.Ack{Leases: each(j)}, backends.Nack{Leases: each(j), HasDelay: true},
		}})
		if len(r.Writes[0].Lost) != 0 || len(r.Writes[1].Lost) != 1 {
			k.Errorf("%+v", r.Writes)
		}
		k.none()
	},
	"FromTwoHandlesAtOnce": func(k *kit) {
		second := k.Again()
		for range 20 {
			k.put("a")
			j := k.one()
			var won atomic.Int64
			var wg sync.WaitGroup
			for _, b := range []backends.Backend{k.Backend, second, k.Backend, second} {
				wg.Go(func() {
					r, err := b.Commit(k.Context(), backends.Batch{Writes: []backends.Write{backends.Ack{Leases: each(j)}}})
					if err != nil {
						k.Error(err)
						return
					}
					won.Add(int64(1 - len(r.Writes[0].Lost)))
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				k.Fatalf("%d acks of one lease succeeded, want 1", won.Load())
			}
		}
	},
	"AStaleTokenAfterANewClaim": func(k *kit) {
		k.put("a")
		old := k.one()
		k.settle(backends.Release{Leases: each(old), Uncounted: true}, 0)
		fresh := k.one()
		for _, w := range []backends.Write{
			backends.Ack{Leases: each(old)}, backends.Nack{Leases: each(old), Dead: true},
			backends.Extend{Leases: each(old), Lease: time.Hour}, backends.Release{Leases: each(old), Cause: backends.CauseDisconnected},
		} {
			k.settle(w, 1)
		}
		k.settle(backends.Ack{Leases: each(fresh)}, 0)
	},
	"AfterAReap": func(k *kit) {
		k.put("a")
		b := k.claims(me, 1, time.Second, policy("q"))
		j := k.commit(b).Claims[0].Jobs[0]
		k.Shift(2 * time.Second)
		k.settle(backends.Extend{Leases: each(j)}, 0) // over, but nobody took it back: still valid
		k.Shift(2 * time.Second)
		k.sweep(backends.Maintenance{})
		k.settle(backends.Ack{Leases: each(j)}, 1)
		if again := k.one(); again.Attempt != 2 {
			k.Errorf("attempt %d, want 2", again.Attempt)
		}
	},
	"HalfAToken": func(k *kit) {
		k.put("a", "b")
		jobs := k.claim(2)
		wrong := []backends.Lease{
			{Job: jobs[0].ID, Token: jobs[1].Token},
			{Job: jobs[1].ID, Token: jobs[0].Token},
			{Job: jobs[0].ID, Token: backends.Token{Host: other, Number: jobs[0].Token.Number}},
			{Job: jobs[0].ID, Token: backends.Token{Host: me}},
			{Job: "0" + jobs[0].ID, Token: jobs[0].Token},
			{Job: "no number", Token: jobs[0].Token},
			{Job: "", Token: jobs[0].Token},
			{Job: "99999999999999999999999", Token: jobs[0].Token},
		}
		k.settle(backends.Ack{Leases: wrong}, len(wrong))
		k.settle(backends.Nack{Leases: wrong, Dead: true}, len(wrong))
		k.settle(backends.Ack{Leases: each(jobs...)}, 0)
	},
	"AListLeavesTheLostOut": func(k *kit) {
		k.put("a", "b", "c")
		jobs := k.claim(3)
		k.settle(backends.Ack{Leases: each(jobs[1])}, 0)
		r := k.settle(backends.Nack{Leases: each(jobs...), HasDelay: true}, 1)
		if r.Lost[0] != lease(jobs[1]) {
			k.Errorf("lost %v, want the second", r.Lost)
		}
		if len(r.MadeReady) != 1 || r.MadeReady[0] != "q" {
			k.Errorf("freed %v, want q once", r.MadeReady)
		}
		k.given(k.claim(9), "a", "c")
	},
	"AckWithEnqueueIsAtomic": func(k *kit) {
		k.put("a")
		j := k.one()
		follow := []backends.NewJob{{Queue: "p", Payload: []byte("1")}, {Queue: "p", Payload: []byte("2"), Delay: time.Hour}}
		r := k.settle(backends.Ack{Leases: each(j), Enqueue: follow}, 0)
		if len(r.Stored) != 2 || len(r.MadeReady) != 1 || r.MadeReady[0] != "p" {
			k.Errorf("stored %v, freed %v", r.Stored, r.MadeReady)
		}
		r = k.settle(backends.Ack{Leases: each(j), Enqueue: follow}, 1)
		if len(r.Stored) != 0 || len(r.MadeReady) != 0 {
			k.Errorf("with a lost lease: stored %v, freed %v", r.Stored, r.MadeReady)
		}
		k.given(k.commit(k.claims(me, 9, 0, policy("p"))).Claims[0].Jobs, "1")
	},
	"AStaleAckStoresNoFollowUp": func(k *kit) {
		k.put("a")
		old := k.one()
		k.settle(backends.Release{Leases: each(old), Uncounted: true}, 0)
		fresh := k.one()
		for _, key := range []string{"", "k"} {
			follow := backends.NewJob{Queue: "p", Key: key, KeyTTL: keyTTL}
			if r := k.settle(backends.Ack{Leases: each(old), Enqueue: []backends.NewJob{follow}}, 1); len(r.Stored) != 0 || len(r.MadeReady) != 0 {
				k.Errorf("with a stale lease and the key %q: stored %v, freed %v", key, r.Stored, r.MadeReady)
			}
		}
		k.given(k.commit(k.claims(me, 9, 0, policy("p"))).Claims[0].Jobs)
		k.settle(backends.Ack{Leases: each(fresh), Enqueue: []backends.NewJob{{Queue: "p", Payload: []byte("follows"), Key: "k", KeyTTL: keyTTL}}}, 0)
		k.given(k.commit(k.claims(me, 9, 0, policy("p"))).Claims[0].Jobs, "follows")
	},
	"AckIsKeptAsTheClaimSaid": func(k *kit) {
		ids := k.put("a", "b", "c")
		p := policy("q")
		p.RetainDone = time.Hour
		jobs := k.commit(k.claims(me, 3, 0, p)).Claims[0].Jobs
		k.settle(backends.Ack{Leases: each(jobs[0]), Result: []byte("r\x00\xff")}, 0)
		k.settle(backends.Ack{Leases: each(jobs[1])}, 0)
		k.settle(backends.Ack{Leases: each(jobs[2]), Result: []byte{}}, 0)
		for i, want := range [][]byte{[]byte("r\x00\xff"), nil, {}} {
			v := k.view(ids[i])
			if v == nil || v.State != backends.StateDone || string(v.Result) != string(want) || (v.Result == nil) != (want == nil) || v.FinishedAt.IsZero() {
				k.Errorf("job %d: %+v, want it done with the result %q (nil: %v)", i, v, want, want == nil)
			}
		}
	},
	"FreedOnlyWhatIsReady": func(k *kit) {
		r := k.write(backends.Enqueue{Jobs: []backends.NewJob{
			{Queue: "p", Delay: time.Hour}, {Queue: "q"}, {Queue: "r", RunAt: time.Now().Add(-time.Hour)}, {Queue: "q"},
		}})
		if len(r.MadeReady) != 2 || r.MadeReady[0] != "q" || r.MadeReady[1] != "r" {
			k.Errorf("freed %v, want q and r", r.MadeReady)
		}
		if r := k.settle(backends.Nack{Leases: each(k.claim(1)...), Delay: time.Second, HasDelay: true}, 0); len(r.MadeReady) != 0 {
			k.Errorf("a delayed nack freed %v", r.MadeReady)
		}
	},
}
