package bridge

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// pooled is a database with a pool, in which each query and each command uses a connection until the test lets it
// end.
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

// TestOperatorsLeaveConnections shows that commits have connections of the pool for themselves, however many requests
// operators pipeline.
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

// inBites is a backend whose retry takes many transactions.
type inBites struct {
	*memory.Backend
	bites int
	takes func() <-chan time.Time // duration of a transaction
}

func (i *inBites) Command(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	for range i.bites {
		select {
		case <-i.takes():
			count++
			c.Progressed()
		case <-ctx.Done():
			return count, true, backends.Unavailable(context.Cause(ctx))
		}
	}
	return count, true, nil
}

// TestRetryOfManyIsNotLimited shows that a command can take any time while it makes progress. When the sidecar stops
// it ends, and its reply contains the number of completed jobs.
func TestRetryOfManyIsNotLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &inBites{Backend: memory.New(), bites: 2, takes: func() <-chan time.Time { return time.After(inspectTimeout * 2 / 3) }}
		s := start(t, options(db))
		c := s.dial(t)
		if r := c.call(`{"op":"retry","queue":"q","all":true}`); !r.OK || r.Count != 2 {
			t.Errorf("%+v", r)
		}
		db.bites = 100
		c.send(`{"op":"retry","queue":"q","all":true}`)
		time.Sleep(inspectTimeout)
		s.stop()
		for {
			r := c.receive()
			if r.Event != "" {
				continue
			}
			if r.Error.Code != "unavailable" || !strings.Contains(r.Error.Message, "2 jobs are done") {
				t.Errorf("of a sidecar that stops: %+v", r.Error)
			}
			break
		}
	})
}
