package adopted

import (
	"context"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// prune deletes a batch of the rows that were finished long enough ago, of each queue whose config
// sets how long they stay.
func (s *Store) prune(ctx context.Context, r *backends.MaintenanceResult, limit int) error {
	for _, q := range s.sortedQueues() {
		for _, old := range q.Retentions() {
			if s.ObstacleSet().Waits(q.Queue, "", backends.DoingPrune) {
				continue
			}
			switch err := s.pruneBatch(ctx, r, old, limit); {
			case err == nil:
				s.ObstacleSet().Clear(q.Queue, "", backends.DoingPrune)
			case core.IsOutage(ctx, err):
				return err
			default:
				s.refused(q, "", backends.DoingPrune, err)
			}
		}
	}
	return nil
}

func (s *Store) pruneBatch(ctx context.Context, r *backends.MaintenanceResult, old statement.Retention, limit int) error {
	began := time.Now()
	var items []string
	if err := s.Query(ctx, old.Expired(limit, func(item string) { items = append(items, item) })); err != nil || len(items) == 0 {
		return tolerate(r, old, err)
	}
	found := len(items)
	gone, err := s.deleteExpired(ctx, old, items)
	if backends.IsRefused(err) {
		// Other rows refer to one of them, or a trigger protects it. The others can still go.
		for i := 0; i < len(items) && tolerate(r, old, err) == nil; i++ {
			var n int
			n, err = s.deleteExpired(ctx, old, items[i:i+1])
			gone += n
		}
		found = gone // so that the rest is not tried again at once
	}
	r.AddPruned(gone, found, limit, time.Since(began))
	return tolerate(r, old, err)
}

func (s *Store) deleteExpired(ctx context.Context, old statement.Retention, items []string) (gone int, err error) {
	deletes := old.Delete(items)
	if err := s.transaction(ctx, nil, func(ctx context.Context, sql backends.SQL) error { return sql.Do(ctx, deletes...) }); err != nil {
		return 0, err
	}
	return int(matched(deletes)), nil
}

// tolerate drops an error that must not stop other maintenance: a lock of another program, and the
// database's refusal to delete a row, which r reports.
func tolerate(r *backends.MaintenanceResult, old statement.Retention, err error) error {
	switch {
	case isLocked(err):
		return nil
	case backends.IsRefused(err):
		r.PruneRefused = fmt.Errorf("queues.%s.%s: %w: let the foreign keys to them delete the other rows (ON DELETE CASCADE), or remove %[2]s", old.Queue, old.ConfigKey(), err)
		return nil
	}
	return err
}
