package backendtest

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// settlesOfJob are the writes about one claimed job.
var settlesOfJob = map[string]func(j backends.Job) backends.Write{
	"Ack": func(j backends.Job) backends.Write { return backends.Ack{Leases: leasesOf(j)} },
	"AckWithFollowUp": func(j backends.Job) backends.Write {
		return backends.Ack{Leases: leasesOf(j), Enqueue: []backends.NewJob{{Queue: "next"}}}
	},
	"Nack":    func(j backends.Job) backends.Write { return backends.Nack{Leases: leasesOf(j), Error: "no"} },
	"Extend":  func(j backends.Job) backends.Write { return backends.Extend{Leases: leasesOf(j), Lease: time.Minute} },
	"Release": func(j backends.Job) backends.Write { return backends.Release{Leases: leasesOf(j), Owner: me} },
	"Deliver": func(j backends.Job) backends.Write {
		return backends.Deliver{Deliveries: []backends.Delivery{{Lease: j.Lease(), Worker: "w"}}}
	},
}

// lockedRowTests check that the row of a claimed job that another program has locked delays no
// other write.
var lockedRowTests = func() map[string]func(*kit) {
	tests := map[string]func(*kit){
		"LockedRowFailsAWriteAlone": func(k *kit) {
			if k.LockRow == nil {
				return
			}
			k.enqueuePayloads("locked")
			j := k.claimOne()
			unlock := k.LockRow(j.ID)
			b := backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(j)}}, WaitForLocks: true}
			var locked *backends.LockedError
			if _, err := k.Commit(testwait.Context(k), b); !errors.As(err, &locked) {
				k.Errorf("answered %v, want a LockedError", err)
			}
			unlock()
			k.writeLosing(b.Writes[0], 0)
			k.wantNoneReady()
		},
	}
	maps.Copy(tests, lockedKeyTests)
	for name, settle := range settlesOfJob {
		tests["LockedRowOfOne"+name+"DelaysNoOtherWrite"] = func(k *kit) { k.settleBesideLockedRow(settle) }
	}
	return tests
}()

// settleBesideLockedRow commits a settle of a locked row with other writes and a claim. Only that
// settle fails, and succeeds after the row is unlocked.
func (k *kit) settleBesideLockedRow(settle func(j backends.Job) backends.Write) {
	k.Helper()
	if k.LockRow == nil {
		return
	}
	k.enqueuePayloads("locked", "free 1", "free 2", "free 3", "free 4")
	jobs := k.claim(5)
	if len(jobs) != 5 {
		k.Fatalf("%d of 5 jobs were claimed", len(jobs))
	}
	unlock := k.LockRow(jobs[0].ID)
	for _, free := range [][]backends.Job{jobs[1:3], jobs[3:5]} { // the second commit avoids the row at once
		b := k.claimBatch(me, 1, 0, policy("beside"))
		b.Writes = []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{{Queue: "beside"}}},
			backends.Ack{Leases: leasesOf(free[0])},
			settle(jobs[0]),
			backends.Ack{Leases: leasesOf(free[1]), Enqueue: []backends.NewJob{{Queue: "done"}}},
		}
		r, err := k.Commit(testwait.Context(k), b)
		if err != nil {
			k.Fatalf("the commit failed: %v", err)
		}
		for n, w := range r.Writes {
			var locked *backends.LockedError
			if errors.As(w.Err, &locked) != (n == 2) || len(w.Lost) > 0 {
				k.Errorf("write %d: %+v", n, w)
			}
		}
		if k.view(free[0].ID) != nil || k.view(free[1].ID) != nil || len(r.Claims[0].Jobs) != 1 {
			k.Error("the other writes or the claim did not happen")
		}
	}
	unlock()
	if w := k.writeLosing(settle(jobs[0]), 0); w.Err != nil {
		k.Errorf("after the unlock: %v", w.Err)
	}
}

// lockedKeyTests check that a commit never waits for a key while it has other keys locked. An application that stores
// several keys in one transaction, in any order, then never becomes the victim of a deadlock.
var lockedKeyTests = map[string]func(*kit){
	"LockedKeyDelaysNoOtherAck": func(k *kit) {
		k.ackBesideLockedKey(func(j backends.Job) backends.Write { return backends.Ack{Leases: leasesOf(j)} })
	},
	"LockedKeyDelaysNoOtherAckWithFollowUp": func(k *kit) {
		k.ackBesideLockedKey(func(j backends.Job) backends.Write {
			return backends.Ack{Leases: leasesOf(j), Enqueue: []backends.NewJob{{Queue: "next"}}}
		})
	},
	"LockedKeyDelaysNoOtherDeadJob": func(k *kit) {
		k.ackBesideLockedKey(func(j backends.Job) backends.Write {
			return backends.Nack{Leases: leasesOf(j), Error: "no", Dead: true}
		})
	},
	"LockedKeyDelaysNoNack": func(k *kit) {
		if k.Application == nil {
			return
		}
		k.enqueue(keyed("a"))
		j := k.claimOne()
		lock, end := k.Application()
		k.mustLock(lock, "a")
		k.writeLosing(backends.Nack{Leases: leasesOf(j), Error: "no", HasDelay: true}, 0)
		end()
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne())}, 0)
	},
	"WriteOfManyKeysWaitsWithoutLocks": func(k *kit) {
		k.besideApplication(func(jobs []backends.Job) error {
			b := backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(jobs...)}}, WaitForLocks: true}
			_, err := k.Commit(testwait.Context(k), b)
			return err
		})
	},
	"EnqueueOfManyKeysWaitsWithoutLocks": func(k *kit) {
		k.besideApplication(func([]backends.Job) error {
			b := backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{keyed("a"), keyed("b"), keyed("c")}}}, WaitForLocks: true}
			_, err := k.Commit(testwait.Context(k), b)
			return err
		})
	},
	"ApplicationIsNoDeadlockVictim": func(k *kit) {
		if k.Application == nil {
			return
		}
		keys := []string{"a", "b", "c"}
		lock, done := k.Application()
		over := make(chan struct{})
		ended := make(chan int, 1)
		go func() {
			n := 0
			defer func() { ended <- n }()
			for ; ; n++ {
				select {
				case <-over:
					return
				default:
				}
				for _, key := range slices.Backward(keys) {
					if err := lock("q", key); err != nil {
						k.Errorf("transaction %d of the application: %v", n, err)
						return
					}
				}
				done()
			}
		}()
		for range 50 {
			for _, key := range keys {
				k.untilUnlocked(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Key: key}}})
			}
			jobs := k.claim(3)
			slices.Reverse(jobs)
			k.untilUnlocked(backends.Ack{Leases: leasesOf(jobs...)})
		}
		close(over)
		k.Logf("the application committed %d transactions", testwait.Receive(k, "the application", ended))
	},
	"CommandWaitsWithoutLocks": func(k *kit) {
		k.besideApplication(func(jobs []backends.Job) error {
			k.write(backends.Nack{Leases: leasesOf(jobs...), Error: "no", HasDelay: true})
			var ids []string
			for _, j := range jobs {
				ids = append(ids, j.ID)
			}
			_, _, err := k.inspector().Command(testwait.Context(k), backends.Command{Kind: backends.Delete, Queue: "q", IDs: ids})
			return err
		})
	},
}

// untilUnlocked commits a write that another program's lock can be in the way of.
func (k *kit) untilUnlocked(w backends.Write) {
	k.Helper()
	for {
		r, err := k.Commit(testwait.Context(k), backends.CommitContent{Writes: []backends.Write{w}})
		if err == nil {
			err = r.Writes[0].Err
		}
		if _, locked := errors.AsType[*backends.LockedError](err); locked {
			continue
		}
		if err != nil {
			k.Fatal(err)
		}
		return
	}
}

func (k *kit) mustLock(lock func(queue, key string) error, key string) {
	k.Helper()
	if err := lock("q", key); err != nil {
		k.Fatalf("an application's transaction that locks the key %q: %v", key, err)
	}
}

// ackBesideLockedKey ends jobs with keys in one commit while an application has one of the keys locked, and then locks
// the others.
func (k *kit) ackBesideLockedKey(end func(j backends.Job) backends.Write) {
	k.Helper()
	if k.Application == nil {
		return
	}
	k.enqueue(keyed("a"), keyed("b"), keyed("c"))
	jobs := k.claim(3)
	lock, done := k.Application()
	k.mustLock(lock, "b")
	b := backends.CommitContent{Writes: []backends.Write{end(jobs[2]), backends.Enqueue{Jobs: []backends.NewJob{{Queue: "beside"}}}, end(jobs[1]), end(jobs[0])}}
	r, err := k.Commit(testwait.Context(k), b)
	if err != nil {
		k.Fatalf("the commit failed: %v", err)
	}
	for n, w := range r.Writes {
		var locked *backends.LockedError
		if errors.As(w.Err, &locked) != (n == 2) || len(w.Lost) > 0 {
			k.Errorf("write %d: %+v", n, w)
		}
	}
	k.mustLock(lock, "c")
	k.mustLock(lock, "a")
	done()
	if w := k.writeLosing(end(jobs[1]), 0); w.Err != nil {
		k.Errorf("after the application's commit: %v", w.Err)
	}
}

// besideApplication runs change for the claimed jobs with the keys a, b and c, while an application locks these keys in
// the opposite order in one transaction.
func (k *kit) besideApplication(change func(jobs []backends.Job) error) {
	k.Helper()
	if k.Application == nil {
		return
	}
	k.enqueue(keyed("a"), keyed("b"), keyed("c"))
	jobs := k.claim(3)
	slices.Reverse(jobs)
	lock, done := k.Application()
	k.mustLock(lock, "c")
	result := make(chan error, 1)
	go func() {
		for {
			err := change(jobs)
			if _, locked := errors.AsType[*backends.LockedError](err); !locked {
				result <- err
				return
			}
		}
	}()
	k.mustLock(lock, "b")
	k.mustLock(lock, "a")
	done()
	if err := testwait.Receive(k, "the change", result); err != nil {
		k.Errorf("after the application's commit: %v", err)
	}
}
