package core

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// claim is one claim in progress. It is carried out in runs. A run is one statement for as many consecutive
// queues as have the same order, which is nearly always all of them.
type claim struct {
	backends.Claim
	s       *Store
	sidecar backends.Identity
	res     backends.ClaimResult
	left    int64 // bytes of payload that it can still return

	from, to int // the run: Queues[from:to]
	run      *Run
	done     bool
	again    bool // the run's statement was repeated because jobs returned to their old positions
	complete bool // a lean statement isn't enough
	careful  *Careful
	large    []TooLarge
	expired  int                 // expired jobs that it has ended
	groups   []Group             // of the claimed jobs
	learned  map[string]*learned // by queue, for the queues with a cursor
}

// learned is what a claim finds out for the cursor of a queue.
type learned struct {
	cursor.Learned
	toTheEnd bool // the last segment scanned ends at the end of the queue
}

// Run is the part of a claim that one statement carries out: queues of one order, the pieces of their ready
// jobs to scan, and the slots to fill.
type Run struct {
	Sidecar    backends.Identity
	Queues     []backends.Policy // either all first in, first out, or all LIFO
	Pieces     []Piece           // in the order in which to scan them
	Slots      []backends.Slot   // the i-th job belongs to the i-th slot
	MaxBytes   int64             // of the payloads returned
	MaxPayload int64             // of one job; the engine reports a larger one with LeftOver
	AtLeastOne bool              // return the first job even if it exceeds MaxBytes

	// LeanOK: the engine can use a statement that returns everything that it finds, or nothing if not all of it
	// fits. The engine sets Lean if it used one.
	LeanOK, Lean bool

	// Careful is nil, or has rows to leave out. The run has one queue then.
	Careful *Careful

	claim *claim
	given int // number of jobs
	lists bool
}

// Piece is a part of a queue's ready jobs. Queue is an index of Run.Queues.
type Piece struct {
	Queue int
	cursor.Segment
}

// Claimed is a job that a claim statement returned.
type Claimed struct {
	backends.Job
	Slot     int64 // from 1
	Queue    int   // an index of Run.Queues
	Position int64
	Losses   int // see backends.AttemptState

	Group string // in which the job has a slot; empty: none
}

// TooLarge is a ready job that a claim locked and can't deliver.
type TooLarge struct {
	ID, Size int64
	Policy   backends.Policy
	Message  string
}

// An Expirer returns expired rows to LeftOver with one of these sizes. They are larger than each Run.MaxPayload.
const (
	SizeExpired = math.MaxInt64     // the job becomes dead
	SizeRemoved = math.MaxInt64 - 1 // the job is deleted
)

// MostExpired is how many expired jobs one claim meets until it ends. Maintenance ends the others.
const MostExpired = 100

// startClaims queues the first statement of each claim. For queues with limits it first sends the queued statements, and passes their gates.
func (c *Commit) startClaims(ctx context.Context, tx Tx) (err error) {
	if len(c.batch.Claims) == 0 {
		return nil
	}
	if gated := gatedQueues(c.batch.Claims); len(gated) > 0 {
		c.claims, err = c.startGated(ctx, tx, gated)
		return err
	}
	c.claims = c.begin(ctx, tx, c.batch.Claims)
	return nil
}

// begin queues the first statements of claims.
func (c *Commit) begin(ctx context.Context, tx Tx, claims []backends.Claim) Claims {
	if own, ok := tx.(OwnClaimer); ok {
		return own.StartClaims(c.batch.Sidecar, claims, c.careful)
	}
	b := c.batch
	b.Claims = claims
	c.s.Cursors.Lower(forCursors(c.nextBacks))
	own := map[string]bool{}
	for _, b := range c.nextBacks {
		own[b.queue] = true
	}
	return c.s.startRuns(ctx, tx.(claimTx), b, queuesOf(c.given.Claims), own, c.careful)
}

// claimTx is a transaction that claims in runs.
type claimTx interface {
	Claimer
	Flush(ctx context.Context) error
}

// runs are the claims of one batch.
type runs struct {
	s      *Store
	tx     claimTx
	claims []*claim
	queues map[string]int // the queues of all claims, and their indexes in ClaimState.Returns
	state  ClaimState
	missed []string // queues with limits that the claims took for queues without
	own    map[string]bool
}

// startRuns queues the first run of each claim. names are those of TxOptions.Queues. own are the queues in which the transaction has
// returned jobs to their old positions.
func (s *Store) startRuns(ctx context.Context, tx claimTx, b backends.CommitContent, names []string, own map[string]bool, careful *Careful) *runs {
	x := &runs{s: s, tx: tx, queues: map[string]int{}, own: own}
	for i, q := range names {
		x.queues[q] = i
	}
	var queues []string // with cursors
	seen := map[string]bool{}
	for _, c := range b.Claims {
		for _, p := range c.Queues {
			if !p.LIFO && !seen[p.Queue] {
				seen[p.Queue] = true
				queues = append(queues, p.Queue)
			}
		}
	}
	tx.Prove(ctx, queues)
	for _, c := range b.Claims {
		c.MaxBytes, c.MaxPayload = cmp.Or(max(c.MaxBytes, 0), math.MaxInt64), min(cmp.Or(max(c.MaxPayload, 0), math.MaxInt64), SizeRemoved-1)
		c.Queues = distinct(c.Queues)
		cl := &claim{Claim: c, s: s, sidecar: b.Sidecar, left: c.MaxBytes, learned: map[string]*learned{}, careful: careful}
		x.claims = append(x.claims, cl)
		cl.next()
		cl.ask(tx)
	}
	return x
}

// distinct returns the policies, each queue only once.
func distinct(all []backends.Policy) []backends.Policy {
	seen := make(map[string]bool, len(all))
	return slices.DeleteFunc(slices.Clone(all), func(p backends.Policy) bool {
		twice := seen[p.Queue]
		seen[p.Queue] = true
		return twice
	})
}

// Finish implements Claims. It works in rounds: each round repeats the statements of claims that can get more
// jobs.
func (r *runs) Finish(ctx context.Context) (all []backends.ClaimResult, err error) {
	for {
		r.state = r.tx.ClaimState()
		r.readGates()
		more := false
		for _, c := range r.claims {
			more = c.goOn(r) || more
		}
		if !more {
			break
		}
		if err := r.tx.Flush(ctx); err != nil {
			return nil, err
		}
	}
	if len(r.missed) > 0 {
		return nil, errMissedGates(r.missed)
	}
	for _, c := range r.claims {
		for _, g := range c.groups {
			if r.state.Fair[r.queues[g.Queue]] {
				c.res.Groups = append(c.res.Groups, g)
			}
		}
		all = append(all, c.res)
	}
	return all, nil
}

// readGates finds queues with limits in ClaimState.Returns.
func (r *runs) readGates() {
	for i, n := range r.state.Returns {
		if n >= 0 {
			continue
		}
		r.state.Returns[i] = -1 - n
		for _, c := range r.claims {
			for _, p := range c.Queues {
				if r.queues[p.Queue] == i && !p.Gated && !slices.Contains(r.missed, p.Queue) {
					r.missed = append(r.missed, p.Queue)
				}
			}
		}
	}
}

// Committed implements Claims. It updates the cursors with what the claims found out.
func (r *runs) Committed() {
	for _, c := range r.claims {
		for queue, l := range c.learned {
			l.Returns = r.state.Returns[r.queues[queue]]
			l.Began, l.Ended, l.Begun, l.Below = r.state.Began, r.state.Ended, r.state.Begun, r.state.Below
			l.Took = r.s.LocalTime().Sub(l.Asked)
			r.s.Cursors.Learn(queue, l.Learned)
		}
	}
}

// goOn queues another statement if the claim can get more jobs. It returns false if the claim is done.
func (c *claim) goOn(r *runs) bool {
	tx, state := r.tx, r.state
	switch {
	case c.done:
		return false
	case c.run.Lean && !c.complete && (state.LeftSome || len(c.res.Jobs) == 0 && state.Wrote):
		// The statement left jobs, or possibly did: if the transaction wrote anything, that can be locks of jobs.
		c.complete = true
		c.ask(tx)
		return true
	case len(c.large) > 0: // the slots are still free for other jobs
		c.bury(tx)
		if c.done = c.careful != nil && c.careful.Few; c.expired >= MostExpired {
			c.done, c.res.More = true, true
		}
		if !c.done {
			c.ask(tx)
		}
		return true
	case len(c.res.Jobs) == len(c.Slots) || c.res.More || c.careful != nil && c.careful.Few:
		c.done = true
		return false
	case len(c.run.Slots) == c.s.traits.MaxRows && c.run.given == len(c.run.Slots):
		c.ask(tx)
		return true
	}
	for _, p := range c.run.Queues {
		if l := c.learned[p.Queue]; l != nil {
			l.All = !l.Left // the run returned fewer jobs than requested, so there are no more
		}
	}
	if c.returned(r) {
		c.ask(tx)
		return true
	}
	if c.next(); c.done {
		return false
	}
	c.ask(tx)
	return true
}

// returned reports whether jobs of the run's queues returned to positions behind the cursors. The statement may
// have been too early to see them. The next statement then scans the whole queues.
func (c *claim) returned(r *runs) bool {
	if c.again || c.careful != nil {
		return false
	}
	for _, p := range c.run.Queues {
		returns := r.state.Returns[r.queues[p.Queue]]
		if r.own[p.Queue] { // the statement saw these
			returns--
		}
		if c.s.Cursors.Returned(p.Queue, returns) {
			c.s.Cursors.Forget(p.Queue)
			c.again = true
		}
	}
	return c.again
}

// next moves on to the next run.
func (c *claim) next() {
	c.from, c.again = c.to, false
	if c.from == len(c.Queues) || len(c.Slots) == 0 {
		c.done = true
		return
	}
	for c.to++; c.to < len(c.Queues) && c.Queues[c.to].LIFO == c.Queues[c.from].LIFO; {
		c.to++
	}
}

// ask queues the run's statement.
func (c *claim) ask(tx claimTx) {
	if c.done {
		return
	}
	slots := c.Slots[len(c.res.Jobs):]
	if n := c.s.traits.MaxRows; n > 0 && len(slots) > n {
		slots = slots[:n]
	}
	c.run = &Run{
		Sidecar: c.sidecar, Queues: c.Queues[c.from:c.to], Slots: slots, MaxBytes: c.left, MaxPayload: c.MaxPayload,
		AtLeastOne: !c.Strict && len(c.res.Jobs) == 0, LeanOK: !c.complete && c.careful == nil, Careful: c.careful, claim: c,
	}
	if c.careful == nil {
		c.run.Pieces = c.s.pieces(c.run.Queues, c.learned, c.s.LocalTime())
		tx.Claim(c.run)
		return
	}
	c.run.Pieces = []Piece{{0, cursor.Whole}}
	if c.careful.Few { // with this limit, the statement locks the rows and leaves them as they are
		list := *c.run
		list.MaxPayload, list.lists = -1, true
		tx.Claim(&list)
	}
	tx.Claim(c.run)
}

// pieces returns the parts of the queues' ready jobs to scan, according to their cursors.
func (s *Store) pieces(queues []backends.Policy, seen map[string]*learned, now time.Time) (pieces []Piece) {
	for i, p := range queues {
		segments := []cursor.Segment{cursor.Whole}
		if !p.LIFO {
			l := seen[p.Queue]
			if l == nil {
				l = &learned{Learned: cursor.Learned{Asked: now}}
				seen[p.Queue] = l
			}
			var all bool
			segments, all = s.Cursors.Pieces(p.Queue, now)
			l.Left = !all
			l.toTheEnd = segments[len(segments)-1].To == cursor.End // no segment behind the heads follows
			l.Whole = l.Whole || segments[0] == cursor.Whole
		}
		for _, segment := range segments {
			pieces = append(pieces, Piece{i, segment})
		}
	}
	return pieces
}

// Give puts the jobs that a statement returned into the slots. The jobs can be in any order. The parameter
// `wanted` is how many jobs the statement selected. If fewer arrived, Give returns ErrSilent as a *backends.RefusedError.
func (r *Run) Give(got []Claimed, wanted int64) error {
	if int64(len(got)) != wanted {
		return backends.Refused(ErrSilent)
	}
	c := r.claim
	r.given = len(got)
	slices.SortFunc(got, func(a, b Claimed) int { return cmp.Compare(a.Slot, b.Slot) })
	for i := range got {
		g := &got[i]
		g.Token, g.Alone = r.Slots[i].Token, r.Slots[i].Alone(g.Attempt, g.MaxAttempts, g.Losses)
		if c.res.Jobs = append(c.res.Jobs, g.Job); g.Group != "" {
			c.groups = append(c.groups, Group{Queue: g.Job.Queue, Name: g.Group})
		}
		c.left -= int64(len(g.Payload))
		if l := c.learned[g.Job.Queue]; l != nil {
			l.Taken = append(l.Taken, cursor.Spot{Urgency: -int32(g.Priority), Position: g.Position})
		}
	}
	if len(got) == 0 {
		return nil
	}
	last := got[len(got)-1].Queue
	for i, p := range r.Queues[:last+1] { // the queues before the last job's have returned all their ready jobs
		if l := c.learned[p.Queue]; l != nil && !l.Left && (i < last || l.toTheEnd) {
			l.All = true
		}
	}
	return nil
}

// LeftOver reports a row that the statement locked and did not return.
func (r *Run) LeftOver(queue int, id, size int64) {
	switch c := r.claim; {
	case r.lists:
		c.careful.Tried = append(c.careful.Tried, id)
	case size > r.MaxPayload:
		c.large = append(c.large, TooLarge{ID: id, Size: size, Policy: r.Queues[queue], Message: backends.TooLarge(size, r.MaxPayload)})
	default:
		c.res.More = true
	}
}

// bury queues the statements that make the too large jobs dead, and end the expired ones.
func (c *claim) bury(tx claimTx) {
	var large []TooLarge
	var expired []Expired
	for _, l := range c.large {
		if l.Size < SizeRemoved {
			large = append(large, l)
			c.res.Failed.Add(l.Policy.Queue, backends.CauseTooLarge, true)
			continue
		}
		e := Expired{ID: l.ID, Queue: l.Policy.Queue, Remove: l.Size == SizeRemoved, RetainDead: l.Policy.RetainDead}
		expired = append(expired, e)
		c.res.Failed.Add(e.Queue, backends.CauseExpired, !e.Remove)
	}
	if len(large) > 0 {
		tx.Bury(large)
	}
	if len(expired) > 0 {
		tx.(Expirer).Expire(expired)
	}
	c.expired += len(expired)
	c.large = nil
}
