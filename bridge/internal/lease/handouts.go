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
func (t *Table) NoteHandOut(jobs []backends.Job, worker string, at time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range jobs {
		t.handOuts = append(t.handOuts, handOut{Delivery: backends.Delivery{Lease: jobs[i].Lease(), Worker: worker}, at: at})
	}
}

// UnrecordedHandOuts takes up to most hand-outs that are now at least that old and not settled or being settled. It
// reports whether there are others: later ones, and those that are being settled, which possibly fails.
func (t *Table) UnrecordedHandOuts(now, age time.Duration, most int) (due []backends.Delivery, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, kept := 0, 0
	for ; n < len(t.handOuts) && now-t.handOuts[n].at >= age && len(due) < most; n++ {
		switch h := t.entries[t.handOuts[n].Lease.Token]; {
		case h == nil:
		case h.settling > 0:
			t.handOuts[kept] = t.handOuts[n]
			kept++
		default:
			d := t.handOuts[n].Delivery
			d.Ago = now - t.handOuts[n].at
			due = append(due, d)
		}
	}
	t.handOuts = slices.Delete(t.handOuts, kept, n)
	return due, len(t.handOuts) > 0
}
