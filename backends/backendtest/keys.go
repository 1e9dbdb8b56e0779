package backendtest

import (
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const keyTTL = time.Minute

func keyed(key string) backends.NewJob {
	return backends.NewJob{Queue: "q", Payload: []byte("p"), Key: key, KeyTTL: keyTTL}
}

// enqueueKey enqueues a job with the key and checks the answer. If id is empty, the job must be
// new.
func (k *kit) enqueueKey(key, id string, state backends.State) string {
	k.Helper()
	s := k.write(backends.Enqueue{Jobs: []backends.NewJob{keyed(key)}}).Stored[0]
	switch {
	case id == "" && s.Duplicate:
		k.Fatalf("the key %q belongs to job %s (%s), want a new job", key, s.ID, s.State)
	case id != "" && s != (backends.Stored{ID: id, Duplicate: true, State: state}):
		k.Fatalf("enqueue with key %q: %+v, want a duplicate of %s, %s", key, s, id, state)
	}
	return s.ID
}

// retryLeaving retries jobs, and checks how many are ready then and which stay dead because another job has their key.
func (k *kit) retryLeaving(c backends.Command, count int64, left ...string) {
	k.Helper()
	var got []string
	c.Kind, c.Queue = backends.Retry, "q"
	c.Unchanged = func(jobs []backends.JobState) {
		for _, j := range jobs {
			if got = append(got, j.ID); j.State != backends.StateDead {
				k.Errorf("unchanged: %+v, want a dead job", j)
			}
		}
	}
	k.operate(c, count, count > 0)
	if !slices.Equal(got, left) {
		k.Errorf("unchanged: %q, want %q", got, left)
	}
	for _, id := range left {
		k.wantState(id, backends.StateDead)
	}
}

var keyTests = map[string]func(*kit){
	"DuplicateReturnsTheFirstJob": func(k *kit) {
		id := k.enqueueKey("k", "", "")
		k.enqueueKey("k", id, backends.StateReady)
		k.AdvanceClock(2 * keyTTL) // an unfinished job keeps its key after the TTL
		k.enqueueKey("k", id, backends.StateReady)
		j := k.claimOne()
		if j.Key != "k" {
			k.Errorf("the job came with the key %q", j.Key)
		}
		k.enqueueKey("k", id, backends.StateClaimed)
	},
	"EqualKeysInOneCommitStoreOneJob": func(k *kit) {
		r := k.commit(backends.CommitContent{Writes: []backends.Write{
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
	"KeysArePerQueue": func(k *kit) {
		a := keyed("k")
		b := keyed("k")
		b.Queue = "p"
		for _, s := range k.write(backends.Enqueue{Jobs: []backends.NewJob{a, b}}).Stored {
			if s.Duplicate {
				k.Errorf("%+v", s)
			}
		}
		k.enqueueKey("K", "", "") // keys compare by bytes
	},
	"KeyIsRememberedAfterTheAck": func(k *kit) {
		id := k.enqueueKey("k", "", "")
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne())}, 0)
		k.enqueueKey("k", id, backends.StateDone)
		k.AdvanceClock(keyTTL + time.Second)
		k.enqueueKey("k", "", "")
	},
	"KeyOfADeadJobIsRememberedForItsTTL": func(k *kit) {
		id := k.enqueueKey("k", "", "")
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claimOne()), Dead: true}, 0)
		k.enqueueKey("k", id, backends.StateDead)
		k.AdvanceClock(keyTTL + time.Second) // a dead job is finished
		k.enqueueKey("k", "", "")
	},
	"KeyIsRememberedAfterDelete": func(k *kit) {
		id := k.enqueueKey("k", "", "")
		k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{id}}, 1, false)
		k.enqueueKey("k", id, backends.StateDeleted)
		k.AdvanceClock(keyTTL + time.Second)
		k.enqueueKey("k", "", "")
	},
	"KeyIsPrunedOnceFinishedAndExpired": func(k *kit) {
		id := k.enqueueKey("k", "", "")
		k.maintain(backends.Maintenance{Prune: true})
		k.enqueueKey("k", id, backends.StateReady)
		k.AdvanceClock(keyTTL + time.Second)
		k.maintain(backends.Maintenance{Prune: true})
		k.enqueueKey("k", id, backends.StateReady)
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne())}, 0)
		if r := k.maintain(backends.Maintenance{Prune: true}); r.Pruned != 1 {
			k.Errorf("%d pruned, want the key", r.Pruned)
		}
		k.enqueueKey("k", "", "")
	},
	"PruneLeavesOtherKeys": func(k *kit) {
		over, unfinished := k.enqueueKey("over", "", ""), k.enqueueKey("unfinished", "", "")
		late := keyed("late")
		late.KeyTTL = keyTTL + 2*time.Second
		longer := k.enqueue(late)[0]
		jobs := k.claim(3)
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs[0], jobs[2])}, 0)
		k.enqueueKey("over", over, backends.StateDone)
		k.AdvanceClock(keyTTL + time.Second)
		if r := k.maintain(backends.Maintenance{Prune: true}); r.Pruned != 1 {
			k.Errorf("%d pruned, want one key of three", r.Pruned)
		}
		k.enqueueKey("unfinished", unfinished, backends.StateClaimed)
		k.enqueueKey("late", longer, backends.StateDone)
		k.enqueueKey("over", "", "")
	},
	"PruneOfAJobLeavesItsKey": func(k *kit) { // also if the key is locked
		p := policy("q")
		p.RetainDone = time.Second
		id := k.enqueueKey("k", "", "")
		k.writeLosing(backends.Ack{Leases: leasesOf(k.commit(k.claimBatch(me, 1, 0, p)).Claims[0].Jobs...)}, 0)
		k.AdvanceClock(2 * time.Second)
		end := func() {}
		if k.Application != nil {
			var lock func(queue, key string) error
			lock, end = k.Application()
			k.mustLock(lock, "k")
		}
		if r := k.maintain(backends.Maintenance{Prune: true}); r.Pruned != 1 {
			k.Errorf("%d pruned, want the job", r.Pruned)
		}
		end()
		k.enqueueKey("k", id, backends.StateDone)
	},
	"RetryReclaimsTheKey": func(k *kit) {
		id := k.enqueueKey("k", "", "")
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claimOne()), Dead: true}, 0)
		k.AdvanceClock(keyTTL + time.Second)
		k.maintain(backends.Maintenance{Prune: true})
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 1, true)
		k.enqueueKey("k", id, backends.StateReady)
		k.AdvanceClock(keyTTL + time.Second)
		k.enqueueKey("k", id, backends.StateReady)
	},
	"RetryLeavesJobsWhoseKeyIsTaken": func(k *kit) {
		id := k.enqueueKey("k", "", "")
		free := k.enqueueKey("free", "", "")
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(2)...), Dead: true}, 0)
		k.AdvanceClock(keyTTL + time.Second)
		second := k.enqueueKey("k", "", "")
		k.retryLeaving(backends.Command{IDs: []string{id}}, 0, id)
		k.retryLeaving(backends.Command{IDs: []string{free, id}}, 1, id)
		k.wantState(free, backends.StateReady)
		k.enqueueKey("k", second, backends.StateReady)
	},
	"RetryOfAllLeavesJobsWhoseKeyIsTaken": func(k *kit) {
		for _, n := range []int{3, 1100} { // the second is more than an engine changes in one transaction
			k.enqueueMany(n - 1)
			id := k.enqueueKey("k", "", "") // the last of them
			k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(n)...), Dead: true}, 0)
			k.AdvanceClock(keyTTL + time.Second)
			k.enqueueKey("k", "", "")
			k.retryLeaving(backends.Command{All: true}, int64(n-1), id)
			k.retryLeaving(backends.Command{All: true}, 0, id)
			k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, int64(n), false)
			k.AdvanceClock(keyTTL + time.Second)
			k.retryLeaving(backends.Command{All: true}, 1)
			k.enqueueKey("k", id, backends.StateReady)
			k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, 1, false)
			k.AdvanceClock(keyTTL + time.Second)
		}
	},
	"RetryOfDeadJobsThatShareAKeyRetriesOne": func(k *kit) {
		for _, all := range []bool{false, true} {
			for _, pruned := range []bool{false, true} {
				first := k.enqueueKey("k", "", "")
				k.nackOne(backends.Nack{Dead: true})
				k.AdvanceClock(keyTTL + time.Second)
				second := k.enqueueKey("k", "", "")
				k.nackOne(backends.Nack{Dead: true})
				k.AdvanceClock(keyTTL + time.Second)
				k.maintain(backends.Maintenance{Prune: pruned})
				c := backends.Command{All: true}
				if !all {
					c = backends.Command{IDs: []string{first, second}}
				}
				k.retryLeaving(c, 1, second)
				k.enqueueKey("k", first, backends.StateReady)
				k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{first, second}}, 2, false)
				k.AdvanceClock(keyTTL + time.Second)
			}
		}
	},
	"ConcurrentEnqueuesStoreOneJob": func(k *kit) {
		handles := []backends.Backend{k.Backend, k.OpenAnother(), k.Backend, k.OpenAnother()}
		for round := range 20 {
			stored := make([]backends.Stored, len(handles))
			var wg sync.WaitGroup
			for i, b := range handles {
				wg.Go(func() {
					j := keyed(numbered(20)[round])
					r, err := b.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{j}}}})
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
				k.Errorf("%d enqueues were answered as the first, want 1", fresh)
			}
		}
	},
}
