package adopted

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// hold makes a claim of queues whose jobs are held: a connection for each, for as
// many as there are connections.
func (s *Store) hold(ctx context.Context, c backends.Claim) (backends.ClaimResult, error) {
	all := s.claiming(c)
	all.left = c.MaxBytes
	for len(all.res.Jobs) < len(all.Slots) && !all.res.More {
		if slot := all.Slots[len(all.res.Jobs)]; slot.Lease > 0 {
			return all.res, &backends.UnsupportedError{Queue: c.Queues[0].Queue, What: backends.NoTimedLease, InTx: true}
		}
		if !s.holds.room(c.Queues) {
			break
		}
		got, err := all.next(ctx)
		if err != nil && len(all.res.Jobs) == 0 {
			return all.res, err
		}
		if !got || err != nil {
			break // what is claimed must be told
		}
	}
	return all.res, nil
}

// next claims one job, on a connection for which there is room. Where it is an old
// one, which the server may have ended, another is tried.
func (c *claiming) next(ctx context.Context) (got bool, err error) {
	h := c.s.holds
	for {
		conn, fresh, err := h.connection(ctx, c.s.Adopter)
		if err != nil {
			h.lost(h.leave(ctx, spare{}))
			return false, err
		}
		got, err = c.nextOn(ctx, conn)
		switch {
		case errors.Is(err, backends.ErrTxLost) && !fresh:
			conn.Close()
			continue
		case errors.Is(err, backends.ErrTxLost):
			err = backends.Unavailable(err)
		}
		if !got {
			h.lost(h.leave(ctx, conn))
		}
		return got, err
	}
}

// nextOn looks into one queue after another.
func (c *claiming) nextOn(ctx context.Context, conn spare) (got bool, err error) {
	for len(c.Queues) > 0 {
		p := c.Queues[0]
		got, again, err := c.takeOne(ctx, conn, p)
		if err != nil || got || c.res.More {
			return got, err
		}
		if !again {
			c.Queues = c.Queues[1:] // it has no more for this claim
		}
	}
	return false, nil
}

// takeOne locks the queue's next job and leaves the transaction open. again: what
// was in the way is so no longer.
func (c *claiming) takeOne(ctx context.Context, conn spare, p backends.Policy) (got, again bool, err error) {
	t := c.s.tables[p.Queue]
	rows, err := t.candidates(ctx, conn, p, 1)
	if err != nil || len(rows) == 0 {
		return false, false, err
	}
	r, fit := rows[0], 1
	large := c.MaxPayload > 0 && r.size > c.MaxPayload
	switch {
	case large:
		fit = 0
	case c.MaxBytes > 0 && r.size > c.left && (c.Strict || len(c.res.Jobs) > 0):
		c.res.More = true
		return false, false, nil
	}
	ok, _, err := t.complete(ctx, conn, rows, fit)
	switch {
	case err != nil:
		return false, false, err
	case large && r.lease != nil:
		return false, true, c.buryHeld(ctx, conn, t, r, p)
	case len(ok) == 0:
		return false, true, conn.Rollback(ctx)
	}
	began := time.Now()
	l := c.gives(t, r, p, "")
	if l.held = true; t.Deliveries {
		if err := t.deliver(ctx, conn, l); err != nil {
			c.res.Jobs = c.res.Jobs[:len(c.res.Jobs)-1]
			return false, false, err
		}
	}
	c.left -= r.size
	c.s.holds.keep(&held{conn: conn, table: t, lease: l, began: began, timeout: p.Timeout})
	return true, false, nil
}

// buryHeld has a job that is too large be dead.
func (c *claiming) buryHeld(ctx context.Context, conn spare, t *table, r *candidate, p backends.Policy) error {
	x := &settling{s: c.s}
	if err := c.bury(t, x, r, p); err != nil {
		return err
	}
	_, err := conn.CommitWith(ctx, backends.Batch{}, backends.TxHooks{Writes: true, Before: func(ctx context.Context, sql backends.SQL, _ *backends.Batch) error {
		return x.flush(ctx, sql)
	}})
	if err == nil && x.ends[0].statement.Matched == 0 {
		return backends.Refused(fmt.Errorf("a row of %s that a claim had locked was not changed by it: a trigger or a rule of the table keeps it from that", t.name))
	}
	if err == nil {
		c.res.Failed.Add(t.queue, backends.CauseTooLarge, true)
	}
	return err
}

// deliver counts a delivery in the row.
func (t *table) deliver(ctx context.Context, sql backends.SQL, l *lease) error {
	w := &writing{t: t}
	if c, has := t.one[Attempts]; has {
		w.set(c, "coalesce("+t.g.Name(c.Name)+", 0) + 1")
	}
	where := w.row(l.item, w.ours(l))
	return sql.Do(ctx, w.update(where))
}
