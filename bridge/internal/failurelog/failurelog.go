// Package failurelog keeps the log from repeating an error that lasts: clients try again, and a missing right fails every try.
package failurelog

import (
	"sync"
	"time"
)

// Log remembers the last errors. The zero value is empty. Its methods can be called concurrently.
type Log struct {
	mu   sync.Mutex
	last map[string]time.Time // when an error occurred last, by its text
}

const (
	// ends is how long an error must not occur before it is logged again.
	ends = time.Minute
	most = 256
)

// IsNew reports whether the caller has to log an error of what it does.
func (l *Log) IsNew(what string, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, key := time.Now(), what+": "+err.Error()
	last, known := l.last[key]
	if l.last == nil || len(l.last) >= most && !known {
		l.last = map[string]time.Time{}
	}
	l.last[key] = now
	return !known || now.Sub(last) > ends
}
