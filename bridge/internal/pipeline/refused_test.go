package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// TestRefusedReleaseHoldsNoOther shows that the jobs of a session come back although the database refuses one of them. That
// one is tried again rarely, and comes back when it is not refused any more, with its attempt counted.
func TestRefusedReleaseHoldsNoOther(t *testing.T) {
	for what, err := range map[string]error{
		"refused":  backends.Refused(errors.New("index u")),
		"internal": errors.New("no such column"),
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var fixed atomic.Bool
				var tries atomic.Int32
				db := newScripted(func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
					for _, w := range b.Writes {
						r, is := w.(backends.Release)
						if is && !fixed.Load() && slices.ContainsFunc(r.Leases, func(l backends.Lease) bool { return l.Job == "2" }) {
							tries.Add(1)
							return backends.Results{}, err
						}
					}
					return commit()
				})
				p := start(t, db)
				w := newWorker(p)
				for range 3 {
					w.enqueue(t, "q")
				}
				for range 3 {
					w.claim(t, "q", true)
				}
				_, release := p.ReleaseSession(&w.Session, backends.Release{Cause: backends.CauseDisconnected, Message: "the client hung up"})
				o := <-release.Done
				if o.Err != nil || len(o.Result.Lost) != 1 || o.Result.Lost[0].Job != "2" {
					t.Errorf("the release: %+v", o)
				}
				var ids []string
				for range 2 {
					ids = append(ids, w.claim(t, "q", true)[0].ID)
				}
				if slices.Sort(ids); fmt.Sprint(ids) != "[1 3]" {
					t.Errorf("jobs %v came back", ids)
				}
				first := tries.Load()
				time.Sleep(time.Hour)
				all := p.Obstacles()
				if n := tries.Load() - first; n < 10 || n > 30 || len(all) != 1 || all[0].Queue != "q" || all[0].Job != "2" || !errors.Is(all[0].Err, err) {
					t.Errorf("%d tries in an hour, obstacles: %+v", n, all)
				}
				fixed.Store(true)
				jobs := w.claim(t, "q", true)
				synctest.Wait()
				if len(jobs) != 1 || jobs[0].ID != "2" || jobs[0].Attempt != 2 || len(p.Obstacles()) != 0 {
					t.Errorf("with nothing in the way: %+v, obstacles: %v", jobs, p.Obstacles())
				}
			})
		})
	}
}

// TestDeletedRefusedJobIsForgotten shows that an obstacle ends with its job.
func TestDeletedRefusedJobIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone atomic.Bool
		db := newScripted(func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
			if has[backends.Release](b) && !gone.Load() {
				return backends.Results{}, backends.Refused(errors.New("index u"))
			}
			return commit()
		})
		p := start(t, db)
		w := newWorker(p)
		w.enqueue(t, "q")
		lease := w.claim(t, "q", true)[0].Lease()
		_, release := p.ReleaseSession(&w.Session, backends.Release{Uncounted: true})
		<-release.Done
		if len(p.Obstacles()) != 1 {
			t.Fatalf("obstacles: %v", p.Obstacles())
		}
		if _, err := db.Backend.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: []backends.Lease{lease}}}}); err != nil {
			t.Fatal(err)
		}
		gone.Store(true)
		time.Sleep(10 * time.Minute)
		if all := p.Obstacles(); len(all) != 0 {
			t.Errorf("obstacles: %v", all)
		}
	})
}
