package pipeline

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestFreedSlotWakesAClaim shows that a waiting claim gets the next job of a group as soon as the one before is acked.
func TestFreedSlotWakesAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, memory.New())
		w, waits := newWorker(p), newWorker(p)
		member := backends.NewJob{Queue: "q", Group: "g"}
		enqueue := func(jobs ...backends.NewJob) {
			t.Helper()
			write, err := p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: jobs})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.AwaitWrite(write, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		claim := waits.queued(t, false, "q")
		synctest.Wait()
		began := time.Now()
		enqueue(member, member)
		a := p.AwaitClaim(nil, claim)
		jobs, err := p.HandOut(claim, &a, func(jobs []backends.Job) int { return len(jobs) })
		if err != nil || len(jobs) != 1 {
			t.Fatalf("claimed %d jobs, %v", len(jobs), err)
		}
		claim = waits.queued(t, false, "q")
		synctest.Wait()
		ack(t, p, &waits.Session, jobs)
		if a := p.AwaitClaim(nil, claim); len(a.Jobs) != 1 {
			t.Errorf("the waiting claim got %d jobs", len(a.Jobs))
		}
		if took := time.Since(began); took > 100*time.Millisecond { // a virtual clock; maintenance would find the job later
			t.Errorf("the waiting claims got their jobs after %v", took)
		}
	})
}

// slowAdmission calls before ahead of each admission.
type slowAdmission struct {
	*memory.Backend
	before func()
}

func (s slowAdmission) Admit(ctx context.Context, groups []backends.Group) []string {
	s.before()
	return s.Backend.Admit(ctx, groups)
}

// TestClaimThatDoesNotWaitSeesAdmissions shows that a worker that drains a queue gets the next job of a group, although that job is ready
// only some time after the ack before it, or after its enqueue. Without such an admission the answer comes at once.
func TestClaimThatDoesNotWaitSeesAdmissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, slowAdmission{memory.New(), func() { time.Sleep(50 * time.Millisecond) }})
		w := newWorker(p)
		claim := func() []backends.Job {
			t.Helper()
			r := w.queued(t, true, "q")
			a := p.AwaitClaim(nil, r)
			if len(a.Jobs) == 0 {
				return nil
			}
			jobs, err := p.HandOut(r, &a, func(jobs []backends.Job) int { return len(jobs) })
			if err != nil {
				t.Fatal(err)
			}
			return jobs
		}
		member := backends.NewJob{Queue: "q", Group: "g"}
		write, err := p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: []backends.NewJob{member, member, member}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.AwaitWrite(write, time.Minute); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			jobs := claim()
			if len(jobs) != 1 {
				t.Fatalf("claim %d got %d jobs, want the next one of the group", i, len(jobs))
			}
			if more := claim(); len(more) != 0 {
				t.Errorf("claim %d got a second job of the group", i)
			}
			ack(t, p, &w.Session, jobs)
		}
		if jobs := claim(); len(jobs) != 0 { // the admission after the last ack finds none
			t.Errorf("got %d jobs of an empty queue", len(jobs))
		}
		began := time.Now()
		if jobs := claim(); len(jobs) != 0 || time.Since(began) > 10*time.Millisecond { // a virtual clock
			t.Errorf("%d jobs of an empty queue after %v", len(jobs), time.Since(began))
		}
	})
}

// TestGroupsOverTwoSidecars shows that prefetch of two sidecars neither breaks the order of a group nor exceeds its limit, and that
// a freed slot is used at once: the jobs of one group take as long as one worker needs for them.
func TestGroupsOverTwoSidecars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const groups, each, takes = 4, 50, 20 * time.Millisecond
		db := memory.New()
		first, second := start(t, db), start(t, db)
		ctx, stop := context.WithCancel(t.Context())
		var mu sync.Mutex
		running, next := map[string]bool{}, map[string]int{}
		done := 0
		run := func(payload string) {
			group, text, _ := strings.Cut(payload, " ")
			number, err := strconv.Atoi(text)
			mu.Lock()
			if err != nil || running[group] || next[group] != number {
				t.Errorf("job %s starts: running %v, next is %d, %v", payload, running[group], next[group], err)
			}
			running[group] = true
			mu.Unlock()
			time.Sleep(takes)
			mu.Lock()
			running[group], next[group] = false, number+1
			done++
			mu.Unlock()
		}
		var all sync.WaitGroup
		for _, p := range []*Pipeline{first, second} {
			for range 4 {
				w := newWorker(p)
				all.Go(func() {
					for ctx.Err() == nil {
						r := &ClaimRequest{Session: &w.Session, Slots: 1, Since: time.Now()}
						a, answered := p.Claim(r, []string{"q"})
						if !answered {
							a = p.AwaitClaim(ctx.Done(), r)
						}
						if len(a.Jobs) == 0 {
							continue
						}
						jobs, err := p.HandOut(r, &a, func(jobs []backends.Job) int { return len(jobs) })
						if err != nil {
							t.Error(err)
							return
						}
						run(string(jobs[0].Payload))
						ack(t, p, &w.Session, jobs)
					}
				})
			}
		}
		began := time.Now()
		for i := range each {
			var jobs []backends.NewJob
			for g := range groups {
				jobs = append(jobs, backends.NewJob{Queue: "q", Group: fmt.Sprint("g", g), Payload: fmt.Appendf(nil, "g%d %d", g, i)})
			}
			p := []*Pipeline{first, second}[i%2]
			write, err := p.SubmitWrite(&newWorker(p).Session, backends.Enqueue{Jobs: jobs})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.AwaitWrite(write, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		for {
			mu.Lock()
			n := done
			mu.Unlock()
			if n == groups*each || t.Failed() {
				break
			}
			time.Sleep(takes)
		}
		if took := time.Since(began); took > 2*each*takes { // a virtual clock
			t.Errorf("%d jobs of each group took %v, want about %v", each, took, each*takes)
		}
		stop()
		all.Wait()
	})
}
