package sqlite

import (
	"context"
	"errors"
	"hash/maphash"
	"math"
	"strconv"

	"github.com/qsidecar/qsidecar/backends"
)

// retryBite is how many rows one transaction of a retry of all changes, and the
// largest set that is retried in one.
const retryBite = 1000

func (t *tx) retry(c backends.Command) (n int64, err error) {
	err = t.named(c.Queue, c.IDs, func(j target) error {
		if j.state != backends.StateDead {
			return nil
		}
		n++
		return t.retryOne(c.Queue, j)
	})
	return n, err
}

// retryAll retries as many dead jobs as there were when it began. More than a bite
// are checked first, beside the writers, so that a key that is taken refuses all.
func (s *Store) retryAll(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	left := int64(0)
	if err := s.reading(ctx, func(t *tx) error {
		if err := t.query(t.sql.countDead, func(r row) error {
			left = r.int(0)
			return nil
		}, c.Queue, int64(math.MaxInt64)); err != nil || left <= retryBite {
			return err
		}
		return t.keysFree(c.Queue)
	}); err != nil {
		return 0, false, err
	}
	// One transaction keeps the promise by itself, in bites it was kept above.
	whole := left <= retryBite
	from := place{begin: true, at: math.MinInt64}
	for left > 0 {
		var seen int
		var n int64
		if err := s.write(ctx, &s.writer, s.openWriter, func(t *tx) (err error) {
			from, seen, n, err = t.retryFrom(c.Queue, from, int(min(left, retryBite)), whole)
			return err
		}); err != nil {
			return count, count > 0, err
		}
		count += n
		c.Progressed()
		if left -= int64(seen); seen == 0 {
			break
		}
	}
	return count, count > 0, nil
}

// keysFree returns ErrKeyTaken where the retry of all dead jobs would give one key
// to two.
func (t *tx) keysFree(queue string) error {
	seed, seen := maphash.MakeSeed(), map[uint64]bool{} // hashes: there may be a million
	taken := false
	if err := t.query(t.sql.deadKeys, func(r row) error {
		hash := maphash.String(seed, r.text(0))
		if taken = r.int(1) != 0 || seen[hash]; taken {
			return errStop
		}
		seen[hash] = true
		return nil
	}, t.now, queue); err != nil {
		return err
	}
	if taken {
		return backends.ErrKeyTaken
	}
	return nil
}

// retryFrom retries a bite of dead jobs after a place, and returns the place of the
// last that it saw. A job whose key is taken stays dead, or with whole is an error.
func (t *tx) retryFrom(queue string, from place, limit int, whole bool) (next place, seen int, n int64, err error) {
	ids, err := t.following(queue, backends.StateDead, from, limit)
	if err != nil || len(ids) == 0 {
		return from, 0, 0, err
	}
	last := strconv.FormatInt(ids[len(ids)-1], 10)
	next, err = t.place(backends.Peek{Queue: queue, State: backends.StateDead, After: last}) // before it changes
	for _, id := range ids {
		if err == nil {
			err = t.named(queue, []string{strconv.FormatInt(id, 10)}, func(j target) error {
				err := t.retryOne(queue, j)
				if errors.Is(err, backends.ErrKeyTaken) && !whole {
					return nil
				}
				n++
				return err
			})
		}
	}
	return next, len(ids), n, err
}

func (t *tx) retryOne(queue string, j target) error {
	if j.key != "" {
		if err := t.takeKeyBack(queue, j); err != nil {
			return err
		}
	}
	position, err := t.next()
	if err != nil {
		return err
	}
	t.free(queue)
	return t.one(t.sql.retry, position, t.now, j.id)
}

// takeKeyBack gives a dead job that lives again its key, where no other job has it.
func (t *tx) takeKeyBack(queue string, j target) error {
	until, taken := t.now, false
	if err := t.query(t.sql.findKey, func(r row) error {
		switch {
		case r.int(0) == j.id:
			until = r.int(1)
		case r.null(2) || t.now < r.int(1):
			taken = true
		}
		return nil
	}, queue, j.key); err != nil {
		return err
	}
	if taken {
		return backends.ErrKeyTaken
	}
	_, err := t.exec(t.sql.putKey, queue, j.key, j.id, until)
	return err
}
