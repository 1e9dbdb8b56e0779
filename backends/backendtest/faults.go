package backendtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// lost loses the next commit and reports whether its batch took effect, which it
// checks against what Commit says.
func (k *kit) lost(b backends.Batch, before bool, happened func() bool) {
	k.Helper()
	k.LoseCommit(before)
	_, err := k.Commit(k.Context(), b)
	switch got := happened(); {
	case got == before:
		k.Fatalf("lost %s the commit, but happened is %v", map[bool]string{true: "before", false: "after"}[before], got)
	case err == nil && !got:
		k.Fatal("answered as done, and nothing happened")
	case err != nil && got && !errors.Is(err, backends.ErrUnknownOutcome):
		k.Fatalf("it happened, and the answer is %v", err)
	case err != nil && !got && !backends.Retryable(err) && !errors.Is(err, backends.ErrUnknownOutcome):
		k.Fatalf("it did not happen, and the answer is %v: not retryable", err)
	}
}

// tells checks that the answer to an enqueue of three jobs is the truth.
func (k *kit) tells(queue int, answer error) {
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
		k.Fatalf("answered %v, and %d jobs are there", answer, n)
	}
}

var faults = map[string]func(*kit){
	"ALostEnqueue": func(k *kit) {
		for i, before := range []bool{true, false, true, false} {
			n := k.stats().Ready
			k.lost(backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job("a", 0), job("b", 0)}}}}, before,
				func() bool { return k.stats().Ready == n+2 })
			k.put("works again")
			if got := k.stats().Ready; got != []int64{1, 4, 5, 8}[i] {
				k.Fatalf("%d ready", got)
			}
		}
	},
	"ALostSettle": func(k *kit) {
		for _, before := range []bool{true, false} {
			k.put("a")
			j := k.one()
			k.lost(backends.Batch{Writes: []backends.Write{backends.Ack{Leases: each(j)}}}, before,
				func() bool { return k.view(j.ID) == nil })
			r := k.write(backends.Ack{Leases: each(j)})
			if lost := len(r.Lost) == 1; lost == before {
				k.Fatalf("the second try is lost: %v", lost)
			}
		}
	},
	"ALostClaim": func(k *kit) {
		k.put("a")
		k.lost(k.claims(me, 1, 0, policy("q")), true, func() bool { return k.stats().Claimed == 1 })
		k.lost(k.claims(me, 1, 0, policy("q")), false, func() bool { return k.stats().Claimed == 1 })
		// Whoever got no answer finds the claim again, and gives it back.
		h := k.held(k, me)
		if len(h) != 1 {
			k.Fatalf("held %v", h)
		}
		k.settle(backends.Release{Leases: []backends.Lease{h[0].Lease}, Uncounted: true}, 0)
		k.given(k.claim(1), "a")
	},
	"ARefusedMemberFailsTheWholeCommit": func(k *kit) {
		k.put("waiting")
		j := k.one()
		k.Refuse("p", "no more mail on Sundays")
		b := k.claims(me, 1, 0, policy("q"))
		b.Writes = []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{keyed("k"), job("b", 0)}},
			backends.Ack{Leases: each(j)},
			backends.Enqueue{Jobs: []backends.NewJob{job("c", 0), {Queue: "p"}}},
		}
		_, err := k.Commit(k.Context(), b)
		if !backends.IsRefused(err) || backends.Retryable(err) || !strings.Contains(err.Error(), "no more mail on Sundays") {
			k.Fatalf("answered %v, want a refusal in the database's words", err)
		}
		if st := k.stats(); st.Ready != 0 || st.Claimed != 1 {
			k.Fatalf("the refused commit left %+v", st)
		}
		k.settle(backends.Ack{Leases: each(j)}, 0) // each member alone
		k.again("k", "", "")
		if s := k.view(k.put("b")[0]); s == nil {
			k.Fatal("the innocent member is refused too")
		}
	},
	"ARefusedFollowUpLeavesTheLease": func(k *kit) {
		k.Refuse("p", "never")
		k.put("a")
		j := k.one()
		_, err := k.Commit(k.Context(), backends.Batch{Writes: []backends.Write{backends.Ack{Leases: each(j), Enqueue: []backends.NewJob{{Queue: "p"}}}}})
		if !backends.IsRefused(err) {
			k.Fatalf("answered %v, want a refusal", err)
		}
		k.settle(backends.Ack{Leases: each(j)}, 0)
	},
	"AnEndedContextChangesNothing": func(k *kit) {
		ctx, cancel := context.WithCancel(k.Context())
		cancel()
		_, err := k.Commit(ctx, backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job("a", 0)}}}})
		if !backends.Retryable(err) || !errors.Is(err, context.Canceled) {
			k.Errorf("commit: %v, want retryable and canceled", err)
		}
		if _, err := k.Heartbeat(ctx, backends.Heartbeat{Host: me, Kind: backends.HeartbeatRenew, Timeout: time.Second}); !backends.Retryable(err) {
			k.Errorf("beat: %v", err)
		}
		if _, err := k.ClaimedBy(ctx, me, "", 1); !backends.Retryable(err) {
			k.Errorf("held: %v", err)
		}
		if _, err := k.Maintain(ctx, backends.Maintenance{Limit: 1}); !backends.Retryable(err) {
			k.Errorf("sweep: %v", err)
		}
		k.none()
	},
	"ContextsThatEndAnywhere": func(k *kit) {
		// Whatever moment a context ends at, the answer is the truth. Each try has a
		// queue of its own: one of unknown outcome may take effect during a later one.
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
			_, answers[i] = k.Commit(ctx, backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{j, j, j}}}})
			wg.Wait()
			k.tells(i, answers[i])
		}
		k.put("after them all")
		for i, err := range answers {
			k.tells(i, err)
		}
	},
	"AClosedHandle": func(k *kit) {
		b := k.Again()
		if b == k.Backend {
			return // one handle is all that this engine has
		}
		if err := b.Close(); err != nil {
			k.Fatalf("close: %v", err)
		}
		if _, err := b.Commit(k.Context(), backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job("a", 0)}}}}); err == nil {
			k.Error("a closed handle commits")
		}
		if _, err := b.ClaimedBy(k.Context(), me, "", 1); err == nil {
			k.Error("a closed handle reads")
		}
		k.put("the other one works")
	},
}
