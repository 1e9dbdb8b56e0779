package mysql

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
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
	err = s.write(ctx, func(ctx context.Context, t *tx) (err error) {
		count, freed = 0, false
		switch c.Kind {
		case backends.Retry:
			count, err = t.retry(ctx, c.Queue, numbers(c.IDs), true)
			freed = count > 0
			return err
		case backends.Delete:
			count, err = t.delete(ctx, c)
			return err
		case backends.Reclaim:
			count, err = t.release(ctx, c)
			freed = count > 0
			return err
		case backends.Pause:
			t.wrote = true
			t.add("INSERT INTO qsidecar_queues (queue, paused) VALUES (?, 1) ON DUPLICATE KEY UPDATE paused = 1", c.Queue)
		case backends.Resume:
			t.wrote = true
			t.add("UPDATE qsidecar_queues SET paused = 0 WHERE queue = ?", c.Queue)
			t.each(func(r *result) error {
				freed = r.int(0) != 0
				return nil
			}, "SELECT EXISTS (SELECT 1 FROM "+jobs+" WHERE lane = ?)", "r"+c.Queue)
		default:
			return fmt.Errorf("%w: a command of the unknown kind %d", errOwn, c.Kind)
		}
		return nil
	})
	if err != nil {
		return 0, false, err
	}
	return count, freed, nil
}

// nextDeadSQL finds a bite of a lane's rows after a place: those whose keys are taken stay.
const nextDeadSQL = "SELECT id, place FROM " + jobs + " WHERE lane = ? AND urgency = 0 AND (place = ? AND id > ? OR place > ?) ORDER BY urgency, place, id LIMIT ?"

// keysTaken is whether a retry of all jobs of a lane would give one key to two; see remembered.free.
func (s *Store) keysTaken() string {
	return "SELECT EXISTS (SELECT 1 FROM " + jobs + " INNER JOIN qsidecar_keys k ON k.queue = qsidecar_jobs.queue AND k.`key` = qsidecar_jobs.`key`" +
		" WHERE lane = ? AND k.job NOT IN (0, qsidecar_jobs.id) AND (k.expires_at > " + s.sql.clock +
		" OR k.state IS NULL AND EXISTS (SELECT 1 FROM qsidecar_jobs j WHERE j.id = k.job)))" +
		" OR EXISTS (SELECT 1 FROM " + jobs + " WHERE lane = ? AND `key` IS NOT NULL GROUP BY `key` HAVING COUNT(*) > 1)"
}

// chosenRows locks the rows of c's ids that are in its queue.
func (t *tx) chosenRows(ctx context.Context, queue string, ids []int64) (rows []*job, all map[int64]*job, err error) {
	all = map[int64]*job{}
	t.askNow()
	t.lock(all, ids, "")
	if err := t.send(ctx); err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		if j := all[id]; j != nil && j.queue == queue && !slices.Contains(rows, j) {
			rows = append(rows, j)
		}
	}
	return rows, all, nil
}

func (t *tx) delete(ctx context.Context, c backends.Command) (count int64, err error) {
	rows, all, err := t.chosenRows(ctx, c.Queue, numbers(c.IDs))
	for _, j := range rows {
		if j.state != backends.StateClaimed {
			j.change, j.state = gone, backends.StateDeleted
			count++
		}
	}
	if err != nil {
		return 0, err
	}
	return count, t.flush(ctx, all)
}

// release takes claims back, whosever they are.
func (t *tx) release(ctx context.Context, c backends.Command) (count int64, err error) {
	rows, all, err := t.chosenRows(ctx, c.Queue, numbers(c.IDs))
	if err != nil {
		return 0, err
	}
	for _, j := range rows {
		if j.state == backends.StateClaimed {
			j.meet(t.now, j.standing().AfterRelease(backends.Release{Uncounted: true}))
			count++
		}
	}
	return count, t.flush(ctx, all)
}

// retryAll retries as many dead jobs as there were when it began. More than a bite
// are checked first, so that a key that is taken refuses all.
func (s *Store) retryAll(ctx context.Context, c backends.Command) (count int64, err error) {
	var left int64
	taken, lane := false, "x"+c.Queue
	if err := s.read(ctx, func(ctx context.Context, t *tx) (err error) {
		if left, err = t.count(ctx, c.Queue, backends.StateDead); err != nil || left <= biteSize {
			return err
		}
		t.each(func(r *result) error {
			taken = r.int(0) != 0
			return nil
		}, s.keysTaken(), lane, lane)
		return t.send(ctx)
	}); err != nil {
		return 0, err
	}
	if taken {
		return 0, backends.ErrKeyTaken
	}
	whole := left <= biteSize // one transaction keeps the promise by itself
	place, last := int64(math.MinInt64), int64(0)
	for left > 0 {
		var n, at int64
		var ids []int64
		if err := s.write(ctx, func(ctx context.Context, t *tx) (err error) {
			ids = nil
			t.each(func(r *result) error {
				ids, at = append(ids, r.int(0)), r.int(1)
				return nil
			}, nextDeadSQL, lane, place, last, place, min(left, biteSize))
			if err := t.send(ctx); err != nil {
				return err
			}
			n, err = t.retry(ctx, c.Queue, slices.Clone(ids), whole)
			return err
		}); err != nil {
			return count, err
		}
		count += n
		c.Progressed()
		if len(ids) == 0 {
			break
		}
		left, place, last = left-int64(len(ids)), at, ids[len(ids)-1]
	}
	return count, nil
}

// retry makes dead jobs of a queue ready, in the order of ids, and gives them their keys
// back. whole: all of them or none; else those whose keys are taken stay dead.
func (t *tx) retry(ctx context.Context, queue string, ids []int64, whole bool) (count int64, err error) {
	wanted := slices.Clone(ids)
	all := map[int64]*job{}
	t.askNow()
	slices.Sort(ids)
	for part := range slices.Chunk(ids, biteSize) {
		t.lock(all, part, "")
	}
	if err := t.send(ctx); err != nil {
		return 0, err
	}
	var rows []*job
	for _, id := range wanted {
		if j := all[id]; j != nil && j.queue == queue && j.state == backends.StateDead {
			rows = append(rows, j)
			delete(all, id)
		}
	}
	if len(rows) == 0 {
		return 0, nil
	}
	if rows, err = t.takeKeysBack(ctx, rows, whole); err != nil {
		return 0, err
	}
	t.wrote = true
	rank := int64(0)
	for part := range slices.Chunk(rows, biteSize) {
		var ids []int64
		ranks := map[int64]int64{}
		for _, j := range part {
			ids = append(ids, j.id)
			ranks[j.id] = rank
			rank++
		}
		slices.Sort(ids)
		var by []int64
		for _, id := range ids {
			by = append(by, ranks[id])
		}
		t.add("UPDATE "+byID+" SET state = 'ready', position = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + "+among(ids, by)+
			", ready_at = ?, attempts = 0, losses = 0, unrecorded = 0, finished_at = NULL, expires_at = NULL WHERE id IN ("+list(ids)+")", t.now)
		if err := t.roomy(ctx, 1<<20); err != nil {
			return 0, err
		}
	}
	return int64(len(rows)), nil
}

// takeKeysBack gives dead jobs their keys again, and returns those that have them, or never
// had one. whole: it is an error if another job has a key.
func (t *tx) takeKeysBack(ctx context.Context, rows []*job, whole bool) (with []*job, err error) {
	k := &commitment{s: t.s, keys: map[batch.Key]*remembered{}}
	keyed := map[batch.Key]struct{}{}
	taken := map[*job]bool{}
	var named []*job
	for _, j := range rows {
		if j.key == "" {
			continue
		}
		key := batch.Key{Queue: j.queue, Key: j.key}
		if _, twice := keyed[key]; twice {
			taken[j] = true
			continue
		}
		keyed[key] = struct{}{}
		named = append(named, j)
	}
	k.lockKeys(t, keyed)
	if err := t.send(ctx); err != nil {
		return nil, err
	}
	for _, j := range named {
		m := k.keys[batch.Key{Queue: j.queue, Key: j.key}]
		taken[j] = m != nil && m.job != j.id && !m.free(t.now)
	}
	with = slices.DeleteFunc(rows, func(j *job) bool { return taken[j] })
	if whole && len(with) < len(rows) {
		return nil, backends.ErrKeyTaken
	}
	slices.SortFunc(named, func(a, b *job) int { return strings.Compare(a.key, b.key) })
	for _, j := range named {
		if taken[j] {
			continue
		}
		t.add("UPDATE qsidecar_keys SET expires_at = IF(job = ?, expires_at, ?), state = NULL, job = ? WHERE queue = ? AND `key` = ?", j.id, t.now, j.id, j.queue, []byte(j.key))
		if err := t.roomy(ctx, 4096); err != nil {
			return nil, err
		}
	}
	return with, nil
}

// purge deletes as many rows as there were when it began, so that it ends
// although others come.
func (s *Store) purge(ctx context.Context, c backends.Command) (count int64, err error) {
	if c.State == backends.StateClaimed {
		return 0, errors.New("claimed jobs cannot be purged: release them first")
	}
	letter, ok := laneOf[c.State]
	if !ok {
		return 0, fmt.Errorf("no job is ever %q", c.State)
	}
	left := int64(0)
	if err := s.read(ctx, func(ctx context.Context, t *tx) (err error) {
		left, err = t.count(ctx, c.Queue, c.State)
		return err
	}); err != nil {
		return 0, err
	}
	for left > 0 {
		var n int64
		if err := s.write(ctx, func(ctx context.Context, t *tx) (err error) {
			n, err = t.purgeBite(ctx, c, letter, min(left, biteSize))
			return err
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

func (t *tx) purgeBite(ctx context.Context, c backends.Command, letter string, limit int64) (n int64, err error) {
	var ids []int64
	t.each(func(r *result) error {
		ids = append(ids, r.int(0))
		return nil
	}, "SELECT id FROM "+jobs+" WHERE lane = ? ORDER BY urgency, place, id LIMIT ?", letter+c.Queue, limit)
	if err := t.send(ctx); err != nil || len(ids) == 0 {
		return 0, err
	}
	t.askNow()
	rows, all, err := t.locked(ctx, ids)
	if err != nil {
		return 0, err
	}
	for _, j := range rows {
		if j.state == c.State {
			j.change, j.state = gone, backends.StateDeleted
			n++
		}
	}
	return n, t.flush(ctx, all)
}
