package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// writesFail is a database that commits claims and can't commit writes.
type writesFail struct{ *memory.Backend }

func (b writesFail) Info() backends.Info {
	info := b.Backend.Info()
	info.Concurrent = true // claims and writes have a commit loop each
	return info
}

func (b writesFail) Commit(ctx context.Context, batch backends.Batch) (backends.Results, error) {
	if len(batch.Writes) > 0 {
		return backends.Results{}, backends.Unavailable(errors.New("the disk of the log is gone"))
	}
	return b.Backend.Commit(ctx, batch)
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
