package adopted

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Stats implements backends.Inspector. What the table's own consumers have claimed counts as
// claimed. Of jobs that are claimed in open transactions only this sidecar's do: the database does
// not distinguish the others from waiting jobs.
func (s *Store) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	all, err := s.Engine.Stats(ctx, queue)
	if err != nil || queue != "" && !s.Adopted(queue) {
		return all, err
	}
	queues := s.queueNames()
	if queue != "" {
		queues = []string{queue}
	}
	paused := map[string]bool{}
	for _, st := range all {
		paused[st.Queue] = st.Paused
	}
	all = slices.DeleteFunc(all, func(st backends.QueueStats) bool { return s.Adopted(st.Queue) })
	for _, name := range queues {
		st := backends.QueueStats{Queue: name, Paused: paused[name]}
		q := s.queues()[name]
		if why := s.ObstacleSet().Find(name, "", backends.DoingClaim); queue == "" && (q == nil || why != nil) {
			continue // its table must not keep the others' numbers back
		}
		if q == nil {
			return nil, s.obstruction(name, backends.DoingClaim)
		}
		if err := s.count(ctx, q, &st); err != nil {
			if queue == "" && isOfTable(err) {
				continue
			}
			return nil, s.named(name, err)
		}
		s.tx.count(name, &st)
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b backends.QueueStats) int { return cmp.Compare(a.Queue, b.Queue) })
	return all, nil
}

func (s *Store) count(ctx context.Context, q *statement.Queue, st *backends.QueueStats) error {
	if err := s.Query(ctx, q.Stats(st)...); err != nil {
		return err
	}
	return s.estimates.Fill(time.Now(), st, func(state backends.State) (n int64, err error) {
		err = s.Query(ctx, q.Count(state, &n))
		return n, err
	})
}

// Queues implements backends.Locator.
func (s *Store) Queues(ctx context.Context, all []backends.Lease) (queues []string, err error) {
	var managed []backends.Lease
	var ids []string
	for _, l := range all {
		if id, ok := lease.ParseHandle(l.Job); ok {
			ids = append(ids, strconv.FormatInt(id, 10))
		} else {
			managed = append(managed, l)
		}
	}
	if l, ok := s.Engine.(backends.Locator); ok && len(managed) > 0 {
		if queues, err = l.Queues(ctx, managed); err != nil {
			return nil, err
		}
	}
	adopted, err := core.Queues(ctx, s, lease.Table, lease.IDColumn.Type, ids)
	return append(queues, adopted...), err
}

// ClaimedBy implements backends.Backend: the managed jobs first, then the adopted ones.
func (s *Store) ClaimedBy(ctx context.Context, sidecar backends.Identity, after string, limit int) (all []backends.ClaimedJob, err error) {
	last, adopted := lease.ParseHandle(after)
	if !adopted {
		if all, err = s.Engine.ClaimedBy(ctx, sidecar, after, limit); err != nil || len(all) >= limit {
			return all, err
		}
	}
	claims := leases{}
	st := claims.query(lease.Select(s.dialect, "l.token_sidecar IS NOT NULL AND l.owner = "+s.dialect.IntArg(1)+" AND l.id > "+s.dialect.IntArg(2)), int64(sidecar), last)
	if err := s.Query(ctx, st); err != nil {
		return nil, err
	}
	for _, j := range s.tx.find(func(j *txJob) bool { return j.lease.Sidecar == int64(sidecar) && j.lease.ID > last }) {
		claims[j.lease.ID] = j.lease
	}
	for _, l := range claims.sorted() {
		if len(all) == limit {
			break
		}
		all = append(all, backends.ClaimedJob{Lease: l.Proof(), Queue: l.Queue, ID: l.Item, Timed: l.Length > 0})
	}
	return all, nil
}
