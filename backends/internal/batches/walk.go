package batches

import (
	"cmp"
	"sync"
	"time"
)

const (
	// How many closed batches a step of the walk reads: the first one, and later ones by how long they take.
	firstStep             = 100
	smallStep, largeStep  = 10, 1000
	quickStep, stepPauses = 20 * time.Millisecond, 20
)

// walk goes over all closed batches again and again, in steps. It finds what ended without a note.
//
// A step over large batches can take long. If one took longer than quickStep, the next one has half as many batches, and waits for
// stepPauses times as long. A sidecar that finds no more than largeStep batches, and quickly, reads all of them at each call.
type walk struct {
	mu   sync.Mutex
	last int64     // the last batch that was read; 0: it begins
	size int       // of the next step; 0: firstStep
	next time.Time // when it is, by this host's clock
}

// step is a part of a walk: at most most batches behind after. most 0: none now.
type step struct {
	after int64
	most  int
	began time.Time
}

// begin returns the next step. Two calls at a time return the same one.
func (w *walk) begin(now time.Time) step {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Before(w.next) {
		return step{}
	}
	return step{after: w.last, most: cmp.Or(w.size, firstStep), began: now}
}

// end notes that the batches of a step were read.
func (w *walk) end(s step, batches []int64, now time.Time) {
	if s.most == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.size = 0, s.most
	if len(batches) == s.most {
		w.last = batches[s.most-1]
	}
	if took := now.Sub(s.began); took > quickStep {
		w.size, w.next = max(smallStep, s.most/2), now.Add(stepPauses*took)
	} else if w.last != 0 {
		w.size = min(largeStep, 2*s.most)
	}
}
