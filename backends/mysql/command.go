package mysql

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Pause implements core.Commander.
func (t *tx) Pause(ctx context.Context, queue string, paused bool) (ready bool, err error) {
	t.wrote = true
	if paused {
		t.add("INSERT INTO qsidecar_queues (queue, paused) VALUES (?, 1) ON DUPLICATE KEY UPDATE paused = 1", queue)
		return false, nil
	}
	t.add("UPDATE qsidecar_queues SET paused = 0 WHERE queue = ?", queue)
	t.each(func(r *result) error {
		ready = r.int(0) != 0
		return nil
	}, "SELECT EXISTS (SELECT 1 FROM "+jobs+" WHERE lane = ?)", "r"+queue)
	err = t.Flush(ctx)
	return ready, err
}

// chosenRows locks rows by id, in the order of the ids, and returns those that are in the queue.
func (t *tx) chosenRows(ctx context.Context, queue string, ids []int64) (rows []*job, err error) {
	all := map[int64]*job{}
	t.askNow()
	for part := range slices.Chunk(slices.Sorted(slices.Values(ids)), core.BatchRows) {
		t.lock(part, "", func(j *job) { all[j.ID] = j })
	}
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	for _, id := range ids {
		if j := all[id]; j != nil && j.Queue == queue {
			rows = append(rows, j)
		}
	}
	return rows, nil
}

// deleteRows queues the deletion of the locked rows that `which` accepts, and returns their number.
func (t *tx) deleteRows(all []*job, which func(j *job) bool) (n int64) {
	var rows []*core.Row
	for _, j := range all {
		if which(j) {
			j.Change = core.Change{Kind: core.Deleted, State: backends.StateDeleted}
			rows = append(rows, &j.Row)
		}
	}
	if len(rows) > 0 {
		slices.SortFunc(rows, func(a, b *core.Row) int { return cmp.Compare(a.ID, b.ID) })
		t.Change(rows, func(*core.Row) { n++ }, nil)
	}
	return n
}

// Delete implements core.Commander.
func (t *tx) Delete(ctx context.Context, queue string, ids []int64) (int64, error) {
	rows, err := t.chosenRows(ctx, queue, ids)
	if err != nil {
		return 0, err
	}
	return t.deleteRows(rows, func(j *job) bool { return j.state != backends.StateClaimed }), nil
}

// LockClaimed implements core.Commander.
func (t *tx) LockClaimed(ctx context.Context, queue string, ids []int64) (rows []*core.Row, err error) {
	found, err := t.chosenRows(ctx, queue, ids)
	for _, j := range found {
		if j.state == backends.StateClaimed {
			rows = append(rows, &j.Row)
		}
	}
	return rows, err
}

// Purge implements core.Commander.
func (t *tx) Purge(ctx context.Context, queue string, state backends.State, limit int64) (int64, error) {
	var ids []int64
	t.each(func(r *result) error {
		ids = append(ids, r.int(0))
		return nil
	}, "SELECT id FROM "+jobs+" WHERE lane = ? ORDER BY urgency, place, id LIMIT ?", laneOf[state]+queue, limit)
	if err := t.Flush(ctx); err != nil || len(ids) == 0 {
		return 0, err
	}
	t.askNow()
	rows, err := t.lockFree(ctx, ids)
	if err != nil {
		return 0, err
	}
	return t.deleteRows(rows, func(j *job) bool { return j.state == state }), nil
}

// Retry implements core.Commander.
func (t *tx) Retry(ctx context.Context, queue string, ids []int64, after any, limit int64, whole bool) (r core.Retried, err error) {
	if ids == nil {
		last, ok := after.(listPlace)
		if !ok {
			last = listStart
		}
		t.each(func(r *result) error {
			ids, last = append(ids, r.int(0)), listPlace{place: r.place(1), id: r.int(0)}
			return nil
		}, "SELECT id, place FROM "+jobs+" WHERE lane = ? AND "+last.following()+" ORDER BY urgency, place, id LIMIT ?", "x"+queue, limit)
		if err := t.Flush(ctx); err != nil {
			return r, err
		}
		r.Last = last
	}
	r.Seen = int64(len(ids))
	rows, err := t.chosenRows(ctx, queue, ids)
	if err != nil {
		return r, err
	}
	rows = slices.DeleteFunc(rows, func(j *job) bool { return j.state != backends.StateDead })
	if len(rows) == 0 {
		return r, nil
	}
	if rows, err = t.takeKeysBack(ctx, rows, whole); err != nil {
		return r, err
	}
	r.N = int64(len(rows))
	t.retryRows(rows)
	return r, nil
}

// retryRows makes dead jobs ready, in the order of the list.
func (t *tx) retryRows(rows []*job) {
	t.wrote = true
	rank := int64(0)
	for part := range slices.Chunk(rows, core.BatchRows) {
		ranks := map[int64]int64{}
		for _, j := range part {
			ranks[j.ID] = rank
			rank++
		}
		ids := slices.Sorted(maps.Keys(ranks))
		var by []int64
		for _, id := range ids {
			by = append(by, ranks[id])
		}
		t.add("UPDATE "+byID+" SET state = 'ready', position = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + "+among(ids, by)+
			", ready_at = ?, attempts = 0, losses = 0, unrecorded = 0, finished_at = NULL, expires_at = NULL WHERE id IN ("+list(ids)+")", t.now)
		t.makeRoom(1 << 20)
	}
}

// takeKeysBack gives dead jobs their keys again. It returns the jobs that have their key now or have none.
// If whole is true, a key of another job is an error.
func (t *tx) takeKeysBack(ctx context.Context, rows []*job, whole bool) (with []*job, err error) {
	keys := map[jobKey]*keyRow{}
	seen := map[jobKey]bool{}
	taken := map[*job]bool{}
	var keyed []*job
	var wanted []jobKey
	for _, j := range rows {
		if j.Key == "" {
			continue
		}
		key := jobKey{j.Queue, j.Key}
		if seen[key] {
			taken[j] = true
			continue
		}
		seen[key] = true
		keyed, wanted = append(keyed, j), append(wanted, key)
	}
	t.lockKeys(wanted, keys)
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	for _, j := range keyed {
		m := keys[jobKey{j.Queue, j.Key}]
		taken[j] = m != nil && m.job != j.ID && !m.free(t.now)
	}
	with = slices.DeleteFunc(rows, func(j *job) bool { return taken[j] })
	if whole && len(with) < len(rows) {
		return nil, backends.ErrKeyTaken
	}
	slices.SortFunc(keyed, func(a, b *job) int { return strings.Compare(a.Key, b.Key) })
	for _, j := range keyed {
		if taken[j] {
			continue
		}
		t.add("UPDATE qsidecar_keys SET expires_at = IF(job = ?, expires_at, ?), state = NULL, job = ? WHERE queue = ? AND `key` = ?", j.ID, t.now, j.ID, j.Queue, []byte(j.Key))
		t.makeRoom(4096)
	}
	return with, nil
}

// KeysTaken implements core.Reader; see keyRow.free.
func (t *tx) KeysTaken(ctx context.Context, queue string) (taken bool, err error) {
	t.each(func(r *result) error {
		taken = r.int(0) != 0
		return nil
	}, "SELECT EXISTS (SELECT 1 FROM "+jobs+" INNER JOIN qsidecar_keys k ON k.queue = qsidecar_jobs.queue AND k.`key` = qsidecar_jobs.`key`"+
		" WHERE lane = ? AND k.job NOT IN (0, qsidecar_jobs.id) AND (k.expires_at > "+t.s.sql.clock+
		" OR k.state IS NULL AND EXISTS (SELECT 1 FROM qsidecar_jobs j WHERE j.id = k.job)))"+
		" OR EXISTS (SELECT 1 FROM "+jobs+" WHERE lane = ? AND `key` IS NOT NULL GROUP BY `key` HAVING COUNT(*) > 1)", "x"+queue, "x"+queue)
	err = t.Flush(ctx)
	return taken, err
}
