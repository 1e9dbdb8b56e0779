package adopted

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// claimInTx makes a claim of queues whose claims are open transactions, for as many jobs as there
// are connections.
func (s *Store) claimInTx(ctx context.Context, request backends.Claim, at *attempt) (backends.ClaimResult, error) {
	c := s.newClaim(0, request)
	failed := s.openInTx(c, at)
	refused := 0
	if s.ObstacleSet().Some() {
		began := s.now()
		c.retry = map[string][]string{}
		for _, p := range c.Queues {
			if jobs := s.retryRows(p.Queue); len(jobs) > 0 {
				c.retry[p.Queue] = jobs
				defer func() { s.heads[p.Queue].retries.Took(began, s.now()) }()
			}
		}
	}
	for len(c.res.Jobs) < len(c.Slots) && !c.res.More {
		if slot := c.Slots[len(c.res.Jobs)]; slot.Lease > 0 {
			return c.res, &backends.UnsupportedError{Queue: c.Queues[0].Queue, What: backends.NoTimedLease, InTx: true}
		}
		if !s.tx.reserve(c.Queues) {
			break
		}
		var got bool
		err := s.limited(ctx, at.alone, func(ctx context.Context) (err error) { // the jobs before have connections of their own
			got, err = c.nextInTx(ctx)
			return err
		})
		if errors.Is(err, errSlow) && len(c.Queues) > 0 { // no transaction is open on the connection any more
			s.noteSlow(c.Queues[0].Queue)
			failed = cmp.Or(failed, s.slowClaim(c.Queues[0].Queue))
			break
		}
		if err != nil && len(c.Queues) > 0 && ctx.Err() == nil {
			queue := c.Queues[0].Queue
			switch {
			case backends.IsRefused(err) && len(c.tried) == 1 && refused < core.CarefulTries:
				s.refuse(queue, c.tried[0], err)
				refused++
				continue
			case backends.IsRefused(err) && c.most == 0: // find out whose value can't be read
				c.most = 1
				continue
			case isLocked(err) && !s.isTableLocked(ctx, queue):
			case isOfTable(err) || backends.IsRefused(err):
				failed = cmp.Or(failed, s.obstruct(ctx, queue, backends.DoingClaim, err))
				c.Queues = c.Queues[1:]
				continue
			}
		}
		if err != nil && len(c.res.Jobs) == 0 {
			return c.res, err
		}
		if !got || err != nil {
			break // the claimed jobs must reach the caller
		}
	}
	if len(c.res.Jobs) == 0 && failed != nil && len(c.reached) == 0 {
		return c.res, failed
	}
	return c.res, nil
}

// openInTx leaves the queues out of a claim that are out of order. The error is theirs.
func (s *Store) openInTx(c *claim, at *attempt) (failed error) {
	var open []backends.Policy
	for _, p := range c.Queues {
		if s.queues()[p.Queue] != nil && (!s.isObstructed(p.Queue, backends.DoingClaim) || at.probe[p.Queue] || s.probes.take(p.Queue)) {
			open = append(open, p)
		} else {
			failed = cmp.Or(failed, s.obstruction(p.Queue, backends.DoingClaim))
		}
	}
	c.Queues = open
	return failed
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
		if err != nil {
			return got, err
		}
		c.reached = append(c.reached, c.Queues[0].Queue)
		c.s.works(c.Queues[0].Queue, backends.DoingClaim)
		if got || c.res.More {
			return got, nil
		}
		if !again {
			c.Queues = c.Queues[1:]
		}
	}
	return false, nil
}

// nextCandidate locks the queue's next job: first one of the refused rows to try again, then others. retried is the former's id.
func (c *claim) nextCandidate(ctx context.Context, conn txConn, q *statement.Queue, p backends.Policy) (rows []*statement.Candidate, retried string, err error) {
	if jobs := c.retry[q.Queue]; len(jobs) > 0 {
		c.retry[q.Queue], c.tried = jobs[1:], jobs[:1]
		return rows, jobs[0], conn.Do(ctx, q.Candidates(p, 1, statement.Scan{Only: jobs[:1]}, &rows))
	}
	if c.most > 0 {
		rows, err = c.firstFew(ctx, conn, q, p, 1)
		return rows, "", err
	}
	c.tried = nil
	err = conn.Do(ctx, q.Candidates(p, 1, c.scan(q.Queue), &rows))
	if err == nil && len(rows) > 0 {
		c.tried = []string{rows[0].Item}
	}
	return rows, "", err
}

// roundInTx locks the queue's next job and leaves the transaction open. again is true if the
// candidate could not be claimed: the queue can have another job, and the candidate will not be found again.
func (c *claim) roundInTx(ctx context.Context, conn txConn, p backends.Policy) (got, again bool, err error) {
	q := c.s.queues()[p.Queue]
	began := time.Now()
	rows, retried, err := c.nextCandidate(ctx, conn, q, p)
	if err != nil || len(rows) == 0 {
		if err == nil && retried != "" { // it doesn't wait any more
			c.s.ObstacleSet().Clear(q.Queue, retried, backends.DoingClaim)
		}
		return false, err == nil && retried != "", err
	}
	r := rows[0]
	switch {
	case c.tooLarge(r.Size):
		again, err = c.passInTx(ctx, conn, q, r)
		return false, again, err
	case c.tooMuch(r, 0):
		c.res.More = true
		return false, false, nil
	}
	ok, _, err := complete(ctx, conn, q, rows)
	switch {
	case err != nil:
		return false, false, err
	case len(ok) == 0:
		return false, true, conn.Rollback(ctx)
	case c.tooLarge(r.Contents()):
		again, err = c.passInTx(ctx, conn, q, r)
		return false, again, err
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
	if retried != "" {
		c.s.ObstacleSet().Clear(q.Queue, retried, backends.DoingClaim)
	}
	c.left -= r.Size
	c.s.tx.add(&txJob{conn: conn, queue: q, lease: r.Lease, began: began, timeout: p.Timeout})
	return true, false, nil
}

// passInTx is pass for the row that the transaction locked.
func (c *claim) passInTx(ctx context.Context, conn txConn, q *statement.Queue, r *statement.Candidate) (again bool, err error) {
	if err := conn.Rollback(ctx); err != nil {
		return false, err
	}
	return c.notePassed(q, r), nil
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
	_, err := conn.CommitWith(ctx, backends.CommitContent{}, backends.TxHooks{Writes: true, Before: func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
		return x.flush(ctx, sql)
	}})
	if err == nil && x.rows[0].Statement.Matched == 0 {
		return unchangedRow(q)
	}
	return err
}
