package pipeline

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// losses are the leases that sessions of a pipeline lost.
type losses struct {
	mu  sync.Mutex
	all []loss
}

type loss struct {
	session *quota.Session
	job     string
	reason  string
	at      time.Time
}

func (l *losses) add(lost lease.Lost, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s, gone := range lost {
		for i := range gone {
			l.all = append(l.all, loss{s, gone[i].ID(), reason, time.Now()})
		}
	}
}

// want checks that exactly the job was lost, because it was cancelled, within a time.
func (l *losses) want(t *testing.T, s *quota.Session, job string, since time.Time, within time.Duration) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) != 1 || l.all[0].session != s || l.all[0].job != job || l.all[0].reason != "cancelled" || l.all[0].at.Sub(since) > within {
		t.Errorf("lost %+v since %v; want job %s within %v", l.all, since, job, within)
	}
}

// startNoting runs a pipeline that notes what its sessions lose.
func startNoting(t *testing.T, db backends.Backend) (*Pipeline, *losses) {
	t.Helper()
	l := &losses{}
	p := newPipeline(db)
	before := p.lost
	p.lost = func(lost lease.Lost, reason string) {
		before(lost, reason)
		l.add(lost, reason)
	}
	run(t, p)
	return p, l
}

func cancel(t *testing.T, p *Pipeline, want int64, ids ...string) time.Time {
	t.Helper()
	if n, err := p.Command(t.Context(), backends.Command{Kind: backends.Cancel, Queue: "q", IDs: ids}); n != want || err != nil {
		t.Fatalf("cancelled %d, %v; want %d", n, err, want)
	}
	return time.Now()
}

// TestCancelReachesTheWorker checks that the worker of a cancelled job loses its lease at once on the sidecar that was asked, and
// within two seconds on another one, at each moment between two heartbeats.
func TestCancelReachesTheWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		mine, here := startNoting(t, db)
		theirs, there := startNoting(t, db)
		w, other := newWorker(mine), newWorker(theirs)
		for range 40 {
			a, b := enqueueOne(t, db), enqueueOne(t, db)
			held := claimed(t, w, a, b)
			away := claimed(t, other, a, b)
			at := cancel(t, mine, 2, a, b)
			here.want(t, &w.Session, held, at, 0)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			there.want(t, &other.Session, away, at, 2*time.Second)
			if mine.Leases()+theirs.Leases() != 0 {
				t.Fatalf("%d and %d leases are known", mine.Leases(), theirs.Leases())
			}
			for _, p := range []*Pipeline{mine, theirs} {
				if left, err := db.Cancelled(t.Context(), p.Identity()); len(left) > 0 || err != nil {
					t.Fatalf("%v stays, %v", left, err)
				}
			}
			here.all, there.all = nil, nil
			time.Sleep(131 * time.Millisecond) // another moment
		}
	})
}

// TestCancelledPrefetchedJobIsNotHandedOut checks that no worker gets a job from a second after its cancel on, also from another
// sidecar that had prefetched it, and that a worker that gets it before finds out.
func TestCancelledPrefetchedJobIsNotHandedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		asked, _ := startNoting(t, db)
		p, lost := startNoting(t, db)
		w := newWorker(p)
		handed := 0
		for range 20 {
			lost.all = nil
			var ids []string
			for range 200 {
				ids = append(ids, enqueueOne(t, db))
			}
			for range 100 {
				jobs := w.claim(t, "q", true)
				time.Sleep(time.Millisecond)
				ack(t, p, &w.Session, jobs)
			}
			at := cancel(t, asked, 100, ids...)
			var late []string
			for time.Since(at) < time.Second {
				if jobs := w.claim(t, "q", false); len(jobs) > 0 {
					late = append(late, jobs[0].ID)
				}
				time.Sleep(7 * time.Millisecond)
			}
			if jobs := w.claim(t, "q", false); len(jobs) > 0 {
				t.Fatalf("job %s came a second after it was cancelled", jobs[0].ID)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			handed += len(late)
			if len(lost.all) != len(late) || p.Leases() > 0 {
				t.Fatalf("%v came late, lost %+v, and %d leases are left", late, lost.all, p.Leases())
			}
		}
		if handed == 0 {
			t.Error("none was prefetched when it was cancelled")
		}
	})
}

func enqueueOne(t *testing.T, db backends.Backend) string {
	t.Helper()
	r, err := db.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Writes[0].Stored[0].ID
}

// claimed claims one of the jobs and returns its id.
func claimed(t *testing.T, w *worker, ids ...string) string {
	t.Helper()
	jobs := w.claim(t, "q", true)
	if len(jobs) != 1 {
		t.Fatalf("claimed %d jobs of %v", len(jobs), ids)
	}
	return jobs[0].ID
}
