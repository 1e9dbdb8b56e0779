package adopted

import (
	"context"
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

	most  int      // > 0: run claims at most so many rows, in one round; see claimFew
	only  []string // with most: the ids of the jobs to claim; nil: the first ones
	tried []string // with most: the rows that run tried

	retry   []string // refused rows to try again, in an open transaction
	reached []string // the queues that run tried
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
	c.reached = c.reached[:0]
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
	fit, large := c.fitting(rows)
	all := slices.Concat(fit, large)
	fit, locked, err := complete(ctx, sql, q, all, len(fit))
	if err != nil {
		return false, err
	}
	x := &changes{dialect: c.s.dialect}
	for _, r := range large {
		if r.Lease != nil {
			if err := c.bury(q, x, r, p); err != nil {
				return false, err
			}
		}
	}
	var given []*lease.Lease
	token := q.NewToken() // one for all, as its own consumers do
	for _, r := range fit {
		c.give(q, r, p, token)
		given = append(given, r.Lease)
	}
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
	gone := len(all) - len(fit) - locked
	return gone > 0 || len(rows) < want && len(rows) == q.MaxItems() && locked < len(rows), nil
}

func unchangedRow(q *statement.Queue) error {
	return backends.Refused(fmt.Errorf("can't claim a row of %s: its UPDATE changed no row, because of a trigger or rule of the table", q.SQLName))
}

// fitting splits candidates into those that fit into the result, up to the first that does not,
// and those before it that are too large for any.
func (c *claim) fitting(rows []*statement.Candidate) (fit, large []*statement.Candidate) {
	for _, r := range rows {
		switch {
		case c.tooLarge(r):
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

func (c *claim) tooLarge(r *statement.Candidate) bool {
	return c.MaxPayload > 0 && r.Size > c.MaxPayload
}

// tooMuch reports whether the row would bring the result above MaxBytes; fit others come before it.
func (c *claim) tooMuch(r *statement.Candidate, fit int) bool {
	return c.MaxBytes > 0 && r.Size > c.left && (c.Strict || len(c.res.Jobs)+fit > 0)
}

// bury marks a job dead that is too large.
func (c *claim) bury(q *statement.Queue, x *changes, r *statement.Candidate, p backends.Policy) error {
	q.Begin(r, p, backends.Slot{}, q.NewToken())
	r.Lease.Attempts-- // it was not delivered
	_, err := x.add(q.Bury(r.Lease, backends.CauseTooLarge, backends.TooLarge(r.Size, c.MaxPayload)))
	return err
}

// give puts the candidate into the next slot.
func (c *claim) give(q *statement.Queue, r *statement.Candidate, p backends.Policy, token string) {
	slot := c.Slots[len(c.res.Jobs)]
	q.Begin(r, p, slot, token)
	c.res.Jobs = append(c.res.Jobs, q.Job(r, p, slot))
}

// complete reads the contents of the first fit rows, and the leases of all. It returns those of
// the first fit rows that can be claimed: leases can have changed since the rows were found.
// Other rows get no lease. locked is the number of rows whose leases others have locked.
func complete(ctx context.Context, sql backends.SQL, q *statement.Queue, rows []*statement.Candidate, fit int) (ok []*statement.Candidate, locked int, err error) {
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
	text := lease.SelectLocked(d, lease.OfJobs(d), "", true)
	if q.ClaimInTx { // the lock on the job's row protects the lease, and can last long
		text = lease.Select(d, lease.OfJobs(d))
	}
	args := []any{q.Queue, items}
	statements := append(q.Contents(items[:fit], byItem), &backends.Statement{Text: text, Args: args, Row: func(cells [][]byte) error {
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
	for i, r := range rows {
		switch {
		case exists[r] && !r.Lease.Stored:
			r.Lease = nil
			locked++
		case r.Lease.NotBefore > r.Now:
			r.Lease = nil
		case i < fit:
			ok = append(ok, r)
		}
	}
	return ok, locked, nil
}
