package backendtest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// replacesContent reports whether keys of the engine can be free at the start, and whether jobs can replace others. If they can't, the error has
// the reason.
func (k *kit) replacesContent() bool {
	k.Helper()
	for _, j := range []backends.NewJob{{KeyUntilStart: true}, {OnConflict: backends.ConflictReplace}} {
		j.Queue, j.Key = "p", "probe"
		r, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{j}}}})
		if u, ok := errors.AsType[*backends.UnsupportedError](err); ok {
			if !u.NoReplace || u.Queue != "p" {
				k.Fatalf("an engine whose jobs replace no others answers %v", err)
			}
			return false
		}
		if err != nil {
			k.Fatal(err)
		}
		k.operate(backends.Command{Kind: backends.Delete, Queue: "p", IDs: []string{r.Writes[0].Stored[0].ID}}, 1, false)
	}
	return true
}

// contentOf is a job of "q" with the key "k".
func contentOf(payload string, c backends.OnConflict) backends.NewJob {
	return backends.NewJob{Queue: "q", Payload: []byte(payload), Key: "k", KeyTTL: keyTTL, OnConflict: c, Headers: map[string]string{"h": payload}}
}

func replacing(payload string) backends.NewJob { return contentOf(payload, backends.ConflictReplace) }

// wantStored enqueues a job and checks the answer, which has the id of the first one if want is a duplicate.
func (k *kit) wantStored(j backends.NewJob, want backends.Stored) string {
	k.Helper()
	s := k.write(backends.Enqueue{Jobs: []backends.NewJob{j}}).Stored[0]
	if !want.Duplicate {
		want.ID = s.ID
	}
	if s != want || s.ID == "" {
		k.Fatalf("enqueue of %q with on_conflict %q: %+v, want %+v", j.Payload, j.OnConflict, s, want)
	}
	return s.ID
}

func replaced(id string, s backends.State) backends.Stored {
	return backends.Stored{ID: id, Duplicate: true, State: s, Outcome: backends.OutcomeReplaced}
}

func pendingAt(id string) backends.Stored {
	return backends.Stored{ID: id, Duplicate: true, State: backends.StateClaimed, Outcome: backends.OutcomePending}
}

// wantContent checks a job's state, payload and header.
func (k *kit) wantContent(id string, s backends.State, payload string) {
	k.Helper()
	v := k.view(id)
	if v == nil || v.State != s || string(v.Payload) != payload || len(v.Headers) != 1 || v.Headers["h"] != payload || v.Key != "k" {
		k.Fatalf("job %s: %+v, want %s with the content %q", id, v, s, payload)
	}
}

// operatePending is operate for a command that ends one claim. It returns the pending job that became one of its own.
func (k *kit) operatePending(c backends.Command) (all []backends.StoredPending) {
	k.Helper()
	c.Pending = func(stored []backends.StoredPending) { all = append(all, stored...) }
	k.operate(c, 1, true)
	return all
}

// endings are the ends of a claim. Those that leave the job as it is put the pending content into it.
var endings = map[string]struct {
	stays backends.State // empty: the pending job is stored
	end   func(k *kit, j backends.Job) []backends.StoredPending
}{
	"Ack": {"", func(k *kit, j backends.Job) []backends.StoredPending {
		return k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0).Pending
	}},
	"Nack": {backends.StateScheduled, func(k *kit, j backends.Job) []backends.StoredPending {
		return k.writeLosing(backends.Nack{Leases: leasesOf(j), Error: "x"}, 0).Pending
	}},
	"NackAtOnce": {backends.StateReady, func(k *kit, j backends.Job) []backends.StoredPending {
		return k.writeLosing(backends.Nack{Leases: leasesOf(j), HasDelay: true}, 0).Pending
	}},
	"NackDead": {"", func(k *kit, j backends.Job) []backends.StoredPending {
		return k.writeLosing(backends.Nack{Leases: leasesOf(j), Dead: true}, 0).Pending
	}},
	"Snooze": {backends.StateScheduled, func(k *kit, j backends.Job) []backends.StoredPending {
		return k.writeLosing(backends.Nack{Leases: leasesOf(j), Snooze: true}, 0).Pending
	}},
	"Release": {backends.StateReady, func(k *kit, j backends.Job) []backends.StoredPending {
		return k.writeLosing(backends.Release{Leases: leasesOf(j), Uncounted: true}, 0).Pending
	}},
	"ReleaseCounted": {backends.StateReady, func(k *kit, j backends.Job) []backends.StoredPending {
		return k.writeLosing(backends.Release{Leases: leasesOf(j), Cause: backends.CauseDisconnected}, 0).Pending
	}},
	"Reap": {backends.StateReady, func(k *kit, j backends.Job) []backends.StoredPending {
		k.writeLosing(backends.Extend{Leases: leasesOf(j), Lease: time.Second}, 0)
		k.AdvanceClock(2 * time.Second)
		return k.maintain(backends.Maintenance{}).Pending
	}},
	"ReapDead": {"", func(k *kit, j backends.Job) []backends.StoredPending {
		for range 2 { // the third attempt is the last one
			k.writeLosing(backends.Nack{Leases: leasesOf(j), HasDelay: true}, 0)
			j = k.claimOne()
			k.wantStored(replacing("second"), pendingAt(j.ID))
		}
		k.writeLosing(backends.Extend{Leases: leasesOf(j), Lease: time.Second}, 0)
		k.AdvanceClock(2 * time.Second)
		return k.maintain(backends.Maintenance{}).Pending
	}},
	"Reclaim": {backends.StateReady, func(k *kit, j backends.Job) []backends.StoredPending {
		return k.operatePending(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: []string{j.ID}})
	}},
	"Cancel": {"", func(k *kit, j backends.Job) []backends.StoredPending {
		return k.operatePending(backends.Command{Kind: backends.Cancel, Queue: "q", IDs: []string{j.ID}})
	}},
	"CancelAndDelete": {"", func(k *kit, j backends.Job) []backends.StoredPending {
		return k.operatePending(backends.Command{Kind: backends.Cancel, Queue: "q", IDs: []string{j.ID}, Remove: true})
	}},
}

// insistently commits a write that another sidecar's transaction can delay. It does what a caller does.
func (k *kit) insistently(b backends.Backend, w backends.Write) {
	for wait := false; ; wait = true {
		r, err := b.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{w}, WaitForLocks: wait})
		if err == nil {
			err = r.Writes[0].Err
		}
		if _, locked := errors.AsType[*backends.LockedError](err); locked {
			continue
		}
		if err != nil {
			k.Error(err)
			return
		}
		k.admit(b, r)
		return
	}
}

// claimContent claims the ready jobs and checks that the last content is among them, each job once.
func (k *kit) claimContent(last string) {
	k.Helper()
	jobs := k.claim(10)
	if got := payloads(jobs); !slices.Contains(got, last) {
		k.Fatalf("the content %q is lost: claimed %q", last, got)
	}
	for _, j := range jobs {
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
	}
}

var conflictTests = map[string]func(*kit){
	"KeyIsFreeFromTheStart": func(k *kit) {
		start := contentOf("a", backends.ConflictKeep)
		start.KeyUntilStart = true
		later := start
		later.Delay = time.Minute
		a := k.wantStored(later, backends.Stored{})
		k.wantStored(start, backends.Stored{ID: a, Duplicate: true, State: backends.StateScheduled})
		k.AdvanceClock(2 * keyTTL)
		k.maintain(backends.Maintenance{Prune: true})
		k.wantStored(contentOf("b", backends.ConflictKeep), backends.Stored{ID: a, Duplicate: true, State: backends.StateReady})
		first := k.claimOne()
		b := k.wantStored(start, backends.Stored{})
		k.wantStored(contentOf("c", backends.ConflictKeep), backends.Stored{ID: b, Duplicate: true, State: backends.StateReady})
		k.writeLosing(backends.Release{Leases: leasesOf(first), Uncounted: true}, 0) // the key stays with the second one
		k.wantStored(start, backends.Stored{ID: b, Duplicate: true, State: backends.StateReady})
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claim(1)...)}, 0)
		k.wantState(a, backends.StateDeleted)
		k.wantStored(start, backends.Stored{ID: b, Duplicate: true, State: backends.StateReady})
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne())}, 0)
		c := k.wantStored(contentOf("c", backends.ConflictKeep), backends.Stored{}) // and this one keeps it until its end
		held := k.claimOne()
		k.wantStored(start, backends.Stored{ID: c, Duplicate: true, State: backends.StateClaimed})
		k.writeLosing(backends.Ack{Leases: leasesOf(held)}, 0)
	},
	"PrefetchIsAStart": func(k *kit) {
		start := contentOf("a", backends.ConflictKeep)
		start.KeyUntilStart = true
		k.wantStored(start, backends.Stored{})
		b := k.claimBatch(me, 1, 0, policy("q"))
		b.Claims[0].Slots[0].Prefetch = k.Info().Prefetch
		k.onlyJob(b)
		k.wantStored(start, backends.Stored{})
	},
	"KeysUntilTheStartArePruned": func(k *kit) {
		k.maintain(backends.Maintenance{Prune: true})
		start := contentOf("a", backends.ConflictKeep)
		start.KeyUntilStart = true
		k.wantStored(start, backends.Stored{})
		id := k.wantStored(func() backends.NewJob { j := start; j.Key = "cancelled"; return j }(), backends.Stored{})
		k.operate(backends.Command{Kind: backends.Cancel, Queue: "q", IDs: []string{id}, Remove: true}, 1, false)
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne())}, 0)
		k.AdvanceClock(time.Second)
		if r := k.maintain(backends.Maintenance{Prune: true}); r.Pruned != 2 {
			k.Errorf("%d pruned, want two keys", r.Pruned)
		}
	},
	"RetryTakesNoKeyThatWasFreeFromTheStart": func(k *kit) {
		start := contentOf("a", backends.ConflictKeep)
		start.KeyUntilStart = true
		a := k.wantStored(start, backends.Stored{})
		k.nackOne(backends.Nack{Dead: true})
		b := k.wantStored(start, backends.Stored{})
		k.nackOne(backends.Nack{Dead: true})
		c := k.wantStored(start, backends.Stored{})
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 2, true)
		k.wantState(a, backends.StateReady)
		k.wantState(b, backends.StateReady)
		k.wantStored(start, backends.Stored{ID: c, Duplicate: true, State: backends.StateReady})
	},
	"ReplaceWhatIsReady": func(k *kit) {
		a := k.wantStored(replacing("first"), backends.Stored{})
		k.enqueuePayloads("other")
		k.wantStored(contentOf("kept", backends.ConflictKeep), backends.Stored{ID: a, Duplicate: true, State: backends.StateReady})
		k.wantStored(replacing("second"), replaced(a, backends.StateReady))
		k.wantContent(a, backends.StateReady, "second")
		bare := replacing("")
		bare.Headers = nil
		k.wantStored(bare, replaced(a, backends.StateReady))
		if v := k.view(a); len(v.Payload) != 0 || len(v.Headers) != 0 {
			k.Errorf("%+v, want no content", v)
		}
		k.wantStored(replacing("third"), replaced(a, backends.StateReady))
		k.wantJobs(k.claim(2), "third", "other") // in its old position
	},
	"ReplaceChangesTheTime": func(k *kit) {
		later := replacing("later")
		later.Delay = time.Hour
		a := k.wantStored(later, backends.Stored{})
		k.wantStored(replacing("now"), replaced(a, backends.StateReady))
		k.wantContent(a, backends.StateReady, "now")
		k.wantStored(later, replaced(a, backends.StateScheduled))
		k.wantContent(a, backends.StateScheduled, "later")
		at := replacing("at")
		at.RunAt = k.now().Add(time.Minute)
		k.wantStored(at, replaced(a, backends.StateScheduled))
		k.AdvanceClock(2 * time.Minute)
		k.maintain(backends.Maintenance{})
		k.wantContent(a, backends.StateReady, "at")
	},
	"ReplaceWhatWaitsForItsRetry": func(k *kit) {
		a := k.wantStored(replacing("first"), backends.Stored{})
		k.nackOne(backends.Nack{Delay: time.Hour, HasDelay: true})
		k.wantStored(replacing("second"), replaced(a, backends.StateReady))
		if j := k.claimOne(); string(j.Payload) != "second" || j.Attempt != 2 {
			k.Errorf("%+v, want the second content in the second attempt", j)
		}
	},
	"ReplaceWhatIsBlocked": func(k *kit) {
		if !k.hasGroups() {
			return
		}
		k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("holder"), Group: "g"})
		holder := k.claimOne()
		grouped := replacing("first")
		grouped.Group = "g"
		a := k.wantStored(grouped, backends.Stored{})
		k.wantStored(replacing("second"), replaced(a, backends.StateBlocked))
		later := replacing("later")
		later.Delay = time.Minute
		k.wantStored(later, replaced(a, backends.StateScheduled))
		k.wantStored(replacing("third"), replaced(a, backends.StateBlocked))
		k.writeLosing(backends.Ack{Leases: leasesOf(holder)}, 0)
		k.wantJobs(k.claim(2), "third")
	},
	"ReplaceWhatHasEnded": func(k *kit) {
		a := k.wantStored(replacing("done"), backends.Stored{})
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne())}, 0)
		k.wantStored(contentOf("kept", backends.ConflictKeep), backends.Stored{ID: a, Duplicate: true, State: backends.StateDone})
		b := k.wantStored(replacing("dead"), backends.Stored{})
		k.nackOne(backends.Nack{Dead: true})
		c := k.wantStored(replacing("deleted"), backends.Stored{})
		k.wantContent(b, backends.StateDead, "dead")
		k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, 1, false)
		d := k.wantStored(replacing("last"), backends.Stored{})
		if c == d {
			k.Errorf("job %s was deleted", c)
		}
		k.wantStored(contentOf("kept", backends.ConflictKeep), backends.Stored{ID: d, Duplicate: true, State: backends.StateReady})
		k.wantJobs(k.claim(2), "last")
	},
	"Debounce": func(k *kit) {
		debounced := func(payload string) backends.NewJob {
			j := contentOf(payload, backends.ConflictDebounce)
			j.Delay, j.DebounceMax = 30*time.Second, time.Minute
			return j
		}
		a := k.wantStored(debounced("0"), backends.Stored{})
		for i := range 3 { // after 20, 40 and 60 s
			k.AdvanceClock(20 * time.Second)
			k.maintain(backends.Maintenance{})
			if i < 2 {
				k.wantStored(debounced(fmt.Sprint(i+1)), replaced(a, backends.StateScheduled))
			}
		}
		k.AdvanceClock(time.Second)
		k.maintain(backends.Maintenance{})
		k.wantStored(debounced("ready"), replaced(a, backends.StateReady)) // its time is over
		held := k.claimOne()
		k.wantJobs([]backends.Job{held}, "ready")
		for i := range 3 { // the limit of the pending one begins with its first content
			k.wantStored(debounced(fmt.Sprint("pending", i)), pendingAt(a))
			k.AdvanceClock(20 * time.Second)
		}
		k.writeLosing(backends.Ack{Leases: leasesOf(held)}, 0)
		k.AdvanceClock(2 * time.Second)
		k.maintain(backends.Maintenance{})
		if j := k.claimOne(); string(j.Payload) != "pending2" || j.Headers["h"] != "pending2" {
			k.Errorf("claimed %+v", j)
		}
	},
	"DebounceWithoutALimit": func(k *kit) {
		j := contentOf("a", backends.ConflictDebounce)
		j.Delay = time.Minute
		a := k.wantStored(j, backends.Stored{})
		for range 3 {
			k.AdvanceClock(50 * time.Second)
			k.maintain(backends.Maintenance{})
			k.wantStored(j, replaced(a, backends.StateScheduled))
		}
	},
	"OneOfOneCommit": func(k *kit) {
		r := k.commit(backends.CommitContent{Writes: []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{replacing("a"), contentOf("kept", backends.ConflictKeep), replacing("b")}},
			backends.Enqueue{Jobs: []backends.NewJob{replacing("c")}},
		}})
		s := r.Writes[0].Stored
		if id := s[0].ID; s[0].Duplicate || s[1] != (backends.Stored{ID: id, Duplicate: true, State: backends.StateReady}) || s[2] != replaced(id, backends.StateReady) ||
			r.Writes[1].Stored[0] != replaced(id, backends.StateReady) {
			k.Errorf("%+v", r)
		}
		k.wantJobs(k.claim(2), "c")
	},
	"EnqueueAndEndInOneCommit": func(k *kit) {
		a := k.wantStored(replacing("a"), backends.Stored{})
		held := k.claimOne()
		r := k.commit(backends.CommitContent{Sidecar: me, Writes: []backends.Write{
			backends.Ack{Leases: leasesOf(held)}, backends.Enqueue{Jobs: []backends.NewJob{replacing("b")}},
		}})
		if s := r.Writes[1].Stored[0]; s != pendingAt(a) && s.Duplicate { // the one or the other comes first
			k.Errorf("%+v", r)
		}
		k.wantJobs(k.claim(2), "b")
	},
	"FollowUpWithTheSameKey": func(k *kit) {
		k.wantStored(replacing("a"), backends.Stored{})
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne()), Enqueue: []backends.NewJob{replacing("b")}}, 0)
		k.wantJobs(k.claim(2), "b")
	},
	"PendingKeepsAllOptions": func(k *kit) {
		k.wantStored(replacing("a"), backends.Stored{})
		held := k.claimOne()
		j := replacing("b")
		j.Priority, j.MaxAttempts, j.Timeout = 7, 5, time.Hour
		k.wantStored(j, pendingAt(held.ID))
		k.writeLosing(backends.Ack{Leases: leasesOf(held)}, 0)
		if got := k.claimOne(); got.Priority != 7 || got.MaxAttempts != 5 || got.Timeout != time.Hour || got.Attempt != 1 || got.Key != "k" {
			k.Errorf("claimed %+v", got)
		}
	},
	"PendingTimeIsLater": func(k *kit) {
		k.wantStored(replacing("a"), backends.Stored{})
		held := k.claimOne()
		j := replacing("b")
		j.Delay = time.Hour
		k.wantStored(j, pendingAt(held.ID))
		k.writeLosing(backends.Release{Leases: leasesOf(held), Uncounted: true}, 0)
		k.wantContent(held.ID, backends.StateScheduled, "b")
		k.AdvanceClock(time.Hour)
		k.maintain(backends.Maintenance{})
		k.wantJobs(k.claim(2), "b")
	},
	"EndOfTheClaim": func(k *kit) {
		for name, e := range endings {
			k.wantStored(replacing("first"), backends.Stored{})
			j := k.claimOne()
			for _, payload := range []string{"stale", "second"} {
				k.wantStored(replacing(payload), pendingAt(j.ID))
			}
			k.wantContent(j.ID, backends.StateClaimed, "first")
			k.writeLosing(backends.Extend{Leases: leasesOf(j)}, 0) // nothing ended
			stored := e.end(k, j)
			if e.stays != "" {
				k.wantContent(j.ID, e.stays, "second")
				if e.stays == backends.StateScheduled {
					k.AdvanceClock(time.Minute)
					k.heartbeat(k, me, backends.HeartbeatRenew)
					k.maintain(backends.Maintenance{})
				}
			}
			jobs := k.claim(5)
			if len(jobs) != 1 || string(jobs[0].Payload) != "second" || (jobs[0].ID == j.ID) != (e.stays != "") {
				k.Fatalf("%s: claimed %+v after job %s", name, jobs, j.ID)
			}
			if own := e.stays == ""; len(stored) != map[bool]int{true: 1}[own] ||
				own && (stored[0].ID != jobs[0].ID || stored[0].Queue != "q" || stored[0].Headers["h"] != "second") {
				k.Fatalf("%s: %+v became jobs of their own, claimed %+v", name, stored, jobs)
			}
			k.wantStored(contentOf("kept", backends.ConflictKeep), backends.Stored{ID: jobs[0].ID, Duplicate: true, State: backends.StateClaimed})
			k.writeLosing(backends.Ack{Leases: leasesOf(jobs[0])}, 0)
			if left := k.claim(5); len(left) > 0 {
				k.Fatalf("%s: %+v is left", name, left)
			}
			k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateDead}, k.stats().Dead, false)
			k.AdvanceClock(2 * keyTTL)
			k.heartbeat(k, me, backends.HeartbeatRenew)
		}
	},
	"EndOfAPrefetchedClaim": func(k *kit) {
		if !k.Info().Prefetch {
			return
		}
		k.wantStored(replacing("first"), backends.Stored{})
		b := k.claimBatch(me, 1, 0, policy("q"))
		b.Claims[0].Slots[0].Prefetch = true
		j := k.onlyJob(b)
		k.wantStored(replacing("second"), pendingAt(j.ID))
		k.writeLosing(backends.Release{Leases: leasesOf(j), Uncounted: true}, 0)
		k.wantContent(j.ID, backends.StateReady, "second")
	},
	"DeadSidecar": func(k *kit) {
		second := k.OpenAnother()
		k.join(second, other)
		k.wantStored(replacing("first"), backends.Stored{})
		j := k.claimOneFor(other, 0)
		k.wantStored(replacing("second"), pendingAt(j.ID))
		k.AdvanceClock(2 * sidecarTimeout)
		k.evict(k.peer(other))
		k.maintain(backends.Maintenance{})
		k.wantContent(j.ID, backends.StateReady, "second")
	},
	"EnqueueRacesTheEndOnAnotherHost": func(k *kit) {
		second := k.OpenAnother()
		for name, e := range map[string]func(j backends.Job) backends.Write{
			"ack":  func(j backends.Job) backends.Write { return backends.Ack{Leases: leasesOf(j)} },
			"nack": func(j backends.Job) backends.Write { return backends.Nack{Leases: leasesOf(j), HasDelay: true} },
			"dead": func(j backends.Job) backends.Write { return backends.Nack{Leases: leasesOf(j), Dead: true} },
		} {
			for i := range 6 {
				k.write(backends.Enqueue{Jobs: []backends.NewJob{replacing("first")}})
				j, last := k.claimOne(), fmt.Sprint(name, i)
				enqueue, end := backends.Write(backends.Enqueue{Jobs: []backends.NewJob{replacing(last)}}), e(j)
				var other sync.WaitGroup
				inFlight, next := enqueue, end
				if i%2 == 1 {
					inFlight, next = end, enqueue
				}
				if k.BeforeCommit != nil && i < 2 { // the second begins before the COMMIT of the first
					k.BeforeCommit(func() { other.Go(func() { k.insistently(second, next) }) })
				} else {
					other.Go(func() { k.insistently(second, next) })
				}
				k.insistently(k.Backend, inFlight)
				other.Wait()
				k.claimContent(last)
			}
		}
	},
	"ConcurrentReplacesStoreOneJob": func(k *kit) {
		handles := []backends.Backend{k.Backend, k.OpenAnother(), k.OpenAnother()}
		for round := range 5 {
			var all sync.WaitGroup
			for i, b := range handles {
				all.Go(func() { k.insistently(b, backends.Enqueue{Jobs: []backends.NewJob{replacing(fmt.Sprint(round, i))}}) })
			}
			all.Wait()
			k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne())}, 0)
		}
	},
	"ClaimRacesAReplace": func(k *kit) {
		second := k.OpenAnother()
		k.join(second, other)
		for i := range 10 {
			k.write(backends.Enqueue{Jobs: []backends.NewJob{replacing("first")}})
			last := fmt.Sprint(i)
			var claims sync.WaitGroup
			var got []backends.Job
			claims.Go(func() {
				r, err := second.Commit(k.Context(), k.claimBatch(other, 1, 0, policy("q")))
				if err != nil {
					k.Error(err)
					return
				}
				got = r.Claims[0].Jobs
			})
			k.insistently(k.Backend, backends.Enqueue{Jobs: []backends.NewJob{replacing(last)}})
			claims.Wait()
			for _, j := range got {
				k.insistently(second, backends.Ack{Leases: leasesOf(j)})
			}
			if len(got) == 0 || string(got[0].Payload) != last {
				k.claimContent(last)
			}
		}
	},
}
