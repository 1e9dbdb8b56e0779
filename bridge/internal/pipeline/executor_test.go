package pipeline

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// writesFail is a database that commits claims and can't commit writes.
type writesFail struct{ *memory.Backend }

func (w writesFail) Info() backends.Info {
	info := w.Backend.Info()
	info.Concurrent = true // claims and writes have a commit loop each
	return info
}

func (w writesFail) Commit(ctx context.Context, batch backends.CommitContent) (backends.Results, error) {
	if len(batch.Writes) > 0 {
		return backends.Results{}, backends.Unavailable(errors.New("the disk of the log is gone"))
	}
	return w.Backend.Commit(ctx, batch)
}

// TestCommitLoopsKeepTheirOwnErrors shows that a successful commit of claims does not hide why writes fail.
func TestCommitLoopsKeepTheirOwnErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, writesFail{memory.New()})
		w := newWorker(p)
		write, err := p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the write failed and waits for the next try
		w.claim(t, "q", false)
		if err := p.LastErr(); err == nil {
			t.Error("status has no error after a successful commit of claims")
		}
		_, err = p.AwaitWrite(write, 0)
		if err == nil || !strings.Contains(err.Error(), "the disk of the log is gone") {
			t.Errorf("the write failed with %v, want the reason of its last commit", err)
		}
	})
}

// TestWaitEndsWhereACommitFailsLate shows a write whose time ends during a commit that then fails. Before, the write
// was queued and tried again while the database was unreachable, and its sender waited.
func TestWaitEndsWhereACommitFailsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExecutor(executorConfig{loops: newLoops(backends.Info{})})
		p := &PendingWrite{write: backends.Enqueue{}}
		err := e.reserve(t.Context(), p, 0)
		if err != nil {
			t.Fatal(err)
		}
		e.push(p)
		if got := nextBatch(&e.scheduler); len(got) != 1 {
			t.Fatalf("%d writes were taken, want 1", len(got))
		}
		waited := make(chan error, 1)
		go func() {
			_, err := e.wait(p, time.Millisecond, nil)
			waited <- err
		}()
		testwait.Until(t, "the time of the write is over", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return p.state == overdue
		})
		e.putBack([]*PendingWrite{p})
		err = testwait.Receive(t, "the end of the wait", waited)
		if _, ok := errors.AsType[*backends.UnavailableError](err); !ok {
			t.Errorf("the wait ended with %v, want that the database is unavailable", err)
		}
		if got := nextBatch(&e.scheduler); len(got) != 0 {
			t.Errorf("it is queued again")
		}
	})
}

// TestFailedCommitsKeepTheOrderOfWrites shows that writes are queued in their order again after a commit that failed,
// if its members were tried alone, and if another commit failed in between.
func TestFailedCommitsKeepTheOrderOfWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		p := newPipeline(newScripted(func(backends.CommitContent, func() (backends.Results, error)) (backends.Results, error) {
			tries++
			return backends.Results{}, backends.DiskFull(errors.New("no space left"))
		}))
		e := p.executor
		push := func(n int) (all []*PendingWrite) {
			w := newWorker(p)
			for range n {
				p, err := p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, p)
			}
			return all
		}
		first := push(8)
		taken := nextBatch(&e.scheduler)
		second := push(4)
		other := nextBatch(&e.scheduler)
		third := push(1)
		if err := e.commit(context.Background(), batch{writes: other}); err == nil || tries != 7 {
			t.Errorf("a commit that the disk has no space for: %v after %d tries", err, tries)
		}
		if err := e.commit(context.Background(), batch{writes: taken}); err == nil {
			t.Error("a commit that the disk has no space for succeeded")
		}
		if want := slices.Concat(first, second, third); !slices.Equal(e.scheduler.queue, want) {
			for _, p := range e.scheduler.queue {
				t.Errorf("write %d is queued", slices.Index(want, p)+1)
			}
		}
	})
}
