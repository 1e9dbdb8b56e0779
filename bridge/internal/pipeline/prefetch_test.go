package pipeline

import (
	"testing"
	"time"
)

func TestPaceIgnoresABurst(t *testing.T) {
	var p pace
	now := time.Hour
	p.add(0, now)
	p.add(32, now+time.Millisecond) // thirty-two workers start at once
	now += 15 * time.Millisecond
	p.add(1, now)
	if got := p.perSecond(now + 50*time.Millisecond); got != 0 {
		t.Errorf("a burst is taken for a stream of %.0f jobs/s", got)
	}
	for range 10 {
		now += paceWindow
		p.add(20, now)
	}
	if got := p.perSecond(now); got < 1000 || got > 3000 {
		t.Errorf("20 jobs each 10 ms are a pace of %.0f jobs/s, want about 2000", got)
	}
	if got := p.perSecond(now + 2*paceIdle); got != 0 {
		t.Errorf("an idle line keeps a pace of %.0f jobs/s", got)
	}
}
