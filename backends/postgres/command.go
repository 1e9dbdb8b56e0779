package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
)

// purgeBite is how many rows one transaction of a purge deletes: what else wants
// the rows must not wait long.
const purgeBite = 1000

// Command implements backends.Inspector. A purge is done in bites: an error
// after some of them leaves those done.
func (s *Store) Command(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	if c.Kind == backends.Purge {
		count, err = s.purge(ctx, c)
		return count, false, err
	}
	err = s.write(ctx, scope{}, func(t *tx, round int) (bool, error) {
		if round > 0 {
			return false, nil
		}
		count, freed = 0, false
		switch c.Kind {
		case backends.Retry:
			t.retry(c, &count, &freed)
		case backends.Delete:
			t.each(s.sql.delete, deleted(&count), c.Queue, numbers(c.IDs))
		case backends.ForceRelease:
			t.each(s.sql.release, func(rows pgx.Rows) error {
				count++
				freed = true
				_, err := t.scanFailed(rows)
				return err
			}, c.Queue, numbers(c.IDs))
		case backends.Pause:
			t.add(s.sql.pause, nil, c.Queue)
		case backends.Resume:
			t.add(s.sql.resume, nil, c.Queue)
			t.each(s.sql.anyReady, func(rows pgx.Rows) error { return rows.Scan(&freed) }, c.Queue)
		default:
			return false, fmt.Errorf("postgres: a command of the unknown kind %d", c.Kind)
		}
		return true, nil
	})
	if err != nil {
		return 0, false, keyTaken(err)
	}
	if freed {
		s.tell.freed([]backends.WriteResult{{Freed: []string{c.Queue}}})
	}
	return count, freed, nil
}

func (t *tx) retry(c backends.Command, count *int64, freed *bool) {
	sql, args := t.s.sql.retryAll, []any{c.Queue}
	if !c.All {
		sql, args = t.s.sql.retry, append(args, numbers(c.IDs))
	}
	t.each(sql, func(rows pgx.Rows) error {
		var wanted, got int64
		if err := rows.Scan(&wanted, &got, count); err != nil {
			return err
		}
		if got < wanted {
			return backends.ErrKeyTaken
		}
		*freed = *count > 0
		return nil
	}, args...)
}

// keyTaken: two dead jobs that had the same key, one after the other, cannot both
// have it again; the server says that one statement would change a row twice.
func keyTaken(err error) error {
	var said *pgconn.PgError
	if errors.As(err, &said) && said.Code == "21000" {
		return backends.ErrKeyTaken
	}
	return err
}

// deleted reads how many rows were chosen and how many went.
func deleted(count *int64) func(rows pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var chosen int64
		if err := rows.Scan(&chosen, count); err != nil {
			return err
		}
		if *count < chosen {
			return backends.Refused(errPassedOver)
		}
		return nil
	}
}

// purge deletes as many rows as there were when it began, so that it ends
// although others come.
func (s *Store) purge(ctx context.Context, c backends.Command) (count int64, err error) {
	if c.State == backends.StateClaimed {
		return 0, errors.New("claimed jobs cannot be purged: release them first")
	}
	sql, ok := s.sql.purge[c.State]
	if !ok {
		return 0, fmt.Errorf("no job is ever %q", c.State)
	}
	left := int64(0)
	if err := s.read(ctx, func(ctx context.Context, t *tx) error {
		t.each(s.sql.count[c.State], func(rows pgx.Rows) error { return rows.Scan(&left) }, c.Queue, int64(math.MaxInt64))
		return t.send(ctx)
	}); err != nil {
		return 0, err
	}
	for left > 0 {
		var n int64
		if err := s.write(ctx, scope{}, func(t *tx, round int) (bool, error) {
			if round == 0 {
				n = 0
				t.each(sql, deleted(&n), c.Queue, min(left, purgeBite))
			}
			return round == 0, nil
		}); err != nil {
			return count, err
		}
		count += n
		if left -= n; n == 0 {
			break
		}
	}
	return count, nil
}
