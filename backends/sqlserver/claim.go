package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// claiming is one claim under way. Its queues are asked in runs: as many at a time
// as have the same order, which is nearly always all of them.
type claiming struct {
	backends.Claim
	cursors *cursor.Set
	host    backends.Identity
	res     backends.ClaimResult
	left    int64 // bytes that may still be given

	from, to int // the run: Queues[from:to]
	done     bool
	again    bool // the run was asked again because jobs came back
	filled   bool // the last statement filled all the slots that it had, and there are more
	large    []tooLarge
	seen     map[string]*learned // by queue; nil: nothing is remembered of it
}

// learned is what a claim tells the cursor of a queue, and whether its segments
// ended with the queue.
type learned struct {
	cursor.Learned
	full bool
}

// tooLarge is a ready row that the claim locked and must not give.
type tooLarge struct {
	id, size int64
	policy   backends.Policy
}

// startClaims queues the first run of each claim.
func (k *commitment) startClaims(t *tx) {
	for _, c := range k.batch.Claims {
		c.MaxBytes, c.MaxPayload = cmp.Or(max(c.MaxBytes, 0), math.MaxInt64), cmp.Or(max(c.MaxPayload, 0), math.MaxInt64)
		c.Queues = once(c.Queues)
		cl := &claiming{Claim: c, cursors: &t.s.cursors, host: k.batch.Host, left: c.MaxBytes, seen: map[string]*learned{}}
		k.claims = append(k.claims, cl)
		cl.next()
		cl.ask(t)
	}
}

// once is the policies, of each queue the first: a row is picked once in a statement.
func once(all []backends.Policy) (policies []backends.Policy) {
	seen := make(map[string]bool, len(all))
	for _, p := range all {
		if !seen[p.Queue] {
			seen[p.Queue] = true
			policies = append(policies, p)
		}
	}
	return policies
}

// goOnClaims looks at what the claims got, and has those ask again that must.
func (k *commitment) goOnClaims(t *tx) (more bool) {
	k.last = t.returns
	for _, c := range k.claims {
		if c.goOn(t, k.queues) {
			more = true
		}
	}
	if !more {
		k.res.Claims = nil
		for _, c := range k.claims {
			k.res.Claims = append(k.res.Claims, c.res)
		}
	}
	return more
}

// goOn asks again where the claim may get more; false: it is done.
func (c *claiming) goOn(t *tx, queues []string) bool {
	switch {
	case c.done:
		return false
	case len(c.large) > 0: // room for others
		c.bury(t)
		c.ask(t)
		return true
	case len(c.res.Jobs) == len(c.Slots) || c.res.More:
		c.done = true
		return false
	case c.filled:
		c.ask(t)
		return true
	}
	for _, p := range c.Queues[c.from:c.to] {
		if l := c.seen[p.Queue]; l != nil {
			l.All = true // it came back short: there was no more
		}
	}
	if c.returned(t, queues) {
		c.ask(t)
		return true
	}
	if c.next(); c.done {
		return false
	}
	c.ask(t)
	return true
}

// returned: jobs of the run's queues were given back behind the cursors, perhaps
// too late for the claim's own look to see them. The next one looks everywhere.
func (c *claiming) returned(t *tx, queues []string) bool {
	if c.again {
		return false
	}
	for _, p := range c.Queues[c.from:c.to] {
		if c.cursors.Returned(p.Queue, t.returns[slices.Index(queues, p.Queue)]) {
			c.cursors.Forget(p.Queue)
			c.again = true
		}
	}
	return c.again
}

// next moves on to the next run of queues.
func (c *claiming) next() {
	c.from, c.again = c.to, false
	if c.from == len(c.Queues) || len(c.Slots) == 0 {
		c.done = true
		return
	}
	for c.to++; c.to < len(c.Queues) && c.Queues[c.to].LIFO == c.Queues[c.from].LIFO; {
		c.to++
	}
}

// segments are the pieces of the index that a run looks through, as the server is
// told: what is behind a spot of a priority is one, whole priorities are another,
// because only the first can be found by the position.
func segments(rows []segmentRow, queue string, policy int, all []cursor.Segment) []segmentRow {
	add := func(highest, lowest int32, low, high int64) {
		rows = append(rows, segmentRow{len(rows) + 1, queue, policy, int16(highest), int16(lowest), low, high})
	}
	piece := func(urgency int32, low, high int64) {
		if urgency >= mostUrgent && urgency <= leastUrgent && low < high {
			add(-urgency, -urgency, low, high)
		}
	}
	for _, s := range all {
		from, to := s.From, s.To
		if from.Urgency == to.Urgency {
			piece(from.Urgency, from.Position, to.Position)
			continue
		}
		piece(from.Urgency, from.Position, math.MaxInt64) // what is left of its priority
		first, last := max(from.Urgency+1, mostUrgent), min(to.Urgency, leastUrgent)
		part := last == to.Urgency && to.Position < math.MaxInt64
		if part {
			last--
		}
		if first == last {
			piece(first, 0, math.MaxInt64)
		} else if first < last {
			add(-first, -last, 0, math.MaxInt64)
		}
		if part {
			piece(to.Urgency, 0, to.Position)
		}
	}
	return rows
}

// Urgency is -priority.
const (
	mostUrgent  = -math.MaxInt16
	leastUrgent = math.MaxInt16 + 1
)

func (c *claiming) segments(now time.Time) (rows []segmentRow) {
	for i, p := range c.Queues[c.from:c.to] {
		all := []cursor.Segment{cursor.Whole}
		if !p.LIFO {
			all = c.cursors.Segments(p.Queue, now, false)
			if c.seen[p.Queue] == nil {
				c.seen[p.Queue] = &learned{Learned: cursor.Learned{Asked: now}}
			}
			c.seen[p.Queue].full = all[len(all)-1].To == cursor.End // nothing is behind
			c.seen[p.Queue].Whole = c.seen[p.Queue].Whole || all[0] == cursor.Whole
		}
		rows = segments(rows, p.Queue, i+1, all)
	}
	return rows
}

func (c *claiming) policies() (rows []policyRow) {
	for i, p := range c.Queues[c.from:c.to] {
		rows = append(rows, policyRow{i + 1, p.MaxAttempts, some(ms(p.Timeout)), ms(p.Backoff), ms(p.BackoffMax), some(ms(p.RetainDone)), some(ms(p.RetainDead))})
	}
	return rows
}

// slots are those that are left, or as many as one statement may fill.
func (c *claiming) slots() (rows []slotRow) {
	for i, s := range c.Slots[len(c.res.Jobs):] {
		if i == most {
			break
		}
		if s.Prefetch {
			s.Worker = "" // nobody yet
		}
		rows = append(rows, slotRow{i + 1, int64(s.Token.Host), int64(s.Token.Number), some(ms(s.Lease)), text(s.Worker), bit(s.Prefetch)})
	}
	return rows
}

// ask queues the claim's piece for the run.
func (c *claiming) ask(t *tx) {
	if c.done {
		return
	}
	p := t.s.sql.claim
	if c.Queues[c.from].LIFO {
		p = t.s.sql.claimNewest
	}
	slots := c.slots()
	var got []row
	t.add(p, []reader{each(func(rows *sql.Rows) error {
		r, err := c.scan(rows)
		got = append(got, r)
		return err
	}), func(rows *sql.Rows) error { return c.take(got, rows, t.s.server.babelfish) }},
		int64(len(slots)), c.left, c.MaxPayload, int64(c.host), int64(bit(!c.Strict && len(c.res.Jobs) == 0)),
		document(c.segments(time.Now())), document(c.policies()), document(slots))
}

// row is what a claim's piece answers for each row that it took.
type row struct {
	backends.Job
	slot   int
	place  int64
	policy int
}

func (c *claiming) scan(rows *sql.Rows) (r row, err error) {
	var id, timeout int64
	var headers string
	if err := rows.Scan(&r.slot, &r.policy, &r.place, &id, &r.Priority, &r.Attempt, &r.MaxAttempts, &r.Fence, &r.EnqueuedAt,
		&timeout, &headers, &r.Key, &r.LastError, &r.Payload); err != nil {
		return r, err
	}
	if r.policy < 1 || r.policy > c.to-c.from {
		return r, fmt.Errorf("sqlserver: the answer names policy %d of %d", r.policy, c.to-c.from)
	}
	policy := c.Queues[c.from+r.policy-1]
	r.ID, r.Queue, r.EnqueuedAt = batch.ID(id), policy.Queue, r.EnqueuedAt.UTC()
	r.Timeout = cmp.Or(batch.FromMS(timeout), policy.Timeout)
	r.Headers = batch.ReadHeaders(headers)
	return r, nil
}

// take reads which rows were left, and puts what the claim got into its slots. Rows
// come in any order.
func (c *claiming) take(got []row, rows *sql.Rows, babelfish bool) error {
	wanted := int64(0)
	for rows.Next() {
		var policy int
		var id, size int64
		switch err := rows.Scan(&policy, &id, &size); {
		case err != nil:
			return err
		case policy == 0:
			wanted = id
		case size > c.MaxPayload:
			c.large = append(c.large, tooLarge{id, size, c.Queues[c.from+policy-1]})
		default:
			c.res.More = true
		}
	}
	if int64(len(got)) != wanted {
		return shortClaim(wanted, len(got), babelfish)
	}
	c.give(got)
	c.filled = len(got) == most
	return nil
}

func (c *claiming) give(got []row) {
	slices.SortFunc(got, func(a, b row) int { return cmp.Compare(a.slot, b.slot) })
	first := len(c.res.Jobs)
	for i, r := range got {
		r.Token = c.Slots[first+i].Token
		c.res.Jobs = append(c.res.Jobs, r.Job)
		c.left -= int64(len(r.Payload))
		if l := c.seen[r.Queue]; l != nil {
			l.Taken = append(l.Taken, cursor.Spot{Urgency: -int32(r.Priority), Position: r.place})
		}
	}
	if len(got) > 0 { // the queues before the last job's gave all that they had
		last := c.from + got[len(got)-1].policy - 1
		for i, p := range c.Queues[c.from : last+1] {
			if l := c.seen[p.Queue]; l != nil && (c.from+i < last || l.full) {
				l.All = true
			}
		}
	}
}

// bury sends the jobs that are too large to dead.
func (c *claiming) bury(t *tx) {
	var rows []buryRow
	for _, l := range c.large {
		c.res.Failed.Add(l.policy.Queue, backends.CauseTooLarge, true)
		rows = append(rows, buryRow{l.id, l.policy.MaxAttempts, some(ms(l.policy.RetainDead)), backends.TooLarge(l.size, c.MaxPayload)})
	}
	c.large = nil
	t.add(t.s.sql.bury, nil, document(rows))
}

// The server does not tell which transactions are still at it to somebody without
// special rights. So "all that has a position by now" is over where it is a while
// ago, and nobody holds a lock there any more: a number is drawn by the very statement
// that stores its row, and from then on the row's lock tells of it. A statement that
// takes longer from the one to the other (a huge INSERT … SELECT, which may fill an
// index last) is what claims that look below their floors are for (cursor.Set.Unproven).
const settled = 10 * time.Second

// learn tells the cursors what the committed claims saw.
func (k *commitment) learn() {
	for _, c := range k.claims {
		for queue, l := range c.seen {
			l.Returns = k.last[slices.Index(k.queues, queue)]
			l.Ended = k.s.age()
			l.Begun = l.Ended + int64(settled)
			l.Took = time.Since(l.Asked)
			k.s.cursors.Learn(queue, l.Learned)
		}
	}
}

// prove moves the cursors' lows on. It is a hint: what fails is tried again later.
func (s *Store) prove(ctx context.Context, claims []backends.Claim) {
	for _, c := range claims {
		for _, p := range c.Queues {
			if p.LIFO {
				continue
			}
			proof, ok := s.cursors.ToProve(p.Queue)
			if !ok {
				continue
			}
			ended := s.age()
			first, err := s.probe(ctx, proof)
			if err != nil {
				s.log.Debug("a cursor stays where it is", "place", s.place, "queue", p.Queue, "error", err)
				continue
			}
			s.cursors.Advance(proof, ended, first)
		}
	}
}

// age is how long this Store has been open, in nanoseconds: its own clock, which
// nobody sets.
func (s *Store) age() int64 { return int64(time.Since(s.opened)) }

// probe finds the first ready position of each piece of a proof; 0: none.
func (s *Store) probe(ctx context.Context, p cursor.Proof) ([]int64, error) {
	first := make([]int64, len(p.Urgency))
	rows := make([]pieceRow, len(p.Urgency))
	for i, u := range p.Urgency {
		rows[i] = pieceRow{i, int16(-u), p.Low[i], p.High[i]}
	}
	err := s.sql.carryOut(ctx, s.db, []call{{s.sql.probe, []any{p.Queue, document(rows)}, []reader{each(func(rows *sql.Rows) error {
		var n int
		var position int64
		if err := rows.Scan(&n, &position); err != nil {
			return err
		}
		if n < 0 || n >= len(first) {
			return fmt.Errorf("sqlserver: the answer names piece %d of %d", n, len(first))
		}
		first[n] = position
		return nil
	})}}})
	return first, err
}
