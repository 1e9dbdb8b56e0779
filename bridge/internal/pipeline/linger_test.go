package pipeline

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// TestLingering shows that the committer waits for a group of workers and not for a single one, and that waits in
// vain become rare.
func TestLingering(t *testing.T) {
	t.Parallel()
	var l lingerPlan
	if d := l.plan(lingerFrom-1, time.Millisecond); d != 0 {
		t.Errorf("after a commit of %d writes the loop waits %v", lingerFrom-1, d)
	}
	if d := l.plan(16, 300*time.Microsecond); d != 600*time.Microsecond {
		t.Errorf("after a commit of 0.3 ms it waits %v", d)
	}
	if d := l.plan(16, time.Second); d != lingerMost {
		t.Errorf("after a commit of a second it waits %v, want %v at most", d, lingerMost)
	}
	waits := 0
	for range 10_000 {
		if l.plan(16, time.Millisecond) > 0 {
			waits++
			l.learn(10, 16)
		}
	}
	if waits < 10 || waits > 100 {
		t.Errorf("of 10,000 commits %d were followed by a wait in vain", waits)
	}
	for again := time.Duration(0); again == 0; {
		again = l.plan(16, time.Millisecond)
	}
	l.learn(13, 16)
	if l.plan(16, time.Millisecond) == 0 {
		t.Error("after a wait that was worth it there is none")
	}
}

// TestLinger shows that the wait ends as soon as enough writes came, or at its time limit. The writes that came can
// be taken, and later writes wake the loop again.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCommitter()
		push := func(n int) {
			for range n {
				c.push(&PendingWrite{write: backends.Ack{}})
			}
		}
		push(2)
		go func() {
			for range 3 {
				time.Sleep(100 * time.Microsecond)
				push(1)
			}
		}()
		began := time.Now()
		if came, _ := c.linger(3, time.Second); came != 3 || time.Since(began) != 300*time.Microsecond {
			t.Errorf("%d came in %v, want 3 in 0.3 ms", came, time.Since(began))
		}
		go push(1)
		began = time.Now()
		if came, _ := c.linger(3, time.Millisecond); came != 1 || time.Since(began) != time.Millisecond {
			t.Errorf("%d came in %v, want 1 within 1 ms", came, time.Since(began))
		}
		push(batchWrites - 8)
		if came, expected := c.linger(16, time.Millisecond); came != 0 || expected != 2 {
			t.Errorf("beside %d writes it waits for %d of 16, want 2", batchWrites-2, expected)
		}
		if n := len(nextBatch(c)); n != batchWrites-2 {
			t.Errorf("%d writes can be taken, want %d", n, batchWrites-2)
		}
		push(1)
		select {
		case <-c.writes.wake:
		default:
			t.Error("a write after the wait does not wake the loop")
		}
	})
}
