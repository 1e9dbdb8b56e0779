package dispatch

import (
	"testing"
	"time"
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
