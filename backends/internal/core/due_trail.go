package core

import (
	"sync"
	"time"
)

// dueTrail decides from which time on maintenance searches for due jobs. Index entries of jobs that are no longer scheduled
// or claimed stay in the index as long as an old snapshot is open, and a query from the beginning reads all of them. If
// such queries are slow, they take at most 1/dueShare of the time. The others begin where the last one ended. They miss
// only jobs that a transaction committed long after their time, or that are due after the clock was set back.
type dueTrail struct {
	mu   sync.Mutex
	at   time.Time // nothing before this time was due at the last query, by the database's clock; zero: unknown
	next time.Time // when the next query from the beginning is due
	slow int       // how many of these in succession were slow
}

const (
	slowDue    = 20 * time.Millisecond
	slowDues   = 8 // so many slow queries in succession aren't chance
	dueShare   = 50
	rarestDue  = 10 * time.Second
	dueOverlap = 5 * time.Second // longer than nearly all transactions that schedule or claim jobs
)

// From returns where to start. Zero: from the beginning. A watched sidecar leaves these queries to the watchers.
func (t *dueTrail) From(now time.Time, watched bool) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at.IsZero() || !watched && !now.Before(t.next) {
		return time.Time{}
	}
	return t.at.Add(-dueOverlap)
}

// Looked records a query that started at the result of From, and what it found.
func (t *dueTrail) Looked(from, now time.Time, took time.Duration, d Due) {
	t.mu.Lock()
	defer t.mu.Unlock()
	back := d.At.Before(t.at)
	t.at = d.At
	for _, first := range []*time.Time{d.RunAt, d.DueAt, d.ExpireAt} {
		if first != nil && first.Before(t.at) {
			t.at = *first // it can stay, for example because it is locked
		}
	}
	switch {
	case back:
		t.next = time.Time{}
	case !from.IsZero():
	case took < slowDue:
		t.slow = 0
	default:
		if t.slow++; t.slow >= slowDues {
			t.next = now.Add(min(dueShare*took, rarestDue))
		}
	}
}
