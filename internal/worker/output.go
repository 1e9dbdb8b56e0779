package worker

import (
	"io"
	"strings"
	"sync"
)

// tailSize is how many bytes of stderr's end are kept. It leaves space for the text before
// it in the job's error.
const tailSize = 3 << 10

// tailBuffer keeps the end of what is written to it, and forwards everything.
type tailBuffer struct {
	forward io.Writer

	mu  sync.Mutex
	buf []byte // between tailSize and 2*tailSize bytes, once that many were written
	cut bool
}

// Write implements io.Writer. It never fails: an error of our stderr must not break the
// command's.
func (t *tailBuffer) Write(p []byte) (int, error) {
	_, _ = t.forward.Write(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if n > tailSize {
		p, t.buf, t.cut = p[n-tailSize:], t.buf[:0], true
	}
	if len(t.buf)+len(p) > 2*tailSize {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-tailSize:]...)
		t.cut = true
	}
	t.buf = append(t.buf, p...)
	return n, nil
}

// reset empties the buffer.
func (t *tailBuffer) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf, t.cut = t.buf[:0], false
}

// text returns the end as text that the protocol accepts: valid UTF-8 without NUL, from the
// beginning of a line if there is one.
func (t *tailBuffer) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, cut := t.buf, t.cut
	if len(b) > tailSize {
		b, cut = b[len(b)-tailSize:], true
	}
	s := strings.ReplaceAll(strings.ToValidUTF8(string(b), "\uFFFD"), "\x00", "")
	if cut {
		if _, rest, ok := strings.Cut(strings.TrimRight(s, "\n"), "\n"); ok {
			s = rest
		}
	}
	return strings.TrimSpace(s)
}

// cappedBuffer keeps up to limit bytes and counts all.
type cappedBuffer struct {
	limit int
	buf   []byte
	size  int
}

// Write implements io.Writer.
func (c *cappedBuffer) Write(p []byte) (int, error) {
	c.size += len(p)
	if rest := c.limit - len(c.buf); rest > 0 {
		c.buf = append(c.buf, p[:min(rest, len(p))]...)
	}
	return len(p), nil
}

// lockedWriter is a writer for several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
