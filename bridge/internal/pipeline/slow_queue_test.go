package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// slowTables is a database whose queues with names that begin with "slow" are slow: their claims wait until the test allows them.
type slowTables struct {
	*memory.Backend
	concurrent bool
	free       chan struct{}

	mu     sync.Mutex
	claims map[string]int // under way, by queue
	shared error          // a commit had such a claim and something else
}

func (b *slowTables) Info() backends.Info {
	info := b.Backend.Info()
	info.Concurrent = b.concurrent
	return info
}

func (b *slowTables) Adopted(queue string) bool    { return b.Slow(queue) }
func (b *slowTables) AdoptedTable(string) string   { return "" }
func (b *slowTables) ClaimsInTx(string) bool       { return false }
func (b *slowTables) InTx(backends.Lease) bool     { return false }
func (b *slowTables) Slow(queue string) (yes bool) { return strings.HasPrefix(queue, "slow") }

func (b *slowTables) Commit(ctx context.Context, batch backends.Batch) (backends.Results, error) {
	for _, c := range batch.Claims {
		queue := c.Queues[0].Queue
		if !b.Slow(queue) {
			continue
		}
		b.mu.Lock()
		b.claims[queue]++
		if len(batch.Claims)+len(batch.Writes) > 1 || !batch.WaitForLocks || b.claims[queue] > 1 {
			b.shared = errors.Join(b.shared, fmt.Errorf("a claim of %s is in a commit with %d writes and %d claims, %d are under way", queue, len(batch.Writes), len(batch.Claims), b.claims[queue]))
		}
		b.mu.Unlock()
		<-b.free
		b.mu.Lock()
		b.claims[queue]--
		b.mu.Unlock()
	}
	return b.Backend.Commit(ctx, batch)
}

func (b *slowTables) underWay() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.claims {
		n += m
	}
	return n
}

// TestSlowQueuesDelayNoOther shows that claims of slow queues run beside the commits of all others, one for each list of queues
// and maxBeside in all, and get their jobs.
func TestSlowQueuesDelayNoOther(t *testing.T) {
	for _, concurrent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			db := &slowTables{Backend: memory.New(), concurrent: concurrent, free: make(chan struct{}), claims: map[string]int{}}
			p := start(t, db)
			producer := newWorker(p)
			const queues, each = maxBeside + 2, 3
			done := make(chan int, queues*each)
			for i := range queues {
				name := fmt.Sprint("slow", i)
				for range each {
					w := newWorker(p)
					go func() { done <- len(w.claim(t, name, true)) }()
				}
				for range each {
					producer.enqueue(t, name)
				}
			}
			synctest.Wait()
			if n := db.underWay(); n != maxBeside {
				t.Errorf("%d claims of slow queues are under way, want %d", n, maxBeside)
			}
			for range 5 {
				producer.enqueue(t, "q")
				if jobs := newWorker(p).claim(t, "q", true); len(jobs) != 1 {
					t.Errorf("beside slow claims another queue has %d jobs", len(jobs))
				}
			}
			close(db.free)
			for range queues * each {
				if n := <-done; n != 1 {
					t.Errorf("a claim of a slow queue gets %d jobs", n)
				}
			}
			synctest.Wait()
			if db.shared != nil || p.committer.reserved != 0 || p.dispatcher.beside != 0 {
				t.Errorf("%v; %d bytes are reserved, %d wait queues are claimed for", db.shared, p.committer.reserved, p.dispatcher.beside)
			}
		})
	}
}
