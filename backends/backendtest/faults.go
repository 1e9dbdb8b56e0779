package backendtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// commitLost commits b over a connection that breaks, before or after the database carries b out.
// happened reports whether b took effect. commitLost compares that with the error of Commit.
func (k *kit) commitLost(b backends.CommitContent, before bool, happened func() bool) {
	k.Helper()
	k.LoseCommit(before)
	k.commitTruthfully(b, before, happened)
}

// commitTruthfully is commitLost with a fault that the caller has armed.
func (k *kit) commitTruthfully(b backends.CommitContent, before bool, happened func() bool) {
	k.Helper()
	k.truthful(before, happened, func() error {
		_, err := k.Commit(k.Context(), b)
		return err
	})
}

// truthful checks that the answer of a call agrees with what happened.
func (k *kit) truthful(before bool, happened func() bool, call func() error) {
	k.Helper()
	err := call()
	switch got := happened(); {
	case got == before:
		k.Fatalf("the connection broke %s the commit, but took effect: %v", map[bool]string{true: "before", false: "after"}[before], got)
	case err == nil && !got:
		k.Fatal("the commit took no effect, but the answer is success")
	case err != nil && got && !errors.Is(err, backends.ErrUnknownOutcome):
		k.Fatalf("the commit took effect, but the answer is %v", err)
	case err != nil && !got && !backends.Retryable(err) && !errors.Is(err, backends.ErrUnknownOutcome):
		k.Fatalf("the commit took no effect, but the answer is %v: not retryable", err)
	}
}

// wantTruthful checks that the answer to an enqueue of three jobs agrees with the jobs in the
// database.
func (k *kit) wantTruthful(queue int, answer error) {
	k.Helper()
	var st []backends.QueueStats
	var err error
	testwait.Until(k, "the database answers", func() bool {
		st, err = k.inspector().Stats(k.Context(), fmt.Sprint(queue))
		return !backends.Retryable(err)
	})
	if err != nil {
		k.Fatal(err)
	}
	n := st[0].Ready
	if answer == nil && n != 3 || answer != nil && n != 0 && (n != 3 || !errors.Is(answer, backends.ErrUnknownOutcome)) {
		k.Fatalf("answered %v, but %d jobs are stored", answer, n)
	}
}

var faultTests = map[string]func(*kit){
	"LostEnqueue": func(k *kit) {
		for i, before := range []bool{true, false, true, false} {
			n := k.stats().Ready
			k.commitLost(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job("a", 0), job("b", 0)}}}}, before,
				func() bool { return k.stats().Ready == n+2 })
			k.enqueuePayloads("works again")
			if got := k.stats().Ready; got != []int64{1, 4, 5, 8}[i] {
				k.Fatalf("%d ready", got)
			}
		}
	},
	"LostSettle": func(k *kit) {
		for _, before := range []bool{true, false} {
			k.enqueuePayloads("a")
			j := k.claimOne()
			k.commitLost(backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(j)}}}, before,
				func() bool { return k.view(j.ID) == nil })
			r := k.write(backends.Ack{Leases: leasesOf(j)})
			if lost := len(r.Lost) == 1; lost == before {
				k.Fatalf("the second ack is lost: %v", lost)
			}
		}
	},
	"LostClaim": func(k *kit) {
		k.enqueuePayloads("a")
		k.commitLost(k.claimBatch(me, 1, 0, policy("q")), true, func() bool { return k.stats().Claimed == 1 })
		k.commitLost(k.claimBatch(me, 1, 0, policy("q")), false, func() bool { return k.stats().Claimed == 1 })
		// A client that got no answer finds the claim again and releases it.
		h := k.claimedBy(k, me)
		if len(h) != 1 {
			k.Fatalf("claimed by me: %v", h)
		}
		k.writeLosing(backends.Release{Leases: []backends.Lease{h[0].Lease}, Uncounted: true}, 0)
		k.wantJobs(k.claim(1), "a")
	},
	// A COMMIT that was not sent has no unknown outcome.
	"TimeIsOverBeforeTheCommit": func(k *kit) {
		if k.BeforeCommit == nil {
			return
		}
		for range 3 {
			n := k.stats().Ready
			ctx, cancel := context.WithCancel(k.Context())
			k.BeforeCommit(cancel)
			_, err := k.Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job("a", 0)}}}})
			if got := k.stats().Ready - n; got == 1 && err != nil || got == 0 && !backends.Retryable(err) {
				k.Fatalf("%d jobs are stored, and the answer is %v", got, err)
			}
			k.enqueuePayloads("works again")
		}
	},
	// The proxy's error means that the server is lost. It doesn't show whether the server has committed.
	"ErrorOfAProxyIsNotAnOutcome": func(k *kit) {
		for name, arm := range k.CommitErrors {
			for _, before := range []bool{true, false} {
				fault := func(b backends.CommitContent, happened func() bool) {
					k.Helper()
					k.Logf("%s, before the commit: %v", name, before)
					arm(before)
					k.commitTruthfully(b, before, happened)
				}
				n := k.stats().Ready
				fault(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job("a", 0)}}}}, func() bool { return k.stats().Ready == n+1 })
				k.enqueuePayloads("b")
				j := k.claim(1)[0]
				fault(backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(j)}}}, func() bool { return k.view(j.ID) == nil })
				if before {
					k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
				}
				claimed := k.stats().Claimed
				k.enqueuePayloads("c")
				fault(k.claimBatch(me, 1, 0, policy("q")), func() bool { return k.stats().Claimed == claimed+1 })
			}
		}
	},
	// The reply of a commit is lost, or a proxy answers it with an error of its own, with each kind of change.
	"LostReplyOfEachChange": func(k *kit) {
		if k.InsertJob == nil { // without a database only Commit can lose its reply
			return
		}
		arms := map[string]func(before bool){"cut": k.LoseCommit}
		for _, name := range slices.Sorted(maps.Keys(k.CommitErrors)) {
			arms[name] = k.CommitErrors[name]
			break // the engine's own tests have the others
		}
		for name, arm := range arms {
			for _, before := range []bool{true, false} {
				k.eachLostChange(func(what string, happened func() bool, call func() error) {
					k.Logf("%s, %s, before the commit: %v", what, name, before)
					arm(before)
					k.truthful(before, happened, call)
				})
			}
		}
	},
	"RefusedWriteFailsTheWholeCommit": func(k *kit) {
		k.enqueuePayloads("waiting")
		j := k.claimOne()
		k.RefuseJobs("p", "no more mail on Sundays")
		b := k.claimBatch(me, 1, 0, policy("q"))
		b.Writes = []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{keyed("k"), job("b", 0)}},
			backends.Ack{Leases: leasesOf(j)},
			backends.Enqueue{Jobs: []backends.NewJob{job("c", 0), {Queue: "p"}}},
		}
		_, err := k.Commit(k.Context(), b)
		if !backends.IsRefused(err) || backends.Retryable(err) || !strings.Contains(err.Error(), "no more mail on Sundays") {
			k.Fatalf("answered %v, want a refusal with the reason", err)
		}
		if st := k.stats(); st.Ready != 0 || st.Claimed != 1 {
			k.Fatalf("the refused commit left %+v", st)
		}
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0) // each member alone
		k.enqueueKey("k", "", "")
		if s := k.view(k.enqueuePayloads("b")[0]); s == nil {
			k.Fatal("a valid write is refused too")
		}
	},
	"RefusedClaimsOfOneQueue": func(k *kit) {
		if k.RefuseChanges == nil {
			return
		}
		allow := k.RefuseChanges(Refusal{Queue: "p", Reason: "not in this week"})
		k.writeLosing(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "p"}, {Queue: "q"}, {Queue: "q"}, {Queue: "q"}}}, 0)
		for round := range 3 { // the first one finds out
			r, err := k.Commit(k.Context(), k.claimBatch(me, 1, 0, policy("p"), policy("q")))
			if err != nil || r.Claims[0].Err != nil || len(r.Claims[0].Jobs) != 1 || r.Claims[0].Jobs[0].Queue != "q" {
				k.Fatalf("round %d: a claim of both queues: %v, %+v", round, err, r.Claims)
			}
		}
		if got := k.commit(k.claimBatch(me, 1, 0, policy("p"))).Claims[0]; len(got.Jobs) > 0 || got.Err != nil {
			k.Fatalf("a claim of the queue alone: %+v", got)
		}
		o := k.Backend.(interface{ ObstacleSet() *backends.ObstacleSet }).ObstacleSet()
		if all := o.Obstacles(); len(all) != 1 || all[0].Queue != "p" || all[0].Job == "" || all[0].Doing != backends.DoingClaim || !strings.Contains(all[0].Err.Error(), "not in this week") {
			k.Fatalf("obstacles %+v", all)
		}
		allow()
		o.RetryNow("p", backends.DoingClaim)
		k.onlyJob(k.claimBatch(me, 1, 0, policy("p")))
		if all := o.Obstacles(); len(all) > 0 {
			k.Fatalf("obstacles %+v", all)
		}
	},
	"RefusedFollowUpKeepsTheLease": func(k *kit) {
		k.RefuseJobs("p", "never")
		k.enqueuePayloads("a")
		j := k.claimOne()
		_, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(j), Enqueue: []backends.NewJob{{Queue: "p"}}}}})
		if !backends.IsRefused(err) {
			k.Fatalf("answered %v, want a refusal", err)
		}
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
	},
	"EndedContextChangesNothing": func(k *kit) {
		ctx, cancel := context.WithCancel(k.Context())
		cancel()
		_, err := k.Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job("a", 0)}}}})
		if !backends.Retryable(err) || !errors.Is(err, context.Canceled) {
			k.Errorf("commit: %v, want retryable and canceled", err)
		}
		if _, err := k.Heartbeat(ctx, backends.Heartbeat{Sidecar: me, Kind: backends.HeartbeatRenew, Timeout: time.Second}); !backends.Retryable(err) {
			k.Errorf("heartbeat: %v", err)
		}
		if _, err := k.ClaimedBy(ctx, me, "", 1); !backends.Retryable(err) {
			k.Errorf("claimed by: %v", err)
		}
		if _, err := k.Maintain(ctx, backends.Maintenance{Limit: 1}); !backends.Retryable(err) {
			k.Errorf("maintain: %v", err)
		}
		k.wantNoneReady()
	},
	"ContextThatEndsDuringACommit": func(k *kit) {
		// A context can end at any moment and the answer must be true. Each try has its own queue,
		// because a commit of unknown outcome can take effect during a later try.
		answers := make([]error, 40)
		for i := range answers {
			ctx, cancel := context.WithCancel(k.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				for range i * 50 {
					_ = time.Now()
				}
				cancel()
			})
			j := backends.NewJob{Queue: fmt.Sprint(i)}
			_, answers[i] = k.Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{j, j, j}}}})
			wg.Wait()
			k.wantTruthful(i, answers[i])
		}
		k.enqueuePayloads("after them all")
		for i, err := range answers {
			k.wantTruthful(i, err)
		}
	},
	"ClosedHandleFails": func(k *kit) {
		b := k.OpenAnother()
		if b == k.Backend {
			return // this engine has only one handle
		}
		if err := b.Close(); err != nil {
			k.Fatalf("close: %v", err)
		}
		if _, err := b.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job("a", 0)}}}}); err == nil {
			k.Error("a commit on a closed handle succeeds")
		}
		if _, err := b.ClaimedBy(k.Context(), me, "", 1); err == nil {
			k.Error("ClaimedBy on a closed handle succeeds")
		}
		k.enqueuePayloads("the other one works")
	},
}

// eachLostChange calls lose with each kind of change besides new jobs, acks and claims.
func (k *kit) eachLostChange(lose func(what string, happened func() bool, call func() error)) {
	k.Helper()
	fresh := func() string { return k.enqueue(backends.NewJob{Queue: "q"})[0] }
	is := func(id string, state backends.State) func() bool {
		return func() bool {
			v := k.view(id)
			return v == nil && state == backends.StateDeleted || v != nil && v.State == state
		}
	}
	settle := func(what string, state backends.State, w func(l []backends.Lease) backends.Write) {
		fresh()
		j := k.claimOne()
		lose(what, is(j.ID, state), func() error {
			_, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{w(leasesOf(j))}})
			return err
		})
		k.operate(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: []string{j.ID}}, k.countIf(is(j.ID, backends.StateClaimed)), is(j.ID, backends.StateClaimed)())
		k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{j.ID}}, 1, false)
	}
	settle("nack", backends.StateDead, func(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, Dead: true} })
	settle("release", backends.StateReady, func(l []backends.Lease) backends.Write { return backends.Release{Leases: l, Uncounted: true} })

	command := func(what string, happened func() bool, c backends.Command) {
		c.Queue = "q"
		lose(what, happened, func() error {
			_, _, err := k.inspector().Command(k.Context(), c)
			return err
		})
	}
	priority := int16(7)
	id := fresh()
	command("change", func() bool { return k.view(id).Priority == priority }, backends.Command{Kind: backends.Change, IDs: []string{id}, Priority: &priority})
	command("cancel", is(id, backends.StateDead), backends.Command{Kind: backends.Cancel, IDs: []string{id}})
	k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{id}}, 1, false)
	fresh()
	j := k.claimOne()
	command("reclaim", is(j.ID, backends.StateReady), backends.Command{Kind: backends.Reclaim, IDs: []string{j.ID}})
	if is(j.ID, backends.StateReady)() {
		j = k.claimOne()
	}
	k.write(backends.Nack{Leases: leasesOf(j), Dead: true})
	command("retry", is(j.ID, backends.StateReady), backends.Command{Kind: backends.Retry, IDs: []string{j.ID}})
	state := k.view(j.ID).State
	command("purge", is(j.ID, backends.StateDeleted), backends.Command{Kind: backends.Purge, State: state})
	k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: state}, k.countIf(is(j.ID, state)), false)
	id = fresh()
	command("delete", is(id, backends.StateDeleted), backends.Command{Kind: backends.Delete, IDs: []string{id}})
	k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{id}}, k.countIf(is(id, backends.StateReady)), false)

	id = fresh()
	command("pause", func() bool { return k.stats().Paused }, backends.Command{Kind: backends.Pause})
	if _, _, err := k.inspector().Command(k.Context(), backends.Command{Kind: backends.Resume, Queue: "q"}); err != nil {
		k.Fatal(err)
	}
	if k.hasLimits() {
		command("limit", func() bool { return k.stats().Limits.MaxClaimed == 9 }, backends.Command{Kind: backends.Limit, Limits: capOf(9)})
		k.limit(backends.LimitsChange{None: true})
	}
	k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{id}}, 1, false)

	if !k.hasSchedules() {
		return
	}
	schedules := scheduler(k, k.Backend)
	found := func() []backends.Schedule {
		all, err := schedules.Schedules(k.Context(), backends.ScheduleList{Max: 10})
		if err != nil {
			k.Fatal(err)
		}
		return all
	}
	lose("declare", func() bool { return len(found()) == 1 }, func() error {
		_, err := schedules.DeclareSchedule(k.Context(), hourly("s"), false)
		return err
	})
	k.declare(hourly("s"))
	lose("pause of a schedule", func() bool { return found()[0].Paused }, func() error {
		_, err := schedules.ChangeSchedule(k.Context(), backends.ScheduleCommand{Kind: backends.SchedulePause, Queue: "q", Name: "s"})
		return err
	})
	if _, err := schedules.ChangeSchedule(k.Context(), backends.ScheduleCommand{Kind: backends.ScheduleDelete, Queue: "q", Name: "s"}); err != nil {
		k.Fatal(err)
	}
}

func (k *kit) countIf(is func() bool) int64 {
	if is() {
		return 1
	}
	return 0
}
