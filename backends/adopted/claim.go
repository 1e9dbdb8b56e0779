package adopted

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
)

// claim is a claim of adopted queues, in one transaction.
type claim struct {
	backends.Claim
	s    *Store
	n    int // its number in the batch
	res  backends.ClaimResult
	left int64 // bytes that the result can still hold
	ran  bool  // run ran before

	few            // with most > 0: run claims so, in one round
	tried []string // with most: the rows that run tried

	given   []*lease.Lease      // what run has claimed
	retry   map[string][]string // refused rows to try again, by queue, in an open transaction
	reached []string            // the queues that run tried
}

// newClaim is the claim without its slots for prefetched jobs: adopted queues have none.
func (s *Store) newClaim(n int, c backends.Claim) *claim {
	if first := slices.IndexFunc(c.Slots, func(slot backends.Slot) bool { return slot.Prefetch }); first >= 0 {
		c.Slots = c.Slots[:first]
	}
	return &claim{Claim: c, s: s, n: n, left: c.MaxBytes}
}

// run claims from one queue after another until the slots are full. It can run again, from the
// beginning.
func (c *claim) run(ctx context.Context, sql backends.SQL) error {
	if c.ran {
		c.rolledBack()
	}
	c.res, c.ran = backends.ClaimResult{}, true
	c.left = c.MaxBytes
	c.reached, c.given = c.reached[:0], nil
	for _, p := range c.Queues {
		if len(c.res.Jobs) < len(c.Slots) && !c.res.More {
			c.reached = append(c.reached, p.Queue)
		}
		for len(c.res.Jobs) < len(c.Slots) && !c.res.More {
			again, err := c.round(ctx, sql, p)
			if err != nil {
				return err
			}
			if !again || c.most > 0 {
				break
			}
		}
	}
	return nil
}

// round claims what one query for candidates finds in a queue. again is true if some candidates could
// not be claimed: the queue can have more, and those candidates will not be found again.
func (c *claim) round(ctx context.Context, sql backends.SQL, p backends.Policy) (again bool, err error) {
	q := c.s.queues()[p.Queue]
	want := len(c.Slots) - len(c.res.Jobs)
	rows, err := c.candidates(ctx, sql, q, p, min(want, q.MaxItems()))
	if err != nil || len(rows) == 0 {
		return false, err
	}
	fitting, large := c.fitting(rows)
	fit, locked, err := complete(ctx, sql, q, fitting)
	if err != nil {
		return false, err
	}
	gone := len(fitting) - len(fit) - locked
	for i := 0; i < len(fit); i++ {
		if r := fit[i]; c.tooLarge(r.Contents()) {
			fit, large = slices.Delete(fit, i, i+1), append(large, r)
			i--
		}
	}
	passed, err := c.pass(q, large)
	if err != nil {
		return false, err
	}
	x := &changes{dialect: c.s.dialect}
	var given []*lease.Lease
	token := q.NewToken() // one for all, as its own consumers do
	for _, r := range fit {
		c.give(q, r, p, token)
		given = append(given, r.Lease)
	}
	c.given = append(c.given, given...)
	x.claim(q, given)
	if err := x.flush(ctx, sql); err != nil {
		return false, err
	}
	for _, change := range x.rows {
		if change.Statement.Matched != change.Rows {
			return false, unchangedRow(q)
		}
		if change.Failed {
			c.res.Failed.Add(q.Queue, change.Cause, change.Dead)
		}
	}
	return gone > 0 || passed || len(rows) < want && len(rows) == q.MaxItems() && locked < len(rows), nil
}

func unchangedRow(q *statement.Queue) error {
	return backends.Refused(fmt.Errorf("can't claim a row of %s: its UPDATE changed no row, because of a trigger or rule of the table", q.SQLName))
}

// fitting splits candidates into those that fit into the result, up to the first that does not,
// and those before it that are too large for any.
func (c *claim) fitting(rows []*statement.Candidate) (fit, large []*statement.Candidate) {
	for _, r := range rows {
		switch {
		case c.tooLarge(r.Size):
			large = append(large, r)
		case c.tooMuch(r, len(fit)):
			c.res.More = true
			return fit, large
		default:
			fit = append(fit, r)
			c.left -= r.Size
		}
	}
	return fit, large
}

func (c *claim) tooLarge(size int64) bool { return c.MaxPayload > 0 && size > c.MaxPayload }

// tooLargeError is why a claim passes a row over.
type tooLargeError struct{ size, limit int64 }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("the job's payload has %d bytes with its headers, and this sidecar delivers at most %d: raise max_frame, or leave such rows to the table's own consumers", e.size, e.limit)
}

// pass passes rows over that are too large: the table's own consumers can work them. again: another scan finds rows behind them.
func (c *claim) pass(q *statement.Queue, large []*statement.Candidate) (again bool, err error) {
	for _, r := range large {
		if c.most > 0 { // claimCarefully finds out which row it is
			return false, backends.Refused(c.tooLargeError(r))
		}
		again = c.notePassed(q, r) || again
	}
	return again, nil
}

func (c *claim) tooLargeError(r *statement.Candidate) error {
	return &tooLargeError{max(r.Size, r.Contents()), c.MaxPayload}
}

// notePassed notes a row that is too large as an obstacle. One whose columns show its size stands for all others like it, because
// scans then leave them out; see passesLarge. It reports whether the next scan leaves the row out.
func (c *claim) notePassed(q *statement.Queue, r *statement.Candidate) bool {
	counted, known := c.tooLarge(r.Size), c.s.ObstacleSet().Has(q.Queue, r.Item, backends.DoingClaim)
	if known || !counted || !c.s.passesLarge(q.Queue) {
		c.s.refuse(q.Queue, r.Item, c.tooLargeError(r))
	}
	return counted || c.s.ObstacleSet().Has(q.Queue, r.Item, backends.DoingClaim)
}

// passesLarge reports whether scans of the queue leave out rows that are too large. They begin to when one is found, because
// the size of each row that waits can be expensive to find out.
func (s *Store) passesLarge(queue string) bool {
	return s.ObstacleSet().Any(func(o *backends.Obstacle) bool {
		var large *tooLargeError
		return o.Queue == queue && o.Doing == backends.DoingClaim && errors.As(o.Err, &large)
	})
}

// scan is the part of the queue's rows in which the claim looks for jobs.
func (c *claim) scan(queue string) (scan statement.Scan) {
	if !c.s.ObstacleSet().Some() {
		return scan
	}
	scan.Except, _ = c.s.ObstacleSet().JobsOf(backends.DoingClaim, queue)
	if c.s.passesLarge(queue) {
		scan.MaxSize = c.MaxPayload
	}
	return scan
}

// tooMuch reports whether the row would bring the result above MaxBytes; fit others come before it.
func (c *claim) tooMuch(r *statement.Candidate, fit int) bool {
	return c.MaxBytes > 0 && r.Size > c.left && (c.Strict || len(c.res.Jobs)+fit > 0)
}

// give puts the candidate into the next slot.
func (c *claim) give(q *statement.Queue, r *statement.Candidate, p backends.Policy, token string) {
	slot := c.Slots[len(c.res.Jobs)]
	q.Begin(r, p, slot, token)
	c.res.Jobs = append(c.res.Jobs, q.Job(r, p, slot))
}

// complete reads the contents and the leases of rows. It returns the rows that can be claimed: leases can have changed since
// the rows were found. Other rows get no lease. locked is the number of rows whose leases others have locked.
func complete(ctx context.Context, sql backends.SQL, q *statement.Queue, rows []*statement.Candidate) (ok []*statement.Candidate, locked int, err error) {
	if len(rows) == 0 {
		return nil, 0, nil
	}
	d := q.Dialect
	items := make([]string, len(rows))
	byItem := make(map[string]*statement.Candidate, len(rows))
	for i, r := range rows {
		items[i] = r.Item
		byItem[r.Item] = r
		r.Lease = lease.New(q.Queue, r.Item)
	}
	rowOf := func(item string) *statement.Candidate { // SQL Server ignores trailing blanks
		if r := byItem[item]; r != nil {
			return r
		}
		for _, r := range rows {
			if strings.TrimRight(r.Item, " ") == strings.TrimRight(item, " ") {
				return r
			}
		}
		return &statement.Candidate{} // no candidate has this item
	}
	text := lease.SelectLocked(d, lease.ByItem, lease.OfJobs(d), "", true)
	if q.ClaimInTx { // the lock on the job's row protects the lease, and can last long
		text = lease.Select(d, lease.OfJobs(d))
	}
	args := []any{q.Queue, items}
	statements := append(q.Contents(items, byItem), &backends.Statement{Text: text, Args: args, Row: func(cells [][]byte) error {
		l, err := lease.Read(cells)
		if err == nil {
			r := rowOf(l.Item)
			r.Lease, l.Item = l, r.Item
		}
		return err
	}})
	exists := map[*statement.Candidate]bool{}
	if _, skips := d.(backends.HintDialect); skips && !q.ClaimInTx {
		statements = append(statements, &backends.Statement{
			Text: d.SelectUnlocked(query.Columns(d.ToText("l.item")), lease.From(d), lease.OfJobs(d)), Args: args,
			Row: func(cells [][]byte) error { exists[rowOf(string(cells[0]))] = true; return nil },
		})
	}
	if err := sql.Do(ctx, statements...); err != nil {
		return nil, 0, err
	}
	for _, r := range rows {
		switch {
		case exists[r] && !r.Lease.Stored:
			r.Lease = nil
			locked++
		case r.Lease.NotBefore > r.Now:
			r.Lease = nil
		default:
			ok = append(ok, r)
		}
	}
	return ok, locked, nil
}
