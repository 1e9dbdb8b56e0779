package bridge

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// frozen is a database that answers nothing while it is frozen.
type frozen struct {
	*memory.Backend
	on atomic.Bool
}

func (f *frozen) wait(ctx context.Context) error {
	if !f.on.Load() {
		return nil
	}
	<-ctx.Done()
	return backends.Unavailable(context.Cause(ctx))
}

func (f *frozen) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	if err := f.wait(ctx); err != nil {
		return backends.Results{}, err
	}
	return f.Backend.Commit(ctx, b)
}

func (f *frozen) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	if err := f.wait(ctx); err != nil {
		return backends.HeartbeatResult{}, err
	}
	return f.Backend.Heartbeat(ctx, b)
}

// TestStatusOfAFrozenDatabase shows that status reports the problem and what to check, whichever query of the sidecar
// got no answer.
func TestStatusOfAFrozenDatabase(t *testing.T) {
	for name, request := range map[string]string{"a beat": "", "a commit": `{"op":"enqueue","queue":"q","id":1}`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &frozen{Backend: memory.New()}
				s := start(t, options(db))
				c := s.dial(t)
				c.call(`{"op":"enqueue","queue":"q"}`)
				db.on.Store(true)
				defer db.on.Store(false)
				if request != "" {
					c.send("%s", request)
				}
				time.Sleep(time.Minute)
				got := s.Bridge.status().Databases[0].Error
				if !strings.Contains(got, "the database gave no answer within ") || !strings.Contains(got, "see whether its host hangs") {
					t.Errorf("status prints %q", got)
				}
			})
		})
	}
}
