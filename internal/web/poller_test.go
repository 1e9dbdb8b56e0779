package web

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestPollerCost checks how often the poller reads: what many browsers together cost, that a slow database is read
// rarely, and that it samples for an hour after the last visit and then stops.
func TestPollerCost(t *testing.T) {
	for _, c := range []struct {
		name             string
		takes            time.Duration
		watched, sampled int64 // readings at most, in a minute and in the hour after it
	}{
		{"fast", time.Millisecond, 61, 71},
		{"slow", 2 * time.Second, 2, 61},
		{"hanging", time.Hour, 1, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var wg sync.WaitGroup
				ctx, stop := context.WithCancel(t.Context())
				var status, stats, history atomic.Int64
				p := newPoller(ctx, &wg, func(ctx context.Context, req *protocol.Request) (*protocol.Reply, error) {
					if req.Op == protocol.OpStatus {
						status.Add(1)
						return &protocol.Reply{Status: &protocol.Status{}}, nil
					}
					if req.Op == protocol.OpHistory {
						history.Add(1)
						return &protocol.Reply{}, nil
					}
					stats.Add(1)
					select {
					case <-time.After(c.takes):
					case <-ctx.Done():
						return nil, context.Cause(ctx)
					}
					return &protocol.Reply{Queues: []protocol.QueueStat{{Queue: "q", Ready: stats.Load()}}}, nil
				})
				var ends []func()
				for range 100 {
					ends = append(ends, p.watch())
				}
				time.Sleep(time.Minute)
				watched := stats.Load()
				if n := status.Load(); watched > c.watched || watched < 1 || n < 59 || n > 63 {
					t.Errorf("%d readings of the statistics and %d of the status in a minute, want at most %d and about 60", watched, n, c.watched)
				}
				if n := history.Load(); n < 6 || n > 7 {
					t.Errorf("%d readings of the history in a minute, want one every 10 s", n)
				}
				for _, end := range ends {
					end()
				}
				time.Sleep(2 * time.Hour)
				sampled := stats.Load() - watched
				if sampled > c.sampled {
					t.Errorf("%d readings in the hours after the last visit, want at most %d", sampled, c.sampled)
				}
				p.mu.Lock()
				if p.running {
					t.Error("it runs, hours after the last visit")
				}
				p.mu.Unlock()
				if c.takes < pollTimeout {
					before := stats.Load()
					if s := p.current(ctx); s.queue("q").Ready != before+1 {
						t.Errorf("a visit after a pause gets the old reading %d, want %d", s.queue("q").Ready, before+1)
					}
				}
				p.close()
				stop()
				wg.Wait()
			})
		})
	}
}
