package pipeline

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestWaitEndsWhereACommitFailsLate shows a write whose time ends during a commit that then fails. Before, the write
// was queued and tried again while the database was unreachable, and its sender waited.
func TestWaitEndsWhereACommitFailsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCommitter()
		p := &PendingWrite{write: backends.Enqueue{}}
		err := c.reserve(t.Context(), p, 0)
		if err != nil {
			t.Fatal(err)
		}
		c.push(p)
		if got := nextBatch(c); len(got) != 1 {
			t.Fatalf("%d writes were taken, want 1", len(got))
		}
		waited := make(chan error, 1)
		go func() {
			_, err := c.wait(p, time.Millisecond)
			waited <- err
		}()
		testwait.Until(t, "the time of the write is over", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return p.state == overdue
		})
		c.putBack([]*PendingWrite{p})
		err = testwait.Receive(t, "the end of the wait", waited)
		if _, ok := errors.AsType[*backends.UnavailableError](err); !ok {
			t.Errorf("the wait ended with %v, want that the database is unavailable", err)
		}
		if got := nextBatch(c); len(got) != 0 {
			t.Errorf("it is queued again")
		}
	})
}
