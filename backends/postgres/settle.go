package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// leases are arrays of leases.
type leases struct{ batch.Leases }

// report reads the numbers of the leases that a statement found valid, and
// counts the others as lost, in the order in which they came.
func (l *leases) report(t *tx, res []backends.WriteResult, order []int, sql string, each func(rows pgx.Rows) (n int64, err error), args ...any) {
	if len(l.ID) == 0 {
		return
	}
	lost := make([]int, len(order)) // by where it came from: 1 + where it is now; 0: valid
	for i, from := range order {
		lost[from] = i + 1
	}
	t.add(sql, func(rows pgx.Rows) error {
		for rows.Next() {
			n, err := each(rows)
			if err != nil {
				return err
			}
			lost[order[n-1]] = 0
		}
		for _, i := range lost {
			if i > 0 {
				r := &res[l.Of[i-1]]
				r.Lost = append(r.Lost, l.Lease[i-1])
			}
		}
		return nil
	}, args...)
}

func onlyNumber(rows pgx.Rows) (n int64, err error) {
	err = rows.Scan(&n)
	return n, err
}

type acking struct {
	leases
	result [][]byte
	plain  bool   // by the plain statement
	found  func() // called where one is found; may be nil
}

func (a *acking) add(write int, w backends.Ack) {
	for _, l := range w.Leases {
		a.Add(write, l, 0)
		a.result = append(a.result, w.Result)
	}
}

func (a *acking) queue(t *tx, res []backends.WriteResult) {
	order := a.Sort()
	a.result = batch.Sorted(a.result, order)
	if a.plain {
		a.report(t, res, order, t.s.sql.ackPlain, onlyNumber, a.ID, a.Host, a.Number)
		return
	}
	each := onlyNumber
	if a.found != nil {
		each = func(rows pgx.Rows) (int64, error) {
			a.found()
			return onlyNumber(rows)
		}
	}
	a.report(t, res, order, t.s.sql.ack, each, a.ID, a.Host, a.Number, a.result)
}

// givingUp are nacks and releases: claims that end without success.
type givingUp struct {
	leases
	uncharged, loss, bury []bool
	delay                 []*int64 // NULL: the back-off
	cause, message        []string
}

func (g *givingUp) nack(write int, w backends.Nack) {
	var delay *int64
	if w.HasDelay {
		n := max(ms(w.Delay), 0)
		delay = &n
	}
	for _, l := range w.Leases {
		g.Add(write, l, 0)
		g.end(w.Snooze, false, w.Dead, delay, backends.CauseNacked, w.Error)
	}
}

func (g *givingUp) release(write int, w backends.Release) {
	for _, l := range w.Leases {
		g.Add(write, l, w.Owner)
		g.end(w.Uncounted, true, false, nil, w.Cause, w.Message)
	}
}

func (g *givingUp) end(uncharged, loss, bury bool, delay *int64, cause backends.Cause, message string) {
	g.uncharged, g.loss, g.bury = append(g.uncharged, uncharged), append(g.loss, loss), append(g.bury, bury)
	g.delay, g.cause, g.message = append(g.delay, delay), append(g.cause, string(cause)), append(g.message, message)
}

func (g *givingUp) queue(t *tx, res []backends.WriteResult) {
	order := g.Sort()
	g.uncharged, g.loss, g.bury = batch.Sorted(g.uncharged, order), batch.Sorted(g.loss, order), batch.Sorted(g.bury, order)
	g.delay, g.cause, g.message = batch.Sorted(g.delay, order), batch.Sorted(g.cause, order), batch.Sorted(g.message, order)
	g.report(t, res, order, t.s.sql.fail, func(rows pgx.Rows) (int64, error) {
		f, err := t.scanFailed(rows)
		if err != nil {
			return 0, err
		}
		r := &res[g.Of[f.n-1]]
		r.Failed.Add(f.queue, f.cause, f.state == backends.StateDead)
		if f.state == backends.StateReady {
			batch.Free(r, f.queue)
		}
		return f.n, nil
	}, g.ID, g.Host, g.Number, g.Owner, g.uncharged, g.loss, g.bury, g.delay, g.cause, g.message)
}

// failed is what became of a claim that was given up.
type failed struct {
	n     int64
	queue string
	state backends.State
	cause backends.Cause
}

// scanFailed reads a row that failing answers with, and notes where a job was
// given back.
func (t *tx) scanFailed(rows pgx.Rows) (f failed, err error) {
	var back cursor.GiveBack
	if err = rows.Scan(&f.n, &f.queue, (*string)(&f.state), (*string)(&f.cause), &back.Spot.Urgency, &back.Spot.Position, &back.Returns); err != nil {
		return f, err
	}
	if back.Queue = f.queue; back.Returns != 0 {
		t.backs = append(t.backs, back)
	}
	return f, nil
}

type delivering struct {
	leases
	worker []string
}

func (d *delivering) add(write int, w backends.Deliver) {
	for _, h := range w.Deliveries {
		d.Add(write, h.Lease, 0)
		d.worker = append(d.worker, h.Worker)
	}
}

func (d *delivering) queue(t *tx, res []backends.WriteResult) {
	order := d.Sort()
	d.worker = batch.Sorted(d.worker, order)
	d.report(t, res, order, t.s.sql.deliver, onlyNumber, d.ID, d.Host, d.Number, d.worker)
}

type extending struct {
	leases
	lease, bind []int64
	worker      []string
}

func (e *extending) add(write int, w backends.Extend) {
	for _, l := range w.Leases {
		e.Add(write, l, 0)
		e.lease, e.bind = append(e.lease, max(ms(w.Lease), 0)), append(e.bind, int64(w.Bind))
		e.worker = append(e.worker, w.Worker)
	}
}

func (e *extending) queue(t *tx, res []backends.WriteResult) {
	order := e.Sort()
	e.lease, e.bind, e.worker = batch.Sorted(e.lease, order), batch.Sorted(e.bind, order), batch.Sorted(e.worker, order)
	e.report(t, res, order, t.s.sql.extend, onlyNumber, e.ID, e.Host, e.Number, e.lease, e.bind, e.worker)
}

// Held implements backends.Backend.
func (s *Store) ClaimedBy(ctx context.Context, host backends.Identity, after string, limit int) ([]backends.ClaimedJob, error) {
	var held []backends.ClaimedJob
	from, _ := number(after) // what is no id has everything after it
	err := s.again(ctx, func(ctx context.Context) error {
		held = nil
		return s.rows(ctx, func(rows pgx.Rows) error {
			var h backends.ClaimedJob
			var id, owner, n int64
			if err := rows.Scan(&id, &owner, &n, &h.Queue, &h.Timed); err != nil {
				return err
			}
			h.Lease = backends.Lease{Job: idOf(id), Token: backends.Token{Host: backends.Identity(owner), Number: uint64(n)}}
			held = append(held, h)
			return nil
		}, s.sql.held, int64(host), from, limit)
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}
