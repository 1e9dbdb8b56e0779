package core

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// prune deletes what retention allows. The commit need not be on disk: if a crash undoes it, the deletion is
// repeated.
func (s *Store) prune(ctx context.Context, w backends.Maintenance, o dueWork, r *backends.MaintenanceResult) (some bool, err error) {
	limit := w.PruneLimit()
	if n := s.traits.MaxRows; n > 0 {
		limit = min(limit, n)
	}
	var errs []error
	for _, p := range []struct {
		what  Pruned
		since *time.Time
		trail *Trail
		need  backends.OwnTables
	}{
		{PruneJobs, o.Jobs, &s.jobTrail, backends.OwnJobs | backends.OwnFailures | backends.OwnPrunable},
		{PruneKeys, o.Keys, &s.keyTrail, backends.OwnKeys},
	} {
		if p.since == nil {
			continue
		}
		some = true
		r.PruneOverdue = max(r.PruneOverdue, o.At.Sub(*p.since))
		try := func(only []int64, limit int) error {
			var began time.Time // measured from here: others wait for the transaction, not for what it waits for
			var deleted, found int
			var last time.Time
			if err := s.within(ctx, p.need, func(ctx context.Context) error {
				return s.Write(ctx, TxOptions{Unsynced: true, Brief: s.tables.Some()}, func(ctx context.Context, tx Tx) (err error) {
					began = time.Now()
					deleted, found, last, err = tx.Prune(ctx, p.what, *p.since, only, limit)
					return err
				})
			}); err != nil {
				return err
			}
			if !last.IsZero() && !s.obstacles.Some() { // what is refused stays before it
				p.trail.Found(last)
			}
			if only != nil {
				found = 0
			}
			r.AddPruned(deleted, found, limit, time.Since(began))
			return nil
		}
		var err error
		if p.what == PruneJobs {
			var more bool
			more, err = s.eachApart(ctx, backends.DoingPrune, limit, try, func(ctx context.Context, tx Tx, limit int) ([]Found, error) {
				return tx.FindExpired(ctx, *p.since, limit)
			})
			r.PruneMore = r.PruneMore || more
		} else {
			err = try(nil, limit)
		}
		if errs = append(errs, err); err != nil && IsOutage(ctx, err) && backends.LockedTable(err) == "" {
			break
		}
	}
	return some, errors.Join(slices.DeleteFunc(errs, func(err error) bool { return backends.LockedTable(err) != "" })...)
}
