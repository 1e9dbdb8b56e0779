package backendtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

var obstacleTests = map[string]func(*kit){
	"RefusedRowsHideNoOther":                    func(k *kit) { k.besideRefusedRows(false) },
	"RefusedRowsHideNoOtherIfLIFO":              func(k *kit) { k.besideRefusedRows(true) },
	"JobsBecomeReadyWithoutTheTableOfCancels":   func(k *kit) { k.promotesWithout("cancelled") },
	"JobsBecomeReadyWithoutTheTableOfSchedules": func(k *kit) { k.promotesWithout("schedules") },
	"JobsBecomeReadyWithoutTheTableOfBatches":   func(k *kit) { k.promotesWithoutBatches() },
	"MoreRefusedRowsThanAClaimTries": func(k *kit) {
		if k.RefuseChanges == nil {
			return
		}
		for range 50 {
			k.enqueue(badJob("x", 1))
		}
		k.enqueue(badJob("a", 0), badJob("b", 0))
		defer k.RefuseChanges(Refusal{Queue: "bad", Priority: 1, Reason: refusal})()
		k.wantJobs(k.claimAll(policy("bad"), 10), "a", "b")
		k.wantObstacles(backends.DoingClaim, 50)
		k.enqueue(badJob("c", 0))
		k.wantJobs(k.commit(k.claimBatch(me, 10, 0, policy("bad"))).Claims[0].Jobs, "c")
	},
	"RefusedRowsOfAQueueWithLimits": func(k *kit) { // in claims that also name a queue without
		if k.RefuseChanges == nil || !k.hasLimits() {
			return
		}
		most := int64(2)
		if _, _, err := k.inspector().Command(k.Context(), backends.Command{Kind: backends.Limit, Queue: "bad", Limits: backends.LimitsChange{MaxClaimed: &most}}); err != nil {
			k.Fatal(err)
		}
		k.enqueue(badJob("x1", 1), badJob("a", 0), badJob("x2", 1), badJob("b", 0), badJob("c", 0))
		k.enqueuePayloads("q1", "q2")
		allow := k.RefuseChanges(Refusal{Queue: "bad", Priority: 1, Reason: refusal})
		claim := func(want ...string) backends.ClaimResult {
			k.Helper()
			b := k.claimBatch(me, 1, 0, gated("bad"), policy("q"))
			b.WaitForLocks = true // as the bridge does
			c := k.commit(b).Claims[0]
			k.wantJobs(c.Jobs, want...)
			return c
		}
		first := claim("a")
		k.wantObstacles(backends.DoingClaim, 2)
		order := []string{"b", "q1", "q2"}
		if k.LockGate != nil {
			unlock := k.LockGate("bad")
			if c := claim("q1"); !c.More {
				k.Errorf("beside a held gate: %+v", c)
			}
			unlock()
			order = []string{"q2", "b"} // for a while, claims first take from the other queues
		}
		for _, want := range order {
			claim(want)
		}
		c := claim()
		if len(c.Gates) != 1 || c.Gates[0].Queue != "bad" || !c.Gates[0].Closed {
			k.Errorf("the claim reports the gates %+v, want that of bad closed", c.Gates)
		}
		k.write(backends.Ack{Leases: leasesOf(first.Jobs...)})
		missed := k.commit(k.claimBatch(me, 1, 0, policy("bad"))).Claims[0]
		if len(missed.Jobs) != 0 || len(missed.Gates) != 1 || !missed.Gates[0].Missed || !missed.More {
			k.Errorf("a claim that does not know of the limits gets %+v", missed)
		}
		allow()
	},
	"RefusedRowIsTriedAgainAfterASettle": func(k *kit) {
		if k.RefuseChanges == nil {
			return
		}
		k.enqueue(badJob("a", 0), badJob("x", 1))
		allow := k.RefuseChanges(Refusal{Queue: "bad", Priority: 1, Reason: refusal})
		jobs := k.claimAll(policy("bad"), 5)
		k.wantJobs(jobs, "a")
		allow()
		if r := k.write(backends.Ack{Leases: leasesOf(jobs...)}); !slices.Contains(r.MadeReady, "bad") {
			k.Errorf("the ack calls for no claims: %+v", r)
		}
		k.wantJobs(k.claimAll(policy("bad"), 5), "x")
	},
	"RefusedRowThatIsGone": func(k *kit) {
		if k.RefuseChanges == nil {
			return
		}
		ids := k.enqueue(badJob("x", 1), badJob("a", 0))
		allow := k.RefuseChanges(Refusal{Queue: "bad", Priority: 1, Reason: refusal})
		k.wantJobs(k.claimAll(policy("bad"), 5), "a")
		allow()
		k.operate(backends.Command{Kind: backends.Delete, Queue: "bad", IDs: ids[:1]}, 1, false)
		k.retry(backends.DoingClaim)
		k.wantJobs(k.claimAll(policy("bad"), 5))
		k.wantObstacles(backends.DoingClaim, 0)
	},
	"RefusedWorkerHurtsNoOther": func(k *kit) {
		if k.RefuseChanges == nil {
			return
		}
		k.enqueuePayloads("a", "b", "c", "d")
		defer k.RefuseChanges(Refusal{Queue: "q", Worker: "mallory", Reason: refusal})()
		claim := func(workers ...string) backends.ClaimResult {
			b := k.claimBatch(me, len(workers), 0, policy("q"))
			for i, w := range workers {
				b.Claims[0].Slots[i].Worker = w
			}
			return k.commit(b).Claims[0]
		}
		for _, next := range []string{"a", "b"} {
			var slot *backends.SlotError
			if got := claim("mallory", "w"); !errors.As(got.Err, &slot) || slot.Worker != "mallory" || backends.Retryable(got.Err) || !strings.Contains(got.Err.Error(), refusal) {
				k.Fatalf("a refused worker's claim: %+v", got)
			}
			k.wantObstacles(backends.DoingClaim, 0)
			k.wantJobs(claim("w").Jobs, next)
		}
		k.wantJobs(claim("w", "mallory", "w").Jobs, "c") // the next claim finds out
		k.wantJobs(claim("w").Jobs, "d")
		k.wantObstacles(backends.DoingClaim, 0)
	},
	"RefusedPromotionHidesNoOther": func(k *kit) { // more of them than a batch has
		if k.RefuseChanges == nil {
			return
		}
		for range 5 {
			k.enqueue(backends.NewJob{Queue: "bad", Delay: time.Second})
		}
		k.enqueue(backends.NewJob{Queue: "q", Delay: 2 * time.Second}, backends.NewJob{Queue: "q", Delay: 3 * time.Second})
		allow := k.refuseBad()
		k.AdvanceClock(time.Minute)
		some := backends.Maintenance{Limit: 2, Waiting: []string{"q", "bad"}}
		if r := k.maintainAll(some); r.Promoted != 2 {
			k.Errorf("%d jobs were promoted, want 2", r.Promoted)
		}
		k.wantObstacles(backends.DoingPromote, 5)
		k.enqueue(backends.NewJob{Queue: "q", Delay: time.Second})
		k.AdvanceClock(time.Minute)
		if r := k.maintainAll(some); r.Promoted != 1 {
			k.Errorf("beside obstacles %d jobs were promoted, want 1", r.Promoted)
		}
		allow()
		k.retry(backends.DoingPromote)
		if r := k.maintainAll(some); r.Promoted != 5 {
			k.Errorf("with nothing in the way %d jobs were promoted, want 5", r.Promoted)
		}
		k.wantObstacles(backends.DoingPromote, 0)
	},
	"RefusedReapHidesNoOther": func(k *kit) {
		if k.RefuseChanges == nil {
			return
		}
		for range 5 {
			k.enqueue(backends.NewJob{Queue: "bad"})
		}
		k.enqueue(backends.NewJob{Queue: "q"}, backends.NewJob{Queue: "q"})
		k.commit(k.claimBatch(me, 5, time.Second, policy("bad")))
		k.commit(k.claimBatch(me, 2, 2*time.Second, policy("q")))
		allow := k.refuseBad()
		k.AdvanceClock(time.Minute)
		some := backends.Maintenance{Limit: 2}
		if r := k.maintainAll(some); r.Reaped[backends.CauseLeaseEnded] != 2 {
			k.Errorf("reaped %v, want 2", r.Reaped)
		}
		k.wantObstacles(backends.DoingGiveBack, 5)
		allow()
		k.retry(backends.DoingGiveBack)
		if r := k.maintainAll(some); r.Reaped[backends.CauseLeaseEnded] != 5 {
			k.Errorf("with nothing in the way reaped %v, want 5", r.Reaped)
		}
		k.wantObstacles(backends.DoingGiveBack, 0)
	},
	"RefusedClaimsOfLostSidecars": func(k *kit) { // session leases and timed ones of two sidecars
		if k.RefuseChanges == nil {
			return
		}
		for range 3 {
			k.enqueue(backends.NewJob{Queue: "bad"}, backends.NewJob{Queue: "q"})
		}
		const third backends.Identity = 9
		for _, sidecar := range []backends.Identity{other, third} {
			k.join(k, sidecar)
			k.commit(k.claimBatch(sidecar, 1, 0, policy("bad")))
			k.commit(k.claimBatch(sidecar, 1, 0, policy("q")))
		}
		k.commit(k.claimBatch(other, 1, time.Hour, policy("bad")))
		k.commit(k.claimBatch(other, 1, time.Hour, policy("q")))
		allow := k.refuseBad()
		k.AdvanceClock(sidecarTimeout + time.Second)
		var suspects []backends.Suspect
		for _, sidecar := range []backends.Identity{other, third} {
			p := k.peer(sidecar)
			suspects = append(suspects, backends.Suspect{Sidecar: sidecar, Heartbeats: p.Heartbeats, Timeout: p.Timeout})
		}
		if r := k.maintainAll(backends.Maintenance{Suspects: suspects}); r.Reaped[backends.CauseSidecarLost] != 2 {
			k.Errorf("reaped %v, want 2", r.Reaped)
		}
		k.wantObstacles(backends.DoingGiveBack, 3)
		allow()
		for range 3 { // an engine can take one sidecar after another
			k.retry(backends.DoingGiveBack)
			if f, ok := k.Backend.(interface{ RetryOwners() }); ok {
				f.RetryOwners()
			}
			k.maintainAll(backends.Maintenance{})
		}
		k.wantObstacles(backends.DoingGiveBack, 0)
	},
	"RefusedPruneHidesNoOther": func(k *kit) {
		if k.RefuseChanges == nil {
			return
		}
		finish := func(queue string, n int) {
			p := policy(queue)
			p.RetainDone = time.Hour
			for range n {
				k.enqueue(backends.NewJob{Queue: queue})
			}
			jobs := k.commit(k.claimBatch(me, n, 0, p)).Claims[0].Jobs
			k.writeLosing(backends.Ack{Leases: leasesOf(jobs...)}, 0)
		}
		finish("bad", 5)
		k.AdvanceClock(time.Second)
		finish("q", 2)
		allow := k.refuseBad()
		k.AdvanceClock(2 * time.Hour)
		some := backends.Maintenance{Prune: true, Limit: 2}
		if r := k.maintainAll(some); r.Pruned != 2 {
			k.Errorf("%d jobs were pruned, want 2", r.Pruned)
		}
		k.wantObstacles(backends.DoingPrune, 5)
		allow()
		k.retry(backends.DoingPrune)
		if r := k.maintainAll(some); r.Pruned != 5 {
			k.Errorf("with nothing in the way %d jobs were pruned, want 5", r.Pruned)
		}
		k.wantObstacles(backends.DoingPrune, 0)
	},
	"RefusedRetryHidesNoOther": func(k *kit) { // of all, and by their ids
		if k.RefuseChanges == nil {
			return
		}
		for _, all := range []bool{true, false} {
			ids := k.enqueue(badJob("a", 0), badJob("x", 1), badJob("b", 0), badJob("c", 0), badJob("x", 1), badJob("d", 0))
			k.writeLosing(backends.Nack{Leases: leasesOf(k.claimAll(policy("bad"), 10)...), Dead: true}, 0)
			allow := k.RefuseChanges(Refusal{Queue: "bad", Priority: 1, Reason: refusal})
			c := backends.Command{Kind: backends.Retry, Queue: "bad", All: all}
			if !all {
				c.IDs = ids
			}
			n, freed, err := k.inspector().Command(k.Context(), c)
			if n != 4 || !freed || !backends.IsRefused(err) || !strings.Contains(err.Error(), refusal) {
				k.Errorf("all %v: retried %d, %v, %v", all, n, freed, err)
			}
			allow()
			if n, _, err := k.inspector().Command(k.Context(), c); n != 2 || err != nil {
				k.Errorf("all %v, with nothing in the way: retried %d, %v", all, n, err)
			}
			k.writeLosing(backends.Ack{Leases: leasesOf(k.claimAll(policy("bad"), 10)...)}, 0)
		}
	},
	"RefusedPurgeHidesNoOther": func(k *kit) {
		if k.RefuseChanges == nil {
			return
		}
		ids := k.enqueue(badJob("a", 0), badJob("x", 1), badJob("b", 0), badJob("c", 0), badJob("x", 1), badJob("d", 0))
		allow := k.RefuseChanges(Refusal{Queue: "bad", Priority: 1, Reason: refusal})
		c := backends.Command{Kind: backends.Purge, Queue: "bad", State: backends.StateReady}
		for _, want := range []int64{4, 0} {
			n, _, err := k.inspector().Command(k.Context(), c)
			if n != want || !backends.IsRefused(err) || !strings.Contains(err.Error(), refusal) || !strings.Contains(err.Error(), "job "+ids[1]+":") && !strings.Contains(err.Error(), "job "+ids[4]+":") || !strings.Contains(err.Error(), "1 more") {
				k.Errorf("purged %d, %v", n, err)
			}
		}
		allow()
		if n, _, err := k.inspector().Command(k.Context(), c); n != 2 || err != nil {
			k.Errorf("with nothing in the way: purged %d, %v", n, err)
		}
	},
	"RefusedCommandOfOneJob": func(k *kit) {
		if k.RefuseChanges == nil {
			return
		}
		priority := int16(2)
		for _, c := range []backends.Command{{Kind: backends.Delete}, {Kind: backends.Cancel}, {Kind: backends.Cancel, Remove: true}, {Kind: backends.Change, Priority: &priority}} {
			ids := k.enqueue(badJob("a", 0), badJob("x", 1), badJob("b", 0))
			allow := k.RefuseChanges(Refusal{Queue: "bad", Priority: 1, Reason: refusal})
			c.Queue, c.IDs = "bad", ids
			n, _, err := k.inspector().Command(k.Context(), c)
			if n != 2 || !backends.IsRefused(err) || !strings.Contains(err.Error(), refusal) || !strings.Contains(err.Error(), "job "+ids[1]+":") {
				k.Errorf("%+v: changed %d, %v", c, n, err)
			}
			allow()
			k.operate(backends.Command{Kind: backends.Delete, Queue: "bad", IDs: ids[1:2]}, 1, false)
		}
	},
	"RefusedReclaimOfOneJob": func(k *kit) { // the other jobs of the command are reclaimed
		if k.RefuseChanges == nil {
			return
		}
		ids := k.enqueue(backends.NewJob{Queue: "bad", Priority: 1}, backends.NewJob{Queue: "q"}, backends.NewJob{Queue: "q"})
		k.commit(k.claimBatch(me, 3, 0, policy("bad"), policy("q")))
		defer k.refuseBad()()
		n, freed, err := k.inspector().Command(k.Context(), backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: ids[1:]})
		if n != 2 || !freed || err != nil {
			k.Errorf("reclaimed %d, %v, %v", n, freed, err)
		}
		n, freed, err = k.inspector().Command(k.Context(), backends.Command{Kind: backends.Reclaim, Queue: "bad", IDs: slices.Concat(ids[:1], []string{fmt.Sprint(1 << 40)})})
		if n != 0 || freed || !backends.IsRefused(err) || !strings.Contains(err.Error(), refusal) {
			k.Errorf("a refused job: reclaimed %d, %v, %v", n, freed, err)
		}
	},
}

// Refusal describes changes of jobs that the database refuses, as a trigger of the owner can.
type Refusal struct {
	Queue    string
	Priority int16  // not 0: only of its jobs with this priority
	Worker   string // not empty: only claims for this worker
	Reason   string // the error contains it
}

// On lists the statements to refuse.
func (r Refusal) On() []string {
	if r.Worker != "" {
		return []string{"UPDATE"} // a deletion has no new worker
	}
	return []string{"UPDATE", "DELETE"}
}

// When is the condition of the trigger. literal quotes a text.
func (r Refusal) When(literal func(string) string) string {
	all := []string{"OLD.queue = " + literal(r.Queue)}
	if r.Priority != 0 {
		all = append(all, fmt.Sprintf("OLD.priority = %d", r.Priority))
	}
	if r.Worker != "" {
		all = append(all, "NEW.worker = "+literal(r.Worker))
	}
	return strings.Join(all, " AND ")
}

// The database refuses every change of jobs of the queue "bad", as a trigger of a DBA can. No test depends on the time
// between two tries: retry makes all obstacles due.

const refusal = "not on Sundays"

// refuseBad makes the database refuse changes.
func (k *kit) refuseBad() (allow func()) {
	return k.RefuseChanges(Refusal{Queue: "bad", Reason: refusal})
}

// maintainAll maintains until nothing is left, and adds up what it did.
func (k *kit) maintainAll(s backends.Maintenance) (sum backends.MaintenanceResult) {
	k.Helper()
	sum.Reaped = map[backends.Cause]int{}
	for range 100 {
		r := k.maintain(s)
		sum.Promoted, sum.Pruned = sum.Promoted+r.Promoted, sum.Pruned+r.Pruned
		for cause, n := range r.Reaped {
			sum.Reaped[cause] += n
		}
		if !r.More && !r.PruneMore {
			if again := k.maintain(s); again.Next == 0 || again.More || again.Promoted+len(again.Reaped)+again.Pruned != 0 {
				k.Errorf("at the end: %+v", again)
			}
			return sum
		}
	}
	k.Fatal("maintenance doesn't come to an end")
	return sum
}

// wantObstacles checks the obstacles: n jobs of the queue "bad".
func (k *kit) wantObstacles(doing string, n int) {
	k.Helper()
	all := k.Backend.(backends.Obstructed).Obstacles()
	for _, o := range all {
		if o.Queue != "bad" || o.Doing != doing || o.Job == "" || !strings.Contains(o.Err.Error(), refusal) {
			k.Errorf("obstacle: %+v", o)
		}
	}
	if len(all) != n {
		k.Errorf("%d obstacles, want %d", len(all), n)
	}
}

// retry makes all obstacles due.
func (k *kit) retry(doing string) {
	k.Backend.(interface{ ObstacleSet() *backends.ObstacleSet }).ObstacleSet().RetryNow("bad", doing)
}

// ignoreSpeed makes a backend independent of the machine's speed: the clock of its obstacles stands still, so that it tries none again
// before retry, and none of its queries is slow.
func ignoreSpeed(b backends.Backend) {
	if s, ok := b.(interface{ NothingIsSlow() }); ok {
		s.NothingIsSlow()
	}
	if set, ok := b.(interface{ ObstacleSet() *backends.ObstacleSet }); ok {
		now := time.Now()
		set.ObstacleSet().Now = func() time.Time { return now }
	}
}

// claimAll claims from "bad" until nothing is left, n jobs at a time.
func (k *kit) claimAll(p backends.Policy, n int) (all []backends.Job) {
	k.Helper()
	for range 100 {
		c := k.commit(k.claimBatch(me, n, 0, p)).Claims[0]
		if c.Err != nil {
			k.Fatal(c.Err)
		}
		if all = append(all, c.Jobs...); len(c.Jobs) == 0 && !c.More {
			return all
		}
	}
	k.Fatal("claims don't come to an end")
	return nil
}

// badJob is a job of the queue "bad".
func badJob(payload string, priority int16) backends.NewJob {
	return backends.NewJob{Queue: "bad", Payload: []byte(payload), Priority: priority}
}

// besideRefusedRows claims from a queue some of whose rows the database refuses to change.
func (k *kit) besideRefusedRows(lifo bool) {
	if k.RefuseChanges == nil {
		return
	}
	b := k.OpenAnother()
	k.join(b, other)
	p := policy("bad")
	p.LIFO = lifo
	k.enqueue(badJob("first", 2), badJob("x1", 1), badJob("a", 0), badJob("x2", 1), badJob("b", 0), badJob("c", 0), badJob("d", 0), badJob("x3", 1))
	allow := k.RefuseChanges(Refusal{Queue: "bad", Priority: 1, Reason: refusal})
	want, refused := []string{"first", "a", "b", "c", "d"}, []string{"x1", "x2", "x3"}
	if lifo {
		want, refused = []string{"first", "d", "c", "b", "a"}, []string{"x3", "x2", "x1"}
	}
	jobs := k.commit(k.claimBatch(me, 3, 0, p)).Claims[0].Jobs
	k.wantJobs(jobs, want[:3]...)
	k.wantObstacles(backends.DoingClaim, 3)

	// Beside other claims and writes of the same commit, and by another sidecar, that finds out by itself.
	both := k.claimBatch(me, 1, 0, p)
	both.Claims = append(both.Claims, k.claimBatch(me, 1, 0, policy("q")).Claims...)
	both.Writes = []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}, backends.Release{Leases: leasesOf(jobs[1]), Uncounted: true}}
	r := k.commit(both)
	k.wantJobs(r.Claims[0].Jobs, want[1])
	if len(r.Claims[1].Jobs) != 1 || len(r.Writes[0].Stored) != 1 {
		k.Errorf("beside it: %+v", r)
	}
	got, err := b.Commit(k.Context(), k.claimBatch(other, 9, 0, p))
	if err != nil {
		k.Fatal(err)
	}
	k.wantJobs(got.Claims[0].Jobs, want[3:]...)

	allow()
	k.wantJobs(k.claimAll(p, 2)) // it is too early
	k.retry(backends.DoingClaim)
	k.enqueue(badJob("late", 0))
	k.wantJobs(k.claimAll(p, 5), append(refused, "late")...) // in one claim: tries take a tenth of the time
	k.wantObstacles(backends.DoingClaim, 0)
}

// promotesWithout checks that maintenance makes due jobs ready, and reports the error, while a table that it doesn't need for them
// is missing.
func (k *kit) promotesWithout(table string) {
	k.Helper()
	if k.RemoveTable == nil {
		return
	}
	k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("a"), Delay: time.Minute})
	k.AdvanceClock(2 * time.Minute)
	back := k.RemoveTable(table)
	r, err := k.Maintain(k.Context(), backends.Maintenance{Sidecar: me, Limit: 10})
	if err == nil || r.Promoted != 1 {
		k.Errorf("promoted %d, %v; want 1, and the error of the table", r.Promoted, err)
	}
	back()
	k.maintain(backends.Maintenance{Sidecar: me})
}
