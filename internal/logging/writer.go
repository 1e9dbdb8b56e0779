package logging

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// logPatience is how long a line of the log waits until stderr takes it.
const writeTimeout = time.Second

// logWriter keeps lines apart. A reader that stands still (a parent that never reads, a log
// collector that is stopped) must not keep the program from its work, nor from its end: while one line
// cannot be written, others are dropped and counted.
type logWriter struct {
	w           io.Writer
	droppedLine func(lines int) []byte // the line that says how many were dropped
	writing     chan struct{}          // 1: of the line that is being written

	mu      sync.Mutex
	blocked bool // a line waits for longer than logPatience
	dropped int
}

func newLogWriter(w io.Writer, lost func(lines int) []byte) *logWriter {
	return &logWriter{w: w, droppedLine: lost, writing: make(chan struct{}, 1)}
}

// Write implements io.Writer. It never waits longer than logPatience.
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

// write writes the line, and then how many lines were dropped. Its caller has taken the turn.
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
	done <- err // under mu: Write could otherwise set stuck after this line ended
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
