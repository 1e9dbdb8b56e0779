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
func (s *Cutter) Open(after int64) (cut <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n, s.after, s.most, s.cut = s.n+1, after, 0, make(chan struct{})
	return s.cut
}

// Shut returns the largest number of bytes that passed one connection.
func (s *Cutter) Shut() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = nil
	return s.most
}

// cutState is the state of one connection.
type cutState struct {
	n    int // value of Cutter.n when bytes were last counted
	sent int64
}

// pass reports how many bytes of a piece can still pass.
func (s *Cutter) pass(x *cutState, bytes int) (pass int, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.n != s.n {
		*x = cutState{n: s.n}
	}
	before := x.sent
	x.sent += int64(bytes)
	s.most = max(s.most, x.sent)
	if s.cut == nil || s.after < 0 || x.sent < s.after {
		return bytes, false
	}
	close(s.cut)
	s.cut = nil
	return int(max(s.after-before, 0)), true
}

// CutToxic is the toxic that applies a Cutter.
type CutToxic struct {
	Stream string `json:"stream"`
}

// NewState implements toxics.StatefulToxic.
func (*CutToxic) NewState() any { return new(cutState) }

// Pipe implements toxics.Toxic.
func (t *CutToxic) Pipe(stub *toxics.ToxicStub) {
	s, x := Cutters[t.Stream], stub.State.(*cutState)
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			pass, cut := s.pass(x, len(c.Data))
			if pass > 0 {
				stub.Output <- &stream.StreamChunk{Timestamp: c.Timestamp, Data: c.Data[:pass]}
			}
			if cut {
				stub.Close()
				for c := range stub.Input { // discard the remaining writes
					if c == nil {
						return
					}
				}
				return
			}
		}
	}
}
