package bridge

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/depth"
)

// mute is a database that returns no depths while it hangs.
type mute struct {
	*counting
	hangs chan struct{} // closed when it stops hanging
}

func (m *mute) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	select {
	case <-m.hangs:
		return m.counting.Stats(ctx, queue)
	default:
	}
	m.stats.Add(1)
	select {
	case <-m.hangs:
		return nil, errDown
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// limitedByMute is a sidecar of a database that hangs in queries for depths.
func limitedByMute(t *testing.T, queues int) (*sidecar, *mute) {
	db := &mute{counting: &counting{faulty: &faulty{Backend: memory.New()}}, hangs: make(chan struct{})}
	o := options(db)
	for i := range queues {
		o.Queues[fmt.Sprintf("q%d", i)] = Queue{MaxReady: 3}
	}
	return start(t, o), db
}

// TestDepthOfAHungDatabase shows that all producers wait for one query, and that requests that they pipelined behind
// it are refused with its error. Before, one query followed the other, 5 s each, and acks waited behind them.
func TestDepthOfAHungDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := limitedByMute(t, 1)
		worker := s.dial(t)
		worker.call(`{"op":"enqueue","queue":"free"}`)
		lease := worker.claim1("free").Lease
		var producers []*client
		for range 10 {
			producers = append(producers, s.dial(t))
		}
		began := time.Now()
		for _, c := range append(producers, worker) {
			for i := range 5 {
				c.send(`{"op":"enqueue","queue":"q0","id":%d}`, i)
			}
		}
		worker.send(`{"op":"ack","lease":%q,"id":5}`, lease)
		for _, c := range append(producers, worker) {
			for range 5 {
				if r := c.receive(); r.Error.Code != "unavailable" {
					t.Fatalf("an enqueue was answered %+v", r)
				}
			}
		}
		if r := worker.receive(); r.Acked != 1 {
			t.Errorf("the ack was answered %+v", r)
		}
		took, looks := time.Since(began), db.stats.Load()
		t.Logf("10 producers with 5 enqueues each: %d looks, the ack behind them after %v", looks, took)
		if looks != 1 || took > enqueueWait+depth.ReadyAge {
			t.Errorf("%d looks, %v; want 1, %v", looks, took, enqueueWait)
		}
		close(db.hangs)
		time.Sleep(2 * depth.ReadyAge)
		worker.call(`{"op":"enqueue","queue":"q0"}`)
	})
}

// TestDepthsOfManyQueues shows that a request with many queues that have a limit waits for them together.
func TestDepthsOfManyQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := limitedByMute(t, 20)
		c := s.dial(t)
		jobs := ""
		for i := range 20 {
			jobs += fmt.Sprintf(`,{"queue":"q%d"}`, i)
		}
		began := time.Now()
		c.refused("unavailable", `{"op":"enqueue","jobs":[%s]}`, jobs[1:])
		if took := time.Since(began); took != enqueueWait {
			t.Errorf("answered after %v, want %v", took, enqueueWait)
		}
	})
}

// TestEndedSessionQueriesNoDepths shows that a session whose client is gone does not wait for another query for each
// request that was read before.
func TestEndedSessionQueriesNoDepths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := limitedByMute(t, 1)
		c := s.dial(t)
		began := time.Now()
		for range 300 {
			c.send(`{"op":"enqueue","queue":"q0"}`)
		}
		synctest.Wait()
		c.close()
		eventually(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.sessions) == 0
		})
		if took := time.Since(began); took > 3*depth.ReadyAge {
			t.Errorf("the session ended after %v", took)
		}
	})
}

// TestDepthQueryEndsWithTheSession shows that a query that no session waits for is cancelled, and that the session
// ends without its result. The next query does not treat it as a failure.
func TestDepthQueryEndsWithTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := limitedByMute(t, 1)
		c := s.dial(t)
		began := time.Now()
		c.send(`{"op":"enqueue","queue":"q0"}`)
		synctest.Wait()
		c.close()
		eventually(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.sessions) == 0
		})
		if took := time.Since(began); took > 2*depth.ReadyAge {
			t.Errorf("the session ended after %v", took)
		}
		close(db.hangs)
		s.dial(t).call(`{"op":"enqueue","queue":"q0"}`)
	})
}
