package dispatch

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func TestPaceIgnoresABurst(t *testing.T) {
	var p pace
	now := time.Hour
	p.add(0, now, 0)
	p.add(32, now+time.Millisecond, 0) // thirty-two workers start at once
	now += 15 * time.Millisecond
	p.add(1, now, 0)
	if got := p.perSecond(now+50*time.Millisecond, 0) * prefetchLeast.Seconds(); got >= 1 {
		t.Errorf("after a burst %.1f jobs are prefetched", got)
	}
	for range 10 {
		now += paceWindow
		p.add(20, now, 0)
	}
	if got := p.perSecond(now, 0); got < 1000 || got > 3000 {
		t.Errorf("20 jobs each 10 ms are a pace of %.0f jobs/s, want about 2000", got)
	}
	if got := p.perSecond(now+2*paceIdle, 0); got != 0 {
		t.Errorf("an idle line keeps a pace of %.0f jobs/s", got)
	}
}

// TestPaceOfSlowCommits: workers that wait for each commit have a pace, however long it takes.
func TestPaceOfSlowCommits(t *testing.T) {
	const commit = 80 * time.Millisecond
	var p pace
	now := time.Hour
	for range 10 {
		now += commit
		p.add(1, now, commit)
	}
	if got := p.perSecond(now, commit); got < 5 || got > 15 {
		t.Errorf("a job in each commit of %v is a pace of %.1f jobs/s, want about 12", commit, got)
	}
}

// TestReturnedJobKeepsItsPlace shows that a claim in strict order gets a job of the first queue that was prefetched and is on its way
// back to the database, and not one of the second queue, which the database has.
func TestReturnedJobKeepsItsPlace(t *testing.T) {
	for name, once := range map[string]bool{"at once": true, "waits": false} {
		t.Run(name, func(t *testing.T) {
			d := newRotationDB()
			d.store("a", 1000)
			d.stream(false, "a", "b")
			d.ready["a"] = 0
			back, _ := d.TakePrefetched(0)
			if len(back) == 0 {
				t.Fatal("nothing was prefetched")
			}
			d.ready["b"] = 1
			r := d.queued(t, once, "a", "b")
			d.commits()
			names := make([]string, len(back))
			for i := range back {
				names[i] = "a"
			}
			d.ready["a"] = len(back)
			d.Returned(names)
			d.commits()
			if a := <-r.answer; len(a.Jobs) != 1 || a.Jobs[0].Queue != "a" {
				t.Errorf("the claim gets %+v, want a job of a", a.Jobs)
			}
		})
	}
}

// TestOldJobsTakeThoseBehindAlong shows that a job of the second queue isn't handed out in strict order while older ones of the first
// queue, which were prefetched for too long, are on their way back.
func TestOldJobsTakeThoseBehindAlong(t *testing.T) {
	d := newRotationDB()
	d.store("a", 1000)
	d.stream(false, "a", "b")
	d.ready = map[string]int{"b": 1}
	p := &d.matcher.queues["a,b"].prefetch
	for len(p.jobs) > 1 && p.jobs[len(p.jobs)-1].Queue != "b" {
		d.now += time.Millisecond
		d.take(1, false, "a", "b")
	}
	if len(p.jobs) < 2 || p.jobs[0].Queue != "a" {
		t.Fatalf("%d jobs are prefetched, want some of a before the one of b", len(p.jobs))
	}
	last := p.since[len(p.since)-1]
	if p.since[0] == last {
		t.Fatal("all jobs were prefetched at once")
	}
	d.TakePrefetched(last)
	d.queued(t, true, "a", "b") // fails if the claim is answered at once
}

// TestReturningJobsHoldNoClaimForLong shows that claims in strict order are answered although more jobs of the first queue are on their
// way back, and that a job of the last queue, or of one of several that take turns, holds none.
func TestReturningJobsHoldNoClaimForLong(t *testing.T) {
	d := newRotationDB()
	job := func(queue string) []backends.Job { return []backends.Job{{Queue: queue}} }
	d.ready["b"] = 3
	d.MarkReturning(job("a"))
	d.MarkReturning(job("a"))
	held := d.queued(t, true, "a", "b")
	d.Returned([]string{"a"})
	d.commits()
	if len(held.answer) == 0 {
		t.Error("a claim is held for longer than one job takes")
	}
	rotating := &Request{Session: &d.session().Session, Slots: 1, Rotate: true}
	if _, answered := d.Add(rotating, []string{"a", "b"}); !answered {
		d.commits()
	}
	d.MarkReturning(job("b"))
	last := d.queued(t, true, "c", "b")
	d.commits()
	if len(rotating.answer) == 0 || len(last.answer) == 0 {
		t.Error("a claim is held although no job on its way back precedes those of another queue")
	}
}
