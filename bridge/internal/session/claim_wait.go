package session

import (
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// claimWaits are the waits of one session's claims: they end at their time limits, when the client cancels them, or with the
// session. The zero claimWaits has none. A context for each wait, with its parent's list of children, would
// take a sixth of the memory of an idle connection.
type claimWaits struct {
	mu    sync.Mutex
	ended bool
	all   []*claimWait
}

// add starts the wait of the claim with an id. The caller must call forget.
func (c *claimWaits) add(id protocol.RequestID, limit time.Duration) *claimWait {
	w := &claimWait{id: id}
	w.timer = time.AfterFunc(limit, w.end)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, w)
	if c.ended {
		w.end()
	}
	return w
}

// cancel ends the waits of the claims with an id. If the id is not set, it ends all waits, but none that starts later.
func (c *claimWaits) cancel(id protocol.RequestID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.all {
		if !id.IsSet() || w.id == id {
			w.end()
		}
	}
}

// end ends all waits, also those that start later.
func (c *claimWaits) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.cancel(protocol.RequestID{})
}

// forget ends a wait and removes it.
func (c *claimWaits) forget(w *claimWait) {
	w.timer.Stop()
	w.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(x *claimWait) bool { return x == w })
}

// claimWait is the wait of one claim.
type claimWait struct {
	id       protocol.RequestID
	timer    *time.Timer
	mu       sync.Mutex
	over     bool
	answered bool
	ended    chan struct{} // closed when the wait ends; nil: nothing has called done yet
	next     func()        // called once, when the wait is over or answered; nil: nothing, or it was called
}

func (c *claimWait) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	if c.ended != nil {
		close(c.ended)
	}
	c.goOn()
}

// done returns a channel that is closed when the wait ends.
func (c *claimWait) done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.ended = make(chan struct{})
		if c.over {
			close(c.ended)
		}
	}
	return c.ended
}

// then calls f once, when the wait has ended or the claim has its answer. It calls watch first, with the function that reports the
// answer, so that f can use what watch uses. An answer doesn't end the wait: a reload can move the claim to another database. f must
// not block, or use the wait or its claimWaits, because it is called with their locks held.
func (c *claimWait) then(watch func(answered func()), f func()) {
	watch(c.answer)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = f
	if c.over || c.answered {
		c.goOn()
	}
}

func (c *claimWait) answer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = true
	c.goOn()
}

// goOn calls next. c.mu is held.
func (c *claimWait) goOn() {
	if f := c.next; f != nil {
		c.next = nil
		f()
	}
}
