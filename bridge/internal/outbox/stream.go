package outbox

import (
	"io"
	"os"
	"sync"
	"time"
)

// DeadlineWriter is the destination of an Outbox. A write that the client does not read ends at the deadline.
type DeadlineWriter interface {
	io.Writer
	SetWriteDeadline(at time.Time) error
}

// stream gives a writer a deadline. A write to a full pipe can't be interrupted: after the deadline it goes on in its
// own goroutine, and its bytes must not change.
type stream struct {
	w    io.Writer
	over chan struct{} // closed at the deadline
	end  func()        // closes it
}

// NewStream gives w a write deadline.
func NewStream(w io.Writer) *stream {
	s := &stream{w: w, over: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.over) })
	return s
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	select {
	case <-s.over:
		return 0, os.ErrDeadlineExceeded
	default:
	}
	done := make(chan result, 1)
	go func() {
		n, err := s.w.Write(p)
		done <- result{n, err}
	}()
	select {
	case r := <-done:
		return r.n, r.err
	case <-s.over:
		return 0, os.ErrDeadlineExceeded
	}
}

// SetWriteDeadline sets the deadline as a net.Conn does, but only once: it cannot be moved.
func (s *stream) SetWriteDeadline(at time.Time) error {
	time.AfterFunc(time.Until(at), s.end)
	return nil
}
