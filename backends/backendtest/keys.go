package backendtest

import (
	"errors"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const keyTTL = time.Minute

func keyed(key string) backends.NewJob {
	return backends.NewJob{Queue: "q", Payload: []byte("p"), Key: key, KeyTTL: keyTTL}
}

// again enqueues with the key and checks the answer; "" as id: a new job is made.
func (k *kit) again(key, id string, state backends.State) string {
	k.Helper()
	s := k.write(backends.Enqueue{Jobs: []backends.NewJob{keyed(key)}}).Stored[0]
	switch {
	case id == "" && s.Duplicate:
		k.Fatalf("the key %q was taken by job %s (%s), want a new job", key, s.ID, s.State)
	case id != "" && s != (backends.Stored{ID: id, Duplicate: true, State: state}):
		k.Fatalf("the key %q was answered %+v, want a duplicate of %s, %s", key, s, id, state)
	}
	return s.ID
}

// retryRefused checks that a retry of all is refused and changes nothing.
func (k *kit) retryRefused() {
	k.Helper()
	before := k.stats()
	n, freed, err := k.inspector().Command(k.Context(), backends.Command{Kind: backends.Retry, Queue: "q", All: true})
	if after := k.stats(); !errors.Is(err, backends.ErrKeyTaken) || n != 0 || freed || after.Dead != before.Dead || after.Ready != before.Ready {
		k.Fatalf("retry: %d, %v, left %+v; want ErrKeyTaken and %+v", n, err, after, before)
	}
}

var keys = map[string]func(*kit){
	"ADuplicateIsTheFirstJob": func(k *kit) {
		id := k.again("k", "", "")
		k.again("k", id, backends.StateReady)
		k.Shift(2 * keyTTL) // not finished: it is remembered all the same
		k.again("k", id, backends.StateReady)
		j := k.one()
		if j.Key != "k" {
			k.Errorf("the job came with the key %q", j.Key)
		}
		k.again("k", id, backends.StateClaimed)
	},
	"EqualKeysOfOneCommit": func(k *kit) {
		r := k.commit(backends.Batch{Writes: []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{keyed("k"), keyed("other"), keyed("k")}},
			backends.Enqueue{Jobs: []backends.NewJob{keyed("k")}},
		}})
		first := r.Writes[0].Stored
		for _, s := range []backends.Stored{first[2], r.Writes[1].Stored[0]} {
			if !s.Duplicate || s.ID != first[0].ID || s.State != backends.StateReady {
				k.Errorf("answered %+v, want a duplicate of %s", s, first[0].ID)
			}
		}
		if first[0].Duplicate || first[1].Duplicate || len(k.claim(9)) != 2 {
			k.Errorf("stored %+v", first)
		}
		if len(r.Writes[1].MadeReady) != 0 {
			k.Errorf("a duplicate made %v ready", r.Writes[1].MadeReady)
		}
	},
	"AQueueIsAKeysScope": func(k *kit) {
		a := keyed("k")
		b := keyed("k")
		b.Queue = "p"
		for _, s := range k.write(backends.Enqueue{Jobs: []backends.NewJob{a, b}}).Stored {
			if s.Duplicate {
				k.Errorf("%+v", s)
			}
		}
		k.again("K", "", "") // by bytes: another key
	},
	"RememberedAfterTheAck": func(k *kit) {
		id := k.again("k", "", "")
		k.settle(backends.Ack{Leases: each(k.one())}, 0)
		k.again("k", id, backends.StateDone)
		k.Shift(keyTTL + time.Second)
		k.again("k", "", "")
	},
	"RememberedWhileDead": func(k *kit) {
		id := k.again("k", "", "")
		k.settle(backends.Nack{Leases: each(k.one()), Dead: true}, 0)
		k.again("k", id, backends.StateDead)
		k.Shift(keyTTL + time.Second) // dead is finished
		k.again("k", "", "")
	},
	"RememberedAfterDelete": func(k *kit) {
		id := k.again("k", "", "")
		k.command(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{id}}, 1, false)
		k.again("k", id, backends.StateDeleted)
		k.Shift(keyTTL + time.Second)
		k.again("k", "", "")
	},
	"PrunedOnlyWhenOver": func(k *kit) {
		id := k.again("k", "", "")
		k.sweep(backends.Maintenance{Prune: true})
		k.again("k", id, backends.StateReady)
		k.Shift(keyTTL + time.Second)
		k.sweep(backends.Maintenance{Prune: true})
		k.again("k", id, backends.StateReady)
		k.settle(backends.Ack{Leases: each(k.one())}, 0)
		if r := k.sweep(backends.Maintenance{Prune: true}); r.Pruned != 1 {
			k.Errorf("%d pruned, want the key", r.Pruned)
		}
		k.again("k", "", "")
	},
	"PrunedBesideOthers": func(k *kit) {
		over, unfinished := k.again("over", "", ""), k.again("unfinished", "", "")
		late := keyed("late")
		late.KeyTTL = keyTTL + 2*time.Second
		longer := k.enqueue(late)[0]
		jobs := k.claim(3)
		k.settle(backends.Ack{Leases: each(jobs[0], jobs[2])}, 0)
		k.again("over", over, backends.StateDone)
		k.Shift(keyTTL + time.Second)
		if r := k.sweep(backends.Maintenance{Prune: true}); r.Pruned != 1 {
			k.Errorf("%d pruned, want one key of three", r.Pruned)
		}
		k.again("unfinished", unfinished, backends.StateClaimed)
		k.again("late", longer, backends.StateDone)
		k.again("over", "", "")
	},
	"RetryTakesTheKeyBack": func(k *kit) {
		id := k.again("k", "", "")
		k.settle(backends.Nack{Leases: each(k.one()), Dead: true}, 0)
		k.Shift(keyTTL + time.Second)
		k.sweep(backends.Maintenance{Prune: true})
		k.command(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 1, true)
		k.again("k", id, backends.StateReady)
		k.Shift(keyTTL + time.Second)
		k.again("k", id, backends.StateReady)
	},
	"RetryIsRefusedWhereTheKeyIsTaken": func(k *kit) {
		id := k.again("k", "", "")
		free := k.again("free", "", "")
		k.settle(backends.Nack{Leases: each(k.claim(2)...), Dead: true}, 0)
		k.Shift(keyTTL + time.Second)
		second := k.again("k", "", "")
		n, _, err := k.inspector().Command(k.Context(), backends.Command{Kind: backends.Retry, Queue: "q", IDs: []string{free, id}})
		if !errors.Is(err, backends.ErrKeyTaken) || n != 0 {
			k.Fatalf("retry: %d, %v; want ErrKeyTaken", n, err)
		}
		k.state(id, backends.StateDead)
		k.state(free, backends.StateDead) // as a whole
		k.again("k", second, backends.StateReady)
	},
	"RetryOfManyIsRefusedAsAWhole": func(k *kit) {
		const n = 1100 // more than an engine may do at once
		k.fill(n - 1)
		id := k.again("k", "", "") // the last
		k.settle(backends.Nack{Leases: each(k.claim(n)...), Dead: true}, 0)
		k.Shift(keyTTL + time.Second)
		k.again("k", "", "")
		k.retryRefused()
		k.settle(backends.Ack{Leases: each(k.one())}, 0)
		k.Shift(keyTTL + time.Second)
		k.command(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, n, true)
		k.again("k", id, backends.StateReady)
	},
	"OneKeyOfTwoDeadJobs": func(k *kit) {
		for _, n := range []int{2, 1100} {
			first := k.again("k", "", "")
			k.fill(n - 2)
			k.settle(backends.Nack{Leases: each(k.claim(n)...), Dead: true}, 0)
			for _, pruned := range []bool{false, true} {
				k.Shift(keyTTL + time.Second)
				k.sweep(backends.Maintenance{Prune: pruned})
				if !pruned {
					k.again("k", "", "")
					k.nack(backends.Nack{Dead: true})
				}
				k.Shift(keyTTL + time.Second)
				k.retryRefused()
			}
			k.command(backends.Command{Kind: backends.Retry, Queue: "q", IDs: []string{first}}, 1, true)
			k.again("k", first, backends.StateReady)
			k.retryRefused()
			k.command(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, 1, false)
			k.command(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateDead}, int64(n-1), false)
			k.Shift(keyTTL + time.Second)
		}
	},
	"TwoConnectionsAtOnce": func(k *kit) {
		handles := []backends.Backend{k.Backend, k.Again(), k.Backend, k.Again()}
		for round := range 20 {
			stored := make([]backends.Stored, len(handles))
			var wg sync.WaitGroup
			for i, b := range handles {
				wg.Go(func() {
					j := keyed(numbered(20)[round])
					r, err := b.Commit(k.Context(), backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{j}}}})
					if err != nil {
						k.Error(err)
						return
					}
					stored[i] = r.Writes[0].Stored[0]
				})
			}
			wg.Wait()
			fresh := 0
			for _, s := range stored {
				if s.ID != stored[0].ID {
					k.Errorf("one key made the jobs %s and %s", s.ID, stored[0].ID)
				}
				if !s.Duplicate {
					fresh++
				}
			}
			if fresh != 1 {
				k.Errorf("%d were told that theirs is the first, want 1", fresh)
			}
		}
	},
}
