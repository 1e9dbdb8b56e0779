package postgres

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
)

// sort brings the arrays of leases into the order of their ids, as the statements
// want them, and returns where each came from.
func (l *leases) sort() (order []int) {
	order = make([]int, len(l.id))
	for i := range order {
		order[i] = i
	}
	if slices.IsSorted(l.id) {
		return order
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(l.id[a], l.id[b]) })
	l.id, l.host, l.number, l.owner = sorted(l.id, order), sorted(l.host, order), sorted(l.number, order), sorted(l.owner, order)
	l.of, l.lease = sorted(l.of, order), sorted(l.lease, order)
	return order
}

func sorted[T any](x []T, order []int) []T {
	y := make([]T, len(x))
	for i, from := range order {
		y[i] = x[from]
	}
	return y
}

// report reads the numbers of the leases that a statement found valid, and
// counts the others as lost, in the order in which they came.
func (l *leases) report(t *tx, res []backends.WriteResult, order []int, sql string, each func(rows pgx.Rows) (n int64, err error), args ...any) {
	if len(l.id) == 0 {
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
				r := &res[l.of[i-1]]
				r.Lost = append(r.Lost, l.lease[i-1])
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
		a.leases.add(write, l, 0)
		a.result = append(a.result, w.Result)
	}
}

func (a *acking) queue(t *tx, res []backends.WriteResult) {
	order := a.sort()
	a.result = sorted(a.result, order)
	if a.plain {
		a.report(t, res, order, t.s.sql.ackPlain, onlyNumber, a.id, a.host, a.number)
		return
	}
	each := onlyNumber
	if a.found != nil {
		each = func(rows pgx.Rows) (int64, error) {
			a.found()
			return onlyNumber(rows)
		}
	}
	a.report(t, res, order, t.s.sql.ack, each, a.id, a.host, a.number, a.result)
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
		g.add(write, l, 0)
		g.end(w.Uncharged, false, w.Dead, delay, backends.CauseNacked, w.Error)
	}
}

func (g *givingUp) release(write int, w backends.Release) {
	for _, l := range w.Leases {
		g.add(write, l, w.Owner)
		g.end(w.Uncharged, true, false, nil, w.Cause, w.Message)
	}
}

func (g *givingUp) end(uncharged, loss, bury bool, delay *int64, cause backends.Cause, message string) {
	g.uncharged, g.loss, g.bury = append(g.uncharged, uncharged), append(g.loss, loss), append(g.bury, bury)
	g.delay, g.cause, g.message = append(g.delay, delay), append(g.cause, string(cause)), append(g.message, message)
}

func (g *givingUp) queue(t *tx, res []backends.WriteResult) {
	order := g.sort()
	g.uncharged, g.loss, g.bury = sorted(g.uncharged, order), sorted(g.loss, order), sorted(g.bury, order)
	g.delay, g.cause, g.message = sorted(g.delay, order), sorted(g.cause, order), sorted(g.message, order)
	g.report(t, res, order, t.s.sql.fail, func(rows pgx.Rows) (int64, error) {
		f, err := t.scanFailed(rows)
		if err == nil && f.state == backends.StateReady {
			free(&res[g.of[f.n-1]], f.queue)
		}
		return f.n, err
	}, g.id, g.host, g.number, g.owner, g.uncharged, g.loss, g.bury, g.delay, g.cause, g.message)
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
	var back giveBack
	if err = rows.Scan(&f.n, &f.queue, (*string)(&f.state), (*string)(&f.cause), &back.spot.urgency, &back.spot.position, &back.returns); err != nil {
		return f, err
	}
	if back.queue = f.queue; back.returns != 0 {
		t.backs = append(t.backs, back)
	}
	return f, nil
}

type delivering struct {
	leases
	worker []string
}

func (d *delivering) add(write int, w backends.Deliver) {
	for _, h := range w.Handed {
		d.leases.add(write, h.Lease, 0)
		d.worker = append(d.worker, h.Worker)
	}
}

func (d *delivering) queue(t *tx, res []backends.WriteResult) {
	order := d.sort()
	d.worker = sorted(d.worker, order)
	d.report(t, res, order, t.s.sql.deliver, onlyNumber, d.id, d.host, d.number, d.worker)
}

type extending struct {
	leases
	lease, bind []int64
	worker      []string
}

func (e *extending) add(write int, w backends.Extend) {
	for _, l := range w.Leases {
		e.leases.add(write, l, 0)
		e.lease, e.bind = append(e.lease, max(ms(w.Lease), 0)), append(e.bind, int64(w.Bind))
		e.worker = append(e.worker, w.Worker)
	}
}

func (e *extending) queue(t *tx, res []backends.WriteResult) {
	order := e.sort()
	e.lease, e.bind, e.worker = sorted(e.lease, order), sorted(e.bind, order), sorted(e.worker, order)
	e.report(t, res, order, t.s.sql.extend, onlyNumber, e.id, e.host, e.number, e.lease, e.bind, e.worker)
}

// Held implements backends.Backend.
func (s *Store) Held(ctx context.Context, host backends.Identity, after string, limit int) ([]backends.Held, error) {
	var held []backends.Held
	from, _ := number(after) // what is no id has everything after it
	err := s.again(ctx, func(ctx context.Context) error {
		held = nil
		return s.rows(ctx, func(rows pgx.Rows) error {
			var h backends.Held
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
