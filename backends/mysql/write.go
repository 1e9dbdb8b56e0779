package mysql

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// newJob is a job to store.
type newJob struct {
	*core.NewJob
	state backends.State
	runAt session.Instant
}

// Insert implements core.Writer. It locks the rows of keys first, to find out which jobs are duplicates.
func (t *tx) Insert(jobs []*core.NewJob) (pending bool) {
	var keys []jobKey
	dated := false
	for _, j := range jobs {
		if j.Key != "" {
			keys = append(keys, jobKey{j.Queue, j.Key})
		}
		dated = dated || !j.RunAt.IsZero() || j.Expiry.Some()
	}
	if len(keys) == 0 && !dated {
		t.insertAll(jobs, nil)
		return false
	}
	t.askNow()
	rows := map[jobKey]*keyRow{}
	t.lockKeys(keys, rows)
	t.then = append(t.then, func() { t.insertAll(jobs, rows) })
	return true
}

// insertAll queues the INSERTs of jobs whose keys are free, and completes the other jobs as duplicates.
func (t *tx) insertAll(jobs []*core.NewJob, keys map[jobKey]*keyRow) {
	var all []newJob
	var queues []string
	for _, j := range jobs {
		if m := keys[jobKey{j.Queue, j.Key}]; j.Key != "" && m != nil && !m.free(t.now) {
			j.Duplicate(m.job, m.state)
			continue
		}
		x := newJob{NewJob: j, state: backends.StateReady}
		switch {
		case j.Delay > 0:
			x.state = backends.StateScheduled
		case !j.RunAt.IsZero():
			if x.runAt = session.Instant(j.RunAt.UnixMicro()); x.runAt <= t.now {
				x.runAt = 0
			} else {
				x.state = backends.StateScheduled
			}
		}
		all, queues = append(all, x), append(queues, j.Queue)
	}
	for from := 0; from < len(all); {
		to, size := from, int64(0)
		for to < len(all) && to-from < rowsAtOnce {
			more := 2*int64(len(all[to].Payload)) + 20_000
			if to > from && size+more > t.c.Packet/2 {
				break
			}
			size += more
			to++
		}
		t.makeRoom(size)
		t.insertSome(all[from:to])
		from = to
	}
	t.register(queues)
}

// rowsAtOnce is the largest number of rows of one INSERT of jobs, and of one UPDATE.
const rowsAtOnce = 500

// insertSome queues one INSERT. The ids of one statement are consecutive, in steps of auto_increment_increment.
func (t *tx) insertSome(jobs []newJob) {
	t.wrote = true
	more := slices.ContainsFunc(jobs, func(j newJob) bool { return j.Group != "" || j.Expiry.Some() || j.Retain > 0 || j.KeyState() != "" })
	if more {
		t.Add(t.s.sql.insertMore)
	} else {
		t.Add(t.s.sql.insert)
	}
	var now any = session.Part{SQL: t.s.sql.clock}
	if t.now != 0 {
		now = t.now
	}
	separator := "\n"
	for i := range jobs {
		j := &jobs[i]
		t.Text(separator)
		separator = ", "
		headers := headersText(j.Headers)
		payload := j.Payload
		if payload == nil {
			payload = []byte{} // nil would be NULL
		}
		maxAttempts, timeout, key := session.Positive(int64(j.MaxAttempts)), session.Positive(core.MS(j.Timeout)), bytesOrNull(j.Key)
		if j.Delay > 0 {
			t.Text(t.s.sql.insertDelayedRow, j.Queue, string(j.state), int64(j.Priority), maxAttempts, timeout, now, 1000*core.MS(j.Delay), now, now, key, headers, payload)
		} else {
			t.Text(t.s.sql.insertRow, j.Queue, string(j.state), int64(j.Priority), maxAttempts, timeout, j.runAt, now, now, key, headers, payload)
		}
		if more {
			t.Text(t.s.sql.endMore, bytesOrNull(j.Group), t.startBefore(j), onExpiry(&j.Expiry), session.Positive(core.MS(j.Expiry.RetainDead)), session.Positive(core.MS(j.Retain)), session.OrNull(j.KeyState()))
		} else {
			t.Text(t.s.sql.endRow)
		}
	}
	t.Each(func(r *session.Result) {
		first, step := r.Int(0), r.Int(1)
		for i := range jobs {
			jobs[i].Stored(first+int64(i)*step, jobs[i].state == backends.StateReady)
		}
	}, t.s.sql.inserted)
	t.insertExpiring(jobs)
	t.takeKeys(jobs, now)
}

// Retains implements core.Retainer.
func (*tx) Retains() {}

// insertExpiring queues a statement that stores when new jobs expire. The statement before it inserted the jobs.
func (t *tx) insertExpiring(jobs []newJob) {
	var args []any
	n := 0
	for i := range jobs {
		if j := &jobs[i]; j.Expiry.Some() {
			args = append(args, t.startBefore(j), int64(i))
			n++
		}
	}
	if n > 0 {
		t.Add(t.s.sql.insertExpiring, session.Part{SQL: repeated(t.s.sql.expiringRow, ", ", n), Args: args})
	}
}

// expireLater queues statements that store when waiting jobs expire.
func (t *tx) expireLater(all []*job) {
	rows := rowList{tx: t, head: t.s.sql.expireLater}
	for _, j := range all {
		if j.startBefore != 0 {
			rows.add(128, j.startBefore, j.ID)
		}
	}
}

// lastInstant is the last one that MySQL can store.
var lastInstant = session.Instant(time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC).UnixMicro())

// startBefore returns when a new job expires; 0: never. The transaction has asked for its time.
func (t *tx) startBefore(j *newJob) session.Instant {
	switch e := &j.Expiry; {
	case e.StartWithin > 0:
		return min(max(t.now+session.Instant(j.Delay.Microseconds()), j.runAt)+session.Instant(e.StartWithin.Microseconds()), lastInstant)
	case e.Some():
		return session.Instant(e.StartBefore.UnixMicro())
	}
	return 0
}

func onExpiry(e *backends.Expiry) any {
	if e.Remove {
		return "delete"
	}
	return nil
}

func bytesOrNull(text string) any {
	if text == "" {
		return nil
	}
	return []byte(text)
}

func headersText(h map[string]string) any {
	if len(h) == 0 {
		return nil
	}
	text, _ := json.Marshal(h) // a map of strings can't fail
	return string(text)
}

// Ack implements core.Writer. It deletes jobs that are not kept, have neither a key nor a group, and never failed, which are
// nearly all of them. If it deletes another number of rows than there are leases, the transaction fails
// with core.ErrNotAll.
func (t *tx) Ack(leases []core.Lease, _ func(i int)) (sure bool) {
	var ids, hosts, numbers []int64
	oneHost := true
	for _, l := range leases {
		ids, hosts, numbers = append(ids, l.ID), append(hosts, l.Sidecar), append(numbers, l.Number)
		oneHost = oneHost && l.Sidecar == leases[0].Sidecar
	}
	var sidecars any = table.Among(ids, hosts)
	if oneHost {
		sidecars = hosts[0]
	}
	t.wrote = true
	t.Add(t.s.sql.ack, session.IDs(ids), table.Among(ids, numbers), sidecars)
	t.acked, t.BeforeNext = int64(len(ids)), t.checkAck
	return true
}

// Deliver implements core.Writer. The core does not call it: see core.Traits.
func (t *tx) Deliver([]core.Lease, []backends.Delivery, func(i int)) {}

// lock queues a statement that locks and reads the rows with the ids, in ascending order. Every
// transaction that locks rows uses this order. sql is lock or lock_free.
func (t *tx) lock(ids []int64, sql string, found func(j *job)) {
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	t.Each(func(r *session.Result) { found(readJob(r)) }, sql, session.IDs(slices.Compact(ids)))
}

// lockRows locks rows by id and returns them in the order of ids, each once.
func (t *tx) lockRows(ctx context.Context, ids []int64, sql string) (found []*job, err error) {
	all := map[int64]*job{}
	for part := range slices.Chunk(slices.Sorted(slices.Values(ids)), core.BatchRows) {
		t.lock(part, sql, func(j *job) { all[j.ID] = j })
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
	t.lock(ids, t.s.sql.lock, func(j *job) {
		if j.state == backends.StateClaimed {
			found(&j.Row)
		}
	})
}

// FindLocked implements core.LockFinder. A server without SKIP LOCKED (MariaDB 10.5) tries each row by itself.
func (t *tx) FindLocked(ctx context.Context, ids []int64) (locked []int64, err error) {
	free := map[int64]bool{}
	skip := t.s.dialer.Server.SkipLocked
	if t.askNow(); skip {
		t.lock(ids, t.s.sql.lockFree, func(j *job) { free[j.ID] = true })
	}
	var claimed []int64
	t.Each(func(r *session.Result) {
		if id := r.Int(0); !free[id] {
			claimed = append(claimed, id)
		}
	}, t.s.sql.findClaimed, session.IDs(ids))
	if err := t.Flush(ctx); err != nil || skip {
		return claimed, err
	}
	for _, id := range claimed {
		is, err := t.isLocked(ctx, t.s.sql.lockOne, id)
		if err != nil {
			return nil, err
		}
		if is {
			locked = append(locked, id)
		}
	}
	return locked, nil
}

// isLocked locks the row of a query that fails if another transaction has locked it.
func (t *tx) isLocked(ctx context.Context, query string, args ...any) (bool, error) {
	err := t.c.Each(ctx, func(*session.Result) {}, query, args...)
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
	skip := t.s.dialer.Server.SkipLocked
	if skip {
		t.eachKey(func(r *session.Result) { free[jobKey{r.Text(0), r.Text(1)}] = true }, keys, t.s.sql.lockFreeKeys)
	}
	stored := map[jobKey]int64{} // the jobs of the others
	t.eachKey(func(r *session.Result) {
		if key := (jobKey{r.Text(0), r.Text(1)}); !free[key] {
			stored[key] = r.Int(2)
		}
	}, keys, t.s.sql.findKeys)
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	for _, key := range keys {
		job, ok := stored[key]
		if !ok {
			continue
		}
		is := skip
		if !is {
			if is, err = t.isLocked(ctx, t.s.sql.lockExistingKeys, t.anyKey([]jobKey{key})); err != nil {
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
		t.Each(func(r *session.Result) { t.now = r.Instant(0) }, t.s.sql.readClock)
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
		t.Add(t.s.sql.deleteDone, session.IDs(deleted))
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
	failures := rowList{tx: t, head: t.s.sql.insertFailures}
	for _, j := range all {
		if c := &j.Change; c.Kind == core.Ended && c.Cause != "" {
			failures.add(j.changedBytes(), j.ID, j.Fence, c.Attempts, string(c.Cause), c.Message, t.now)
		}
	}
	if len(failed) > 0 {
		t.Add(t.s.sql.deleteFailures, session.IDs(failed))
	}
	prunable := rowList{tx: t, head: t.s.sql.insertPrunable}
	for _, j := range all {
		if j.finished() && j.expires(t.now) != 0 {
			prunable.add(128, j.expires(t.now), j.ID)
		}
	}
	var waiting []*job
	for _, j := range all {
		if j.Change.Kind == core.Ended && !j.finished() {
			waiting = append(waiting, j)
		}
	}
	t.expireLater(waiting)
	t.register(scheduled)
	t.countReturns(returned, gaveBack)
}
