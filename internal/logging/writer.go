package logging

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// logPatience is how long a line of the log waits until stderr takes it.
const logPatience = time.Second

// logWriter keeps lines apart. A reader that stands still (a parent that never reads, a log
// collector that is stopped) must not keep the program from its work, nor from its end: while one line
// cannot be written, others are dropped and counted.
type logWriter struct {
	w    io.Writer
	lost func(lines int) []byte // the line that says how many were dropped
	turn chan struct{}          // 1: of the line that is being written

	mu      sync.Mutex
	stuck   bool // a line waits for longer than logPatience
	dropped int
}

func newLogWriter(w io.Writer, lost func(lines int) []byte) *logWriter {
	return &logWriter{w: w, lost: lost, turn: make(chan struct{}, 1)}
}

// Write implements io.Writer. It never waits longer than logPatience.
func (l *logWriter) Write(p []byte) (int, error) {
	timer := time.NewTimer(logPatience)
	defer timer.Stop()
	if l.drops() {
		return len(p), nil
	}
	select {
	case l.turn <- struct{}{}:
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
	l.stuck = len(done) == 0
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
		_, err = l.w.Write(l.lost(n))
		l.mu.Lock()
	}
	l.stuck = false
	done <- err // under mu: Write could otherwise set stuck after this line ended
	<-l.turn
}

func (l *logWriter) drops() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stuck {
		l.dropped++
	}
	return l.stuck
}

func (l *logWriter) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropped++
}
