package backendtest

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

var settleTests = map[string]func(*kit){
	"AckDeletesTheJob": func(k *kit) {
		ids := k.enqueuePayloads("a")
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne())}, 0)
		k.wantState(ids[0], backends.StateDeleted)
	},
	"SecondSettleIsLost": func(k *kit) {
		k.enqueuePayloads("a")
		j := k.claimOne()
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 1)
		k.writeLosing(backends.Nack{Leases: leasesOf(j)}, 1)
		k.writeLosing(backends.Release{Leases: leasesOf(j), Uncounted: true}, 1)
		k.writeLosing(backends.Extend{Leases: leasesOf(j), Bind: me}, 1)
	},
	"SecondSettleInOneCommitIsLost": func(k *kit) {
		k.enqueuePayloads("a")
		j := k.claimOne()
		r := k.commit(backends.CommitContent{Writes: []backends.Write{
			backends.Ack{Leases: leasesOf(j)}, backends.Nack{Leases: leasesOf(j), HasDelay: true},
		}})
		if len(r.Writes[0].Lost) != 0 || len(r.Writes[1].Lost) != 1 {
			k.Errorf("%+v", r.Writes)
		}
		k.wantNoneReady()
	},
	"OneOfConcurrentAcksWins": func(k *kit) {
		second := k.OpenAnother()
		for range 20 {
			k.enqueuePayloads("a")
			j := k.claimOne()
			var won atomic.Int64
			var wg sync.WaitGroup
			for _, b := range []backends.Backend{k.Backend, second, k.Backend, second} {
				wg.Go(func() {
					r, err := b.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(j)}}})
					if err != nil {
						k.Error(err)
						return
					}
					won.Add(k.settled(b, leasesOf(j), r.Writes[0]))
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				k.Fatalf("%d acks of one lease succeeded, want 1", won.Load())
			}
		}
	},
	"StaleTokenSettlesNothing": func(k *kit) {
		k.enqueuePayloads("a")
		old := k.claimOne()
		k.writeLosing(backends.Release{Leases: leasesOf(old), Uncounted: true}, 0)
		fresh := k.claimOne()
		for _, w := range []backends.Write{
			backends.Ack{Leases: leasesOf(old)}, backends.Nack{Leases: leasesOf(old), Dead: true},
			backends.Extend{Leases: leasesOf(old), Lease: time.Hour}, backends.Release{Leases: leasesOf(old), Cause: backends.CauseDisconnected},
		} {
			k.writeLosing(w, 1)
		}
		k.writeLosing(backends.Ack{Leases: leasesOf(fresh)}, 0)
	},
	"ReapedLeaseSettlesNothing": func(k *kit) {
		k.enqueuePayloads("a")
		b := k.claimBatch(me, 1, time.Second, policy("q"))
		j := k.commit(b).Claims[0].Jobs[0]
		k.AdvanceClock(2 * time.Second)
		k.writeLosing(backends.Extend{Leases: leasesOf(j)}, 0) // expired but not reaped: still valid
		k.AdvanceClock(2 * time.Second)
		k.maintain(backends.Maintenance{})
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 1)
		if again := k.claimOne(); again.Attempt != 2 {
			k.Errorf("attempt %d, want 2", again.Attempt)
		}
	},
	"PartOfATokenSettlesNothing": func(k *kit) {
		k.enqueuePayloads("a", "b")
		jobs := k.claim(2)
		wrong := []backends.Lease{
			{Job: jobs[0].ID, Token: jobs[1].Token},
			{Job: jobs[1].ID, Token: jobs[0].Token},
			{Job: jobs[0].ID, Token: backends.Token{Sidecar: other, Number: jobs[0].Token.Number}},
			{Job: jobs[0].ID, Token: backends.Token{Sidecar: me}},
			{Job: "0" + jobs[0].ID, Token: jobs[0].Token},
			{Job: "no number", Token: jobs[0].Token},
			{Job: "", Token: jobs[0].Token},
			{Job: "99999999999999999999999", Token: jobs[0].Token},
		}
		k.writeLosing(backends.Ack{Leases: wrong}, len(wrong))
		k.writeLosing(backends.Nack{Leases: wrong, Dead: true}, len(wrong))
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs...)}, 0)
	},
	"LostLeasesDoNotAffectOthers": func(k *kit) {
		k.enqueuePayloads("a", "b", "c")
		jobs := k.claim(3)
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs[1])}, 0)
		r := k.writeLosing(backends.Nack{Leases: leasesOf(jobs...), HasDelay: true}, 1)
		if r.Lost[0] != jobs[1].Lease() {
			k.Errorf("lost %v, want the second", r.Lost)
		}
		if len(r.MadeReady) != 1 || r.MadeReady[0] != "q" {
			k.Errorf("made ready: %v, want q once", r.MadeReady)
		}
		k.wantJobs(k.claim(9), "a", "c")
	},
	"AckWithEnqueueIsAtomic": func(k *kit) {
		k.enqueuePayloads("a")
		j := k.claimOne()
		follow := []backends.NewJob{{Queue: "p", Payload: []byte("1")}, {Queue: "p", Payload: []byte("2"), Delay: time.Hour}}
		r := k.writeLosing(backends.Ack{Leases: leasesOf(j), Enqueue: follow}, 0)
		if len(r.Stored) != 2 || len(r.MadeReady) != 1 || r.MadeReady[0] != "p" {
			k.Errorf("stored %v, made ready: %v", r.Stored, r.MadeReady)
		}
		r = k.writeLosing(backends.Ack{Leases: leasesOf(j), Enqueue: follow}, 1)
		if len(r.Stored) != 0 || len(r.MadeReady) != 0 {
			k.Errorf("with a lost lease: stored %v, made ready: %v", r.Stored, r.MadeReady)
		}
		k.wantJobs(k.commit(k.claimBatch(me, 9, 0, policy("p"))).Claims[0].Jobs, "1")
	},
	"StaleAckStoresNoFollowUp": func(k *kit) {
		k.enqueuePayloads("a")
		old := k.claimOne()
		k.writeLosing(backends.Release{Leases: leasesOf(old), Uncounted: true}, 0)
		fresh := k.claimOne()
		for _, key := range []string{"", "k"} {
			follow := backends.NewJob{Queue: "p", Key: key, KeyTTL: keyTTL}
			if r := k.writeLosing(backends.Ack{Leases: leasesOf(old), Enqueue: []backends.NewJob{follow}}, 1); len(r.Stored) != 0 || len(r.MadeReady) != 0 {
				k.Errorf("with a stale lease and the key %q: stored %v, made ready: %v", key, r.Stored, r.MadeReady)
			}
		}
		k.wantJobs(k.commit(k.claimBatch(me, 9, 0, policy("p"))).Claims[0].Jobs)
		k.writeLosing(backends.Ack{Leases: leasesOf(fresh), Enqueue: []backends.NewJob{{Queue: "p", Payload: []byte("follows"), Key: "k", KeyTTL: keyTTL}}}, 0)
		k.wantJobs(k.commit(k.claimBatch(me, 9, 0, policy("p"))).Claims[0].Jobs, "follows")
	},
	"SettlesOfOneCommitKeepTheirValues": func(k *kit) {
		results, errs := [][]byte{[]byte("r\x00\xff"), nil, {}}, []string{"it's ?, ? \\", "ключ 🔑", strings.Repeat("x", 5000), "same", "same"}
		ids := k.enqueuePayloads("a", "b", "c", "d", "e", "f", "g", "h")
		p := policy("q")
		p.RetainDone = time.Hour
		var b backends.CommitContent
		for i, j := range k.commit(k.claimBatch(me, 8, 0, p)).Claims[0].Jobs {
			if n := i - len(results); n < 0 {
				b.Writes = append(b.Writes, backends.Ack{Leases: leasesOf(j), Result: results[i]})
			} else {
				b.Writes = append(b.Writes, backends.Nack{Leases: leasesOf(j), Error: errs[n], HasDelay: true, Delay: time.Duration(n) * time.Hour, Dead: n == 4})
			}
		}
		k.commit(b)
		for i, want := range results {
			v := k.view(ids[i])
			if v == nil || v.State != backends.StateDone || string(v.Result) != string(want) || (v.Result == nil) != (want == nil) || v.FinishedAt.IsZero() {
				k.Errorf("job %d: %+v, want it done with the result %q (nil: %v)", i, v, want, want == nil)
			}
		}
		for i, want := range []backends.State{backends.StateReady, backends.StateScheduled, backends.StateScheduled, backends.StateScheduled, backends.StateDead} {
			v, before := k.view(ids[len(results)+i]), k.view(ids[len(results)+i-1])
			if v == nil || v.State != want || len(v.Failures) != 1 || v.Failures[0].Message != errs[i] || before.State == backends.StateScheduled && v.State == before.State && v.RunAt.Sub(before.RunAt) != time.Hour {
				k.Errorf("nack %d: %+v, want it %s with the error %.20q, an hour after the one before", i, v, want, errs[i])
			}
		}
	},
	"MadeReadyListsOnlyReadyJobs": func(k *kit) {
		r := k.write(backends.Enqueue{Jobs: []backends.NewJob{
			{Queue: "p", Delay: time.Hour}, {Queue: "q"}, {Queue: "r", RunAt: time.Now().Add(-time.Hour)}, {Queue: "q"},
		}})
		if len(r.MadeReady) != 2 || r.MadeReady[0] != "q" || r.MadeReady[1] != "r" {
			k.Errorf("made ready: %v, want q and r", r.MadeReady)
		}
		if r := k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(1)...), Delay: time.Second, HasDelay: true}, 0); len(r.MadeReady) != 0 {
			k.Errorf("a delayed nack made ready: %v", r.MadeReady)
		}
	},
}

// withLeases returns a nack or a release of the leases.
func withLeases(w backends.Write, leases []backends.Lease) backends.Write {
	switch w := w.(type) {
	case backends.Nack:
		w.Leases = leases
		return w
	case backends.Release:
		w.Leases = leases
		return w
	}
	panic("backendtest: neither a nack nor a release")
}
