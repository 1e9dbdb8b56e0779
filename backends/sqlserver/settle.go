package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

type acking struct {
	leases
	rows    []ackRow
	results blob
}

func (a *acking) add(write int, w backends.Ack) {
	for _, l := range w.Leases {
		r := ackRow{leaseRow: a.leases.add(write, l)}
		if w.Result != nil {
			start, size := a.results.add(w.Result)
			r.Start, r.Size = &start, &size
		}
		a.rows = append(a.rows, r)
	}
}

func (a *acking) queue(t *tx, res []backends.WriteResult) {
	chunks(a.rows, func(from int, rows []ackRow) {
		last := from+len(rows) == len(a.rows)
		t.add(t.s.sql.ack, []reader{after(a.note(), last, func() { a.report(res) })}, document(rows), a.results.bytes())
	})
}

type delivering struct {
	leases
	rows []deliverRow
}

func (d *delivering) add(write int, w backends.Deliver) {
	for _, h := range w.Deliveries {
		d.rows = append(d.rows, deliverRow{d.leases.add(write, h.Lease), text(h.Worker)})
	}
}

func (d *delivering) queue(t *tx, res []backends.WriteResult) {
	chunks(d.rows, func(from int, rows []deliverRow) {
		last := from+len(rows) == len(d.rows)
		t.add(t.s.sql.deliver, []reader{after(d.note(), last, func() { d.report(res) })}, document(rows))
	})
}

type extending struct {
	leases
	rows []extendRow
}

func (e *extending) add(write int, w backends.Extend) {
	for _, l := range w.Leases {
		r := extendRow{leaseRow: e.leases.add(write, l)}
		if w.Bind != 0 {
			host := int64(w.Bind)
			r.Bind, r.Worker = &host, text(w.Worker)
		} else {
			r.Lease = some(ms(w.Lease))
		}
		e.rows = append(e.rows, r)
	}
}

func (e *extending) queue(t *tx, res []backends.WriteResult) {
	chunks(e.rows, func(from int, rows []extendRow) {
		last := from+len(rows) == len(e.rows)
		t.add(t.s.sql.extend, []reader{after(e.note(), last, func() { e.report(res) })}, document(rows))
	})
}

// givingUp are nacks and releases: claims that end without success.
type givingUp struct {
	leases
	rows  []lookRow
	fate  []func(backends.AttemptState) backends.Disposition // of each lease
	cause []backends.Cause                                   // for which it is given up
	found []found
}

func (g *givingUp) nack(write int, w backends.Nack) {
	for _, l := range w.Leases {
		g.rows = append(g.rows, lookRow{leaseRow: g.leases.add(write, l)})
		g.fate = append(g.fate, func(s backends.AttemptState) backends.Disposition { return s.AfterNack(w) })
		g.cause = append(g.cause, backends.CauseNacked)
	}
}

func (g *givingUp) release(write int, w backends.Release) {
	for _, l := range w.Leases {
		r := lookRow{leaseRow: g.leases.add(write, l)}
		if w.Owner != 0 {
			owner := int64(w.Owner)
			r.Owner = &owner
		}
		g.rows = append(g.rows, r)
		g.fate = append(g.fate, func(s backends.AttemptState) backends.Disposition { return s.AfterRelease(w) })
		g.cause = append(g.cause, w.Cause)
	}
}

// queue has the rows looked at and locked.
func (g *givingUp) queue(t *tx, res []backends.WriteResult) {
	chunks(g.rows, func(from int, rows []lookRow) {
		last := from+len(rows) == len(g.rows)
		read := each(func(rows *sql.Rows) error {
			f, err := scanFound(rows)
			if err != nil {
				return err
			}
			g.found = append(g.found, f)
			return g.leases.found(f.n)
		})
		t.add(t.s.sql.look, []reader{after(read, last, func() { g.report(res) })}, document(rows))
	})
}

// meet has the fates come true.
func (g *givingUp) meet(t *tx, res []backends.WriteResult) {
	t.meet(g.found, func(f found) backends.Disposition { return g.fate[f.n](f.standing) }, func(f found, fate backends.Disposition) {
		r := &res[g.of[f.n]]
		r.Failed.Add(f.queue, g.cause[f.n], fate.State == backends.StateDead)
		if fate.State == backends.StateReady {
			batch.Free(r, f.queue)
		}
	})
}

// found is a claimed row that was locked, to be given up.
type found struct {
	n        int
	cause    backends.Cause // for which it is reaped; empty otherwise
	row      leaseRow
	queue    string
	keyed    int
	priority int16
	position int64
	fence    int64
	standing backends.AttemptState
}

// scanFound reads what {standing} stands for in the pieces.
func scanFound(rows *sql.Rows) (f found, err error) {
	var backoff, backoffMax int64
	s := &f.standing
	err = rows.Scan(&f.n, (*string)(&f.cause), &f.row.ID, &f.queue, &f.row.Host, &f.row.Number, &f.keyed, &f.priority, &f.position,
		&f.fence, &s.Attempts, &s.Limit, &s.Losses, &backoff, &backoffMax, &s.Prefetched, &s.PrefetchLosses)
	s.Backoff, s.BackoffMax = batch.FromMS(backoff), batch.FromMS(backoffMax)
	if s.Prefetched { // whatever becomes of it, its worker had it; or the Fate takes it off again
		s.Attempts++
	}
	return f, err
}

// meet queues what becomes of rows that were found. met is called for each once the
// server has carried it out.
func (t *tx) meet(all []found, fate func(f found) backends.Disposition, met func(f found, fate backends.Disposition)) {
	chunks(all, func(_ int, all []found) {
		rows, fates := make([]fateRow, len(all)), make([]backends.Disposition, len(all))
		spots := map[string][]cursor.Spot{} // of what is given back, by queue
		for i, f := range all {
			fates[i] = fate(f)
			rows[i] = f.meeting(i, fates[i])
			if rows[i].Back == 1 {
				spots[f.queue] = append(spots[f.queue], cursor.Spot{Urgency: -int32(f.priority), Position: f.position})
			}
		}
		t.add(t.s.sql.meet, []reader{
			each(func(r *sql.Rows) error {
				var n int
				if err := r.Scan(&n); err != nil {
					return err
				}
				if n < 0 || n >= len(all) {
					return fmt.Errorf("sqlserver: the answer names row %d of %d", n, len(all))
				}
				met(all[n], fates[n])
				return nil
			}),
			each(func(r *sql.Rows) error {
				var queue string
				var returns int64
				if err := r.Scan(&queue, &returns); err != nil {
					return err
				}
				for _, spot := range spots[queue] {
					t.backs = append(t.backs, cursor.GiveBack{Queue: queue, Spot: spot, Returns: returns})
				}
				return nil
			}),
		}, document(rows))
	})
}

// meeting is a fate as the server is told.
func (f found) meeting(n int, fate backends.Disposition) fateRow {
	r := fateRow{
		leaseRow: leaseRow{n, f.row.ID, f.row.Host, f.row.Number},
		Queue:    f.queue, Keyed: f.keyed, Fence: f.fence,
		Attempts: fate.Attempts, Losses: fate.Losses, Unrecorded: fate.PrefetchLosses,
	}
	switch fate.State {
	case backends.StateDead:
		r.Dead = 1
	case backends.StateScheduled:
		wait := ms(fate.Delay)
		r.Wait = &wait
	default:
		r.Fresh, r.Back = bit(!fate.SamePosition), bit(fate.SamePosition)
	}
	if fate.Cause != "" {
		cause := string(fate.Cause)
		r.Cause, r.Message = &cause, &fate.Message
	}
	return r
}

// Held implements backends.Backend.
func (s *Store) ClaimedBy(ctx context.Context, host backends.Identity, after string, limit int) ([]backends.ClaimedJob, error) {
	var held []backends.ClaimedJob
	from, _ := batch.Number(after) // what is no id has everything after it
	read := func(rows *sql.Rows) error {
		held = nil
		for rows.Next() {
			var h backends.ClaimedJob
			var id, host, n int64
			if err := rows.Scan(&id, &host, &n, &h.Queue, &h.Timed); err != nil {
				return err
			}
			h.Lease = backends.Lease{Job: batch.ID(id), Token: backends.Token{Host: backends.Identity(host), Number: uint64(n)}}
			held = append(held, h)
		}
		return nil
	}
	if err := s.read(ctx, call{s.sql.held, []any{int64(host), from, int64(limit)}, []reader{read}}); err != nil {
		return nil, err
	}
	return held, nil
}
