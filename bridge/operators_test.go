package bridge

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// pooled is a database with a pool, in which each look and each command takes a connection until
// it may end.
type pooled struct {
	*memory.Backend
	max   int
	inUse atomic.Int32
	most  atomic.Int32
	end   chan struct{}
}

func (p *pooled) Usage() backends.Usage { return backends.Usage{Max: p.max} }

func (p *pooled) hold() {
	n := p.inUse.Add(1)
	for {
		most := p.most.Load()
		if n <= most || p.most.CompareAndSwap(most, n) {
			break
		}
	}
	<-p.end
	p.inUse.Add(-1)
}

func (p *pooled) Command(ctx context.Context, c backends.Command) (int64, bool, error) {
	p.hold()
	return p.Backend.Command(ctx, c)
}

func (p *pooled) Peek(ctx context.Context, k backends.Peek) ([]backends.View, error) {
	p.hold()
	return p.Backend.Peek(ctx, k)
}

// TestOperatorsLeaveConnections: however many requests of operators are pipelined, commits have
// connections of the pool for themselves.
func TestOperatorsLeaveConnections(t *testing.T) {
	for pool, want := range map[int]int32{2: 1, 6: 2, 20: 16} {
		t.Run(fmt.Sprint(pool), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &pooled{Backend: memory.New(), max: pool, end: make(chan struct{})}
				s := start(t, options(db))
				c := s.dial(t)
				const requests = 200
				for i := range requests / 2 {
					c.send(`{"op":"retry","queue":"q","all":true,"id":%d}`, i)
					c.send(`{"op":"delete","queue":"q","ids":["1"],"id":"d%d"}`, i)
				}
				synctest.Wait()
				if n := db.most.Load(); n != want {
					t.Errorf("operators take %d connections of %d, want %d", n, pool, want)
				}
				worker := s.dial(t)
				worker.call(`{"op":"enqueue","queue":"q"}`)
				worker.call(`{"op":"ack","lease":%q}`, worker.claim1("q").Lease)
				close(db.end)
				for range requests {
					if r := c.receive(); !r.OK {
						t.Fatalf("a request of an operator was answered %+v", r.Error)
					}
				}
			})
		})
	}
}
