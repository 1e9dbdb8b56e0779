package adopted

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// prune deletes a batch of the rows that were finished long enough ago, of each queue whose config
// sets how long they stay.
func (s *Store) prune(ctx context.Context, r *backends.MaintenanceResult, limit int) error {
	set := s.ObstacleSet()
	for _, q := range s.sortedQueues() {
		if set.Waits(q.Queue, "", backends.DoingPrune) {
			continue
		}
		began, complete := set.Time(), true
		var seen []string
		for _, old := range q.Retentions() {
			items, all, err := s.pruneBatch(ctx, r, q, old, limit)
			if err != nil && core.IsOutage(ctx, err) {
				return err
			}
			if err != nil {
				s.refused(q, "", backends.DoingPrune, err)
			}
			seen, complete = append(seen, items...), complete && all && err == nil
		}
		if complete {
			set.Tried(began, func(o *backends.Obstacle) bool {
				return o.Doing == backends.DoingPrune && o.Queue == q.Queue && !slices.Contains(seen, o.Job)
			})
		}
	}
	return nil
}

// pruneBatch deletes a batch of the rows. If other rows refer to one of them, or a trigger protects it, the others can
// still go. It returns the rows that it found, and whether these are all.
func (s *Store) pruneBatch(ctx context.Context, r *backends.MaintenanceResult, q *statement.Queue, old statement.Retention, limit int) (items []string, all bool, err error) {
	set := s.ObstacleSet()
	obstacleClock, began := set.Time(), time.Now()
	most := limit + set.Jobs(backends.DoingPrune)
	if err := s.limited(ctx, false, func(ctx context.Context) error {
		return s.Query(ctx, old.Expired(most, func(item string) { items = append(items, item) }))
	}); err != nil {
		return nil, false, err
	}
	gone := 0
	apart := core.Apart[string]{
		Set: set,
		Obstacle: func(item string) backends.Obstacle {
			return backends.Obstacle{Queue: q.Queue, Table: old.Info.Name, Job: item, Doing: backends.DoingPrune}
		},
		Try: func(some []string) error {
			n, err := s.deleteExpired(ctx, old, some)
			gone += n
			switch {
			case isLocked(err):
				return nil // a later run tries again
			case backends.IsRefused(err):
				return fmt.Errorf("queues.%s.%s: %w: let the foreign keys to them delete the other rows (ON DELETE CASCADE), or remove %[2]s", old.Queue, old.ConfigKey(), err)
			}
			return err
		},
	}
	fresh := apart.New(items)
	if fresh = fresh[:min(limit, len(fresh))]; len(fresh) > 0 {
		err = apart.Try(fresh)
	}
	found := len(fresh)
	if err != nil {
		found = gone // so that the rest is not tried again at once
	}
	more, err := apart.After(ctx, obstacleClock, items, err)
	if len(items) > 0 {
		r.AddPruned(gone, found, limit, time.Since(began))
	}
	r.PruneMore = r.PruneMore || more
	return items, len(items) < most, err
}

func (s *Store) deleteExpired(ctx context.Context, old statement.Retention, items []string) (gone int, err error) {
	deletes := old.Delete(items)
	if err := s.transaction(ctx, nil, func(ctx context.Context, sql backends.SQL) error {
		return s.limited(ctx, false, func(ctx context.Context) error { return sql.Do(ctx, deletes...) })
	}); err != nil {
		return 0, err
	}
	return int(matched(deletes)), nil
}
