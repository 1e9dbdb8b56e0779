package pipeline

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// lockedTable is a database with a locked table: a commit leaves each write out, to be tried alone, and alone it is unavailable.
type lockedTable struct {
	*memory.Backend
	locked  atomic.Bool
	commits atomic.Int64 // with writes, while it is locked
}

func (l *lockedTable) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	if !l.locked.Load() || len(b.Writes) == 0 {
		return l.Backend.Commit(ctx, b)
	}
	l.commits.Add(1)
	why := &backends.UnavailableError{Table: "qsidecar_keys", Err: errors.New("another session has locked the whole table qsidecar_keys")}
	if b.WaitForLocks {
		return backends.Results{}, why
	}
	res := backends.Results{Writes: make([]backends.WriteResult, len(b.Writes)), Claims: make([]backends.ClaimResult, len(b.Claims))}
	for i := range res.Writes {
		res.Writes[i].Err = &backends.LockedError{Err: why}
	}
	return res, nil
}

// TestWritesWaitForALockedTable shows that writes that need a locked table are tried about once a second, not in a loop, and that they
// succeed soon after the lock is gone.
func TestWritesWaitForALockedTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &lockedTable{Backend: memory.New()}
		p := start(t, db)
		w := newWorker(p)
		db.locked.Store(true)
		pending, err := p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := p.AwaitWrite(pending, time.Minute)
			done <- err
		}()
		time.Sleep(20 * time.Second)
		if n := db.commits.Load(); n < 10 || n > 200 {
			t.Errorf("%d commits in 20 s", n)
		}
		db.locked.Store(false)
		time.Sleep(2 * retryMax)
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Fatal("2 s after the lock is gone, the write is not stored")
		}
	})
}
