package adopted

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
)

// ofQueue are the jobs of a queue, the one first that was claimed first.
func (t *txPool) ofQueue(queue string) []*txJob {
	all := t.find(func(j *txJob) bool { return j.queue.Queue == queue })
	slices.SortFunc(all, func(a, b *txJob) int { return cmp.Compare(a.lease.Fence, b.lease.Fence) })
	return all
}

// count moves the pool's jobs from the ready to the claimed ones.
func (t *txPool) count(queue string, st *backends.QueueStats) {
	all := t.ofQueue(queue)
	if len(all) == 0 {
		return
	}
	st.Claimed += int64(len(all))
	st.Ready = max(st.Ready-int64(len(all)), 0)
	st.OldestClaimed = max(time.Since(all[0].began), time.Millisecond)
}

// show marks the pool's jobs as claimed in the views.
func (t *txPool) show(queue string, views map[string]*backends.View) {
	for _, j := range t.ofQueue(queue) {
		if v := views[j.lease.Item]; v != nil {
			v.State, v.Worker, v.ClaimedAt, v.Attempt = backends.StateClaimed, j.lease.Worker, time.UnixMilli(j.lease.ClaimedAt).UTC(), j.lease.Attempts
		}
	}
}

// reclaimInTx takes jobs back from their workers.
func (s *Store) reclaimInTx(ctx context.Context, q *statement.Queue, ids []string) (items []string) {
	for _, j := range s.tx.ofQueue(q.Queue) {
		if !slices.Contains(ids, j.lease.Item) {
			continue
		}
		r := s.release(ctx, j, backends.Release{Uncounted: true}, nil)
		if len(r.Lost) == 0 {
			items = append(items, j.lease.Item)
		}
		s.tx.addWaiting(r.MadeReady)
	}
	return items
}
