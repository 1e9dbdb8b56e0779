package proxy

import (
	"sync"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
)

// Cutter cuts one connection once a number of bytes has passed in its direction. It is a toxic, one
// for each direction.
type Cutter struct {
	mu    sync.Mutex
	n     int           // how often it was opened
	after int64         // bytes; negative: only count them
	most  int64         // bytes that passed one connection, at most
	cut   chan struct{} // closed by a cut; nil if the cutter is shut
}

// Cutters are the cutters in use, by direction. toxiproxy copies toxics, so a toxic can't have the
// state itself.
var Cutters = map[string]*Cutter{"upstream": {}, "downstream": {}}

// Open makes it cut after that many bytes, or only count them (after < 0).
func (c *Cutter) Open(after int64) (cut <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n, c.after, c.most, c.cut = c.n+1, after, 0, make(chan struct{})
	return c.cut
}

// Shut returns the largest number of bytes that passed one connection.
func (c *Cutter) Shut() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = nil
	return c.most
}

// cutState is the state of one connection.
type cutState struct {
	n    int // value of Cutter.n when bytes were last counted
	sent int64
}

// pass reports how many bytes of a piece can still pass.
func (c *Cutter) pass(x *cutState, bytes int) (pass int, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.n != c.n {
		*x = cutState{n: c.n}
	}
	before := x.sent
	x.sent += int64(bytes)
	c.most = max(c.most, x.sent)
	if c.cut == nil || c.after < 0 || x.sent < c.after {
		return bytes, false
	}
	close(c.cut)
	c.cut = nil
	return int(max(c.after-before, 0)), true
}

// CutToxic is the toxic that applies a Cutter.
type CutToxic struct {
	Stream string `json:"stream"`
}

// NewState implements toxics.StatefulToxic.
func (*CutToxic) NewState() any { return new(cutState) }

// Pipe implements toxics.Toxic.
func (c *CutToxic) Pipe(stub *toxics.ToxicStub) {
	s, x := Cutters[c.Stream], stub.State.(*cutState)
	for {
		select {
		case <-stub.Interrupt:
			return
		case chunk := <-stub.Input:
			if chunk == nil {
				stub.Close()
				return
			}
			pass, cut := s.pass(x, len(chunk.Data))
			if pass > 0 {
				stub.Output <- &stream.StreamChunk{Timestamp: chunk.Timestamp, Data: chunk.Data[:pass]}
			}
			if cut {
				stub.Close()
				for chunk := range stub.Input { // discard the remaining writes
					if chunk == nil {
						return
					}
				}
				return
			}
		}
	}
}
