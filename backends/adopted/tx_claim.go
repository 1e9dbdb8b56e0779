package adopted

import (
	"context"
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
)

// claimInTx makes a claim of queues whose claims are open transactions, for as many jobs as there
// are connections.
func (s *Store) claimInTx(ctx context.Context, request backends.Claim) (backends.ClaimResult, error) {
	c := s.newClaim(0, request)
	for len(c.res.Jobs) < len(c.Slots) && !c.res.More {
		if slot := c.Slots[len(c.res.Jobs)]; slot.Lease > 0 {
			return c.res, &backends.UnsupportedError{Queue: c.Queues[0].Queue, What: backends.NoTimedLease, InTx: true}
		}
		if !s.tx.reserve(c.Queues) {
			break
		}
		got, err := c.nextInTx(ctx)
		if err != nil && len(c.res.Jobs) == 0 {
			return c.res, err
		}
		if !got || err != nil {
			break // the claimed jobs must reach the caller
		}
	}
	return c.res, nil
}

// nextInTx claims a job on a reserved connection. If the server has ended an old connection, it
// tries another one.
func (c *claim) nextInTx(ctx context.Context) (got bool, err error) {
	pool := c.s.tx
	for {
		conn, fresh, err := pool.connect(ctx, c.s.Engine)
		if err != nil {
			pool.addWaiting(pool.release(ctx, txConn{}))
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
			pool.addWaiting(pool.release(ctx, conn))
		}
		return got, err
	}
}

// nextOn tries one queue after another. It drops queues that have no more for this claim.
func (c *claim) nextOn(ctx context.Context, conn txConn) (got bool, err error) {
	for len(c.Queues) > 0 {
		got, again, err := c.roundInTx(ctx, conn, c.Queues[0])
		if err != nil || got || c.res.More {
			return got, err
		}
		if !again {
			c.Queues = c.Queues[1:]
		}
	}
	return false, nil
}

// roundInTx locks the queue's next job and leaves the transaction open. again is true if the
// candidate could not be claimed: the queue can have another job, and the candidate will not be found again.
func (c *claim) roundInTx(ctx context.Context, conn txConn, p backends.Policy) (got, again bool, err error) {
	q := c.s.queues[p.Queue]
	var rows []*statement.Candidate
	began := time.Now()
	if err := conn.Do(ctx, q.Candidates(p, 1, nil, &rows)); err != nil || len(rows) == 0 {
		return false, false, err
	}
	r, fit := rows[0], 1
	switch {
	case c.tooLarge(r):
		fit = 0
	case c.tooMuch(r, 0):
		c.res.More = true
		return false, false, nil
	}
	ok, _, err := complete(ctx, conn, q, rows, fit)
	switch {
	case err != nil:
		return false, false, err
	case fit == 0 && r.Lease != nil:
		return false, true, c.buryInTx(ctx, conn, q, r, p)
	case len(ok) == 0:
		return false, true, conn.Rollback(ctx)
	case c.s.tx.losses(q.Queue, r.Item) > freeLosses:
		return false, true, c.countLoss(ctx, conn, q, r, p)
	}
	c.give(q, r, p, "")
	if r.Lease.InTx = true; q.Deliveries {
		if err := conn.Do(ctx, q.CountDelivery(r.Lease)); err != nil {
			c.res.Jobs = c.res.Jobs[:len(c.res.Jobs)-1]
			return false, false, err
		}
	}
	c.left -= r.Size
	c.s.tx.add(&txJob{conn: conn, queue: q, lease: r.Lease, began: began, timeout: p.Timeout})
	return true, false, nil
}

// buryInTx marks a job dead that is too large, and commits that.
func (c *claim) buryInTx(ctx context.Context, conn txConn, q *statement.Queue, r *statement.Candidate, p backends.Policy) error {
	x := &changes{dialect: c.s.dialect}
	if err := c.bury(q, x, r, p); err != nil {
		return err
	}
	if err := c.endInTx(ctx, conn, q, x); err != nil {
		return err
	}
	c.res.Failed.Add(q.Queue, backends.CauseTooLarge, true)
	return nil
}

// countLoss counts a delivery whose transaction was lost, and commits that. Otherwise a job whose transaction can't last would run
// again and again, and always be on its first attempt.
func (c *claim) countLoss(ctx context.Context, conn txConn, q *statement.Queue, r *statement.Candidate, p backends.Policy) error {
	q.Begin(r, p, backends.Slot{}, q.NewToken())
	x := &changes{dialect: c.s.dialect}
	d := r.Lease.AttemptState().AfterRelease(backends.Release{Cause: backends.CauseTxLost, Message: "the server or a proxy ended the transaction in which the job was claimed"}, 0)
	if _, err := x.add(q.EndUndelivered(r.Lease, d, backends.CauseTxLost)); err != nil {
		return err
	}
	if err := c.endInTx(ctx, conn, q, x); err != nil {
		return err
	}
	c.res.Failed.Add(q.Queue, backends.CauseTxLost, d.State == backends.StateDead)
	left := freeLosses
	if d.State == backends.StateDead {
		left = 0
	}
	c.s.tx.forgetLosses(q.Queue, r.Item, left)
	return nil
}

// endInTx commits a change of a row that no worker gets.
func (c *claim) endInTx(ctx context.Context, conn txConn, q *statement.Queue, x *changes) error {
	_, err := conn.CommitWith(ctx, backends.Batch{}, backends.TxHooks{Writes: true, Before: func(ctx context.Context, sql backends.SQL, _ *backends.Batch) error {
		return x.flush(ctx, sql)
	}})
	if err == nil && x.rows[0].Statement.Matched == 0 {
		return unchangedRow(q)
	}
	return err
}
