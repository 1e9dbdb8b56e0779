package core

import (
	"sync"
	"time"
)

// Trail remembers how far pruning has come in an index that is ordered by time. Deleted entries stay in the
// index for a while; all of them stay as long as an old snapshot is open. A batch that starts at the beginning
// would read all of them again. So a batch starts where the last one ended. From time to time one starts at the
// beginning, for rows that appeared behind the current position or were locked.
type Trail struct {
	mu   sync.Mutex
	at   time.Time // zero: at the beginning
	next time.Time // when the next scan from the beginning is due
}

const (
	// wholeEvery is the least time between two scans from the beginning.
	wholeEvery = time.Minute
	// wholeShare is how many times longer than such a scan that time is at least.
	wholeShare = 50
)

// From returns where to start. Zero: from the beginning.
func (t *Trail) From(now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !now.Before(t.next) {
		return time.Time{}
	}
	return t.at
}

// Scanned records a scan that started at the result of From, and how long it took.
func (t *Trail) Scanned(from, now time.Time, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if from.IsZero() {
		t.next = now.Add(max(wholeEvery, wholeShare*took))
	}
}

// Found records the first entry that a scan found, or the last one up to which all entries are deleted.
func (t *Trail) Found(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = at
}
