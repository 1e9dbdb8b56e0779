package mysql

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// endBatches ends batches through two nodes, of which neither sees the other's locks. The last two jobs of a batch end at the same
// instant, then both nodes end the batch at the same instant. In every second batch the answers are lost. Each batch stores one callback.
func endBatches(t *testing.T, name string, nodes []*testserver.MySQL) {
	const rounds = 4
	var stores []*Store
	for i, m := range nodes {
		s := open(t, Options{URL: m.URL(name)})
		join(t, s, backends.Identity(i+1))
		stores = append(stores, s)
	}
	// both runs f on each node. All wait for each other before they commit.
	both := func(lose bool, f func(s *Store, node int) error) {
		t.Helper()
		var arrived, returned sync.WaitGroup
		var met atomic.Int64
		arrived.Add(len(stores))
		for i, s := range stores {
			returned.Go(func() {
				here := sync.OnceFunc(arrived.Done)
				defer here() // so that the other one doesn't wait for a call that failed
				s.beforeCommit(func() {
					if lose {
						s.loseCommit(false)
					}
					met.Add(1)
					here()
					arrived.Wait()
				})
				if err := f(s, i); err != nil && !backends.Retryable(err) && !errors.Is(err, backends.ErrUnknownOutcome) {
					t.Error(err)
				}
			})
		}
		returned.Wait()
		if n := met.Load(); n != int64(len(stores)) {
			t.Errorf("%d of %d nodes came to a commit", n, len(stores))
		}
	}
	everywhere := func(what, query string, want int64) {
		t.Helper()
		for i, m := range nodes {
			testwait.Until(t, fmt.Sprintf("node %d has %s", i+1, what), func() bool { return numberOf(t, m, name, query) == want })
		}
	}
	answered := 0
	for round := range rounds {
		lose := round%2 == 1
		id, _, err := stores[0].OpenBatch(t.Context(), backends.NewBatch{On: backends.OnFinish, Expire: time.Hour, Callback: backends.NewJob{Queue: "callbacks"}})
		if err != nil {
			t.Fatal(err)
		}
		write(t, stores[0], backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Batch: id}, {Queue: "q", Batch: id}}})
		if err := stores[0].CloseBatch(t.Context(), "callbacks", id); err != nil {
			t.Fatal(err)
		}
		everywhere("the closed batch", "SELECT COUNT(*) FROM qsidecar_batches WHERE state = 'closed'", 1)
		var leases [][]backends.Lease
		for i, s := range stores {
			var jobs []backends.Job
			testwait.Until(t, "a claim gets a job", func() bool {
				jobs = claimJobs(t, s, backends.Identity(i+1), 1, uint64(1_000_000+round*10))
				return len(jobs) == 1
			})
			leases = append(leases, leasesOf(jobs))
		}
		everywhere("both claims", "SELECT COUNT(*) FROM qsidecar_jobs WHERE queue = 'q' AND state = 'claimed'", 2)
		ack := func(s *Store, node int) error {
			r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leases[node]}}})
			if err == nil && len(r.Writes[0].Lost) > 0 {
				t.Errorf("a lease was lost: %+v", r.Writes[0])
			}
			return err
		}
		both(lose, ack)
		everywhere("both acks", "SELECT COUNT(*) FROM qsidecar_batch_members WHERE done = 1", 2)
		for i, s := range stores { // the workers send their acks again, as after a lost reply
			if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leases[i]}}}); err != nil {
				t.Error(err)
			}
		}
		var mu sync.Mutex
		ended := 0
		both(lose, func(s *Store, _ int) error {
			r, err := s.ResolveBatches(t.Context(), []string{id})
			mu.Lock()
			defer mu.Unlock()
			ended += len(r.Ended)
			return err
		})
		if ended > 1 {
			t.Errorf("round %d: both nodes ended the batch", round)
		}
		answered += ended
		everywhere("the callback", "SELECT COUNT(*) FROM qsidecar_jobs WHERE queue = 'callbacks'", int64(round+1))
		for _, s := range stores { // as maintenance does later
			if _, err := s.ResolveBatches(t.Context(), nil); err != nil && !backends.Retryable(err) {
				t.Error(err)
			}
		}
		everywhere("no other callback, and no member", `SELECT (SELECT COUNT(*) FROM qsidecar_jobs WHERE queue = 'callbacks') + (SELECT COUNT(*) FROM qsidecar_batch_members)
			+ (SELECT COUNT(*) FROM qsidecar_batches WHERE state <> 'ended') + (SELECT COUNT(*) FROM qsidecar_batch_notes)`, int64(round+1))
	}
	t.Logf("%d batches, each ended by two nodes at the same instant, have one callback each; %d calls were answered that they ended one", rounds, answered)
}
