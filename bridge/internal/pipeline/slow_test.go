package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// slowTables is a database with adopted tables without an index: a claim of slow1, slow2 and so on waits for a value from open.
type slowTables struct {
	*memory.Backend
	concurrent bool
	open       chan error
	mu         sync.Mutex
	claiming   []string // slow queues that commits claim from; guarded by mu
}

func (s *slowTables) Info() backends.Info {
	info := s.Backend.Info()
	info.Concurrent = s.concurrent
	return info
}

func (*slowTables) Slow(queue string) bool           { return strings.HasPrefix(queue, "slow") }
func (*slowTables) Adopted(queue string) bool        { return strings.HasPrefix(queue, "slow") }
func (*slowTables) AdoptedTable(queue string) string { return queue }
func (*slowTables) ClaimsInTx(string) bool           { return false }
func (*slowTables) InTx(backends.Lease) bool         { return false }

func (s *slowTables) Commit(ctx context.Context, batch backends.CommitContent) (backends.Results, error) {
	for _, c := range batch.Claims {
		if q := c.Queues[0].Queue; s.Slow(q) {
			if len(batch.Claims)+len(batch.Writes) > 1 || !batch.WaitForLocks {
				return backends.Results{}, fmt.Errorf("a claim of %s is in a commit that others wait for", q)
			}
			s.mu.Lock()
			s.claiming = append(s.claiming, q)
			s.mu.Unlock()
			err := <-s.open
			s.mu.Lock()
			s.claiming = slices.DeleteFunc(s.claiming, func(other string) bool { return other == q })
			s.mu.Unlock()
			if err != nil {
				return backends.Results{}, err
			}
		}
	}
	return s.Backend.Commit(ctx, batch)
}

// now returns the slow queues that commits claim from.
func (s *slowTables) now() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.claiming)
	return fmt.Sprint(s.claiming)
}

// TestSlowQueuesDelayNoOther shows that claims of other queues are answered while claims of slow queues are under way: those
// have commits of their own, one for each wait queue, and four in all.
func TestSlowQueuesDelayNoOther(t *testing.T) {
	for _, concurrent := range []bool{false, true} {
		t.Run(fmt.Sprintf("concurrent=%v", concurrent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &slowTables{Backend: memory.New(), concurrent: concurrent, open: make(chan error)}
				p := start(t, db)
				proceed := sync.OnceFunc(func() { close(db.open) })
				t.Cleanup(proceed)
				claims := make(chan []backends.Job, 10)
				claim := func(queue string) {
					go func() { claims <- newWorker(p).claim(t, queue, true) }()
					synctest.Wait()
				}
				for i := range 6 {
					claim(fmt.Sprint("slow", i))
				}
				claim("slow0") // its first commit has not ended
				if got := db.now(); got != "[slow0 slow1 slow2 slow3]" {
					t.Fatalf("claims of %s are under way, want one of each of four", got)
				}
				w := newWorker(p)
				w.enqueue(t, "fast")
				if jobs := w.claim(t, "fast", true); len(jobs) != 1 || p.executor.memory.Snapshot().Claims == 0 {
					t.Errorf("beside them another claim gets %v; %+v", jobs, p.executor.memory.Snapshot())
				}
				db.open <- nil // whichever receives it
				synctest.Wait()
				if got := db.now(); strings.Count(got, "slow") != 4 || !strings.Contains(got, "slow4") {
					t.Errorf("after one has ended, claims of %s are under way", got)
				}
				proceed()
				for i := range 6 {
					w.enqueue(t, fmt.Sprint("slow", i))
					if jobs := <-claims; len(jobs) != 1 {
						t.Errorf("claim %d got %v", i, jobs)
					}
				}
				w.enqueue(t, "slow0")
				if jobs := <-claims; len(jobs) != 1 {
					t.Errorf("the second claim of slow0 got %v", jobs)
				}
				synctest.Wait()
				if m := p.executor.memory.Snapshot(); m.Claims != 0 {
					t.Errorf("%d bytes are reserved for claims that have ended", m.Claims)
				}
			})
		})
	}
}

// TestSlowClaimsAreRetriedInTime shows that a claim of a slow queue that the database can't carry out is tried again after
// about a second, and not in a loop, and that the end of the pipeline waits for it.
func TestSlowClaimsAreRetriedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &slowTables{Backend: memory.New(), concurrent: true, open: make(chan error)}
		p := newPipeline(db)
		p.Join(t.Context())
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx, ctx, context.Background()) }()
		synctest.Wait()
		r := newWorker(p).queued(t, false, "slow")
		for range 3 {
			if got := db.now(); got != "[slow]" {
				t.Fatalf("claims of %s are under way", got)
			}
			db.open <- backends.Unavailable(errors.New("no connection"))
			if got := db.now(); got != "[]" || p.executor.loops.own.lastErr.Load() == nil {
				t.Fatalf("immediately after an error claims of %s are under way, or it is not noted", got)
			}
			time.Sleep(2 * retryMax)
		}
		stop()
		synctest.Wait()
		if got := db.now(); got != "[slow]" || len(ended) != 0 {
			t.Errorf("when it stops, claims of %s are under way, ended: %d", got, len(ended))
		}
		db.open <- nil
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if answered(p, r) {
			t.Error("the claim is answered without a job")
		}
	})
}
