package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
)

// biteSize is how many rows one transaction of a purge, or of a retry of all,
// changes: what else wants the rows must not wait long.
const biteSize = 1000

// Command implements backends.Inspector. A purge, and a retry of more dead jobs than
// a bite, are done in bites: an error after some of them leaves those done.
func (s *Store) Command(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	switch {
	case c.Kind == backends.Purge:
		count, err = s.purge(ctx, c)
		return count, false, err
	case c.Kind == backends.Retry && c.All:
		count, err = s.retryAll(ctx, c)
		return count, count > 0, err
	}
	err = s.write(ctx, scope{}, func(t *tx, round int) (bool, error) {
		if round > 0 {
			return false, nil
		}
		count, freed = 0, false
		switch c.Kind {
		case backends.Retry:
			var b retried
			t.each(s.sql.retry, func(rows pgx.Rows) error {
				err := b.scan(rows, true)
				count, freed = b.n, b.n > 0
				return err
			}, c.Queue, numbers(c.IDs))
		case backends.Delete:
			t.each(s.sql.delete, deleted(&count), c.Queue, numbers(c.IDs))
		case backends.Reclaim:
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
		return 0, false, err
	}
	if freed {
		s.tell.freed([]backends.WriteResult{{MadeReady: []string{c.Queue}}})
	}
	return count, freed, nil
}

// retried is the answer to a retry, or to a bite of it.
type retried struct {
	n, seen int64
	at      time.Time // of the last that was seen
	id      int64
}

// scan reads it. whole: a key that is taken refuses all.
func (b *retried) scan(rows pgx.Rows, whole bool) error {
	var keyed, got int64
	if err := rows.Scan(&keyed, &got, &b.n, &b.seen, &b.at, &b.id); err != nil {
		return err
	}
	if whole && got < keyed {
		return backends.ErrKeyTaken
	}
	return nil
}

// retryAll retries as many dead jobs as there were when it began. More than a bite
// are checked first, so that a key that is taken refuses all.
func (s *Store) retryAll(ctx context.Context, c backends.Command) (count int64, err error) {
	var left int64
	var taken, twice bool
	if err := s.read(ctx, func(ctx context.Context, t *tx) error {
		t.each(s.sql.count[backends.StateDead], func(rows pgx.Rows) error { return rows.Scan(&left) }, c.Queue, int64(math.MaxInt64))
		if err := t.send(ctx); err != nil || left <= biteSize {
			return err
		}
		t.each(s.sql.keysTaken, func(rows pgx.Rows) error { return rows.Scan(&taken) }, c.Queue)
		t.each(s.sql.keysTwice, func(rows pgx.Rows) error { return rows.Scan(&twice) }, c.Queue)
		return t.send(ctx)
	}); err != nil {
		return 0, err
	}
	if taken || twice {
		return 0, backends.ErrKeyTaken
	}
	whole := left <= biteSize // one transaction keeps the promise by itself
	var last retried
	for left > 0 {
		var b retried
		if err := s.write(ctx, scope{}, func(t *tx, round int) (bool, error) {
			if round == 0 {
				t.each(s.sql.retryFrom, func(rows pgx.Rows) error { return b.scan(rows, whole) }, c.Queue, last.at, last.id, min(left, biteSize))
			}
			return round == 0, nil
		}); err != nil {
			return count, err
		}
		count += b.n
		c.Progressed()
		if b.n > 0 {
			s.tell.freed([]backends.WriteResult{{MadeReady: []string{c.Queue}}})
		}
		if left -= b.seen; b.seen == 0 {
			break
		}
		last = b
	}
	return count, nil
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
				t.each(sql, deleted(&n), c.Queue, min(left, biteSize))
			}
			return round == 0, nil
		}); err != nil {
			return count, err
		}
		count += n
		c.Progressed()
		if left -= n; n == 0 {
			break
		}
	}
	return count, nil
}
