package core

import (
	"sync"
	"time"
)

// Trail remembers how far pruning has come in an index that is in the order of time.
// What was deleted stays in the index for a while (for as long as an old snapshot is
// held, all of it), and each bite that began at its beginning would walk through all
// of that again. So a bite begins where the last one ended. Now and then one begins
// at the beginning, for what came in behind or was locked.
type Trail struct {
	mu   sync.Mutex
	at   time.Time // zero: at the beginning
	next time.Time // of the next whole look
}

const (
	// wholeEvery is the least time between two looks from the beginning on.
	wholeEvery = time.Minute
	// wholeShare is how much longer it is than such a look takes.
	wholeShare = 50
)

// From is where to look from; zero: from the beginning.
func (t *Trail) From(now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !now.Before(t.next) {
		return time.Time{}
	}
	return t.at
}

// Looked notes that From's answer was looked from, which took so long.
func (t *Trail) Looked(from, now time.Time, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if from.IsZero() {
		t.next = now.Add(max(wholeEvery, wholeShare*took))
	}
}

// Found notes the first entry that a look found, or that up to it all is deleted.
func (t *Trail) Found(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = at
}
