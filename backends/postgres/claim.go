package postgres

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// claiming is one claim under way. Its queues are asked in runs: as many at a
// time as have the same order, which is nearly always all of them.
type claiming struct {
	backends.Claim
	cursors *cursors
	host    backends.Identity
	res     backends.ClaimResult
	left    int64 // bytes that may still be given

	from, to int // the run: Queues[from:to]
	done     bool
	again    bool // the run was asked again because jobs came back
	careful  bool // the lean statement will not do
	lean     bool // the lean statement was asked
	large    []tooLarge
	seen     map[string]*learned // by queue; nil: nothing is remembered of it
}

// tooLarge is a ready row that the claim locked and must not give.
type tooLarge struct {
	id, size int64
	policy   backends.Policy
}

// startClaims queues the first run of each claim, and what the cursors want to know.
func (k *commitment) startClaims(t *tx) {
	asked := map[string]bool{}
	for _, c := range k.batch.Claims {
		c.MaxBytes, c.MaxPayload = cmp.Or(max(c.MaxBytes, 0), math.MaxInt64), cmp.Or(max(c.MaxPayload, 0), math.MaxInt64)
		cl := &claiming{Claim: c, cursors: &t.s.cursors, host: k.batch.Host, left: c.MaxBytes, seen: map[string]*learned{}}
		k.claims = append(k.claims, cl)
		for _, p := range c.Queues {
			if !p.LIFO && !asked[p.Queue] {
				asked[p.Queue] = true
				k.prove(t, p.Queue)
			}
		}
		cl.next()
		cl.ask(t)
	}
}

// probing is a proof under way.
type probing struct {
	cursor.Proof
	xmin  int64
	first []int64
}

func (k *commitment) prove(t *tx, queue string) {
	p, ok := t.s.cursors.ToProve(queue)
	if !ok {
		if t.s.cursors.Blocked(queue, t.s.localTime()) {
			t.askOwners()
		}
		return
	}
	probe := &probing{Proof: p}
	k.probes = append(k.probes, probe)
	t.each(t.s.sql.probe, func(rows pgx.Rows) error { return rows.Scan(&probe.xmin, &probe.first) }, queue, p.Urgency, p.Low, p.High)
}

// goOnClaims looks at what the claims got, and has those ask again that must.
func (k *commitment) goOnClaims(t *tx) (more bool) {
	queues := batch.QueuesOf(k.batch.Claims)
	k.last, k.began = t.last, t.began
	for _, c := range k.claims {
		if c.goOn(t, queues) {
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
	case c.lean && !c.careful && (t.last.left || len(c.res.Jobs) == 0 && t.last.xid != ""):
		// It left something, or may have: something was written, perhaps its locks.
		c.careful = true
		c.ask(t)
		return true
	case len(c.large) > 0: // room for others
		c.bury(t)
		c.ask(t)
		return true
	case len(c.res.Jobs) == len(c.Slots) || c.res.More:
		c.done = true
		return false
	}
	for _, p := range c.Queues[c.from:c.to] {
		if l := c.seen[p.Queue]; l != nil {
			l.All = !l.Left // it came back short: there was no more
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
		if c.cursors.Returned(p.Queue, t.last.returns[slices.Index(queues, p.Queue)]) {
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

// pieces are the arrays of segments that a statement looks through.
type pieces struct {
	queue            []string
	policy           []int32
	fromU, toU       []int32
	fromP, toP       []int64
	limits           []int32
	timeout, backoff []int64
	backoffMax, keep []int64
	keepDead         []int64
}

func (c *claiming) pieces(now time.Time) (x pieces) {
	for i, p := range c.Queues[c.from:c.to] {
		segments := []cursor.Segment{cursor.Whole}
		if !p.LIFO {
			if c.seen[p.Queue] == nil {
				c.seen[p.Queue] = &learned{Asked: now}
			}
			var all bool
			segments, all = c.cursors.Pieces(p.Queue, now)
			c.seen[p.Queue].Left = !all
			c.seen[p.Queue].Full = segments[len(segments)-1].To == cursor.End // nothing is behind
		}
		for _, s := range segments {
			x.queue, x.policy = append(x.queue, p.Queue), append(x.policy, int32(i+1))
			x.fromU, x.fromP = append(x.fromU, s.From.Urgency), append(x.fromP, s.From.Position)
			x.toU, x.toP = append(x.toU, s.To.Urgency), append(x.toP, s.To.Position)
		}
		x.limits, x.timeout = append(x.limits, int32(p.MaxAttempts)), append(x.timeout, ms(p.Timeout))
		x.backoff, x.backoffMax = append(x.backoff, ms(p.Backoff)), append(x.backoffMax, ms(p.BackoffMax))
		x.keep, x.keepDead = append(x.keep, ms(p.RetainDone)), append(x.keepDead, ms(p.RetainDead))
	}
	return x
}

// slots are the arrays of the slots that are left. Workers are many slots' own:
// each comes once.
type slots struct {
	host, number, lease []int64
	worker              []int32
	workers             []string
	ahead               []bool
	alike               bool // in all but token numbers and workers
}

func (c *claiming) slots() (x slots) {
	x.alike = true
	known := map[string]int32{}
	for _, s := range c.Slots[len(c.res.Jobs):] {
		if s.Prefetch {
			s.Worker = "" // nobody yet
		}
		n, ok := known[s.Worker]
		if !ok {
			x.workers = append(x.workers, s.Worker)
			n = int32(len(x.workers))
			known[s.Worker] = n
		}
		x.host, x.number = append(x.host, int64(s.Token.Host)), append(x.number, int64(s.Token.Number))
		x.lease, x.worker, x.ahead = append(x.lease, max(ms(s.Lease), 0)), append(x.worker, n), append(x.ahead, s.Prefetch)
		last := len(x.host) - 1
		x.alike = x.alike && x.host[last] == x.host[0] && x.lease[last] == x.lease[0] && x.ahead[last] == x.ahead[0]
	}
	return x
}

// ask queues the claim's statement for the run.
func (c *claiming) ask(t *tx) {
	if c.done {
		return
	}
	p, s := c.pieces(t.s.localTime()), c.slots()
	if c.lean = !c.careful && c.to == c.from+1 && !c.Queues[c.from].LIFO && s.alike; c.lean {
		t.add(t.s.sql.claimLean, c.takeLean, len(s.host), c.left, c.MaxPayload,
			p.queue[0], p.fromU, p.fromP, p.toU, p.toP,
			p.limits[0], p.timeout[0], p.backoff[0], p.backoffMax[0], p.keep[0], p.keepDead[0],
			s.host[0], s.number, s.lease[0], s.worker, s.workers, int64(c.host), s.ahead[0])
		return
	}
	sql := t.s.sql.claim
	if c.Queues[c.from].LIFO {
		sql = t.s.sql.claimLIFO
	}
	t.add(sql, c.take, len(s.host), c.left, c.MaxPayload,
		p.queue, p.policy, p.fromU, p.fromP, p.toU, p.toP,
		p.limits, p.timeout, p.backoff, p.backoffMax, p.keep, p.keepDead,
		s.host, s.number, s.lease, s.worker, s.workers, int64(c.host), !c.Strict && len(c.res.Jobs) == 0, s.ahead)
}

// row is what a claim's statement answers for each row that it locked.
type row struct {
	backends.Job
	slot, place, id int64
	policy          int32
	size            int64
}

// take reads the answer. Rows come in any order.
func (c *claiming) take(rows pgx.Rows) error {
	got, wanted := make([]row, 0, len(c.Slots)-len(c.res.Jobs)), int64(0)
	for rows.Next() {
		var r row
		var timeout int64
		var headers string
		if err := rows.Scan(&r.slot, &r.policy, &r.size, &r.place, &r.id, &r.Priority, &r.Attempt, &r.MaxAttempts, &r.Fence, instant{&r.EnqueuedAt},
			&timeout, &headers, &r.Key, &r.LastError, &r.Payload); err != nil {
			return err
		}
		if r.slot < 0 {
			wanted = r.size
			continue
		}
		policy := c.Queues[c.from+int(r.policy)-1]
		if r.slot == 0 {
			if r.size > c.MaxPayload {
				c.large = append(c.large, tooLarge{r.id, r.size, policy})
			} else {
				c.res.More = true
			}
			continue
		}
		r.complete(policy, timeout, headers)
		got = append(got, r)
	}
	return c.give(got, wanted)
}

// takeLean reads the answer of the lean statement.
func (c *claiming) takeLean(rows pgx.Rows) error {
	got, wanted := make([]row, 0, len(c.Slots)-len(c.res.Jobs)), int64(0)
	for rows.Next() {
		r := row{policy: 1}
		var timeout int64
		var headers string
		if err := rows.Scan(&r.slot, &wanted, &r.place, &r.id, &r.Priority, &r.Attempt, &r.MaxAttempts, &r.Fence, instant{&r.EnqueuedAt},
			&timeout, &headers, &r.Key, &r.LastError, &r.Payload); err != nil {
			return err
		}
		r.complete(c.Queues[c.from], timeout, headers)
		got = append(got, r)
	}
	return c.give(got, wanted)
}

func (r *row) complete(policy backends.Policy, timeout int64, headers string) {
	r.ID, r.Queue, r.EnqueuedAt = idOf(r.id), policy.Queue, r.EnqueuedAt.UTC()
	r.Timeout = cmp.Or(fromMS(timeout), policy.Timeout)
	r.Headers = batch.ReadHeaders(headers)
}

// give puts what the claim got into its slots.
func (c *claiming) give(got []row, wanted int64) error {
	if int64(len(got)) != wanted {
		return backends.Refused(errPassedOver)
	}
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
		last := c.from + int(got[len(got)-1].policy) - 1
		for i, p := range c.Queues[c.from : last+1] {
			if l := c.seen[p.Queue]; l != nil && !l.Left && (c.from+i < last || l.Full) {
				l.All = true
			}
		}
	}
	return nil
}

// bury sends the jobs that are too large to dead.
func (c *claiming) bury(t *tx) {
	var id, keepDead []int64
	var limits []int32
	var message []string
	for _, l := range c.large {
		id, keepDead = append(id, l.id), append(keepDead, ms(l.policy.RetainDead))
		limits = append(limits, int32(l.policy.MaxAttempts))
		message = append(message, backends.TooLarge(l.size, c.MaxPayload))
		c.res.Failed.Add(l.policy.Queue, backends.CauseTooLarge, true)
	}
	c.large = nil
	t.add(t.s.sql.bury, nil, id, limits, keepDead, message)
}

// learn tells the cursors what the committed claims saw.
func (k *commitment) learn(queues []string) {
	for _, p := range k.probes {
		k.s.cursors.Advance(p.Proof, p.xmin, p.first)
	}
	for _, c := range k.claims {
		for queue, l := range c.seen {
			l.Began, l.Returns, l.Ended = k.began, k.last.returns[slices.Index(queues, queue)], k.last.xmin
			l.Took = k.s.localTime().Sub(l.Asked)
			k.s.cursors.Learn(queue, *l)
		}
	}
}
