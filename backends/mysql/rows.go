package mysql

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// job is a row that this transaction has locked, and what becomes of it.
type job struct {
	id             int64
	queue, key     string
	state          backends.State
	priority       int64
	position       int64
	fence          int64
	attempts       int64 // charged deliveries, without one that is not recorded
	losses         int64
	unrecorded     int64
	ahead          bool
	max            int64 // the job's own; 0: none
	claimMax       int64
	backoff        int64 // ms, as what follows
	backoffMax     int64
	keep, keepDead int64 // 0: not kept; for ever
	host, number   int64 // the token
	owner          int64
	lease          int64 // ms; 0: a session lease
	deadline, due  instant
	failed         bool // it has a row in qsidecar_failures
	hasWorker      bool

	change    change
	worker    *string // with held: the new one; nil: as it was
	moved     bool    // with left: it gets a new position
	back      bool    // with left: it is ready in its old position
	runAt     instant
	expiresAt instant
	result    []byte
	failure   *failure
	finished  bool
}

type failure struct {
	cause   backends.Cause
	message string
}

// change is what a transaction does to a row.
type change int

const (
	untouched change = iota
	held             // it stays claimed, changed
	left             // the claim ended
	gone             // the row is deleted
)

const jobColumns = "id, queue, `key`, state, priority, position, fence, attempts, losses, unrecorded, ahead, max_attempts, claim_max, " +
	"backoff_ms, backoff_max_ms, keep_ms, keep_dead_ms, token_host, token_number, owner, lease_ms, deadline, due_at, last_error IS NOT NULL, worker IS NOT NULL, run_at, expires_at"

func readJob(r *result) *job {
	return &job{
		id: r.int(0), queue: r.text(1), key: r.text(2), state: backends.State(r.text(3)), priority: r.int(4), position: r.int(5),
		fence: r.int(6), attempts: r.int(7), losses: r.int(8), unrecorded: r.int(9), ahead: r.int(10) != 0, max: r.int(11), claimMax: r.int(12),
		backoff: r.int(13), backoffMax: r.int(14), keep: r.int(15), keepDead: r.int(16), host: r.int(17), number: r.int(18),
		owner: r.int(19), lease: r.int(20), deadline: r.instant(21), due: r.instant(22), failed: r.int(23) != 0, hasWorker: r.int(24) != 0, runAt: r.instant(25), expiresAt: r.instant(26),
	}
}

// lock queues a locking read of the rows with the ids, in the order of their ids:
// everything that locks rows does it in this order.
func (t *tx) lock(into map[int64]*job, ids []int64, skip string) {
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	t.each(func(r *result) error {
		j := readJob(r)
		into[j.id] = j
		return nil
	}, "SELECT "+jobColumns+" FROM "+byID+" WHERE id IN ("+list(slices.Compact(ids))+") ORDER BY id FOR UPDATE"+skip)
}

// standing is what the rules ask about the row.
func (j *job) standing() backends.AttemptState {
	return backends.AttemptState{
		Attempts: int(j.delivered()), Limit: int(j.claimMax), Losses: int(j.losses),
		Backoff: batch.FromMS(j.backoff), BackoffMax: batch.FromMS(j.backoffMax),
		Prefetched: j.ahead, PrefetchLosses: int(j.unrecorded),
	}
}

// delivered are the deliveries with this one, recorded or not.
func (j *job) delivered() int64 {
	if j.ahead {
		return j.attempts + 1
	}
	return j.attempts
}

// meet makes a job's fate come true.
func (j *job) meet(now instant, f backends.Disposition) {
	j.change, j.state, j.runAt = left, f.State, 0
	j.attempts, j.losses, j.unrecorded, j.ahead = int64(f.Attempts), int64(f.Losses), int64(f.PrefetchLosses), false
	if f.Cause != "" {
		j.failure = &failure{f.Cause, f.Message}
	}
	switch f.State {
	case backends.StateScheduled:
		j.runAt = now.after(batch.MS(f.Delay))
	case backends.StateDead:
		j.finished = true
	default:
		j.moved, j.back = !f.SamePosition, f.SamePosition
	}
}

// done ends the claim with success.
func (j *job) done(result []byte) {
	if j.keep == 0 {
		j.change, j.state = gone, backends.StateDone
		return
	}
	j.change, j.state, j.finished, j.result = left, backends.StateDone, true, result
	j.attempts, j.ahead = j.delivered(), false
}

// record notes that the delivery was made.
func (j *job) record() {
	j.attempts, j.ahead, j.unrecorded, j.change = j.delivered(), false, 0, held
}

// flush queues the statements that make the changes, in the order of the ids.
func (t *tx) flush(ctx context.Context, jobs map[int64]*job) error {
	all := make([]*job, 0, len(jobs))
	for _, j := range jobs {
		if j.change != untouched {
			all = append(all, j)
		}
	}
	if len(all) == 0 {
		return nil
	}
	t.wrote = true
	slices.SortFunc(all, func(a, b *job) int { return int(min(max(a.id-b.id, -1), 1)) })
	var deleted []int64
	for _, j := range all {
		if err := t.roomy(ctx, 4096+2*int64(len(j.result))); err != nil {
			return err
		}
		switch j.change {
		case gone:
			deleted = append(deleted, j.id)
		case left:
			t.leave(j)
		case held:
			t.hold(j)
		}
	}
	if len(deleted) > 0 {
		t.add(deleteByID + " WHERE id IN (" + list(deleted) + ")")
	}
	return t.tell(ctx, all)
}

const unclaim = "ahead = 0, token_host = NULL, token_number = NULL, owner = NULL, lease_ms = NULL, deadline = NULL, due_at = NULL, claimed_at = NULL, worker = NULL"

// leave writes what became of a row whose claim ended.
func (t *tx) leave(j *job) {
	t.add("UPDATE qsidecar_jobs SET state = ?, attempts = ?, losses = ?, unrecorded = ?, run_at = ?, "+unclaim,
		string(j.state), j.attempts, j.losses, j.unrecorded, j.runAt)
	if j.moved {
		t.text(", position = "+position+", ready_at = ?", t.now)
	}
	if j.failure != nil {
		t.text(", last_error = ?", j.failure.message)
	}
	if j.finished {
		t.text(", finished_at = ?, expires_at = ?, result = ?", t.now, j.expires(t.now), nullable(j.result))
	}
	t.text(" WHERE id = ?", j.id)
}

// nullable is b for an argument: nil is NULL, and empty is not.
func nullable(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

func (j *job) expires(now instant) instant {
	if j.state == backends.StateDone {
		return now.after(j.keep)
	}
	return now.after(j.keepDead)
}

func (t *tx) hold(j *job) {
	t.add("UPDATE qsidecar_jobs SET attempts = ?, unrecorded = ?, ahead = ?, owner = ?, lease_ms = ?, due_at = ?",
		j.attempts, j.unrecorded, flag(j.ahead), j.owner, positive(j.lease), j.due)
	if j.worker != nil {
		t.text(", worker = ?", orNull(*j.worker))
	}
	t.text(" WHERE id = ?", j.id)
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// positive is n, or NULL where n says nothing.
func positive(n int64) any {
	if n <= 0 {
		return nil
	}
	return n
}

// orNull is s, or NULL where it is empty.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// tell writes into the other tables what became of rows: keys, failures, ends,
// and the counts of give-backs.
func (t *tx) tell(ctx context.Context, all []*job) error {
	var keyed, lost []*job
	var later []string
	returns := map[string][]*job{}
	for _, j := range all {
		ended := j.change == gone || j.finished
		if j.key != "" && ended {
			keyed = append(keyed, j)
		}
		if j.change == gone && j.failed {
			lost = append(lost, j)
		}
		if j.change == left && j.state == backends.StateScheduled {
			later = append(later, j.queue)
		}
		if j.back {
			returns[j.queue] = append(returns[j.queue], j)
		}
	}
	slices.SortFunc(keyed, func(a, b *job) int {
		if n := strings.Compare(a.queue, b.queue); n != 0 {
			return n
		}
		return strings.Compare(a.key, b.key)
	})
	for _, j := range keyed {
		t.add("UPDATE qsidecar_keys SET state = ? WHERE queue = ? AND `key` = ? AND job = ?", string(j.state), j.queue, []byte(j.key), j.id)
	}
	if err := t.failures(ctx, all); err != nil {
		return err
	}
	var had []int64
	for _, j := range lost {
		had = append(had, j.id)
	}
	if len(had) > 0 {
		t.add("DELETE FROM qsidecar_failures WHERE job IN (" + list(had) + ")")
	}
	ends := "INSERT INTO qsidecar_expiring (expires_at, job) VALUES "
	for _, j := range all {
		if j.change == left && j.finished && j.expires(t.now) != 0 {
			t.add(ends+"(?, ?)", j.expires(t.now), j.id)
		}
	}
	t.register(later)
	t.countBacks(returns)
	return nil
}

func (t *tx) failures(ctx context.Context, all []*job) error {
	for _, j := range all {
		if j.failure == nil || j.change == gone {
			continue
		}
		if err := t.roomy(ctx, 4096+2*int64(len(j.failure.message))); err != nil {
			return err
		}
		t.add("INSERT INTO qsidecar_failures (job, fence, attempt, cause, message, at) VALUES (?, ?, ?, ?, ?, ?)",
			j.id, j.fence, j.attempts, string(j.failure.cause), j.failure.message, t.now)
	}
	return nil
}

// countBacks counts give-backs in the queues' rows, which nobody else has to wait for
// any longer than COMMIT takes.
func (t *tx) countBacks(returns map[string][]*job) {
	if len(returns) == 0 {
		return
	}
	var queues []string
	for q := range returns {
		queues = append(queues, q)
	}
	slices.Sort(queues)
	for _, q := range queues {
		t.add("INSERT INTO qsidecar_queues (queue, returns) VALUES (?, 1) ON DUPLICATE KEY UPDATE returns = returns + 1", q)
	}
	args := make([]any, len(queues))
	for i, q := range queues {
		args[i] = q
	}
	t.each(func(r *result) error {
		for _, j := range returns[r.text(0)] {
			t.backs = append(t.backs, cursor.GiveBack{Queue: j.queue, Spot: cursor.Spot{Urgency: int32(-j.priority), Position: j.position}, Returns: r.int(1)})
		}
		return nil
	}, fmt.Sprintf("SELECT queue, returns FROM qsidecar_queues WHERE queue IN (%s) FOR UPDATE", marks(len(queues))), args...)
}

// register has qsidecar_queues name queues: sweeps look into the lanes of these. The
// count shows the janitors of all sidecars that the row is in use; who waits for jobs
// of the queue looks once more than needed.
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
