package core

import (
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// PageRows is how many entries of an index one statement counts at most. Tests set it before they begin.
var PageRows = int64(2 * backends.StatsExact)

// Counted is the result of one group of a counting statement: consecutive rows of a queue in a state.
type Counted struct {
	Queue  string
	State  backends.State
	N      int64
	Oldest time.Duration // of ready and of claimed jobs; 0: unknown
}

// Tally collects the stats of all queues. The zero value is empty.
type Tally struct {
	of    map[string]*backends.QueueStats
	alone map[string]bool
}

// Of returns the stats of a queue. It creates them if necessary.
func (t *Tally) Of(queue string) *backends.QueueStats {
	if t.of == nil {
		t.of, t.alone = make(map[string]*backends.QueueStats), make(map[string]bool)
	}
	q := t.of[queue]
	if q == nil {
		q = &backends.QueueStats{Queue: queue}
		t.of[queue] = q
	}
	return q
}

// Count adds the entries of an index that is ordered by queue. page counts the first entries after a group's
// queue (and state), at most limit of them. A group that a page can have cut off is counted again with the next
// page. If a group is larger than a page, it is skipped, and its queue is one that must be counted alone (see
// All).
func (t *Tally) Count(page func(after Counted, limit int64) ([]Counted, error)) error {
	return t.count(PageRows, page)
}

func (t *Tally) count(limit int64, page func(after Counted, limit int64) ([]Counted, error)) error {
	var after Counted
	for {
		all, err := page(after, limit)
		if err != nil {
			return err
		}
		n := int64(0)
		for _, g := range all {
			n += g.N
		}
		if n < limit {
			t.add(all)
			return nil
		}
		last := all[len(all)-1]
		cut := slices.IndexFunc(all, func(g Counted) bool { return g.Queue == last.Queue && g.State == last.State })
		if cut == 0 {
			t.Of(last.Queue)
			t.alone[last.Queue] = true
			after = last
			continue
		}
		t.add(all[:cut])
		after = all[cut-1]
	}
}

func (t *Tally) add(all []Counted) {
	for _, g := range all {
		q := t.Of(g.Queue)
		switch g.State {
		case backends.StateReady:
			q.Ready, q.OldestReady = q.Ready+g.N, max(q.OldestReady, g.Oldest)
		case backends.StateBlocked:
			q.Blocked += g.N
		case backends.StateScheduled:
			q.Scheduled += g.N
		case backends.StateClaimed:
			q.Claimed, q.OldestClaimed = q.Claimed+g.N, max(q.OldestClaimed, g.Oldest)
		case backends.StateDone:
			q.Done += g.N
		case backends.StateDead:
			q.Dead += g.N
		}
	}
}

// Add adds the count of all rows in a state.
func (t *Tally) Add(g Counted) { t.add([]Counted{g}) }

// All returns the stats, ordered by name. If alone returns true for a queue, its stats are incomplete, and the
// caller has to count that queue with a statement of its own.
func (t *Tally) All() (all []backends.QueueStats, alone func(queue string) bool) {
	for _, name := range slices.Sorted(maps.Keys(t.of)) {
		all = append(all, *t.of[name])
	}
	return all, func(queue string) bool { return t.alone[queue] }
}
