package web

import (
	"fmt"
	"net/http"
	"time"
)

const (
	// maxStreams is how many event streams are open at once. The listener has twice as many connections. Browsers
	// without a stream ask again every few seconds.
	maxStreams = 32

	// streamTimeout bounds how long one event waits for a browser that doesn't read.
	streamTimeout = 10 * time.Second
)

// events sends one event after each reading of the poller. An event has no data: the browser then asks for the live
// parts of its page, which the server renders from the poller's snapshot.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	select {
	case p.streams <- struct{}{}:
	default:
		w.Header().Set("Retry-After", "5")
		p.fail(w, r, http.StatusServiceUnavailable, fmt.Sprintf("%d browsers get live updates already. Reload the page to see changes.", maxStreams))
		return
	}
	defer func() { <-p.streams }()
	defer p.poller.watch()()

	stopping := p.opts.Stopping(r.Context())
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // the listener's limit is for a request; a writer without limits has none to extend
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep events back until its buffer is full
	for {
		_, changed := p.poller.get()
		_ = out.SetWriteDeadline(time.Now().Add(streamTimeout)) // as above
		if _, err := fmt.Fprint(w, "data: changed\n\n"); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-stopping:
			return
		case <-p.poller.ctx.Done():
			return
		}
	}
}
