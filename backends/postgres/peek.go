package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// Peek implements backends.Inspector.
func (s *Store) Peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	if p.State == "" {
		p.State = backends.StateReady
	}
	var views []backends.View
	err := s.read(ctx, func(ctx context.Context, t *tx) error {
		views = nil
		ids, err := t.chosen(ctx, p)
		if err != nil || len(ids) == 0 {
			return err
		}
		views, err = t.views(ctx, p, ids)
		return err
	})
	if err != nil {
		return nil, err
	}
	return views, nil
}

// chosen are the ids that p may show, in its order.
func (t *tx) chosen(ctx context.Context, p backends.Peek) ([]int64, error) {
	if len(p.IDs) > 0 {
		return t.fitting(ctx, p, t.s.sql.chosen, numbers(p.IDs), p.Queue)
	}
	from, err := t.place(ctx, p)
	if err != nil {
		return nil, err
	}
	switch p.State {
	case backends.StateReady:
		return t.fitting(ctx, p, t.s.sql.peekReady, p.Queue, from.spot.Urgency, from.spot.Position, p.Max)
	case backends.StateScheduled:
		return t.fitting(ctx, p, t.s.sql.peekScheduled, p.Queue, from.at, from.id, p.Max)
	case backends.StateClaimed:
		return t.fitting(ctx, p, t.s.sql.peekClaimed, p.Queue, from.at, from.id, p.Max)
	case backends.StateDone, backends.StateDead:
		return t.fitting(ctx, p, t.s.sql.peekDone, p.Queue, from.at, from.id, p.Max, string(p.State))
	}
	return nil, fmt.Errorf("no job is ever %q", p.State)
}

// numbers are those of the ids that are any, each once.
func numbers(ids []string) []int64 {
	all := []int64{}
	for _, text := range ids {
		if id, ok := number(text); ok && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// fitting are the ids that a query finds, until their bytes or their number are
// enough: before any of the bytes are read.
func (t *tx) fitting(ctx context.Context, p backends.Peek, sql string, args ...any) (ids []int64, err error) {
	size, full := int64(0), false
	t.each(sql, func(rows pgx.Rows) error {
		var id, bytes int64
		if err := rows.Scan(&id, &bytes); err != nil {
			return err
		}
		size += bytes
		full = full || len(ids) == p.Max || p.MaxBytes > 0 && size > p.MaxBytes && len(ids) > 0
		if !full {
			ids = append(ids, id)
		}
		return nil
	}, args...)
	return ids, t.send(ctx)
}

// place is where a list goes on.
type place struct {
	spot cursor.Spot
	id   int64
	at   pgtype.Timestamptz
}

func (t *tx) place(ctx context.Context, p backends.Peek) (from place, err error) {
	from = place{spot: cursor.Beginning, at: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}}
	if p.After == "" {
		return from, nil
	}
	id, ok := number(p.After)
	if !ok {
		return from, backends.ErrNoSuchJob
	}
	found := false
	t.each(t.s.sql.place, func(rows pgx.Rows) error {
		found = true
		var run, claimed, finished pgtype.Timestamptz
		if err := rows.Scan(&from.spot.Urgency, &from.spot.Position, &run, &claimed, &finished); err != nil {
			return err
		}
		from.id = id
		at := map[backends.State]pgtype.Timestamptz{
			backends.StateScheduled: run, backends.StateClaimed: claimed, backends.StateDone: finished, backends.StateDead: finished,
		}[p.State]
		if at.Valid { // it may be in another state by now
			from.at = at
		}
		return nil
	}, id, p.Queue)
	if err = t.send(ctx); err == nil && !found {
		err = backends.ErrNoSuchJob
	}
	return from, err
}

func (t *tx) views(ctx context.Context, p backends.Peek, ids []int64) (views []backends.View, err error) {
	at := map[int64]int{}
	t.each(t.s.sql.view, func(rows pgx.Rows) error {
		id, v, err := scanView(rows)
		if err != nil {
			return fmt.Errorf("qsidecar_jobs row %d: %w", id, err)
		}
		at[id] = len(views)
		views = append(views, v)
		return nil
	}, ids, p.Queue)
	t.each(t.s.sql.failures, func(rows pgx.Rows) error {
		var job int64
		var f backends.Failure
		if err := rows.Scan(&job, &f.Attempt, (*string)(&f.Cause), &f.Message, instant{&f.At}); err != nil {
			return err
		}
		f.At = f.At.UTC()
		if i, ok := at[job]; ok {
			views[i].Failures = append(views[i].Failures, f)
		}
		return nil
	}, ids)
	return views, t.send(ctx)
}

func scanView(rows pgx.Rows) (id int64, v backends.View, err error) {
	var run, claimed, finished *time.Time
	var headers, worker string
	err = rows.Scan(&id, &v.Queue, (*string)(&v.State), &v.Payload, &v.Priority, &v.Attempt, &v.MaxAttempts, instant{&v.EnqueuedAt},
		maybe{&run}, maybe{&claimed}, maybe{&finished}, &worker, &v.Key, &headers, &v.Result)
	if err != nil {
		return id, v, err
	}
	v.ID, v.EnqueuedAt = idOf(id), v.EnqueuedAt.UTC()
	if finished != nil {
		v.FinishedAt = finished.UTC()
	}
	switch {
	case v.State == backends.StateScheduled && run != nil:
		v.RunAt = run.UTC()
	case v.State == backends.StateClaimed && claimed != nil:
		v.ClaimedAt, v.Worker = claimed.UTC(), worker
	}
	v.Headers = batch.ReadHeaders(headers)
	return id, v, nil
}
