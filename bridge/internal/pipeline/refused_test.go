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
// one is tried again rarely, apart from the writes of others, and comes back when it is not refused any more, with its attempt
// counted.
func TestRefusedReleaseHoldsNoOther(t *testing.T) {
	for what, c := range map[string]struct {
		err   error
		apart bool // the others of its commit are carried out
		queue bool // the obstacle is that of the queue
	}{
		"refused":      {err: backends.Refused(errors.New("index u"))},
		"internal":     {err: errors.New("no such column")},
		"conflict":     {err: &backends.LockedError{Err: errors.New("a trigger raises 40001"), Conflict: true}},
		"table":        {err: &backends.UnavailableError{Err: errors.New("its table can't be used now"), Queue: "q"}, apart: true, queue: true},
		"refused part": {err: backends.Refused(errors.New("index u")), apart: true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var fixed atomic.Bool
				var tries, crowded atomic.Int32
				refuses := func(w backends.Write) bool {
					r, is := w.(backends.Release)
					return is && !fixed.Load() && slices.ContainsFunc(r.Leases, func(l backends.Lease) bool { return l.Job == "2" })
				}
				var db *scripted
				db = newScripted(func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
					if !slices.ContainsFunc(b.Writes, refuses) {
						return commit()
					}
					tries.Add(1)
					if len(b.Writes) > 1 && has[backends.Enqueue](b) {
						crowded.Add(1)
					}
					time.Sleep(time.Second)
					if !c.apart {
						return backends.Results{}, c.err
					}
					res := backends.Results{Claims: make([]backends.ClaimResult, len(b.Claims))}
					for _, w := range b.Writes {
						one := backends.Results{Writes: []backends.WriteResult{{Err: c.err}}}
						if !refuses(w) {
							var err error
							if one, err = db.Backend.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{w}}); err != nil {
								return backends.Results{}, err
							}
						}
						res.Writes = append(res.Writes, one.Writes...)
					}
					return res, nil
				})
				p := start(t, db)
				w := newWorker(p)
				for range 3 {
					w.enqueue(t, "q")
				}
				for range 3 {
					w.claim(t, "q", true)
				}
				_, release := p.ReleaseSession(&w.Session, backends.Release{Cause: backends.CauseDisconnected, Message: "the client hung up"}, false)
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
				crowded.Store(0)
				for range 1200 {
					time.Sleep(250 * time.Millisecond)
					w.enqueueKeyed(t, "other", "k")
				}
				time.Sleep(55 * time.Minute)
				job, least, most := "2", int32(10), int32(30)
				if c.queue { // its owner corrects the table, so it is tried more often
					job, least, most = "", 120, 300
				}
				all := p.Obstacles()
				if n := tries.Load() - first; n < least || n > most || len(all) != 1 || all[0].Queue != "q" || all[0].Job != job || !errors.Is(all[0].Err, c.err) {
					t.Errorf("%d tries in an hour, obstacles: %+v", n, all)
				}
				if n := crowded.Load(); n > 0 {
					t.Errorf("%d tries had writes of others", n)
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
		_, release := p.ReleaseSession(&w.Session, backends.Release{Uncounted: true}, false)
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
