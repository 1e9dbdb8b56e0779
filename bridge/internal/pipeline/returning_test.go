package pipeline

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// ownLoops is a database where claims and writes have a commit loop each.
type ownLoops struct{ *scripted }

func (o ownLoops) Info() backends.Info {
	info := o.scripted.Info()
	info.Concurrent = true
	return info
}

// TestNoClaimWaitsForAReleaseThatFails shows that a claim that doesn't wait is answered although the database can't take
// back a job of its queue, for example because another program has its row locked.
func TestNoClaimWaitsForAReleaseThatFails(t *testing.T) {
	for what, err := range map[string]error{
		"locked":      &backends.LockedError{Err: errors.New("another program has the row locked")},
		"unavailable": backends.Unavailable(errors.New("the log can't be written")),
		"unknown":     backends.ErrUnknownOutcome,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var fixed atomic.Bool
				db := newScripted(func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
					switch {
					case fixed.Load() || !has[backends.Release](b):
						return commit()
					case b.WaitForLocks:
						time.Sleep(time.Second)
					case what == "locked": // the rest of the commit succeeds
						return backends.Results{Writes: []backends.WriteResult{{Err: err}}, Claims: make([]backends.ClaimResult, len(b.Claims))}, nil
					default:
						time.Sleep(time.Millisecond)
					}
					return backends.Results{}, err
				})
				p := start(t, ownLoops{db})
				w := newWorker(p)
				w.enqueue(t, "q")
				a := p.AwaitClaim(t.Context().Done(), w.queued(t, false, "q"))
				p.ReturnUndelivered(a.Jobs) // its client is gone
				once := w.queued(t, true, "q")
				time.Sleep(time.Minute)
				synctest.Wait()
				if !answered(p, once) {
					t.Error("a claim that does not wait has no answer after a minute")
				}
				waiting := w.queued(t, false, "q")
				fixed.Store(true)
				if a := p.AwaitClaim(t.Context().Done(), waiting); len(a.Jobs) != 1 || a.Jobs[0].Attempt != 1 {
					t.Errorf("when the job is back, a claim gets %+v", a)
				}
			})
		})
	}
}
