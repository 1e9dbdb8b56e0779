package kit

import (
	"sync"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
)

// Cutter cut one connection, once so many bytes went through it in their
// direction since they were opened. They are a toxic: one for each direction.
type Cutter struct {
	mu    sync.Mutex
	n     int           // how often they were opened
	after int64         // bytes; < 0: they only count
	most  int64         // that went through one connection
	cut   chan struct{} // closed when they cut; nil: they are shut
}

// Cutters are those in use, by direction; toxiproxy makes copies of toxics, so
// they cannot hold anything themselves.
var Cutters = map[string]*Cutter{"upstream": {}, "downstream": {}}

// Open has them cut after so many bytes, or only count them (after < 0).
func (s *Cutter) Open(after int64) (cut <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n, s.after, s.most, s.cut = s.n+1, after, 0, make(chan struct{})
	return s.cut
}

// Shut returns how many bytes went through one connection at most.
func (s *Cutter) Shut() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = nil
	return s.most
}

// cutState is one connection's share.
type cutState struct {
	n    int // when bytes were counted last: see scissors.n
	sent int64
}

// pass reports how much of a piece may still go through.
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

// CutToxic puts scissors into toxiproxy.
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
				for c := range stub.Input { // whoever still writes is let go
					if c == nil {
						return
					}
				}
				return
			}
		}
	}
}
