package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/qsidecar/qsidecar/backends"
)

// purgeBite is how many rows one transaction of a purge deletes: it must not
// keep the beat from the write lock.
const purgeBite = 1000

// Command implements backends.Inspector. A purge, and a retry of more dead jobs
// than a bite, are done in bites: an error after some of them leaves those done.
func (s *Store) Command(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	var do func(t *tx) (int64, error)
	switch c.Kind {
	case backends.Purge:
		count, err = s.purge(ctx, c)
		return count, false, err
	case backends.Retry:
		if c.All {
			return s.retryAll(ctx, c)
		}
		do = func(t *tx) (int64, error) { return t.retry(c) }
	case backends.Delete:
		do = func(t *tx) (int64, error) { return t.deleteByID(c) }
	case backends.Reclaim:
		do = func(t *tx) (int64, error) { return t.forceRelease(c) }
	case backends.Pause:
		do = func(t *tx) (int64, error) {
			_, err := t.exec(t.sql.pause, c.Queue)
			return 0, err
		}
	case backends.Resume:
		do = func(t *tx) (int64, error) { return 0, t.unpause(c.Queue) }
	default:
		return 0, false, fmt.Errorf("sqlite: a command of the unknown kind %d", c.Kind)
	}
	var n int64
	var ready bool
	if err := s.write(ctx, &s.writer, s.openWriter, func(t *tx) (err error) {
		n, err = do(t)
		ready = len(t.freed) > 0
		return err
	}); err != nil {
		return 0, false, err
	}
	return n, ready, nil
}

// target is a row that a command names.
type target struct {
	id    int64
	state backends.State
	key   string
}

// named calls f with each row of the queue that is among the ids.
func (t *tx) named(queue string, ids []string, f func(target) error) error {
	seen := map[int64]bool{}
	for _, text := range ids {
		id, ok := number(text)
		if !ok || seen[id] {
			continue
		}
		seen[id] = true
		var found *target
		if err := t.query(t.sql.inState, func(r row) error {
			if r.text(0) == queue {
				found = &target{id, backends.State(r.text(1)), r.text(2)}
			}
			return nil
		}, id); err != nil {
			return err
		}
		if found != nil {
			if err := f(*found); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *tx) deleteByID(c backends.Command) (n int64, err error) {
	err = t.named(c.Queue, c.IDs, func(j target) error {
		if j.state == backends.StateClaimed {
			return nil
		}
		n++
		return t.delete(c.Queue, j)
	})
	return n, err
}

func (t *tx) delete(queue string, j target) error {
	if j.key != "" {
		if _, err := t.exec(t.sql.endKey, string(backends.StateDeleted), queue, j.key, j.id); err != nil {
			return err
		}
	}
	return t.one(t.sql.remove, j.id)
}

func (t *tx) forceRelease(c backends.Command) (n int64, err error) {
	err = t.named(c.Queue, c.IDs, func(j target) error {
		if j.state != backends.StateClaimed {
			return nil
		}
		l, err := t.find(t.sql.claimed, j.id)
		if err != nil || l == nil {
			return err
		}
		n++
		return t.meet(l, l.standing().AfterRelease(backends.Release{Uncounted: true}))
	})
	return n, err
}

func (t *tx) unpause(queue string) error {
	if _, err := t.exec(t.sql.resume, queue); err != nil {
		return err
	}
	ready, err := t.exists(t.sql.anyReady, queue)
	if ready {
		t.free(queue)
	}
	return err
}

// purge deletes as many rows as there were when it began, so that it ends
// although others come.
func (s *Store) purge(ctx context.Context, c backends.Command) (count int64, err error) {
	if c.State == backends.StateClaimed {
		return 0, errors.New("claimed jobs cannot be purged: release them first")
	}
	left := int64(0)
	if err := s.reading(ctx, func(t *tx) error {
		sql, ok := map[backends.State]string{
			backends.StateReady: t.sql.countReady, backends.StateScheduled: t.sql.countScheduled,
			backends.StateDone: t.sql.countDone, backends.StateDead: t.sql.countDead,
		}[c.State]
		if !ok {
			return fmt.Errorf("no job is ever %q", c.State)
		}
		return t.query(sql, func(r row) error {
			left = r.int(0)
			return nil
		}, c.Queue, int64(math.MaxInt64))
	}); err != nil {
		return 0, err
	}
	for left > 0 {
		var n int64
		if err := s.write(ctx, &s.writer, s.openWriter, func(t *tx) error {
			ids, err := t.following(c.Queue, c.State, place{begin: true, at: math.MinInt64}, int(min(left, purgeBite)))
			if err != nil {
				return err
			}
			for _, id := range ids {
				if err := t.named(c.Queue, []string{fmt.Sprint(id)}, func(j target) error { return t.delete(c.Queue, j) }); err != nil {
					return err
				}
			}
			n = int64(len(ids))
			return nil
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
