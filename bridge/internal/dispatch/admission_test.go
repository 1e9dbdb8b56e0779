package dispatch

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends"
)

// TestClaimAsksAgainAfterAdmissions shows when a claim that doesn't wait, and for which a commit found no job, asks again: after an
// admission that began before it, also if that ends during the commit. Other queues don't matter, and those that begin later don't
// hold it for long.
func TestClaimAsksAgainAfterAdmissions(t *testing.T) {
	q := []string{"q"}
	for name, c := range map[string]struct {
		before, during, after func(k *kit) // the claim, its first commit
		commits               int
	}{
		"none":                     {commits: 1},
		"another queue":            {before: func(k *kit) { k.MarkAdmitting([]string{"other"}) }, commits: 1},
		"over before":              {before: func(k *kit) { k.MarkAdmitting(q); k.Admitted(q, nil) }, commits: 1},
		"over during the commit":   {before: func(k *kit) { k.MarkAdmitting(q) }, during: func(k *kit) { k.Admitted(q, nil) }, commits: 2},
		"over after the commit":    {before: func(k *kit) { k.MarkAdmitting(q) }, after: func(k *kit) { k.Admitted(q, nil) }, commits: 2},
		"with a job":               {before: func(k *kit) { k.MarkAdmitting(q) }, after: func(k *kit) { k.Admitted(q, q) }, commits: 2},
		"begins during the commit": {during: func(k *kit) { k.MarkAdmitting(q) }, after: func(k *kit) { k.Admitted(q, nil) }, commits: 2},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit()
			run := func(f func(*kit)) {
				if f != nil {
					f(k)
				}
			}
			run(c.before)
			r := k.queued(t, true, "q")
			commits := 0
			for ; len(r.answer) == 0 && commits < 9; commits++ {
				groups, _ := k.Gather(host, k.number, &Budget{Left: 1 << 30, Whole: 1 << 30})
				if len(groups) != 1 {
					t.Fatalf("after %d commits, the next one has %d groups, want the claim", commits, len(groups))
				}
				if commits == 0 {
					run(c.during)
				}
				k.Deliver(groups[0], make([]backends.ClaimResult, groups[0].Len())...)
				if commits > 0 || c.after == nil {
					continue
				}
				k.wakes = 0
				if run(c.after); k.wakes == 0 {
					t.Error("no commit includes the claim again")
				}
			}
			if commits != c.commits {
				t.Errorf("answered after %d commits, want %d", commits, c.commits)
			}
		})
	}
	t.Run("one after another", func(t *testing.T) {
		k := newKit()
		k.MarkAdmitting(q)
		r := k.queued(t, true, "q")
		commits := 0
		for ; len(r.answer) == 0; commits++ {
			groups, _ := k.Gather(host, k.number, &Budget{Left: 1 << 30, Whole: 1 << 30})
			k.MarkAdmitting(q)
			for i := range groups {
				k.Deliver(groups[i], make([]backends.ClaimResult, groups[i].Len())...)
			}
			k.Admitted(q, nil)
		}
		if commits != 1+mostHolds {
			t.Errorf("answered after %d commits, want %d", commits, 1+mostHolds)
		}
	})
}

// TestReturnedJobEndsAHoldBehindAClosedGate shows that a claim that doesn't wait, and is held for a job on its way back, is in the next
// commit when the job is back, although no job of the queue can start. Its answer comes from the database.
func TestReturnedJobEndsAHoldBehindAClosedGate(t *testing.T) {
	k := newKit()
	k.MarkReturning([]backends.Job{{Queue: "a"}})
	r := k.queued(t, true, "a")
	answer := func() {
		for _, g := range k.gather() {
			k.Deliver(g, make([]backends.ClaimResult, g.Len())...)
		}
	}
	if answer(); len(r.answer) > 0 {
		t.Fatal("answered while a job is on its way back")
	}
	k.closed, k.wakes = true, 0
	if k.Returned([]string{"a"}); k.wakes == 0 {
		t.Error("the job that is back causes no commit")
	}
	if answer(); len(r.answer) == 0 {
		t.Error("the next commit doesn't include the claim")
	}
}
