package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Commit implements backends.Backend.
func (s *Store) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	k := &commitment{s: s, batch: b, queues: batch.QueuesOf(b.Claims)}
	var sc scope
	if len(b.Claims) > 0 {
		host := int64(b.Host)
		sc.host, sc.queues = &host, k.queues
		s.prove(ctx, b.Claims)
	}
	if err := s.write(ctx, sc, k.round); err != nil {
		return backends.Results{}, err
	}
	k.learn()
	return k.res, nil
}

// commitment is a batch on its way. Its groups are carried out one after the other,
// each in one round, or in two where claims are given up: their rows are looked at
// first, because package backends says what becomes of them. The claims go with the
// last group.
type commitment struct {
	s      *Store
	batch  backends.Batch
	queues []string // of the claims
	res    backends.Results

	groups []batch.Group // still to be carried out
	fails  *givingUp     // of the group before, looked at
	asked  bool          // the claims were
	claims []*claiming
	last   map[int]int64 // returns
}

// round implements work.
func (k *commitment) round(t *tx, round int) (more bool, err error) {
	if round == 0 {
		k.res = backends.Results{Writes: make([]backends.WriteResult, len(k.batch.Writes))}
		k.groups, k.fails, k.asked, k.claims = batch.Grouped(k.batch.Writes), nil, false, nil
	}
	if k.fails != nil {
		k.fails.meet(t, k.res.Writes)
		k.fails = nil
	}
	for len(k.groups) > 0 && k.fails == nil {
		if err := k.queue(t, k.groups[0]); err != nil {
			return false, err
		}
		k.groups = k.groups[1:]
	}
	switch {
	case k.fails != nil:
		return true, nil
	case !k.asked:
		k.asked = true
		k.startClaims(t)
		return true, nil
	case k.goOnClaims(t):
		return true, nil
	}
	return false, k.check()
}

// queue puts a group's pieces into the transaction; their answers go into k.res.
func (k *commitment) queue(t *tx, g batch.Group) error {
	var enqueues storing
	var acks acking
	var hands delivering
	var extends extending
	var fails givingUp
	for _, p := range g {
		switch w := p.Write.(type) {
		case backends.Enqueue:
			enqueues.add(p.N, w.Jobs, nil)
		case backends.Ack:
			if len(w.Enqueue) > 0 {
				enqueues.add(p.N, w.Enqueue, &w.Leases[0])
			}
			acks.add(p.N, w)
		case backends.Nack:
			fails.nack(p.N, w)
		case backends.Release:
			fails.release(p.N, w)
		case backends.Extend:
			extends.add(p.N, w)
		case backends.Deliver:
			hands.add(p.N, w)
		default:
			return fmt.Errorf("sqlserver: a write of the unknown kind %T", w)
		}
	}
	// What comes with an ack is stored first: as long as the claim is there, it
	// says whether to.
	if err := enqueues.queue(t, k.res.Writes); err != nil {
		return err
	}
	acks.queue(t, k.res.Writes)
	hands.queue(t, k.res.Writes)
	extends.queue(t, k.res.Writes)
	if len(fails.rows) > 0 {
		fails.queue(t, k.res.Writes)
		k.fails = &fails
	}
	return nil
}

var errPassedOver = errors.New("a trigger on qsidecar_jobs, or a security policy, kept a row from being stored or changed and said nothing")

// check looks at what the server answered for what no error says.
func (k *commitment) check() error {
	for i, w := range k.batch.Writes {
		want := 0
		switch w := w.(type) {
		case backends.Enqueue:
			want = len(w.Jobs)
		case backends.Ack:
			if len(k.res.Writes[i].Lost) == 0 {
				want = len(w.Enqueue)
			}
		}
		stored := k.res.Writes[i].Stored
		if len(stored) != want {
			return backends.Refused(errPassedOver)
		}
		for n := range stored {
			if stored[n].ID == "" {
				return backends.Refused(errPassedOver)
			}
		}
	}
	return nil
}

// leases are the leases of pieces, and which write each is of.
type leases struct {
	of    []int
	lease []backends.Lease
	valid []bool
}

// add appends a lease and returns its row. One whose job is no job's id is looked for
// under a number below 0, which no row has: its own, because a list has each once.
func (l *leases) add(write int, lease backends.Lease) leaseRow {
	n := len(l.of)
	id, ok := batch.Number(lease.Job)
	if !ok {
		id = -1 - int64(n)
	}
	l.of, l.lease, l.valid = append(l.of, write), append(l.lease, lease), append(l.valid, false)
	return leaseRow{n, id, int64(lease.Token.Host), int64(lease.Token.Number)}
}

// note reads the numbers of the leases that a piece found valid.
func (l *leases) note() reader {
	return each(func(rows *sql.Rows) error {
		var n int
		if err := rows.Scan(&n); err != nil {
			return err
		}
		return l.found(n)
	})
}

func (l *leases) found(n int) error {
	if n < 0 || n >= len(l.valid) {
		return fmt.Errorf("sqlserver: the answer names lease %d of %d", n, len(l.valid))
	}
	l.valid[n] = true
	return nil
}

// report counts the leases that were not found as lost, in the order in which they
// came. It is the reader of what comes last.
func (l *leases) report(res []backends.WriteResult) {
	for n, valid := range l.valid {
		if !valid {
			r := &res[l.of[n]]
			r.Lost = append(r.Lost, l.lease[n])
		}
	}
}

// after is a reader that calls f behind it: with the last chunk's it has seen all.
func after(r reader, last bool, f func()) reader {
	return func(rows *sql.Rows) error {
		if err := r(rows); err != nil {
			return err
		}
		if last {
			f()
		}
		return nil
	}
}
