package pipeline

import (
	"sync"
	"time"
)

// failureLog keeps the log from repeating an error that lasts: clients try again, and a missing right fails every try.
type failureLog struct {
	mu   sync.Mutex
	last map[string]time.Duration // when an error occurred last, by its text
}

const (
	// failureEnds is how long an error must not occur before it is logged again.
	failureEnds = time.Minute
	maxFailures = 256
)

// isNew reports whether the caller has to log an error.
func (l *failureLog) isNew(what string, err error, now time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := what + ": " + err.Error()
	last, known := l.last[key]
	if l.last == nil || len(l.last) >= maxFailures && !known {
		l.last = map[string]time.Duration{}
	}
	l.last[key] = now
	return !known || now-last > failureEnds
}
