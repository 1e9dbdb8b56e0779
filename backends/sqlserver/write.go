package sqlserver

import (
	"context"
	"database/sql"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Insert implements core.Writer. If one of the jobs has a key, all use the statement with keys, so that they keep
// their order.
func (t *tx) Insert(jobs []*core.NewJob) (pending bool) {
	p, read := t.s.sql.store, readStored
	if slices.ContainsFunc(jobs, func(j *core.NewJob) bool { return j.Key != "" }) {
		p, read = t.s.sql.storeKeyed, readStoredKeyed
	}
	chunks(jobs, func(_ int, jobs []*core.NewJob) {
		var payloads blob
		rows := make([]jobRow, len(jobs))
		for i, j := range jobs {
			var err error
			if rows[i], err = newJobRow(i, j, &payloads); err != nil && t.wrong == nil {
				t.wrong = err
			}
		}
		t.add(p, []reader{read(jobs)}, document(rows), payloads.bytes())
	})
	return false
}

// readStored returns a reader of the result of store.sql.
func readStored(jobs []*core.NewJob) reader {
	return each(func(rows *sql.Rows) error {
		var n int
		var id int64
		var ready bool
		if err := rows.Scan(&n, &id, &ready); err != nil {
			return err
		}
		j, err := item(jobs, n)
		if err == nil {
			j.Stored(id, ready)
		}
		return err
	})
}

// readStoredKeyed returns a reader of the result of store_keyed.sql. It reports an error for a job that the result
// does not name.
func readStoredKeyed(jobs []*core.NewJob) reader {
	return func(rows *sql.Rows) error {
		answered := make([]bool, len(jobs))
		err := each(func(rows *sql.Rows) error {
			var n int
			var id int64
			var stored, freed bool
			var state string
			if err := rows.Scan(&n, &stored, &id, &state, &freed); err != nil {
				return err
			}
			j, err := item(jobs, n)
			if err != nil {
				return err
			}
			answered[n] = true
			switch {
			case stored:
				j.Stored(id, backends.State(state) == backends.StateReady)
			case freed:
				j.Freed(id)
			default:
				j.Duplicate(id, backends.State(state))
			}
			return nil
		})(rows)
		for n, j := range jobs {
			if !answered[n] {
				j.PassedOver()
			}
		}
		return err
	}
}

// Retains implements core.Retainer.
func (*tx) Retains() {}

// Ack implements core.Writer. The statement ends all claims whose leases are valid, except those of members of batches, of jobs of
// groups, and of jobs whose keys have pending ones.
func (t *tx) Ack(leases []core.Lease, ended func(i int)) (sure bool) {
	chunks(leases, func(from int, leases []core.Lease) {
		var results blob
		rows := make([]ackRow, len(leases))
		for i, l := range leases {
			rows[i] = newAckRow(rowOfLease(i, l), l.Result, &results)
		}
		t.add(t.s.sql.ack, []reader{numbered(len(rows), func(n int) { ended(from + n) })}, document(rows), results.bytes(), int64(0))
	})
	return false
}

// Deliver implements core.Writer.
func (t *tx) Deliver(leases []core.Lease, deliveries []backends.Delivery, recorded func(i int)) {
	chunks(leases, func(from int, leases []core.Lease) {
		rows := make([]deliverRow, len(leases))
		for i, l := range leases {
			rows[i] = deliverRow{rowOfLease(i, l), text(deliveries[from+i].Worker), deliveries[from+i].Ago.Milliseconds()}
		}
		t.add(t.s.sql.deliver, []reader{numbered(len(rows), func(n int) { recorded(from + n) })}, document(rows))
	})
}

// Lock implements core.Writer.
func (t *tx) Lock(ids []int64, found func(*core.Row)) { t.lock("", ids, found) }

// lock locks claimed rows. If queue is not empty they must be in it.
func (t *tx) lock(queue string, ids []int64, found func(*core.Row)) {
	chunks(ids, func(_ int, ids []int64) {
		t.add(t.s.sql.lock, []reader{each(func(rows *sql.Rows) error {
			r, err := scanRow(rows)
			if err == nil {
				found(r)
			}
			return err
		})}, queue, document(idRows(ids)))
	})
}

// FindLocked implements core.LockFinder.
func (t *tx) FindLocked(ctx context.Context, ids []int64) (locked []int64, err error) {
	chunks(ids, func(_ int, ids []int64) { t.add(t.s.sql.findLocked, []reader{idsInto(&locked)}, document(idRows(ids))) })
	err = t.send(ctx)
	return locked, err
}

// FindLockedKeys implements core.KeyLockFinder.
func (t *tx) FindLockedKeys(ctx context.Context, rows []*core.Row) (locked []int64, err error) {
	chunks(rows, func(_ int, rows []*core.Row) {
		keys := make([]keyRow, len(rows))
		for i, r := range rows {
			keys[i] = keyRow{r.ID, r.Queue, r.Key}
		}
		t.add(t.s.sql.findLockedKeys, []reader{idsInto(&locked)}, document(keys))
	})
	err = t.send(ctx)
	return locked, err
}

// idsInto returns a reader of ids.
func idsInto(all *[]int64) reader {
	return each(func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		*all = append(*all, id)
		return err
	})
}

// scanRow reads a cause and the columns of {claim}.
func scanRow(rows *sql.Rows) (*core.Row, error) {
	var r core.Row
	var host, number, owner, lease, backoff, backoffMax int64
	if err := rows.Scan((*string)(&r.Cause), &r.ID, &r.Queue, &r.Key, &r.Priority, &r.Position, &r.Fence, &host, &number, &owner, &lease,
		&r.Attempts, &r.Limit, &r.Losses, &backoff, &backoffMax, &r.Prefetched, &r.PrefetchLosses, &r.Kept, &r.HasWorker, &r.Batch, &r.Pending, &r.Group); err != nil {
		return nil, err
	}
	r.Token, r.Owner = backends.Token{Sidecar: backends.Identity(host), Number: uint64(number)}, backends.Identity(owner)
	r.Group = givenGroup(r.Group)
	r.Lease, r.Backoff, r.BackoffMax = core.FromMS(lease), core.FromMS(backoff), core.FromMS(backoffMax)
	if r.Prefetched { // the column does not count this attempt
		r.Attempts++
	}
	return &r, nil
}

// Change implements core.Writer. Claims that end with success use the statement of Ack.
func (t *tx) Change(rows []*core.Row, changed func(*core.Row), gaveBack func(queue string, returns int64)) {
	var acked, ended, renewed []*core.Row
	for _, r := range rows {
		switch {
		case r.Change.Kind == core.Renewed:
			renewed = append(renewed, r)
		case r.Change.State == backends.StateDone:
			acked = append(acked, r)
		default:
			ended = append(ended, r)
		}
	}
	t.ackRows(acked, changed)
	t.renewRows(renewed, changed)
	t.endRows(ended, changed, gaveBack)
}

func newAckRow(lease leaseRow, result []byte, results *blob) ackRow {
	r := ackRow{leaseRow: lease}
	if result != nil {
		start, size := results.add(result)
		r.Start, r.Size = &start, &size
	}
	return r
}

func (t *tx) ackRows(all []*core.Row, changed func(*core.Row)) {
	chunks(all, func(_ int, all []*core.Row) {
		var results blob
		rows := make([]ackRow, len(all))
		for i, r := range all {
			rows[i] = newAckRow(rowOfClaim(i, r), r.Change.Result, &results)
		}
		t.add(t.s.sql.ack, []reader{t.changes(all, changed)}, document(rows), results.bytes(), int64(1))
	})
}

func (t *tx) renewRows(all []*core.Row, changed func(*core.Row)) {
	chunks(all, func(_ int, all []*core.Row) {
		rows := make([]renewalRow, len(all))
		for i, r := range all {
			c := &r.Change
			rows[i] = renewalRow{
				leaseRow: rowOfClaim(i, r), Attempts: c.Attempts, Ago: c.Ago.Milliseconds(), Lease: some(ms(c.Lease)), Owner: int64(c.Owner),
				NewDue: bit(c.NewDue), SetWorker: bit(c.SetWorker), Worker: text(c.Worker),
			}
		}
		t.add(t.s.sql.renewClaims, []reader{t.changes(all, changed)}, document(rows))
	})
}

func (t *tx) endRows(all []*core.Row, changed func(*core.Row), gaveBack func(queue string, returns int64)) {
	chunks(all, func(_ int, all []*core.Row) {
		rows := make([]endingRow, len(all))
		for i, r := range all {
			rows[i] = newEndingRow(i, r)
		}
		t.add(t.s.sql.endClaims, []reader{t.changes(all, changed), each(func(rows *sql.Rows) error {
			var queue string
			var returns int64
			err := rows.Scan(&queue, &returns)
			if err == nil {
				gaveBack(queue, returns)
			}
			return err
		})}, document(rows))
	})
}

// newEndingRow returns a claim that ends without success, in the form that the server reads.
func newEndingRow(n int, r *core.Row) endingRow {
	c := &r.Change
	x := endingRow{
		leaseRow: rowOfClaim(n, r), Queue: r.Queue, Keyed: bit(r.Key != ""), Fence: r.Fence,
		Attempts: c.Attempts, Losses: c.Losses, Unrecorded: c.PrefetchLosses,
	}
	switch c.State {
	case backends.StateDead:
		x.Dead = 1
	case backends.StateScheduled:
		wait := ms(c.Delay)
		x.Wait = &wait
	default:
		x.Fresh, x.Back = bit(!c.SamePosition), bit(c.SamePosition)
	}
	if c.Cause != "" {
		cause := string(c.Cause)
		x.Cause, x.Message = &cause, &c.Message
	}
	return x
}

// changes returns a reader of the numbers of the rows that a statement changed. Babelfish does not lock a row that is
// only read, so another transaction can be faster there.
func (t *tx) changes(all []*core.Row, changed func(*core.Row)) reader {
	return func(rows *sql.Rows) error {
		n := 0
		err := numbered(len(all), func(i int) { n++; changed(all[i]) })(rows)
		if err == nil && n < len(all) && t.s.server.babelfish {
			return core.ErrAgain
		}
		return err
	}
}

func rowOfLease(n int, l core.Lease) leaseRow { return leaseRow{n, l.ID, l.Sidecar, l.Number} }

func rowOfClaim(n int, r *core.Row) leaseRow {
	return leaseRow{n, r.ID, int64(r.Token.Sidecar), int64(r.Token.Number)}
}
