package bridge

import (
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// handed is a hand-out that the database does not know of.
type handed struct {
	backends.Delivery
	at time.Duration
}

// remember notes that the jobs were handed out from those claimed ahead.
func (l *ledger) remember(jobs []backends.Job, worker string, at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range jobs {
		l.handed = append(l.handed, handed{Delivery: backends.Delivery{Lease: jobs[i].Lease(), Worker: worker}, at: at})
	}
}

// unrecorded takes the hand-outs from before limit that are not settled, or about
// to be, and reports whether there are later ones.
func (l *ledger) unrecorded(limit time.Duration) (due []backends.Delivery, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.handed) && l.handed[n].at < limit && len(due) < batchJobs {
		if h := l.known[l.handed[n].Lease.Token]; h != nil && h.settling == 0 {
			due = append(due, l.handed[n].Delivery)
		}
		n++
	}
	l.handed = slices.Delete(l.handed, 0, n)
	return due, len(l.handed) > 0
}
