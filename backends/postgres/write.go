package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// newJobs are the arrays of jobs that a statement inserts.
type newJobs struct {
	queue, headers []string
	payload        [][]byte
	priority       []int16
	delay, timeout []int64
	runAt          []*time.Time
	max            []int16
	key            []string
	ttl            []int64
	keyState       []string
	group          []string
	startBefore    []*time.Time
	startWithin    []int64
	onExpiry       []string
	keepDead       []int64
	retain         []int64
}

func (n *newJobs) add(j *core.NewJob) {
	headers := ""
	if len(j.Headers) > 0 {
		text, _ := json.Marshal(j.Headers) // marshaling a map of strings can't fail
		headers = string(text)
	}
	payload := j.Payload
	if payload == nil {
		payload = []byte{} // nil would be NULL
	}
	var runAt *time.Time
	if j.Delay <= 0 && !j.RunAt.IsZero() {
		runAt = &j.RunAt
	}
	n.queue, n.payload, n.headers = append(n.queue, j.Queue), append(n.payload, payload), append(n.headers, headers)
	n.priority, n.max = append(n.priority, j.Priority), append(n.max, int16(j.MaxAttempts))
	n.delay, n.timeout = append(n.delay, max(core.MS(j.Delay), 0)), append(n.timeout, core.MS(j.Timeout))
	n.runAt = append(n.runAt, runAt)
	n.key, n.ttl = append(n.key, j.Key), append(n.ttl, j.KeyMillis())
	n.keyState = append(n.keyState, j.KeyState())
	n.group = append(n.group, j.Group)
	var startBefore *time.Time
	onExpiry := ""
	if e := &j.Expiry; e.Some() {
		if !e.StartBefore.IsZero() {
			startBefore = &e.StartBefore
		}
		if e.Remove {
			onExpiry = "delete"
		}
	}
	n.startBefore, n.startWithin = append(n.startBefore, startBefore), append(n.startWithin, core.MS(j.Expiry.StartWithin))
	n.onExpiry, n.keepDead = append(n.onExpiry, onExpiry), append(n.keepDead, core.MS(j.Expiry.RetainDead))
	n.retain = append(n.retain, core.MS(j.Retain))
}

// Insert implements core.Writer. Jobs without a key use a shorter statement. Those of groups follow in their order.
func (t *tx) Insert(jobs []*core.NewJob) (pending bool) {
	var plain, keyed, grouped []*core.NewJob
	for _, j := range jobs {
		switch {
		case j.Group != "":
			grouped = append(grouped, j)
		case j.Key == "":
			plain = append(plain, j)
		default:
			keyed = append(keyed, j)
		}
	}
	t.insertPlain(plain)
	t.insertKeyed(keyed)
	for from := 0; from < len(grouped); {
		to := from + 1
		for to < len(grouped) && (grouped[to].Key == "") == (grouped[from].Key == "") {
			to++
		}
		if grouped[from].Key == "" {
			t.insertPlain(grouped[from:to])
		} else {
			t.insertKeyed(grouped[from:to])
		}
		from = to
	}
	return false
}

// Retains implements core.Retainer.
func (*tx) Retains() {}

// insertPlain stores jobs without keys, which all have groups or have none.
func (t *tx) insertPlain(jobs []*core.NewJob) {
	if len(jobs) == 0 {
		return
	}
	var c newJobs
	for _, j := range jobs {
		c.add(j)
	}
	var id int64
	var ready bool
	i, columns := 0, []any{&id, &ready} // allocated once, not for each row
	sql, args := t.s.sql.insert, []any{c.queue, c.payload, c.priority, c.delay, c.runAt, c.max, c.timeout, c.headers}
	if jobs[0].Group != "" || slices.ContainsFunc(jobs, func(j *core.NewJob) bool { return j.Expiry.Some() || j.Retain > 0 }) {
		sql, args = t.s.sql.insertMore, append(args, c.group, c.startBefore, c.startWithin, c.onExpiry, c.keepDead, c.retain)
	}
	t.each(sql, func(rows pgx.Rows) error {
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		if i == len(jobs) {
			return fmt.Errorf("an INSERT of %d jobs returned more rows", i)
		}
		jobs[i].Stored(id, ready)
		i++
		return nil
	}, args...)
}

// insertKeyed stores the jobs whose keys are free. A second statement, with a later
// snapshot, finds the first jobs of the other keys.
func (t *tx) insertKeyed(jobs []*core.NewJob) {
	if len(jobs) == 0 {
		return
	}
	var c newJobs
	for _, j := range jobs {
		c.add(j)
	}
	toStore := map[int64]*core.NewJob{} // by the id that the job will get
	duplicate := map[int64]bool{}       // by index
	t.each(t.s.sql.insertKeyed, func(rows pgx.Rows) error {
		var n *int64
		var id int64
		var own bool
		var ready *bool
		if err := rows.Scan(&n, &id, &own, &ready); err != nil {
			return err
		}
		switch {
		case n == nil: // the job was stored
			toStore[id].Stored(id, *ready)
			delete(toStore, id)
		case own:
			toStore[id] = jobs[*n-1]
		default:
			duplicate[*n-1] = true
		}
		return nil
	}, c.queue, c.payload, c.priority, c.delay, c.runAt, c.max, c.timeout, c.headers, c.key, c.ttl, c.keyState, c.group, c.startBefore, c.startWithin, c.onExpiry, c.keepDead, c.retain)
	t.add(t.s.sql.keyed, func(rows pgx.Rows) error {
		for _, j := range toStore {
			j.PassedOver()
		}
		for rows.Next() {
			var n, id int64
			var state string
			var freed bool
			if err := rows.Scan(&n, &id, &state, &freed); err != nil {
				return err
			}
			switch {
			case duplicate[n-1] && freed:
				jobs[n-1].Freed(id)
			case duplicate[n-1]:
				jobs[n-1].Duplicate(id, backends.State(state))
			}
		}
		return nil
	}, c.queue, c.key)
}

// leases are leases as the arrays that statements take, in ascending order of ids.
type leases struct{ id, host, number []int64 }

func arrays(all []core.Lease) (l leases) {
	l.id, l.host, l.number = make([]int64, 0, len(all)), make([]int64, 0, len(all)), make([]int64, 0, len(all))
	for _, x := range all {
		l.id, l.host, l.number = append(l.id, x.ID), append(l.host, x.Sidecar), append(l.number, x.Number)
	}
	return l
}

// found returns a reader that calls f with the index of each row. Indexes in SQL begin at 1.
func found(f func(i int)) func(rows pgx.Rows) error {
	var n int
	column := []any{&n} // allocated once, not for each row
	return func(rows pgx.Rows) error {
		if err := rows.Scan(column...); err != nil {
			return err
		}
		f(n - 1)
		return nil
	}
}

// Ack implements core.Writer. It deletes jobs that aren't retained and have no key.
func (t *tx) Ack(all []core.Lease, ended func(i int)) (sure bool) {
	l := arrays(all)
	t.each(t.s.sql.ack, found(ended), l.id, l.host, l.number)
	return false
}

// Deliver implements core.Writer.
func (t *tx) Deliver(all []core.Lease, deliveries []backends.Delivery, recorded func(i int)) {
	l := arrays(all)
	workers, ago := make([]string, len(all)), make([]int64, len(all))
	for i, d := range deliveries {
		workers[i], ago[i] = d.Worker, d.Ago.Milliseconds()
	}
	t.each(t.s.sql.deliver, found(recorded), l.id, l.host, l.number, workers, ago)
}

// Lock implements core.Writer.
func (t *tx) Lock(ids []int64, found func(*core.Row)) {
	t.each(t.s.sql.lock, func(rows pgx.Rows) error {
		r, err := scanRow(rows)
		if err == nil {
			found(r)
		}
		return err
	}, ids)
}

// FindLocked implements core.LockFinder.
func (t *tx) FindLocked(ctx context.Context, ids []int64) (locked []int64, err error) {
	err = t.ask(ctx, t.s.sql.findLocked, func(rows pgx.Rows) error {
		var id int64
		err := rows.Scan(&id)
		locked = append(locked, id)
		return err
	}, ids)
	return locked, err
}

// FindLockedKeys implements core.LockFinder.
func (t *tx) FindLockedKeys(ctx context.Context, rows []*core.Row) (locked []int64, err error) {
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.ID
	}
	err = t.ask(ctx, t.s.sql.findLockedKeys, func(rows pgx.Rows) error {
		var id int64
		err := rows.Scan(&id)
		locked = append(locked, id)
		return err
	}, ids)
	return locked, err
}

// scanRow reads a row with the columns of the fragment "row".
func scanRow(rows pgx.Rows) (*core.Row, error) {
	var r core.Row
	var host, number, owner, lease, backoff, backoffMax int64
	if err := rows.Scan(&r.ID, &r.Queue, &r.Key, &r.Priority, &r.Position, &r.Fence, &host, &number, &owner, &lease,
		&r.Attempts, &r.Limit, &r.Losses, &backoff, &backoffMax, &r.Prefetched, &r.PrefetchLosses, &r.Kept, &r.HasWorker, &r.Group, &r.Batch, &r.Pending, (*string)(&r.Cause)); err != nil {
		return nil, err
	}
	r.Token, r.Owner = backends.Token{Sidecar: backends.Identity(host), Number: uint64(number)}, backends.Identity(owner)
	r.Lease, r.Backoff, r.BackoffMax = core.FromMS(lease), core.FromMS(backoff), core.FromMS(backoffMax)
	return &r, nil
}

// Change implements core.Writer.
func (t *tx) Change(rows []*core.Row, changed func(*core.Row), gaveBack func(queue string, returns int64)) {
	byID := make(map[int64]*core.Row, len(rows))
	var deleted []int64
	var ended endings
	var renewed renewals
	for _, r := range rows {
		byID[r.ID] = r
		switch r.Change.Kind {
		case core.Deleted:
			deleted = append(deleted, r.ID)
		case core.Ended:
			ended.add(r)
		case core.Renewed:
			renewed.add(r)
		}
	}
	note := func(rows pgx.Rows) error {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		changed(byID[id])
		return nil
	}
	if len(deleted) > 0 {
		t.each(t.s.sql.deleteDone, note, deleted)
	}
	if len(renewed.id) > 0 {
		x := &renewed
		t.each(t.s.sql.renewClaims, note, x.id, x.attempts, x.lease, x.owner, x.ago, x.newDue, x.setWorker, x.worker)
	}
	if len(ended.id) > 0 {
		x := &ended
		t.each(t.s.sql.endClaims, func(rows pgx.Rows) error {
			var id, returns int64
			if err := rows.Scan(&id, &returns); err != nil {
				return err
			}
			if changed(byID[id]); returns > 0 {
				gaveBack(byID[id].Queue, returns)
			}
			return nil
		}, x.id, x.state, x.attempts, x.losses, x.unrecorded, x.back, x.delay, x.cause, x.message, x.result)
	}
}

// endings are the arrays of claims that end although their jobs remain.
type endings struct {
	id, attempts, losses, unrecorded, delay []int64
	state, cause, message                   []string
	back                                    []bool
	result                                  [][]byte
}

func (e *endings) add(r *core.Row) {
	c := &r.Change
	e.id, e.state, e.attempts = append(e.id, r.ID), append(e.state, string(c.State)), append(e.attempts, int64(c.Attempts))
	e.losses, e.unrecorded = append(e.losses, int64(c.Losses)), append(e.unrecorded, int64(c.PrefetchLosses))
	e.back, e.delay = append(e.back, c.SamePosition), append(e.delay, core.MS(c.Delay))
	e.cause, e.message, e.result = append(e.cause, string(c.Cause)), append(e.message, c.Message), append(e.result, c.Result)
}

// renewals are the arrays of claims that continue.
type renewals struct {
	id, attempts, lease, owner, ago []int64
	newDue, setWorker               []bool
	worker                          []string
}

func (x *renewals) add(r *core.Row) {
	c := &r.Change
	x.id, x.attempts, x.lease = append(x.id, r.ID), append(x.attempts, int64(c.Attempts)), append(x.lease, max(core.MS(c.Lease), 0))
	x.owner, x.ago, x.newDue = append(x.owner, int64(c.Owner)), append(x.ago, c.Ago.Milliseconds()), append(x.newDue, c.NewDue)
	x.setWorker, x.worker = append(x.setWorker, c.SetWorker), append(x.worker, c.Worker)
}
