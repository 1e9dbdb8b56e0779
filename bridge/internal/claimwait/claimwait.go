// Package claimwait ends the waits of a session's claims: at their time limits, when the client cancels them, or with the session.
//
// It depends on the ids of requests in the wire format. Start reading at Waits.
package claimwait

import (
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// Waits are the waits of one session. The zero Waits has none. A context for each wait, with its parent's list of children, would
// take a sixth of the memory of an idle connection.
type Waits struct {
	mu    sync.Mutex
	ended bool
	all   []*Wait
}

// New starts the wait of the claim with an id. The caller must call Forget.
func (s *Waits) New(id protocol.RequestID, limit time.Duration) *Wait {
	w := &Wait{id: id}
	w.timer = time.AfterFunc(limit, w.end)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, w)
	if s.ended {
		w.end()
	}
	return w
}

// Cancel ends the waits of the claims with an id. If the id is not set, it ends all waits, but none that starts later.
func (s *Waits) Cancel(id protocol.RequestID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.all {
		if !id.IsSet() || w.id == id {
			w.end()
		}
	}
}

// End ends all waits, also those that start later.
func (s *Waits) End() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.Cancel(protocol.RequestID{})
}

// Forget ends a wait and removes it.
func (s *Waits) Forget(w *Wait) {
	w.timer.Stop()
	w.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(x *Wait) bool { return x == w })
}

// Wait is the wait of one claim.
type Wait struct {
	id       protocol.RequestID
	timer    *time.Timer
	mu       sync.Mutex
	over     bool
	answered bool
	done     chan struct{} // closed when the wait ends; nil: nothing has called Done yet
	then     func()        // called once, when the wait is over or answered; nil: nothing, or it was called
}

func (w *Wait) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	w.over = true
	if w.done != nil {
		close(w.done)
	}
	w.goOn()
}

// Done returns a channel that is closed when the wait ends.
func (w *Wait) Done() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == nil {
		w.done = make(chan struct{})
		if w.over {
			close(w.done)
		}
	}
	return w.done
}

// Then calls f once, when the wait has ended or the claim has its answer. It calls watch first, with the function that reports the
// answer, so that f can use what watch uses. An answer doesn't end the wait: a reload can move the claim to another database. f must
// not block, or use the wait or its Waits, because it is called with their locks held.
func (w *Wait) Then(watch func(answered func()), f func()) {
	watch(w.answer)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.then = f
	if w.over || w.answered {
		w.goOn()
	}
}

func (w *Wait) answer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered = true
	w.goOn()
}

// goOn calls then. w.mu is held.
func (w *Wait) goOn() {
	if f := w.then; f != nil {
		w.then = nil
		f()
	}
}
