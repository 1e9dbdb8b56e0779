package adopted

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// head remembers where the first row of a queue was that could be claimed. If only the leases show that jobs wait for their
// back-off or are dead, a scan from the beginning reads all of them. If that is slow, most claims start at the remembered row
// instead. They can miss rows before it that another program made ready, but only until the next scan from the beginning.
type head struct {
	mu     sync.Mutex
	at     []string // where the row is; nil: unknown, or the last scan from the beginning found too few rows
	resets int      // how often at became obsolete: the result of an older scan must not replace it

	// How long the last scans took: one from the beginning, and one from a row. Each of the former lowers part by an eighth, so that
	// one slow scan from a row doesn't count indefinitely.
	whole, part time.Duration

	soonest time.Time   // before this time no scan from the beginning is due without a reset: they take at most 1/scanShare of the time
	latest  time.Time   // at this time one is due
	ends    []time.Time // when back-offs end that this process began, in ascending order, by the local clock

	retries core.Retries // of rows that the database refuses
}

const (
	scanEvery = time.Second
	scanShare = 20
	// rarestScan limits the pause between scans from the beginning.
	rarestScan = 10 * time.Second
	// Claims start at a row only if a scan from the beginning takes this much longer than two scans from a row.
	scanGain = time.Millisecond
	// endGrain and maxEnds limit how many times are kept, and so how often they cause scans.
	endGrain = 100 * time.Millisecond
	maxEnds  = 1000
)

// start returns where a scan has to start; nil: at the beginning.
func (h *head) start(now time.Time, gain time.Duration) (at []string, resets int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ended := len(h.ends) > 0 && !now.Before(h.ends[0])
	if h.at != nil && h.whole-2*h.part > gain && now.Before(h.latest) && (!ended || now.Before(h.soonest)) {
		return h.at, h.resets
	}
	h.ends = slices.DeleteFunc(h.ends, func(end time.Time) bool { return !now.Before(end) })
	return nil, h.resets
}

// found records the first row of a scan. at is nil if the scan found too few rows: the next one is from the beginning. whole:
// this one was, too.
func (h *head) found(at []string, resets int, whole bool, began, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.resets == resets {
		h.at = at
	}
	if took := now.Sub(began); !whole {
		h.part = took
	} else {
		pause := min(scanShare*min(took, h.whole), rarestScan) // one slow scan is chance
		h.whole, h.part = took, h.part-h.part/8
		h.soonest, h.latest = began.Add(pause), began.Add(max(scanEvery, pause))
		h.resets++ // scans that started at a row before this one must not pass the rows that it found
	}
}

// candidates locks up to n rows of the queue that can be claimed. If there are too few from the head on, it scans from the
// beginning: a claim gets fewer jobs than it has slots only if there are no more.
func (c *claim) candidates(ctx context.Context, sql backends.SQL, q *statement.Queue, p backends.Policy, n int) (rows []*statement.Candidate, err error) {
	h, began := c.s.heads[q.Queue], c.s.now()
	if c.most > 0 {
		return c.firstFew(ctx, sql, q, p, min(n, c.most))
	}
	scan := c.scan(q.Queue)
	at, resets := h.start(began, c.s.scanGain)
	if at != nil {
		for _, start := range q.Starts(at) {
			scan.Start = start
			if err := sql.Do(ctx, q.Candidates(p, n-len(rows), scan, &rows)); err != nil {
				return nil, err
			}
			if len(rows) == n {
				h.found(rows[0].At, resets, false, began, c.s.now())
				return rows, nil
			}
		}
		rows, at, began = nil, nil, c.s.now()
	}
	scan.Start = nil
	if err := sql.Do(ctx, q.Candidates(p, n, scan, &rows)); err != nil {
		return nil, err
	}
	if len(rows) == n {
		at = rows[0].At
	}
	h.found(at, resets, true, began, c.s.now())
	return rows, nil
}

// readyIn notes that jobs of the queues are ready after the delay. With 0 the next claim scans from the beginning.
func (s *Store) readyIn(delay time.Duration, queues ...string) {
	end := s.now().Add(delay).Truncate(endGrain).Add(endGrain)
	for _, queue := range queues {
		h := s.heads[queue]
		if h == nil {
			continue // only a Store before this one had the queue
		}
		h.mu.Lock()
		if delay <= 0 {
			h.at = nil
			h.resets++
		} else if i, known := slices.BinarySearchFunc(h.ends, end, time.Time.Compare); !known && len(h.ends) < maxEnds {
			h.ends = slices.Insert(h.ends, i, end)
		}
		h.mu.Unlock()
	}
}

// returned does what readyIn does, for changes that have run.
func (s *Store) returned(changes []*statement.Change) {
	for _, change := range changes {
		if change.Statement.Matched > 0 && (change.MadeReady || change.Delay > 0) {
			s.readyIn(change.Delay, change.Lease.Queue)
		}
	}
}

// rolledBack is for a claim whose locked rows other claims have skipped.
func (c *claim) rolledBack() {
	for _, p := range c.Queues {
		c.s.readyIn(0, p.Queue)
	}
}
