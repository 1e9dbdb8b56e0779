package mysql

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// job is a row that the transaction has locked.
type job struct {
	core.Row
	state          backends.State
	keep, keepDead int64 // ms; 0 means: not kept for keep, and indefinitely for keepDead
	deadline, due  instant
	runAt          instant
	expiresAt      instant
}

const jobColumns = "id, queue, `key`, state, priority, position, fence, attempts, losses, unrecorded, ahead, max_attempts, claim_max, " +
	"backoff_ms, backoff_max_ms, keep_ms, keep_dead_ms, token_host, token_number, owner, lease_ms, deadline, due_at, last_error IS NOT NULL, worker IS NOT NULL, run_at, expires_at"

func readJob(r *result) *job {
	j := &job{state: backends.State(r.text(3)), keep: r.int(15), keepDead: r.int(16), deadline: r.instant(21), due: r.instant(22), runAt: r.instant(25), expiresAt: r.instant(26)}
	j.Row = core.Row{
		ID: r.int(0), Queue: r.text(1), Key: r.text(2), Priority: int16(r.int(4)), Position: r.int(5), Fence: r.int(6),
		Token: backends.Token{Host: backends.Identity(r.int(17)), Number: uint64(r.int(18))}, Owner: backends.Identity(r.int(19)),
		Lease: core.FromMS(r.int(20)), Kept: j.keep > 0, Failed: r.int(23) != 0, HasWorker: r.int(24) != 0, Engine: j,
		AttemptState: backends.AttemptState{
			Attempts: int(r.int(7)), Losses: int(r.int(8)), PrefetchLosses: int(r.int(9)), Prefetched: r.int(10) != 0, Limit: int(r.int(12)),
			Backoff: core.FromMS(r.int(13)), BackoffMax: core.FromMS(r.int(14)),
		},
	}
	if j.Prefetched { // the column counts recorded deliveries only
		j.Attempts++
	}
	return j
}

// lock queues a statement that locks and reads the rows with the ids, in ascending order. Every
// transaction that locks rows uses this order.
func (t *tx) lock(ids []int64, skip string, found func(j *job)) {
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	t.each(func(r *result) error {
		found(readJob(r))
		return nil
	}, "SELECT "+jobColumns+" FROM "+byID+" WHERE id IN ("+list(slices.Compact(ids))+") ORDER BY id FOR UPDATE"+skip)
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
	t.each(func(r *result) error {
		if id := r.int(0); !free[id] {
			claimed = append(claimed, id)
		}
		return nil
	}, "SELECT id FROM qsidecar_jobs WHERE id IN ("+list(ids)+") AND state = 'claimed'")
	if err := t.Flush(ctx); err != nil || t.s.sql.skip != "" {
		return claimed, err
	}
	read := []func(r *result) error{func(r *result) error { _, err := r.next(); return err }}
	for _, id := range claimed {
		err := t.c.query(ctx, "SELECT id FROM "+byID+" WHERE id = ? FOR UPDATE NOWAIT", []any{id}, read)
		if isCode(err, codeLockWait, codeNoWait) {
			locked = append(locked, id)
		} else if err != nil {
			return nil, err
		}
	}
	return locked, nil
}

// askNow queues a query for the transaction's time, once per transaction.
func (t *tx) askNow() {
	if t.asked {
		return
	}
	t.asked = true
	t.each(func(r *result) error {
		t.now = r.instant(0)
		return nil
	}, "SELECT "+t.s.sql.clock)
}

// Change implements core.Writer.
func (t *tx) Change(rows []*core.Row, changed func(*core.Row), gaveBack func(queue string, returns int64)) {
	t.wrote = true
	var deleted []int64
	var all []*job
	for _, r := range rows {
		j := r.Engine.(*job)
		all = append(all, j)
		t.makeRoom(4096 + 2*int64(len(r.Change.Result)))
		switch r.Change.Kind {
		case core.Deleted:
			deleted = append(deleted, r.ID)
		case core.Ended:
			t.end(j)
		case core.Renewed:
			t.renew(j)
		}
		changed(r)
	}
	if len(deleted) > 0 {
		t.add(deleteByID + " WHERE id IN (" + list(deleted) + ")")
	}
	t.changeOthers(all, gaveBack)
}

const unclaim = "ahead = 0, token_host = NULL, token_number = NULL, owner = NULL, lease_ms = NULL, deadline = NULL, due_at = NULL, claimed_at = NULL, worker = NULL"

// finished reports whether the job is done or dead after its change, and its row remains.
func (j *job) finished() bool {
	c := &j.Change
	return c.Kind == core.Ended && (c.State == backends.StateDone || c.State == backends.StateDead)
}

// end queues the UPDATE of a row whose claim ended.
func (t *tx) end(j *job) {
	c := &j.Change
	runAt := instant(0)
	if c.State == backends.StateScheduled {
		runAt = t.now.after(core.MS(c.Delay))
	}
	t.add("UPDATE qsidecar_jobs SET state = ?, attempts = ?, losses = ?, unrecorded = ?, run_at = ?, "+unclaim,
		string(c.State), c.Attempts, c.Losses, c.PrefetchLosses, runAt)
	if c.State == backends.StateReady && !c.SamePosition {
		t.text(", position = "+position+", ready_at = ?", t.now)
	}
	if c.Cause != "" {
		t.text(", last_error = ?", c.Message)
	}
	if j.finished() {
		t.text(", finished_at = ?, expires_at = ?, result = ?", t.now, j.expires(t.now), nullable(c.Result))
	}
	t.text(" WHERE id = ?", j.ID)
}

// nullable converts b to an argument: nil is NULL, and an empty slice is an empty value.
func nullable(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

func (j *job) expires(now instant) instant {
	if j.Change.State == backends.StateDone {
		return now.after(j.keep)
	}
	return now.after(j.keepDead)
}

// renew queues the UPDATE of a row whose claim continues.
func (t *tx) renew(j *job) {
	c := &j.Change
	lease := max(core.MS(c.Lease), 0)
	due := j.due
	if c.NewDue {
		due = earlier(t.now.after(lease), j.deadline)
	}
	attempts := int64(c.Attempts) - flag(c.Prefetched)
	t.add("UPDATE qsidecar_jobs SET attempts = ?, unrecorded = ?, ahead = ?, owner = ?, lease_ms = ?, due_at = ?",
		attempts, c.PrefetchLosses, flag(c.Prefetched), int64(c.Owner), positive(lease), due)
	if c.SetWorker {
		t.text(", worker = ?", orNull(c.Worker))
	}
	t.text(" WHERE id = ?", j.ID)
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// positive returns n, or NULL if n is 0 or less.
func positive(n int64) any {
	if n <= 0 {
		return nil
	}
	return n
}

// orNull returns s, or NULL if s is empty.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
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
	slices.SortFunc(keyed, func(a, b *job) int {
		return cmp.Or(strings.Compare(a.Queue, b.Queue), strings.Compare(a.Key, b.Key))
	})
	for _, j := range keyed {
		t.add("UPDATE qsidecar_keys SET state = ? WHERE queue = ? AND `key` = ? AND job = ?", string(j.Change.State), j.Queue, []byte(j.Key), j.ID)
	}
	for _, j := range all {
		if c := &j.Change; c.Kind == core.Ended && c.Cause != "" {
			t.makeRoom(4096 + 2*int64(len(c.Message)))
			t.add("INSERT INTO qsidecar_failures (job, fence, attempt, cause, message, at) VALUES (?, ?, ?, ?, ?, ?)",
				j.ID, j.Fence, c.Attempts, string(c.Cause), c.Message, t.now)
		}
	}
	if len(failed) > 0 {
		t.add("DELETE FROM qsidecar_failures WHERE job IN (" + list(failed) + ")")
	}
	for _, j := range all {
		if j.finished() && j.expires(t.now) != 0 {
			t.add("INSERT INTO qsidecar_expiring (expires_at, job) VALUES (?, ?)", j.expires(t.now), j.ID)
		}
	}
	t.register(scheduled)
	t.countReturns(returned, gaveBack)
}

// countReturns counts jobs that are given back, in their queues' rows. It comes last, so that other
// transactions wait for these rows only as long as the COMMIT takes.
func (t *tx) countReturns(queues []string, gaveBack func(queue string, returns int64)) {
	if len(queues) == 0 {
		return
	}
	slices.Sort(queues)
	queues = slices.Compact(queues)
	args := make([]any, len(queues))
	for i, q := range queues {
		t.add("INSERT INTO qsidecar_queues (queue, returns) VALUES (?, 1) ON DUPLICATE KEY UPDATE returns = returns + 1", q)
		args[i] = q
	}
	t.each(func(r *result) error {
		gaveBack(r.text(0), r.int(1))
		return nil
	}, "SELECT queue, returns FROM qsidecar_queues WHERE queue IN ("+marks(len(queues))+") FOR UPDATE", args...)
}

// register adds queues to qsidecar_queues, because maintenance scans only their scheduled jobs. It also
// increments `returns`, which shows the janitors of all sidecars that the row is in use. Sidecars that
// wait for jobs of the queue then scan it once more than needed.
func (t *tx) register(queues []string) {
	if queues = t.s.queues.missing(queues, t.c.server); len(queues) == 0 {
		return
	}
	slices.Sort(queues)
	queues = slices.Compact(queues)
	t.wrote = true
	for _, q := range queues {
		t.add("INSERT INTO qsidecar_queues (queue) VALUES (?) ON DUPLICATE KEY UPDATE returns = returns + 1", q)
	}
	if t.namedAt.IsZero() {
		t.namedAt = time.Now()
	}
	t.named = append(t.named, queues...)
}
