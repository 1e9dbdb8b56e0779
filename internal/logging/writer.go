package logging

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// writeTimeout is how long a line waits until stderr accepts it.
const writeTimeout = time.Second

// logWriter decouples the program from the reader of stderr. A reader that stops reading
// must not block the program or its exit. While one line can't be written, others are
// dropped and counted.
type logWriter struct {
	w           io.Writer
	droppedLine func(lines int) []byte // returns the line that reports how many were dropped
	writing     chan struct{}          // capacity 1: held while a line is written

	mu      sync.Mutex
	blocked bool // a line has waited for longer than writeTimeout
	dropped int
}

func newLogWriter(w io.Writer, lost func(lines int) []byte) *logWriter {
	return &logWriter{w: w, droppedLine: lost, writing: make(chan struct{}, 1)}
}

// Write implements io.Writer. It returns after writeTimeout at most.
func (l *logWriter) Write(p []byte) (int, error) {
	timer := time.NewTimer(writeTimeout)
	defer timer.Stop()
	if l.dropIfBlocked() {
		return len(p), nil
	}
	select {
	case l.writing <- struct{}{}:
	case <-timer.C:
		l.drop()
		return len(p), nil
	}
	line, done := bytes.Clone(p), make(chan error, 1)
	go l.write(line, done)
	select {
	case err := <-done:
		return len(p), err
	case <-timer.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocked = len(done) == 0
	return len(p), nil
}

// write writes the line, and then reports dropped lines. The caller holds writing.
func (l *logWriter) write(line []byte, done chan<- error) {
	_, err := l.w.Write(line)
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.dropped > 0 && err == nil {
		n := l.dropped
		l.dropped = 0
		l.mu.Unlock()
		_, err = l.w.Write(l.droppedLine(n))
		l.mu.Lock()
	}
	l.blocked = false
	done <- err // under mu, because Write could set blocked after this line ended
	<-l.writing
}

func (l *logWriter) dropIfBlocked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocked {
		l.dropped++
	}
	return l.blocked
}

func (l *logWriter) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropped++
}
