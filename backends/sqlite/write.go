package sqlite

import (
	"encoding/json"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Statements run when a method is called. The first error is kept for the Flush, and no
// statement runs after it.

var (
	_ core.Tx         = (*tx)(nil)
	_ core.OwnClaimer = (*tx)(nil)
)

// Insert implements core.Writer.
func (t *tx) Insert(jobs []*core.NewJob) (pending bool) {
	for _, j := range jobs {
		t.do(func() error { return t.insert(j) })
	}
	return false
}

// Retains implements core.Retainer.
func (*tx) Retains() {}

func (t *tx) insert(j *core.NewJob) error {
	if j.Key != "" {
		if taken, err := t.keyTaken(j); taken || err != nil {
			return err
		}
	}
	id, err := t.next()
	if err != nil {
		return err
	}
	var headers any
	if len(j.Headers) > 0 {
		text, _ := json.Marshal(j.Headers) // marshaling a map of strings can't fail
		headers = string(text)
	}
	payload := j.Payload
	if payload == nil {
		payload = []byte{} // nil would be NULL
	}
	state, runAt := t.when(j.NewJob)
	var noticed any
	if j.Group != "" {
		noticed = int64(1)
	}
	var startBefore, onExpiry any
	switch e := &j.Expiry; {
	case e.StartWithin > 0:
		first := t.now
		if at, ok := runAt.(int64); ok {
			first = max(first, at)
		}
		startBefore = min(first+core.MS(e.StartWithin), lastInstant)
	case e.Some():
		startBefore = e.StartBefore.UnixMilli()
	}
	if j.Expiry.Remove {
		onExpiry = "delete"
	}
	err = t.one(t.sql.insert, id, j.Queue, string(state), int64(j.Priority), id, positive(int64(j.MaxAttempts)),
		positive(core.MS(j.Timeout)), runAt, t.now, t.now, text(j.Key), text(j.Group), noticed,
		startBefore, onExpiry, positive(core.MS(j.Expiry.RetainDead)), positive(core.MS(j.Retain)), text(j.KeyState()), headers, payload)
	if err == nil && j.Key != "" {
		_, err = t.exec(t.sql.putKey, j.Queue, j.Key, id, t.now+j.KeyMillis())
	}
	j.Stored(id, state == backends.StateReady)
	return err
}

// lastInstant is the end of the year 9999 in milliseconds.
const lastInstant = 253402300799999

// when returns the first state of a new job, and its run_at or nil.
func (t *tx) when(j *backends.NewJob) (state backends.State, runAt any) {
	at := t.now
	switch {
	case j.Delay > 0:
		at += core.MS(j.Delay)
	case !j.RunAt.IsZero():
		at = ceilMilli(j.RunAt)
	default:
		return backends.StateReady, nil
	}
	if at > t.now {
		return backends.StateScheduled, at
	}
	return backends.StateReady, at
}

// keyTaken reports whether the job's key is still in use. If it is, keyTaken also marks the job as a duplicate.
func (t *tx) keyTaken(j *core.NewJob) (taken bool, err error) {
	var id int64
	var state backends.State
	err = t.query(t.sql.findKey, func(r row) error {
		if taken = r.null(2) || t.now < r.int(1); taken {
			id, state = r.int(0), backends.State(r.text(2))
		}
		return nil
	}, j.Queue, j.Key)
	if err != nil || !taken {
		return taken, err
	}
	if state == "" {
		state = backends.StateDeleted // the default if there is no row
		err = t.query(t.sql.stateOf, func(r row) error {
			state, taken = backends.State(r.text(0)), r.int(1) == 0
			return nil
		}, id)
	}
	if !taken || err != nil {
		return false, err
	}
	j.Duplicate(id, state)
	return true, err
}

func ceilMilli(t time.Time) int64 {
	n := t.UnixMilli()
	if t.After(time.UnixMilli(n)) {
		n++
	}
	return n
}

// positive returns n, or NULL if n is 0 or less, which means "not set".
func positive(n int64) any {
	if n <= 0 {
		return nil
	}
	return n
}

// text returns s, or NULL if s is empty.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// Ack implements core.Writer. It deletes jobs that aren't retained, and have neither a key nor a group, and are in no batch.
func (t *tx) Ack(leases []core.Lease, ended func(i int)) (sure bool) {
	for i, l := range leases {
		t.do(func() error {
			n, err := t.exec(t.sql.ackPlain, l.ID, l.Sidecar, l.Number)
			if n > 0 {
				ended(i)
			}
			return err
		})
	}
	return false
}

// Deliver implements core.Writer.
func (t *tx) Deliver(leases []core.Lease, deliveries []backends.Delivery, recorded func(i int)) {
	for i, l := range leases {
		t.do(func() error {
			n, err := t.exec(t.sql.deliver, t.now, deliveries[i].Ago.Milliseconds(), text(deliveries[i].Worker), l.ID, l.Sidecar, l.Number)
			if n > 0 {
				recorded(i)
			}
			return err
		})
	}
}

// claimed is a claimed row.
type claimed struct {
	core.Row
	readyAt         any
	keep, keepDead  time.Duration // 0 means: don't retain the done job; retain the dead job indefinitely
	deadline, dueAt any           // nil if there is none; only dueAt: the time limit has not begun
	claimedAt       int64
	lastError       any
	unrecorded      bool // whether a delivery, this one or an earlier one, wasn't recorded
}

// find returns the row of a claimed job, or nil if there is none.
func (t *tx) find(id int64) (c *claimed, err error) {
	err = t.query(t.sql.claimed, func(r row) error {
		c = &claimed{readyAt: r[3], keep: r.duration(9), keepDead: r.duration(10), deadline: r[12], dueAt: r[13], lastError: r[14], claimedAt: r.int(21)}
		c.Row = core.Row{
			ID: id, Queue: r.text(0), Key: r.text(1), Group: r.text(22), Batch: r.int(23), Pending: r.int(24) != 0, Position: r.int(2), Lease: r.duration(11), Owner: backends.Identity(r.int(15)),
			Token: backends.Token{Sidecar: backends.Identity(r.int(18)), Number: uint64(r.int(19))},
			Kept:  c.keep > 0, HasWorker: !r.null(20), Engine: c,
			AttemptState: backends.AttemptState{
				Attempts: int(r.int(4)), Limit: int(r.int(5)), Losses: int(r.int(6)), Backoff: r.duration(7), BackoffMax: r.duration(8),
				Prefetched: r.int(16) != 0, PrefetchLosses: int(r.int(17)),
			},
		}
		c.unrecorded = c.Prefetched || c.PrefetchLosses > 0
		if c.Prefetched { // the table counts only recorded deliveries
			c.Attempts++
		}
		return nil
	}, id)
	return c, err
}

// Lock implements core.Writer. It locks nothing, because no other transaction can write.
func (t *tx) Lock(ids []int64, found func(*core.Row)) {
	for _, id := range ids {
		t.do(func() error {
			c, err := t.find(id)
			if c != nil {
				found(&c.Row)
			}
			return err
		})
	}
}

// Change implements core.Writer.
func (t *tx) Change(rows []*core.Row, changed func(*core.Row), _ func(queue string, returns int64)) {
	for _, r := range rows {
		t.do(func() error {
			changed(r)
			c := r.Engine.(*claimed)
			switch r.Change.Kind {
			case core.Deleted:
				return t.remove(r.Change.State, r.Queue, r.Key, r.ID)
			case core.Ended:
				return t.end(c)
			}
			return t.renew(c)
		})
	}
}

// remove deletes a job. Its key keeps the state in which it ended.
func (t *tx) remove(as backends.State, queue, key string, id int64) error {
	if err := t.endKey(as, queue, key, id); err != nil {
		return err
	}
	return t.one(t.sql.remove, id)
}

func (t *tx) endKey(as backends.State, queue, key string, id int64) error {
	if key == "" {
		return nil
	}
	_, err := t.exec(t.sql.endKey, string(as), queue, key, id)
	return err
}

// end updates a row whose claim ended.
func (t *tx) end(c *claimed) (err error) {
	x := &c.Change
	var runAt, finishedAt, expiresAt, result any // a nil []byte must be NULL
	if x.Result != nil {
		result = x.Result
	}
	if x.Cause != "" {
		c.lastError = x.Message
		if err := t.failed(c.ID, int64(x.Attempts), x.Cause, x.Message); err != nil {
			return err
		}
	}
	switch x.State {
	case backends.StateScheduled:
		runAt = t.now + core.MS(x.Delay)
	case backends.StateReady:
		if !x.SamePosition {
			c.readyAt = t.now
			if c.Position, err = t.next(); err != nil {
				return err
			}
		}
	case backends.StateDone:
		finishedAt, expiresAt = t.now, after(t.now, c.keep)
	case backends.StateDead:
		finishedAt, expiresAt = t.now, after(t.now, c.keepDead)
	}
	if finishedAt != nil {
		if err := t.endKey(x.State, c.Queue, c.Key, c.ID); err != nil {
			return err
		}
	}
	return t.one(t.sql.leave, string(x.State), c.Position, c.readyAt, runAt, x.Attempts, x.Losses, x.PrefetchLosses,
		c.lastError, finishedAt, expiresAt, result, c.ID)
}

// failed records a failure. The caller updates the row's last_error.
func (t *tx) failed(id, attempt int64, cause backends.Cause, message string) error {
	_, err := t.exec(t.sql.fail, attempt, string(cause), message, t.now, id)
	return err
}

// renew updates a row whose claim continues.
func (t *tx) renew(c *claimed) error {
	x := &c.Change
	if c.unrecorded {
		if deadline, ok := c.deadline.(int64); ok && c.dueAt == nil {
			c.deadline = t.now + max(deadline-c.claimedAt-x.Ago.Milliseconds(), 0)
			c.dueAt = c.deadline
		}
		if err := t.one(t.sql.record, c.deadline, c.dueAt, c.ID); err != nil {
			return err
		}
	}
	switch {
	case x.NewDue && x.Lease == 0:
		return t.one(t.sql.bind, int64(x.Owner), text(x.Worker), c.ID)
	case x.NewDue:
		return t.one(t.sql.renew, core.MS(x.Lease), earlier(after(t.now, x.Lease), c.deadline), c.ID)
	case x.Owner == 0 && c.Owner != 0:
		return t.one(t.sql.disown, c.ID)
	case x.SetWorker:
		return t.one(t.sql.setWorker, x.Worker, c.ID)
	}
	return nil
}
