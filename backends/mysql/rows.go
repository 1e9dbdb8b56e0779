package mysql

import (
	"context"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// job is a row that the transaction has locked.
type job struct {
	core.Row
	state          backends.State
	keep, keepDead int64           // ms; 0 means: not kept for keep, and indefinitely for keepDead
	deadline, due  session.Instant // without due: the time limit has not begun
	claimedAt      session.Instant
	runAt          session.Instant
	expiresAt      session.Instant
}

const jobColumns = "id, queue, `key`, state, priority, position, fence, attempts, losses, prefetch_losses, prefetched, max_attempts, claim_max, " +
	"backoff_ms, backoff_max_ms, retention_done_ms, retention_dead_ms, token_sidecar, token_number, owner, lease_ms, deadline, due_at, last_error IS NOT NULL, worker IS NOT NULL, run_at, expires_at, claimed_at"

func readJob(r *session.Result) *job {
	j := &job{state: backends.State(r.Text(3)), keep: r.Int(15), keepDead: r.Int(16), deadline: r.Instant(21), due: r.Instant(22), runAt: r.Instant(25), expiresAt: r.Instant(26), claimedAt: r.Instant(27)}
	j.Row = core.Row{
		ID: r.Int(0), Queue: r.Text(1), Key: r.Text(2), Priority: int16(r.Int(4)), Position: r.Int(5), Fence: r.Int(6),
		Token: backends.Token{Host: backends.Identity(r.Int(17)), Number: uint64(r.Int(18))}, Owner: backends.Identity(r.Int(19)),
		Lease: core.FromMS(r.Int(20)), Kept: j.keep > 0, Failed: r.Int(23) != 0, HasWorker: r.Int(24) != 0, Engine: j,
		AttemptState: backends.AttemptState{
			Attempts: int(r.Int(7)), Losses: int(r.Int(8)), PrefetchLosses: int(r.Int(9)), Prefetched: r.Int(10) != 0, Limit: int(r.Int(12)),
			Backoff: core.FromMS(r.Int(13)), BackoffMax: core.FromMS(r.Int(14)),
		},
	}
	if j.Prefetched { // the column counts recorded deliveries only
		j.Attempts++
	}
	return j
}

// key returns the job's key in its queue.
func (j *job) key() jobKey { return jobKey{j.Queue, j.Key} }

func keysOf(jobs []*job) []jobKey {
	keys := make([]jobKey, len(jobs))
	for i, j := range jobs {
		keys[i] = j.key()
	}
	return keys
}

// lock queues a statement that locks and reads the rows with the ids, in ascending order. Every
// transaction that locks rows uses this order.
func (t *tx) lock(ids []int64, skip string, found func(j *job)) {
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	t.Each(func(r *session.Result) { found(readJob(r)) }, "SELECT "+jobColumns+" FROM "+table.ByID+" WHERE id IN ("+session.List(slices.Compact(ids))+") ORDER BY id FOR UPDATE"+skip)
}

// lockRows locks rows by id and returns them in the order of ids, each once.
func (t *tx) lockRows(ctx context.Context, ids []int64, skip string) (found []*job, err error) {
	all := map[int64]*job{}
	for part := range slices.Chunk(slices.Sorted(slices.Values(ids)), core.BatchRows) {
		t.lock(part, skip, func(j *job) { all[j.ID] = j })
	}
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	for _, id := range ids {
		if j := all[id]; j != nil {
			found = append(found, j)
			delete(all, id)
		}
	}
	return found, nil
}

// Lock implements core.Writer.
func (t *tx) Lock(ids []int64, found func(*core.Row)) {
	t.askNow()
	t.lock(ids, "", func(j *job) {
		if j.state == backends.StateClaimed {
			found(&j.Row)
		}
	})
}

// FindLocked implements core.LockFinder. A server without SKIP LOCKED (MariaDB 10.5) tries each row by itself.
func (t *tx) FindLocked(ctx context.Context, ids []int64) (locked []int64, err error) {
	free := map[int64]bool{}
	if t.askNow(); t.s.sql.skip != "" {
		t.lock(ids, t.s.sql.skip, func(j *job) { free[j.ID] = true })
	}
	var claimed []int64
	t.Each(func(r *session.Result) {
		if id := r.Int(0); !free[id] {
			claimed = append(claimed, id)
		}
	}, "SELECT id FROM qsidecar_jobs WHERE id IN ("+session.List(ids)+") AND state = 'claimed'")
	if err := t.Flush(ctx); err != nil || t.s.sql.skip != "" {
		return claimed, err
	}
	for _, id := range claimed {
		is, err := t.isLocked(ctx, "SELECT id FROM "+table.ByID+" WHERE id = ?", id)
		if err != nil {
			return nil, err
		}
		if is {
			locked = append(locked, id)
		}
	}
	return locked, nil
}

// isLocked locks the row of a query, unless another transaction has locked it.
func (t *tx) isLocked(ctx context.Context, query string, args ...any) (bool, error) {
	err := t.c.Each(ctx, func(*session.Result) {}, query+" FOR UPDATE NOWAIT", args...)
	if session.IsCode(err, codeLockWait, codeNoWait) {
		return true, nil
	}
	return false, err
}

// FindLockedKeys implements core.LockFinder, as FindLocked does.
func (t *tx) FindLockedKeys(ctx context.Context, rows []*core.Row) (locked []int64, err error) {
	keys := make([]jobKey, len(rows))
	for i, r := range rows {
		keys[i] = jobKey{r.Queue, r.Key}
	}
	slices.SortFunc(keys, compareKeys)
	free := map[jobKey]bool{}
	if t.s.sql.skip != "" {
		for part := range slices.Chunk(keys, keysAtOnce) {
			t.eachKey(func(r *session.Result) { free[jobKey{r.Text(0), r.Text(1)}] = true }, part,
				"SELECT queue, `key`, job FROM "+keysTable, " FOR UPDATE"+t.s.sql.skip)
		}
	}
	stored := map[jobKey]int64{} // the jobs of the others
	for part := range slices.Chunk(keys, keysAtOnce) {
		t.eachKey(func(r *session.Result) {
			if key := (jobKey{r.Text(0), r.Text(1)}); !free[key] {
				stored[key] = r.Int(2)
			}
		}, part, "SELECT queue, `key`, job FROM qsidecar_keys", "")
	}
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	for _, key := range keys {
		job, ok := stored[key]
		if !ok {
			continue
		}
		is := t.s.sql.skip != ""
		if !is {
			if is, err = t.isLocked(ctx, "SELECT job FROM "+keysTable+" WHERE queue = ? AND `key` = ?", key.queue, []byte(key.key)); err != nil {
				return nil, err
			}
		}
		if is {
			locked = append(locked, job)
		}
	}
	return locked, nil
}

// askNow queues a query for the transaction's time, once per transaction.
func (t *tx) askNow() {
	if !t.asked {
		t.asked = true
		t.Each(func(r *session.Result) { t.now = r.Instant(0) }, "SELECT "+t.s.sql.clock)
	}
}

// Change implements core.Writer.
func (t *tx) Change(rows []*core.Row, changed func(*core.Row), gaveBack func(queue string, returns int64)) {
	t.wrote = true
	var deleted []int64
	var all, updated []*job
	for _, r := range rows {
		j := r.Engine.(*job)
		all = append(all, j)
		switch r.Change.Kind {
		case core.Deleted:
			deleted = append(deleted, r.ID)
		case core.Ended, core.Renewed:
			updated = append(updated, j)
		}
		changed(r)
	}
	t.updateAll(updated)
	if len(deleted) > 0 {
		t.makeRoom(24 * int64(len(deleted)))
		t.Add(table.DeleteByID + " WHERE id IN (" + session.List(deleted) + ")")
	}
	t.changeOthers(all, gaveBack)
}

// finished reports whether the job is done or dead after its change, and its row remains.
func (j *job) finished() bool {
	c := &j.Change
	return c.Kind == core.Ended && (c.State == backends.StateDone || c.State == backends.StateDead)
}

func (j *job) expires(now session.Instant) session.Instant {
	if j.Change.State == backends.StateDone {
		return now.After(j.keep)
	}
	return now.After(j.keepDead)
}

// changeOthers queues the changes of the other tables that follow from the changes of rows: keys,
// failures, expiry times, and the counts of jobs that are given back.
func (t *tx) changeOthers(all []*job, gaveBack func(queue string, returns int64)) {
	var keyed []*job
	var failed []int64
	var scheduled, returned []string
	for _, j := range all {
		c := &j.Change
		if j.Key != "" && (c.Kind == core.Deleted || j.finished()) {
			keyed = append(keyed, j)
		}
		switch {
		case c.Kind == core.Deleted && j.Failed:
			failed = append(failed, j.ID)
		case c.Kind == core.Ended && c.State == backends.StateScheduled:
			scheduled = append(scheduled, j.Queue)
		case c.Kind == core.Ended && c.State == backends.StateReady && c.SamePosition:
			returned = append(returned, j.Queue)
		}
	}
	slices.SortFunc(keyed, func(a, b *job) int { return compareKeys(a.key(), b.key()) })
	t.lockExistingKeys(keysOf(keyed))
	for part := range slices.Chunk(keyed, keysAtOnce) {
		t.endKeys(part)
	}
	failures := rowList{tx: t, head: "INSERT INTO qsidecar_failures (job, fence, attempt, cause, message, at) VALUES (?, ?, ?, ?, ?, ?)"}
	for _, j := range all {
		if c := &j.Change; c.Kind == core.Ended && c.Cause != "" {
			failures.add(j.changedBytes(), j.ID, j.Fence, c.Attempts, string(c.Cause), c.Message, t.now)
		}
	}
	if len(failed) > 0 {
		t.Add("DELETE FROM qsidecar_failures WHERE job IN (" + session.List(failed) + ")")
	}
	expiring := rowList{tx: t, head: "INSERT INTO qsidecar_expiring (expires_at, job) VALUES (?, ?)"}
	for _, j := range all {
		if j.finished() && j.expires(t.now) != 0 {
			expiring.add(128, j.expires(t.now), j.ID)
		}
	}
	t.register(scheduled)
	t.countReturns(returned, gaveBack)
}

// rowList adds rows to one INSERT, or to several if they don't fit into a packet. Queue no other statement between two rows.
type rowList struct {
	*tx
	head string // with the first row's placeholders after VALUES
	n    int
}

// add adds a row that needs about that many bytes.
func (l *rowList) add(bytes int64, values ...any) {
	l.makeRoom(bytes)
	if l.n == 0 || l.Empty() {
		l.Add(l.head, values...)
	} else {
		l.Text(", ("+strings.TrimSuffix(strings.Repeat("?, ", len(values)), ", ")+")", values...)
	}
	l.n++
}
