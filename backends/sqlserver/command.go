package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Command implements backends.Inspector. A purge, and a retry of more than a
// thousand jobs, are done in bites: an error after some of them leaves those done.
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
		if round == 0 {
			count, freed = 0, false
		}
		return t.command(c, round, &count, &freed)
	})
	if err != nil {
		return 0, false, err
	}
	return count, freed, nil
}

func (t *tx) command(c backends.Command, round int, count *int64, freed *bool) (more bool, err error) {
	if round == 1 && len(t.found) > 0 {
		t.meet(t.found, func(f found) backends.Disposition { return f.standing.AfterRelease(backends.Release{Uncounted: true}) },
			func(found, backends.Disposition) { *count, *freed = *count+1, true })
		t.found = nil
		return true, nil
	}
	if round > 0 {
		return false, nil
	}
	switch c.Kind {
	case backends.Retry:
		chunks(named(c.IDs), func(_ int, rows []idRow) {
			var b retried
			t.add(t.s.sql.retryIDs, []reader{func(rows *sql.Rows) error {
				err := b.read(rows)
				*count += b.n
				*freed = *count > 0
				return err
			}}, c.Queue, document(rows), int64(1))
		})
	case backends.Delete:
		chunks(named(c.IDs), func(_ int, rows []idRow) {
			t.add(t.s.sql.delete, []reader{adding(count)}, c.Queue, document(rows))
		})
	case backends.Reclaim:
		chunks(named(c.IDs), func(_ int, rows []idRow) {
			t.add(t.s.sql.release, []reader{each(func(rows *sql.Rows) error {
				f, err := scanFound(rows)
				t.found = append(t.found, f)
				return err
			})}, c.Queue, document(rows))
		})
	case backends.Pause:
		t.add(t.s.sql.pause, nil, c.Queue)
	case backends.Resume:
		t.add(t.s.sql.resume, []reader{one(freed)}, c.Queue)
	default:
		return false, fmt.Errorf("sqlserver: a command of the unknown kind %d", c.Kind)
	}
	return true, nil
}

// adding reads a number and adds it.
func adding(to *int64) reader {
	return func(rows *sql.Rows) error {
		var n int64
		err := one(&n)(rows)
		*to += n
		return err
	}
}

// retried is the answer to a bite of a retry.
type retried struct {
	n, seen int64
	at      string // of the last that was seen
	id      int64
}

func (b *retried) read(rows *sql.Rows) error {
	var taken int64
	var at sql.NullTime
	var id sql.NullInt64
	if err := one(&taken, &b.n, &b.seen, &at, &id)(rows); err != nil {
		return err
	}
	if taken > 0 {
		return backends.ErrKeyTaken
	}
	if at.Valid && id.Valid {
		b.at, b.id = instant(at.Time), id.Int64
	}
	return nil
}

// retryAll retries as many dead jobs as there were when it began. More than a bite
// are checked first, so that a key that is taken refuses all.
func (s *Store) retryAll(ctx context.Context, c backends.Command) (count int64, err error) {
	left, err := s.count(ctx, c.Queue, backends.StateDead)
	if err != nil {
		return 0, err
	}
	// One transaction keeps the promise by itself.
	whole := left <= most
	if !whole {
		var taken bool
		if err := s.read(ctx, call{s.sql.keysTaken, []any{c.Queue}, []reader{one(&taken)}}); err != nil {
			return 0, err
		}
		if taken {
			return 0, backends.ErrKeyTaken
		}
	}
	last := retried{at: instant(time.Time{})}
	for left > 0 {
		var b retried
		if err := s.write(ctx, scope{}, func(t *tx, round int) (bool, error) {
			if round == 0 {
				b = retried{}
				t.add(s.sql.retryFrom, []reader{b.read}, c.Queue, last.at, last.id, min(left, most), int64(bit(whole)))
			}
			return round == 0, nil
		}); err != nil {
			return count, err
		}
		count += b.n
		c.Progressed()
		if left -= b.seen; b.seen == 0 {
			break
		}
		last = b
	}
	return count, nil
}

// purge deletes as many rows as there were when it began, so that it ends although
// others come.
func (s *Store) purge(ctx context.Context, c backends.Command) (count int64, err error) {
	if c.State == backends.StateClaimed {
		return 0, errors.New("claimed jobs cannot be purged: release them first")
	}
	left, err := s.count(ctx, c.Queue, c.State)
	if err != nil {
		return 0, err
	}
	for left > 0 {
		var n int64
		if err := s.write(ctx, scope{}, func(t *tx, round int) (bool, error) {
			if round == 0 {
				n = 0
				t.add(s.sql.purge[c.State], []reader{adding(&n)}, c.Queue, min(left, most))
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
