package session

import (
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/internal/jobevents"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	maxWatches   = 32   // of all sessions
	collected    = 4096 // events of a session
	eventsMax    = 500  // in one reply
	largestEvent = 5 << 10
)

// watch is the subscription of a session. The zero watch has none.
type watch struct {
	mu     sync.Mutex
	events *jobevents.Subscription // nil: none
	queue  string
	asked  bool // between begin and the end of next
}

// begin subscribes to the events of a queue, or of all queues if the name is empty, unless the session has this subscription
// already. mayWatch reports whether the session is allowed to see the events of a queue. If begin returns no error, the caller must
// call next.
func (w *watch) begin(hub *jobevents.Hub, queue string, mayWatch func(queue string) bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked {
		return protocol.Errorf(protocol.CodeBusy, "another watch of this connection waits: send one at a time")
	}
	if w.events != nil && w.queue != queue {
		w.close()
	}
	if w.events == nil {
		if hub.Subscribers() >= maxWatches {
			return protocol.Errorf(protocol.CodeBusy, "%d programs watch this sidecar already: end one of them first", maxWatches)
		}
		w.queue = queue
		w.events = hub.Subscribe(collected, func(e *jobevents.Event) bool { return (queue == "" || e.Queue == queue) && mayWatch(e.Queue) })
	}
	w.asked = true
	return nil
}

// next waits for the first event, until gone is done or the time is over. It returns all events that fit one reply, and the number of
// those that were missed.
func (w *watch) next(gone <-chan struct{}, wait time.Duration, maxReply int) (events []protocol.JobEvent, missed int64) {
	w.mu.Lock()
	from := w.events
	w.mu.Unlock()
	events = []protocol.JobEvent{}
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case e := <-from.Events:
			events = append(events, wirejob.FromEvent(&e))
		case <-timer.C:
		case <-gone:
		}
	}
	for most := min(eventsMax, maxReply/largestEvent); len(events) < most; {
		select {
		case e := <-from.Events:
			events = append(events, wirejob.FromEvent(&e))
			continue
		default:
		}
		break
	}
	w.mu.Lock()
	w.asked = false
	w.mu.Unlock()
	return events, from.Missed()
}

// waiting returns 1 while the session waits for events, and else 0.
func (w *watch) waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked {
		return 1
	}
	return 0
}

// end ends the subscription.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.close()
}

func (w *watch) close() {
	if w.events != nil {
		w.events.Close()
		w.events = nil
	}
}
