package jobevents

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Hub passes events on to its subscribers. A publisher never waits for one. The zero Hub has none, and a nil Hub can't
// have any.
type Hub struct {
	mu   sync.Mutex                      // guards changes of subs
	subs atomic.Pointer[[]*Subscription] // never changes: a new list replaces it; nil: none
}

// Subscription is a bounded buffer of events.
type Subscription struct {
	// Events has the events in the order in which they were published. It is never closed.
	Events <-chan Event

	hub    *Hub
	wants  func(*Event) bool
	events chan Event
	missed atomic.Int64
}

// Subscribe returns a subscription to the events that `wants` accepts. It keeps up to size events that were not read yet.
// Publishers call `wants`, several at a time, so it must not block. Close ends the subscription.
func (h *Hub) Subscribe(size int, wants func(*Event) bool) *Subscription {
	s := &Subscription{hub: h, wants: wants, events: make(chan Event, size)}
	s.Events = s.events
	h.change(func(subs []*Subscription) []*Subscription { return append(subs, s) })
	return s
}

// Missed returns how many events found no space in the buffer since the last call.
func (s *Subscription) Missed() int64 { return s.missed.Swap(0) }

// Close ends the subscription. It does not wait for publishers: an event can still arrive, and nothing depends on its
// being read.
func (s *Subscription) Close() {
	s.hub.change(func(subs []*Subscription) []*Subscription {
		return slices.DeleteFunc(subs, func(other *Subscription) bool { return other == s })
	})
}

// change replaces the list of subscribers by a changed copy.
func (h *Hub) change(f func([]*Subscription) []*Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var subs []*Subscription
	if was := h.subs.Load(); was != nil {
		subs = slices.Clone(*was)
	}
	if subs = f(subs); len(subs) == 0 {
		h.subs.Store(nil)
		return
	}
	h.subs.Store(&subs)
}

// Active reports whether there is a subscriber. It costs one atomic load. Without a subscriber a publisher need not build
// events.
func (h *Hub) Active() bool { return h != nil && h.subs.Load() != nil }

// Subscribers returns the number of subscribers.
func (h *Hub) Subscribers() int {
	if subs := h.subs.Load(); subs != nil {
		return len(*subs)
	}
	return 0
}

// Publish passes an event on to the subscribers that want it. If a buffer is full, its subscriber misses the event.
func (h *Hub) Publish(e *Event) {
	if h == nil {
		return
	}
	subs := h.subs.Load()
	if subs == nil {
		return
	}
	for _, s := range *subs {
		if !s.wants(e) {
			continue
		}
		select {
		case s.events <- *e:
		default:
			s.missed.Add(1)
		}
	}
}
