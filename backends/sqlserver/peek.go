package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Peek implements backends.Inspector.
func (s *Store) Peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	if p.State == "" {
		p.State = backends.StateReady
	}
	ids, err := s.chosen(ctx, p)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return s.views(ctx, p, ids)
}

// chosen are the ids that p may show, in its order.
func (s *Store) chosen(ctx context.Context, p backends.Peek) ([]idRow, error) {
	if len(p.IDs) > 0 {
		return s.fitting(ctx, p, s.sql.chosen, p.Queue, document(named(p.IDs)))
	}
	from, err := s.from(ctx, p)
	if err != nil {
		return nil, err
	}
	limit := int64(p.Max)
	switch p.State {
	case backends.StateReady:
		return s.fitting(ctx, p, s.sql.peekReady, p.Queue, int64(from.priority), from.position, limit)
	case backends.StateScheduled:
		return s.fitting(ctx, p, s.sql.peekScheduled, p.Queue, from.at, from.id, limit)
	case backends.StateClaimed:
		return s.fitting(ctx, p, s.sql.peekClaimed, p.Queue, from.at, from.id, limit)
	case backends.StateDone, backends.StateDead:
		return s.fitting(ctx, p, s.sql.peekFinished, p.Queue, from.at, from.id, limit, string(p.State))
	}
	return nil, fmt.Errorf("no job is ever %q", p.State)
}

// fitting are the ids that a piece finds, until their bytes or their number are
// enough: before any of the bytes are read.
func (s *Store) fitting(ctx context.Context, p backends.Peek, piece *piece, args ...any) (ids []idRow, err error) {
	var size int64
	var full bool
	sized := each(func(rows *sql.Rows) error {
		var id, bytes int64
		if err := rows.Scan(&id, &bytes); err != nil {
			return err
		}
		size += bytes
		full = full || len(ids) == p.Max || p.MaxBytes > 0 && size > p.MaxBytes && len(ids) > 0
		if !full {
			ids = append(ids, idRow{len(ids), id})
		}
		return nil
	})
	read := []reader{func(rows *sql.Rows) error {
		ids, size, full = nil, 0, false
		return sized(rows)
	}}
	if piece.sets == 2 {
		read = append(read, sized)
	}
	err = s.read(ctx, call{piece, args, read})
	return ids, err
}

// from is where a list goes on.
type from struct {
	priority int16
	position int64
	at       string
	id       int64
}

func (s *Store) from(ctx context.Context, p backends.Peek) (from, error) {
	f := from{priority: 32767, at: instant(time.Time{})}
	if p.After == "" {
		return f, nil
	}
	id, ok := batch.Number(p.After)
	if !ok {
		return f, backends.ErrNoSuchJob
	}
	found := false
	err := s.read(ctx, call{s.sql.place, []any{p.Queue, id}, []reader{each(func(rows *sql.Rows) error {
		found = true
		var run, claimed, finished sql.NullTime
		if err := rows.Scan(&f.priority, &f.position, &run, &claimed, &finished); err != nil {
			return err
		}
		f.id = id
		at := map[backends.State]sql.NullTime{
			backends.StateScheduled: run, backends.StateClaimed: claimed, backends.StateDone: finished, backends.StateDead: finished,
		}[p.State]
		if at.Valid { // it may be in another state by now
			f.at = instant(at.Time)
		}
		return nil
	})}})
	if err == nil && !found {
		err = backends.ErrNoSuchJob
	}
	return f, err
}

func (s *Store) views(ctx context.Context, p backends.Peek, ids []idRow) (views []backends.View, err error) {
	at := map[int64]int{}
	err = s.read(ctx, call{s.sql.view, []any{p.Queue, document(ids)}, []reader{
		func(rows *sql.Rows) error {
			views = nil
			clear(at)
			for rows.Next() {
				id, v, err := scanView(rows)
				if err != nil {
					return fmt.Errorf("qsidecar_jobs row %d: %w", id, err)
				}
				at[id] = len(views)
				views = append(views, v)
			}
			return nil
		},
		each(func(rows *sql.Rows) error {
			var job int64
			var f backends.Failure
			if err := rows.Scan(&job, &f.Attempt, (*string)(&f.Cause), &f.Message, &f.At); err != nil {
				return err
			}
			f.At = f.At.UTC()
			if i, ok := at[job]; ok {
				views[i].Failures = append(views[i].Failures, f)
			}
			return nil
		}),
	}})
	return views, err
}

func scanView(rows *sql.Rows) (id int64, v backends.View, err error) {
	var run, claimed, finished sql.NullTime
	var headers, worker string
	err = rows.Scan(&id, &v.Queue, (*string)(&v.State), &v.Payload, &v.Priority, &v.Attempt, &v.MaxAttempts, &v.EnqueuedAt,
		&run, &claimed, &finished, &worker, &v.Key, &headers, &v.Result)
	if err != nil {
		return id, v, err
	}
	v.ID, v.EnqueuedAt = batch.ID(id), v.EnqueuedAt.UTC()
	if finished.Valid {
		v.FinishedAt = finished.Time.UTC()
	}
	switch {
	case v.State == backends.StateScheduled && run.Valid:
		v.RunAt = run.Time.UTC()
	case v.State == backends.StateClaimed && claimed.Valid:
		v.ClaimedAt, v.Worker = claimed.Time.UTC(), worker
	}
	v.Headers = batch.ReadHeaders(headers)
	return id, v, nil
}
