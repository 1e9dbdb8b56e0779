package mysql

import (
	"fmt"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// galeraJobs is how many jobs TestGaleraConflicts works off.
const galeraJobs = 600

// TestGaleraConflicts claims and acks the same jobs through two nodes at once. Neither node sees the
// other's locks, so the cluster aborts many transactions. Each claim and ack that was answered must be in
// the table, and no job is held twice.
func TestGaleraConflicts(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	g, err := testserver.StartGalera(testwait.Context(t), 3, testserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	name := g.Nodes[0].Database(t)
	var stores []*Store
	for _, node := range g.Nodes[:2] {
		stores = append(stores, open(t, Options{URL: node.URL(name)}))
	}
	var jobs []backends.NewJob
	for range galeraJobs {
		jobs = append(jobs, backends.NewJob{Queue: "q"})
	}
	write(t, stores[0], backends.Enqueue{Jobs: jobs})

	held := ledger{holder: map[string]string{}}
	var wg sync.WaitGroup
	for n, s := range stores {
		host := backends.Identity(n + 1)
		join(t, s, host)
		for w := range 4 {
			wg.Go(func() {
				for i := 0; held.open(); i++ {
					held.work(t, s, host, fmt.Sprintf("worker %d of node %d", w, n), uint64(w*1_000_000+i*10))
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d jobs, %d claims and acks were answered as unavailable", held.ended, held.unavailable)
	if left := numberOf(t, g.Nodes[2], name, "SELECT COUNT(*) FROM qsidecar_jobs"); left != 0 {
		t.Errorf("%d jobs are left, and all were acked", left)
	}
}

// ledger records who holds which job by the Store's answers.
type ledger struct {
	mu          sync.Mutex
	holder      map[string]string
	ended       int
	unavailable int
	wrong       bool
}

func (l *ledger) open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended < galeraJobs && !l.wrong
}

// work claims some jobs and acks them until that is answered.
func (l *ledger) work(t *testing.T, s *Store, host backends.Identity, worker string, number uint64) {
	r, err := s.Commit(t.Context(), claimOf(host, 3, number))
	if !l.answered(t, err) {
		return
	}
	jobs := r.Claims[0].Jobs
	l.mu.Lock()
	for _, j := range jobs {
		if other := l.holder[j.ID]; other != "" {
			t.Errorf("%s got job %s, which %s has or acked", worker, j.ID, other)
			l.wrong = true
		}
		l.holder[j.ID] = worker
	}
	l.mu.Unlock()
	for len(jobs) > 0 {
		r, err := s.Commit(t.Context(), backends.Batch{Writes: []backends.Write{backends.Ack{Leases: leasesOf(jobs)}}})
		if !l.answered(t, err) {
			if !l.open() {
				return
			}
			continue
		}
		l.mu.Lock()
		if lost := r.Writes[0].Lost; len(lost) > 0 {
			t.Errorf("%s: an ack lost %v", worker, lost)
			l.wrong = true
		}
		l.ended += len(jobs)
		l.mu.Unlock()
		return
	}
}

// answered reports whether there was no error. No other error than Unavailable is allowed.
func (l *ledger) answered(t *testing.T, err error) bool {
	if err == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unavailable++; !backends.Retryable(err) {
		t.Errorf("%v", err)
		l.wrong = true
	}
	return false
}
