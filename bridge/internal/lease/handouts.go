package lease

import (
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// handOut is a hand-out that is not recorded in the database yet.
type handOut struct {
	backends.Delivery
	at time.Duration
}

// NoteHandOut records the hand-out of prefetched jobs.
func (l *Table) NoteHandOut(jobs []backends.Job, worker string, at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range jobs {
		l.handOuts = append(l.handOuts, handOut{Delivery: backends.Delivery{Lease: jobs[i].Lease(), Worker: worker}, at: at})
	}
}

// UnrecordedHandOuts takes up to most hand-outs that are now at least that old and not settled or being settled. It
// reports whether there are others: later ones, and those that are being settled, which possibly fails.
func (l *Table) UnrecordedHandOuts(now, age time.Duration, most int) (due []backends.Delivery, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, kept := 0, 0
	for ; n < len(l.handOuts) && now-l.handOuts[n].at >= age && len(due) < most; n++ {
		switch h := l.entries[l.handOuts[n].Lease.Token]; {
		case h == nil:
		case h.settling > 0:
			l.handOuts[kept] = l.handOuts[n]
			kept++
		default:
			d := l.handOuts[n].Delivery
			d.Ago = now - l.handOuts[n].at
			due = append(due, d)
		}
	}
	l.handOuts = slices.Delete(l.handOuts, kept, n)
	return due, len(l.handOuts) > 0
}
