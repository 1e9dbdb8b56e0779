package adopted

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// of are the queue's jobs that are held here, the one first that was claimed first.
func (h *holds) of(queue string) []*held {
	all := h.all(func(j *held) bool { return j.table.queue == queue })
	slices.SortFunc(all, func(a, b *held) int { return cmp.Compare(a.lease.fence, b.lease.fence) })
	return all
}

// count puts held jobs among the claimed ones.
func (h *holds) count(queue string, st *backends.QueueStats) {
	all := h.of(queue)
	if len(all) == 0 {
		return
	}
	st.Claimed += int64(len(all))
	st.Ready = max(st.Ready-int64(len(all)), 0)
	st.OldestClaimed = max(time.Since(all[0].began), time.Millisecond)
}

// items are the ids of a page of held jobs; of another state there are none.
func (h *holds) items(queue string, p backends.Peek) (items []string, err error) {
	if p.State != backends.StateClaimed {
		return nil, nil
	}
	for _, j := range h.of(queue) {
		items = append(items, j.lease.item)
	}
	if p.After != "" {
		at := slices.Index(items, p.After)
		if at < 0 {
			return nil, backends.ErrNoSuchJob
		}
		items = items[at+1:]
	}
	return items[:min(len(items), p.Max)], nil
}

// show says of held jobs that they are claimed.
func (h *holds) show(queue string, views map[string]*backends.View) {
	for _, j := range h.of(queue) {
		if v := views[j.lease.item]; v != nil {
			v.State, v.Worker, v.ClaimedAt, v.Attempt = backends.StateClaimed, j.lease.worker, time.UnixMilli(j.lease.claimedAt).UTC(), j.lease.attempts
		}
	}
}

// takeBackHeld ends holds by force.
func (s *Store) takeBackHeld(ctx context.Context, t *table, ids []string) (count int64) {
	for _, j := range s.holds.of(t.queue) {
		if !slices.Contains(ids, j.lease.item) {
			continue
		}
		w := backends.Release{Leases: []backends.Lease{j.proof()}, Uncounted: true}
		r := s.settleOne(ctx, heldWrite{Write: w, lease: j.proof(), job: j})
		if len(r.Lost) == 0 {
			count++
		}
		s.holds.lost(r.MadeReady)
	}
	return count
}
