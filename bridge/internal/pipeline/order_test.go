package pipeline

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends"
)

// TestFailedCommitsKeepTheOrderOfWrites shows that writes are queued in their order again after a commit that failed,
// if its members were tried alone, and if another commit failed in between.
func TestFailedCommitsKeepTheOrderOfWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		p := newPipeline(newScripted(func(backends.Batch, func() (backends.Results, error)) (backends.Results, error) {
			tries++
			return backends.Results{}, backends.DiskFull(errors.New("no space left"))
		}))
		c := p.committer
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
		taken := nextBatch(c)
		second := push(4)
		other := nextBatch(c)
		third := push(1)
		if err := c.commit(context.Background(), batch{writes: other}); err == nil || tries != 7 {
			t.Errorf("a commit that the disk has no space for: %v after %d tries", err, tries)
		}
		if err := c.commit(context.Background(), batch{writes: taken}); err == nil {
			t.Error("a commit that the disk has no space for succeeded")
		}
		if want := slices.Concat(first, second, third); !slices.Equal(c.queue, want) {
			for _, p := range c.queue {
				t.Errorf("write %d is queued", slices.Index(want, p)+1)
			}
		}
	})
}
