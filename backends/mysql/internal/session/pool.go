package session

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// idleKept is how long an unused connection counts as usable. It is shorter than idleEnds.
const idleKept = 14 * time.Second

// Counter numbers the commits of one slot of a pool, for each connection that the slot has over time. Its
// row in qsidecar_commits has the number of the last commit that succeeded.
type Counter struct {
	Handle    int64
	Number    uint64
	Abandoned string // the name of a session that can still be at work; empty: none
}

// NewCounter returns a Counter with a row of its own.
func NewCounter() *Counter { return &Counter{Handle: rand.Int64()} }

// Renew gives the Counter another row, because the number in the present one is unknown.
func (c *Counter) Renew() { c.Handle, c.Number = rand.Int64(), 0 }

// Pool is a bounded number of slots for connections.
type Pool struct {
	dialer  *Dialer
	free    chan struct{}
	mu      sync.Mutex
	idle    []*Conn
	vacant  []*Counter         // of the slots without a connection
	used    map[*Conn]struct{} // in use
	retired time.Time          // connections that were opened before are not used again
	closed  bool
}

// NewPool returns a pool of n slots.
func NewPool(d *Dialer, n int) *Pool {
	p := &Pool{dialer: d, free: make(chan struct{}, n), used: make(map[*Conn]struct{}, n)}
	for range n {
		p.free <- struct{}{}
		p.vacant = append(p.vacant, NewCounter())
	}
	return p
}

// Take waits for a slot, and returns its connection. It opens one if necessary.
func (p *Pool) Take(ctx context.Context, m *backends.Meter) (*Conn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case <-p.free:
	default:
		began := time.Now()
		select {
		case <-p.free:
			m.Wait(began)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	c, counter := p.slot()
	if c != nil {
		return c, nil
	}
	c, err := p.dialer.Open(ctx, counter)
	if err != nil {
		p.put(nil, counter)
		return nil, err
	}
	p.mu.Lock()
	p.used[c] = struct{}{}
	p.mu.Unlock()
	return c, nil
}

// slot returns the connection of a slot, or, if it has none, its Counter.
func (p *Pool) slot() (*Conn, *Counter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) > 0 {
		c := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if c.opened.After(p.retired) && time.Since(c.used) < idleKept && c.open() {
			p.used[c] = struct{}{}
			return c, nil
		}
		c.Close()
		p.vacant = append(p.vacant, c.Counter)
	}
	l := p.vacant[len(p.vacant)-1]
	p.vacant = p.vacant[:len(p.vacant)-1]
	return nil, l
}

// Put returns a connection and its slot.
func (p *Pool) Put(c *Conn) { p.put(c, c.Counter) }

func (p *Pool) put(c *Conn, l *Counter) {
	p.mu.Lock()
	delete(p.used, c)
	if c != nil && (c.Bad || p.closed || !c.valid()) {
		c.Close()
		c = nil
	}
	if c != nil {
		c.used = time.Now()
		p.idle = append(p.idle, c)
	} else {
		p.vacant = append(p.vacant, l)
	}
	p.mu.Unlock()
	p.free <- struct{}{}
}

// Retire stops the use of the connections that are open now, because their server became read-only.
func (p *Pool) Retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = time.Now()
}

// Cut is Retire, and also ends what runs on the connections to a host.
func (p *Pool) Cut(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = time.Now()
	for c := range p.used {
		if c.Host == host {
			_ = c.Wire.Close() // the statement that waits for the host then fails
		}
	}
}

// Size returns the number of slots, of connections in use, and of idle ones.
func (p *Pool) Size() (slots, used, idle int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cap(p.free), cap(p.free) - len(p.free), len(p.idle)
}

// Close closes all connections. It waits for those in use.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for range cap(p.free) {
		<-p.free
	}
	for _, c := range p.idle {
		c.Close()
	}
	p.idle = nil
}
