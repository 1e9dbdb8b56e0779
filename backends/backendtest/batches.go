package backendtest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func batcher(k *kit, b backends.Backend) backends.Batcher {
	k.Helper()
	s, ok := b.(backends.Batcher)
	if !ok {
		k.Fatalf("%T isn't a Batcher", b)
	}
	return s
}

// hasBatches reports whether the engine keeps batches.
func (k *kit) hasBatches() bool {
	_, err := batcher(k, k.Backend).Batches(k.Context(), backends.BatchList{Max: 1})
	_, unsupported := errors.AsType[*backends.UnsupportedError](err)
	return !unsupported
}

// callback is a batch whose callback is a job of the queue "callbacks".
func callback(on backends.BatchCondition) backends.NewBatch {
	return backends.NewBatch{On: on, Expire: 30 * 24 * time.Hour, Callback: backends.NewJob{Queue: "callbacks", Payload: []byte("\x00end")}}
}

func (k *kit) openBatch(b backends.NewBatch) (id string) {
	k.Helper()
	id, existing, err := batcher(k, k.Backend).OpenBatch(k.Context(), b)
	if err != nil || existing {
		k.Fatalf("open a batch: %q, existing %v, %v", id, existing, err)
	}
	return id
}

// addMembers stores members of a batch in the queue q.
func (k *kit) addMembers(batch string, n int) (ids []string) {
	k.Helper()
	jobs := make([]backends.NewJob, n)
	for i := range jobs {
		jobs[i] = backends.NewJob{Queue: "q", Payload: []byte(strconv.Itoa(i)), Batch: batch}
	}
	return k.enqueue(jobs...)
}

func (k *kit) closeBatch(id string) {
	k.Helper()
	if err := batcher(k, k.Backend).CloseBatch(k.Context(), "callbacks", id); err != nil {
		k.Fatalf("close: %v", err)
	}
}

// resolve ends what a sidecar finds. ids: only these batches.
func (k *kit) resolve(ids ...string) backends.ResolvedBatches {
	k.Helper()
	r, err := batcher(k, k.Backend).ResolveBatches(k.Context(), ids)
	if err != nil {
		k.Fatalf("resolve: %v", err)
	}
	return r
}

// wantEnded checks which batches end now.
func (k *kit) wantEnded(want ...string) {
	k.Helper()
	k.checkEnded(k.resolve(), want...)
}

func (k *kit) checkEnded(r backends.ResolvedBatches, want ...string) {
	k.Helper()
	var got []string
	for i := range r.Ended {
		got = append(got, r.Ended[i].ID)
	}
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		k.Fatalf("the batches %q ended, want %q", got, want)
	}
}

// batch returns a batch with its jobs.
func (k *kit) batch(id string) backends.Batch {
	k.Helper()
	all, err := batcher(k, k.Backend).Batches(k.Context(), backends.BatchList{ID: id, Max: 2})
	if err != nil || len(all) != 1 {
		k.Fatalf("batch %s: %+v, %v", id, all, err)
	}
	return all[0]
}

// wantBatch checks the state and the members of a batch.
func (k *kit) wantBatch(id string, state backends.BatchState, done, failed, left int64) {
	k.Helper()
	b := k.batch(id)
	if b.State != state || b.Done != done || b.Failed != failed || b.Left != left {
		k.Fatalf("the batch is %s, with %d done, %d failed, %d left, want %s with %d, %d, %d", b.State, b.Done, b.Failed, b.Left, state, done, failed, left)
	}
}

// callbacks returns the headers of the stored callbacks: how many members were done, and how many failed.
func (k *kit) callbacks() (all []string) {
	k.Helper()
	for _, v := range k.views(backends.Peek{Queue: "callbacks", State: backends.StateReady, Max: 100}) {
		if v.Headers[backends.CallbackHeader] == "" {
			k.Fatalf("a callback has the headers %v", v.Headers)
		}
		all = append(all, v.Headers[backends.BatchDoneHeader]+"+"+v.Headers[backends.BatchFailedHeader])
	}
	slices.Sort(all)
	return all
}

func (k *kit) wantCallbacks(want ...string) {
	k.Helper()
	if got := k.callbacks(); !slices.Equal(got, want) {
		k.Fatalf("the callbacks are %q, want %q", got, want)
	}
}

func ackOf(jobs ...backends.Job) backends.Ack { return backends.Ack{Leases: leasesOf(jobs...)} }

// refusedBatch checks that a write doesn't happen because of the state of its batch.
func (k *kit) refusedBatch(w backends.Write, want backends.BatchState) {
	k.Helper()
	r, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{w, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "others"}}}}})
	if err != nil {
		k.Fatal(err)
	}
	e, ok := errors.AsType[*backends.BatchError](r.Writes[0].Err)
	if !ok || e.State != want {
		k.Fatalf("the write returned %v, want that the batch is %q", r.Writes[0].Err, want)
	}
	if r.Writes[1].Err != nil || len(r.Writes[1].Stored) != 1 || len(r.Writes[0].Stored) != 0 {
		k.Fatalf("a refused write and another one: %+v", r.Writes)
	}
}

var batchTests = map[string]func(*kit){
	"StoresTheCallbackOnce": func(k *kit) {
		b := callback(backends.OnSuccess)
		b.Callback.Headers, b.Callback.Priority, b.Callback.MaxAttempts, b.Callback.Timeout = map[string]string{"a": "ü"}, -7, 3, time.Minute
		id := k.openBatch(b)
		if r := k.maintain(backends.Maintenance{}); r.BatchesDue {
			k.Error("an open batch isn't due")
		}
		k.addMembers(id, 3)
		jobs := k.claim(3)
		r := k.commit(backends.CommitContent{Writes: []backends.Write{ackOf(jobs[0], jobs[1])}})
		if !slices.Equal(r.Batches, []string{id}) {
			k.Errorf("an ack of members names the batches %q, want %q", r.Batches, id)
		}
		k.wantEnded()
		k.wantBatch(id, backends.BatchOpen, 2, 0, 1)
		k.closeBatch(id)
		if r := k.maintain(backends.Maintenance{}); !r.BatchesDue {
			k.Error("a closed batch is due")
		}
		if r := k.maintain(backends.Maintenance{Watched: true}); r.BatchesDue {
			k.Error("a sidecar that isn't a watcher searches for batches")
		}
		k.wantEnded()
		k.write(ackOf(jobs[2]))
		got := k.resolve(id)
		k.checkEnded(got, id)
		if !slices.Equal(got.Ready, []string{"callbacks"}) {
			k.Errorf("the callback made %q ready", got.Ready)
		}
		k.wantEnded()
		k.wantCallbacks("3+0")
		k.wantBatch(id, backends.BatchEnded, 3, 0, 0)
		view := k.batch(id)
		j := k.onlyJob(k.claimBatch(me, 1, 0, backends.Policy{Queue: "callbacks", MaxAttempts: 5}))
		if j.ID != view.Callback || string(j.Payload) != "\x00end" || j.Headers["a"] != "ü" || j.Headers[backends.CallbackHeader] != id || j.Priority != -7 || j.MaxAttempts != 3 || j.Timeout != time.Minute {
			k.Errorf("the callback is %+v, of %+v", j, view)
		}
		k.closeBatch(id) // again
		k.wantEnded()
		if r := k.maintain(backends.Maintenance{}); r.BatchesDue {
			k.Error("a batch that has ended isn't due")
		}
	},
	"LastJobsEndAtOnce": func(k *kit) { // on two hosts
		id := k.openBatch(callback(backends.OnFinish))
		k.addMembers(id, 2)
		k.closeBatch(id)
		jobs := k.claim(2)
		second := k.OpenAnother()
		if k.BeforeCommit != nil && k.LockRow != nil { // each commits while the other one's ack isn't visible
			k.BeforeCommit(func() {
				if _, err := second.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{ackOf(jobs[1])}}); err != nil {
					k.Error(err)
				}
				if r, err := batcher(k, second).ResolveBatches(k.Context(), []string{id}); err != nil || len(r.Ended) != 0 {
					k.Errorf("with one of two acks: %+v, %v", r, err)
				}
			})
			k.write(ackOf(jobs[0]))
		} else {
			k.write(ackOf(jobs...))
		}
		start := make(chan struct{})
		var wg sync.WaitGroup
		var mu sync.Mutex
		ended := 0
		for _, b := range []backends.Batcher{batcher(k, k.Backend), batcher(k, second), batcher(k, k.Backend), batcher(k, second)} {
			wg.Go(func() {
				<-start
				r, err := b.ResolveBatches(k.Context(), nil)
				if _, locked := errors.AsType[*backends.LockedError](err); err != nil && !locked { // by the others
					k.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				ended += len(r.Ended)
			})
		}
		close(start)
		wg.Wait()
		if ended += len(k.resolve().Ended); ended != 1 {
			k.Errorf("the batch ended %d times", ended)
		}
		k.wantCallbacks("2+0")
	},
	"ManyHostsEndItOnce": func(k *kit) { // while some of its jobs add others
		id := k.openBatch(callback(backends.OnFinish))
		k.addMembers(id, 30)
		k.closeBatch(id)
		second := k.OpenAnother()
		k.join(second, other)
		var wg sync.WaitGroup
		var added atomic.Int64
		for i, b := range []backends.Backend{k.Backend, second, k.Backend, second} {
			sidecar := me
			if b == second {
				sidecar = other
			}
			wg.Go(func() {
				for n := 0; ; n++ {
					r, err := b.Commit(k.Context(), k.claimBatch(sidecar, 1, 0, policy("q")))
					if err != nil {
						k.Error(err)
						return
					}
					if len(r.Claims[0].Jobs) == 0 {
						break
					}
					ack := ackOf(r.Claims[0].Jobs...)
					if n == i {
						ack.Enqueue = []backends.NewJob{{Queue: "q", Batch: id}}
						added.Add(1)
					}
					for wait := false; ; wait = true {
						r, err = b.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{ack}, WaitForLocks: wait})
						if _, locked := errors.AsType[*backends.LockedError](err); err == nil && r.Writes[0].Err == nil || !locked && err != nil {
							break
						}
					}
					if err != nil {
						k.Error(err)
						return
					}
					_, err = batcher(k, b).ResolveBatches(k.Context(), r.Batches)
					if _, locked := errors.AsType[*backends.LockedError](err); err != nil && !locked { // by the others
						k.Error(err)
					}
				}
			})
		}
		wg.Wait()
		k.resolve() // what was locked
		if got := k.callbacks(); len(got) != 1 {
			k.Errorf("the callbacks are %q", got)
		}
		k.wantBatch(id, backends.BatchEnded, 30+added.Load(), 0, 0)
	},
	"DeadKeepsSuccessOpen": func(k *kit) {
		id, finish := k.openBatch(callback(backends.OnSuccess)), k.openBatch(callback(backends.OnFinish))
		k.addMembers(id, 2)
		k.addMembers(finish, 1)
		k.closeBatch(id)
		k.closeBatch(finish)
		jobs := k.claim(3)
		k.write(ackOf(jobs[0]))
		r := k.commit(backends.CommitContent{Writes: []backends.Write{backends.Nack{Leases: leasesOf(jobs[1:]...), Dead: true}}})
		if len(r.Batches) != 2 {
			k.Errorf("dead members of the batches %q", r.Batches)
		}
		k.wantEnded(finish)
		k.wantCallbacks("0+1")
		k.wantBatch(id, backends.BatchClosed, 1, 1, 0)
		if b := k.batch(id); len(b.Jobs) != 1 || b.Jobs[0] != (backends.BatchJob{ID: jobs[1].ID, Queue: "q", State: backends.StateDead}) {
			k.Errorf("the jobs of the batch are %+v", b.Jobs)
		}
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", IDs: []string{jobs[1].ID, jobs[2].ID}}, 2, true)
		k.wantBatch(id, backends.BatchClosed, 1, 0, 1)
		k.wantEnded()
		k.write(ackOf(k.claim(2)...))
		k.wantEnded(id) // and the other one never again
		k.wantCallbacks("0+1", "2+0")
	},
	"CountsEachEnd": func(k *kit) { // however a job ended
		id := k.openBatch(callback(backends.OnFinish))
		ids := k.addMembers(id, 8)
		jobs := k.commit(k.claimBatch(me, 5, 0, backends.Policy{Queue: "q", MaxAttempts: 1, RetainDone: time.Hour, RetainDead: time.Hour})).Claims[0].Jobs
		byID := map[string]backends.Job{}
		for _, j := range jobs {
			byID[j.ID] = j
		}
		k.closeBatch(id)
		k.write(ackOf(byID[ids[0]])) // kept
		k.write(backends.Nack{Leases: leasesOf(byID[ids[1]])})
		k.write(backends.Release{Leases: leasesOf(byID[ids[2]]), Cause: backends.CauseDisconnected, Owner: me})
		k.operate(backends.Command{Kind: backends.Cancel, Queue: "q", IDs: []string{ids[3], ids[5]}, RetainDead: time.Hour}, 2, false)
		k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{ids[6]}}, 1, false)
		k.wantBatch(id, backends.BatchClosed, 1, 5, 2)
		k.AdvanceClock(2 * time.Hour)
		k.maintain(backends.Maintenance{Prune: true}) // deletes all that ended
		k.wantBatch(id, backends.BatchClosed, 1, 5, 2)
		k.wantEnded()
		k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, 1, false)
		k.write(ackOf(byID[ids[4]]))
		k.wantEnded(id)
		k.wantCallbacks("2+6")
	},
	"ReapedMembersFail": func(k *kit) {
		id := k.openBatch(callback(backends.OnFinish))
		k.addMembers(id, 1)
		k.closeBatch(id)
		k.onlyJob(k.claimBatch(me, 1, time.Second, backends.Policy{Queue: "q", MaxAttempts: 1}))
		k.AdvanceClock(2 * time.Second)
		k.maintain(backends.Maintenance{})
		k.wantEnded(id)
		k.wantCallbacks("0+1")
	},
	"EmptyEndsAtOnce": func(k *kit) {
		id := k.openBatch(callback(backends.OnSuccess))
		k.wantEnded()
		k.closeBatch(id)
		k.closeBatch(id)
		k.checkEnded(k.resolve(id), id)
		k.closeBatch(id)
		k.wantEnded()
		k.wantCallbacks("0+0")
	},
	"DuplicatesAreNoMembers": func(k *kit) {
		id := k.openBatch(callback(backends.OnSuccess))
		keyed := backends.NewJob{Queue: "q", Key: "k", KeyTTL: time.Hour}
		k.enqueue(keyed)
		member := keyed
		member.Batch = id
		k.write(backends.Enqueue{Jobs: []backends.NewJob{member, {Queue: "q", Key: "other", KeyTTL: time.Hour, Batch: id}, {Queue: "q", Key: "other", KeyTTL: time.Hour, Batch: id}}})
		k.wantBatch(id, backends.BatchOpen, 0, 0, 1)
	},
	"OnlyMembersAddAfterTheClose": func(k *kit) {
		id := k.openBatch(callback(backends.OnSuccess))
		k.addMembers(id, 1)
		k.closeBatch(id)
		more := backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Batch: id}}}
		k.refusedBatch(more, backends.BatchClosed) // the member waits
		k.refusedBatch(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Batch: "12"}}}, "")
		k.refusedBatch(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Batch: "nonsense"}}}, "")
		j := k.claimOne()
		k.enqueue(more.Jobs...)
		k.write(backends.Ack{Leases: leasesOf(j), Enqueue: more.Jobs}) // with the end of the member
		k.wantEnded()
		k.wantBatch(id, backends.BatchClosed, 1, 0, 2)
		jobs := k.claim(2)
		other := k.openBatch(callback(backends.OnSuccess))
		k.closeBatch(other)
		k.wantEnded(other)
		k.refusedBatch(backends.Ack{Leases: leasesOf(jobs[0]), Enqueue: []backends.NewJob{{Queue: "q", Batch: other}}}, backends.BatchEnded)
		k.wantState(jobs[0].ID, backends.StateClaimed)
		k.write(ackOf(jobs...))
		k.wantEnded(id)
		k.refusedBatch(more, backends.BatchEnded)
		k.wantCallbacks("0+0", "3+0")
	},
	"KeysNameBatches": func(k *kit) {
		b := callback(backends.OnSuccess)
		b.Key = "import"
		id := k.openBatch(b)
		again, existing, err := batcher(k, k.Backend).OpenBatch(k.Context(), b)
		if again != id || !existing || err != nil {
			k.Errorf("a second batch with the key: %s, %v, %v, want %s", again, existing, err, id)
		}
		b.Callback.Queue = "others"
		if k.openBatch(b) == id {
			k.Error("a key belongs to one queue")
		}
		if err := batcher(k, k.Backend).CloseBatch(k.Context(), "others", id); err == nil {
			k.Error("a batch is closed by another queue")
		}
	},
	"ChildrenAreMembers": func(k *kit) {
		parent := k.openBatch(callback(backends.OnSuccess))
		c := callback(backends.OnFinish)
		c.Callback.Batch, c.Callback.Queue = parent, "q"
		child, cancelled := k.openBatch(c), k.openBatch(c)
		k.closeBatch(parent)
		k.wantEnded()
		k.wantBatch(parent, backends.BatchClosed, 0, 0, 2)
		if b := k.batch(parent); len(b.Jobs) != 2 || b.Jobs[0].Batch == "" {
			k.Errorf("the jobs of the parent are %+v", b.Jobs)
		}
		k.closeQueue("q", child)
		k.wantEnded(child)
		k.wantBatch(parent, backends.BatchClosed, 0, 0, 2)
		j := k.claimOne()
		if j.Headers[backends.BatchHeader] != parent || j.Headers[backends.CallbackHeader] != child {
			k.Errorf("the child's callback has the headers %v", j.Headers)
		}
		k.write(ackOf(j))
		k.wantEnded()
		if r, err := batcher(k, k.Backend).CancelBatch(k.Context(), backends.BatchCancel{Queue: "q", ID: cancelled}); err != nil || r.State != backends.BatchCancelled {
			k.Errorf("cancel: %+v, %v", r, err)
		}
		k.wantBatch(parent, backends.BatchClosed, 1, 1, 0)
		k.wantEnded()
		k.wantCallbacks()
	},
	"CancelCancelsJobs": func(k *kit) {
		parent := k.openBatch(callback(backends.OnFinish))
		c := callback(backends.OnFinish)
		c.Callback.Batch = parent
		child := k.openBatch(c)
		ids := append(k.addMembers(parent, 3), k.addMembers(child, 1)...)
		jobs := k.claim(2)
		k.write(ackOf(jobs[0]))
		k.closeBatch(parent)
		var ended []backends.Token
		var cancelled []string
		r, err := batcher(k, k.Backend).CancelBatch(k.Context(), backends.BatchCancel{
			Queue: "callbacks", ID: parent, RetainDead: func(string) time.Duration { return time.Hour },
			Cancelled: func(j backends.CancelledJobs) {
				ended, cancelled = append(ended, j.Claims...), append(cancelled, j.IDs...)
				if j.Queue != "q" || j.Jobs != int64(len(j.IDs)) {
					k.Errorf("cancelled: %+v", j)
				}
			},
		})
		if err != nil || r.Jobs != 3 || r.State != backends.BatchCancelled || len(ended) != 1 {
			k.Fatalf("cancel: %+v, %v, %d claims ended", r, err, len(ended))
		}
		slices.Sort(cancelled)
		if !slices.Equal(cancelled, slices.Sorted(slices.Values(ids[1:]))) {
			k.Errorf("cancelled %q, want %q", cancelled, ids[1:])
		}
		for _, id := range ids[1:] {
			k.wantState(id, backends.StateDead)
		}
		k.wantBatch(parent, backends.BatchCancelled, 1, 3, 0)
		k.wantBatch(child, backends.BatchCancelled, 0, 1, 0)
		k.refusedBatch(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Batch: parent}}}, backends.BatchCancelled)
		k.wantEnded()
		k.wantCallbacks()
		if r, err := batcher(k, k.Backend).CancelBatch(k.Context(), backends.BatchCancel{Queue: "callbacks", ID: parent}); err != nil || r.Jobs != 0 {
			k.Errorf("again: %+v, %v", r, err)
		}
	},
	"FindsEndsWithoutNotes": func(k *kit) { // among many batches
		const n = 25
		ids := make([]string, n)
		jobs := make([]backends.NewJob, n)
		for i := range ids {
			ids[i] = k.openBatch(callback(backends.OnFinish))
			jobs[i] = backends.NewJob{Queue: "q", Batch: ids[i]}
		}
		members := k.enqueue(jobs...)
		for _, id := range ids {
			k.closeBatch(id)
		}
		k.wantEnded()
		number := func(i, j int) int {
			return cmp.Or(cmp.Compare(len(ids[i]), len(ids[j])), cmp.Compare(ids[i], ids[j]))
		}
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, number)
		first, last := order[0], order[n-1]
		k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{members[first], members[last]}}, 2, false)
		r, err := batcher(k, k.OpenAnother()).ResolveBatches(k.Context(), nil) // of a new sidecar
		if err != nil {
			k.Fatal(err)
		}
		k.checkEnded(r, ids[first], ids[last])
	},
	"NotesOfManyCommits": func(k *kit) {
		id := k.openBatch(callback(backends.OnSuccess))
		k.addMembers(id, 8)
		for _, n := range []int{1, 2, 4} {
			for _, j := range k.claim(n) {
				k.write(ackOf(j))
			}
			k.wantEnded()
			if r := k.maintain(backends.Maintenance{}); r.BatchesDue {
				k.Errorf("a call left some of %d notes", n)
			}
		}
		k.closeBatch(id)
		k.write(ackOf(k.claimOne()))
		k.wantEnded(id)
	},
	"CallbacksOfGroups": func(k *kit) {
		b := callback(backends.OnFinish)
		b.Callback.Group = "a"
		id, _, err := batcher(k, k.Backend).OpenBatch(k.Context(), b)
		if !k.hasGroups() {
			if u, ok := errors.AsType[*backends.UnsupportedError](err); !ok || !u.NoGroups {
				k.Errorf("a callback with a group, without groups: %v", err)
			}
			return
		}
		if err != nil {
			k.Fatal(err)
		}
		k.closeBatch(id)
		k.wantEnded(id)
		k.maintain(backends.Maintenance{}) // admits it
		if all := k.views(backends.Peek{Queue: "callbacks", State: backends.StateReady, Max: 2}); len(all) != 1 || all[0].Group != "a" {
			k.Errorf("the callbacks are %+v", all)
		}
	},
	"CancelFreesGroups": func(k *kit) {
		if !k.hasGroups() {
			return
		}
		id := k.openBatch(callback(backends.OnFinish))
		first := member("a1")
		first.Batch = id
		k.enqueue(first, member("a2"))
		k.wantNext("a1")
		freed := 0
		if _, err := batcher(k, k.Backend).CancelBatch(k.Context(), backends.BatchCancel{Queue: "callbacks", ID: id, Cancelled: func(j backends.CancelledJobs) {
			if j.Freed {
				freed++
			}
		}}); err != nil || freed != 1 {
			k.Errorf("cancel: %v; %d calls freed others", err, freed)
		}
		k.wantNext("a2")
	},
	"Expire": func(k *kit) {
		open, closed := k.openBatch(callback(backends.OnSuccess)), k.openBatch(callback(backends.OnSuccess))
		k.addMembers(open, 1)
		k.addMembers(closed, 1)
		k.closeBatch(closed)
		empty := k.openBatch(callback(backends.OnSuccess))
		k.closeBatch(empty)
		k.wantEnded(empty)
		k.AdvanceClock(30 * 24 * time.Hour)
		if r := k.maintain(backends.Maintenance{}); !r.BatchesDue {
			k.Error("a batch whose time is over is due")
		}
		r := k.resolve()
		if len(r.Expired) != 2 || len(r.Ended) != 0 {
			k.Errorf("resolved: %+v, want that two batches expired", r)
		}
		all, err := batcher(k, k.Backend).Batches(k.Context(), backends.BatchList{Max: 10})
		if err != nil || len(all) != 0 {
			k.Errorf("left: %+v, %v", all, err)
		}
		k.write(ackOf(k.claim(2)...)) // jobs go on without their batch
		k.wantEnded()
		if r := k.maintain(backends.Maintenance{}); r.BatchesDue {
			k.Error("notes of a batch that is gone stay")
		}
		k.wantCallbacks("0+0")
	},
	"LostReplies": func(k *kit) {
		id := k.openBatch(callback(backends.OnSuccess))
		k.addMembers(id, 1)
		k.closeBatch(id)
		j := k.claimOne()
		k.LoseCommit(false)
		if _, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{ackOf(j)}}); err != nil && !errors.Is(err, backends.ErrUnknownOutcome) {
			k.Fatal(err)
		}
		if r := k.maintain(backends.Maintenance{}); !r.BatchesDue { // the sidecar was killed before it resolved the batch
			k.Error("a batch whose last job ended is due")
		}
		k.LoseCommit(false)
		if _, err := batcher(k, k.OpenAnother()).ResolveBatches(k.Context(), nil); err != nil && !errors.Is(err, backends.ErrUnknownOutcome) {
			k.Fatal(err)
		}
		k.resolve()
		k.wantCallbacks("1+0")
	},
	"Lists": func(k *kit) {
		var ids []string
		for i := range 5 {
			b := callback(backends.OnFinish)
			b.Callback.Queue = fmt.Sprint("callbacks", i%2)
			ids = append(ids, k.openBatch(b))
		}
		k.closeQueue("callbacks0", ids[0])
		k.wantEnded(ids[0])
		list := func(l backends.BatchList) (found []string) {
			all, err := batcher(k, k.Backend).Batches(k.Context(), l)
			if err != nil {
				k.Fatal(err)
			}
			for i := range all {
				found = append(found, all[i].ID)
			}
			return found
		}
		pages := list(backends.BatchList{Max: 3})
		pages = append(pages, list(backends.BatchList{Max: 3, After: pages[2]})...)
		if slices.Sort(pages); !slices.Equal(pages, slices.Sorted(slices.Values(ids))) {
			k.Errorf("pages of batches: %q, want %q", pages, ids)
		}
		if got := list(backends.BatchList{Max: 9, Queue: "callbacks1"}); len(got) != 2 {
			k.Errorf("of one queue: %q", got)
		}
		if got := list(backends.BatchList{Max: 9, Queue: "callbacks0", Active: true}); len(got) != 2 {
			k.Errorf("active ones of a queue: %q", got)
		}
		if got := list(backends.BatchList{Max: 9, Active: true}); len(got) != 4 {
			k.Errorf("active ones: %q", got)
		}
		if got := list(backends.BatchList{States: []string{ids[0], ids[1], "nonsense"}}); len(got) != 2 {
			k.Errorf("states: %q", got)
		}
	},
	"ManyJobs": func(k *kit) {
		n := 300 // make soak has more
		if os.Getenv("QSIDECAR_SOAK") != "" {
			n = 10_000
		}
		id := k.openBatch(callback(backends.OnSuccess))
		for left := n; left > 0; left -= 1000 {
			k.addMembers(id, min(left, 1000))
		}
		k.closeBatch(id)
		for done := 0; done < n; {
			jobs := k.claim(min(100, n-done))
			done += len(jobs)
			k.write(ackOf(jobs...))
			r := k.resolve(id)
			if done < n {
				k.checkEnded(r)
			} else {
				k.checkEnded(r, id)
			}
		}
		k.wantCallbacks(fmt.Sprintf("%d+0", n))
	},
}

// closeQueue closes a batch whose callback is in a queue.
func (k *kit) closeQueue(queue, id string) {
	k.Helper()
	if err := batcher(k, k.Backend).CloseBatch(k.Context(), queue, id); err != nil {
		k.Fatalf("close: %v", err)
	}
}

// promotesWithoutBatches is promotesWithout for the table of batches, if the engine has it.
func (k *kit) promotesWithoutBatches() {
	k.Helper()
	if k.hasBatches() {
		k.promotesWithout("batches")
	}
}
