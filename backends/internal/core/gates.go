package core

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Queues with limits (see backends.Limits). A claim from such a queue first locks and writes the queue's row in qsidecar_gates, so
// that one transaction at a time claims from it. The next statement reads the limits and counts: a single statement would
// count with the snapshot from before the wait. The claim then has as many slots as the limits allow. At last it writes how
// far the rate is used up, and the claimed jobs into qsidecar_capped.
//
// Rows are counted, never a counter. Only claims of queues with a cap write to qsidecar_capped. Settles don't read or write it: a claim
// deletes the rows of jobs that are no longer claimed, before it counts. So the queue has at most as many rows there as its
// cap, and a dead sidecar's jobs count until they are reaped.
//
// Other claims read with their last statement whether a queue has limits. If it has, the transaction is rolled back and
// carried out without the queue (errMissedGates).

// Gatekeeper is a Tx of an engine whose queues can have limits.
type Gatekeeper interface {
	// Gates locks and writes the gates of queues, in this order, and then reads them. If the limits of a queue with a cap
	// changed since GateSettles, it enters all claimed jobs of the queue first: claims without backends.Policy.Gated did not.
	Gates(ctx context.Context, queues []string) ([]*backends.Gate, error)

	// PassGate moves the gate's NextAt: advance after the present time, or after next if that is later. It enters the claimed jobs
	// with the ids, if there are some and the queue has a cap.
	PassGate(g *backends.Gate, next, advance time.Duration, ids []int64)

	// PassNone is called if no gate lets a job through, and nothing else is claimed or written. The commit needn't be on disk then.
	// Otherwise it must be before it is answered, so that a crash of the server forgets no start.
	PassNone()

	// QueueLimits reads and locks the limits of a queue.
	QueueLimits(ctx context.Context, queue string) (backends.Limits, error)

	// SetLimits stores the limits of a queue, and reports whether it has ready jobs.
	SetLimits(ctx context.Context, queue string, l backends.Limits) (ready bool, err error)
}

// GateSettles is how long after a change of the limits a claim can still be under way that began before.
const GateSettles = time.Minute

// LimitsReader is a Reader of an engine whose queues can have limits.
type LimitsReader interface {
	// AllLimits returns the limits of all queues that have some.
	AllLimits(ctx context.Context) (map[string]backends.Limits, error)
}

// errMissedGates are queues with limits that a claim took for queues without.
type errMissedGates []string

func (e errMissedGates) Error() string { return "queues have limits: " + strings.Join(e, ", ") }

// Is makes errMissedGates an ErrNotAll: the transaction was rolled back, and its batch is carried out in another way.
func (e errMissedGates) Is(target error) bool { return target == ErrNotAll }

// gatedQueues returns the queues of the claims that have limits, in order.
func gatedQueues(claims []backends.Claim) (queues []string) {
	for i := range claims {
		for _, p := range claims[i].Queues {
			if p.Gated {
				queues = append(queues, p.Queue)
			}
		}
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}

func hasGates(c backends.Claim) bool {
	return slices.ContainsFunc(c.Queues, func(p backends.Policy) bool { return p.Gated })
}

// isMixed reports whether the claim names queues with and without limits.
func isMixed(c backends.Claim) bool {
	return hasGates(c) && slices.ContainsFunc(c.Queues, func(p backends.Policy) bool { return !p.Gated })
}

// heldGateCommits is for how many commits a held gate is left out at first. Each one that passed it by has jobs, so that a hung
// host costs one short wait in so many claims.
const heldGateCommits = 20

// commitMixed commits a batch. If it only claims, from queues with and without limits, then a gate that another host holds delays no
// other queue for long: the claims take from the others, and pass the gate if those have no job. If the database refuses the claim,
// the caller finds out which queue is the reason.
func (s *Store) commitMixed(ctx context.Context, b backends.CommitContent, hooks backends.TxHooks) (res backends.Results, err error) {
	if len(b.Writes) > 0 || hooks.Before != nil || hooks.After != nil || !slices.ContainsFunc(b.Claims, isMixed) {
		return s.commitWith(ctx, b, hooks, nil)
	}
	b.WaitForLocks = false
	if !s.heldGates.next() {
		if res, err = s.commitWith(ctx, b, hooks, nil); err == nil || IsOutage(ctx, err) || errors.Is(err, backends.ErrEvicted) || backends.IsRefused(err) {
			return res, err
		}
		s.heldGates.n.Store(heldGateCommits)
	}
	others := b
	others.Claims = slices.Clone(b.Claims)
	for i := range others.Claims {
		c := &others.Claims[i]
		c.Queues = slices.DeleteFunc(slices.Clone(c.Queues), func(p backends.Policy) bool { return p.Gated })
	}
	free, failed := s.commitWith(ctx, others, hooks, nil)
	claimed := func(r backends.ClaimResult) bool { return len(r.Jobs) > 0 || len(r.Failed) > 0 }
	if failed != nil || slices.ContainsFunc(free.Claims, claimed) {
		for i := range free.Claims {
			if hasGates(b.Claims[i]) && claimed(free.Claims[i]) {
				free.Claims[i].More = true // in the queues that were left out
			}
		}
		return free, failed
	}
	if err != nil { // it waited for the gate already
		return res, err
	}
	if res, err = s.commitWith(ctx, b, hooks, nil); err == nil {
		s.heldGates.n.Store(0)
	}
	return res, err
}

// withoutMissed leaves the queues out of the claims.
func withoutMissed(claims []backends.Claim, missed []string) []backends.Claim {
	claims = slices.Clone(claims)
	for i := range claims {
		claims[i].Queues = slices.DeleteFunc(slices.Clone(claims[i].Queues), func(p backends.Policy) bool {
			return !p.Gated && slices.Contains(missed, p.Queue)
		})
	}
	return claims
}

// reportMissed adds the queues that were left out to the results.
func (c *Commit) reportMissed() {
	for i := range c.res.Claims {
		for _, p := range c.given.Claims[i].Queues {
			if !p.Gated && slices.Contains(c.missed, p.Queue) {
				r := &c.res.Claims[i]
				r.Gates, r.More = append(r.Gates, backends.GateResult{Queue: p.Queue, Missed: true}), true
			}
		}
	}
}

// gatedClaims are claims of which some pass gates. They run one after the other, queue by queue, because each needs to know what
// the ones before it took.
type gatedClaims struct {
	c     *Commit
	tx    Tx
	gates map[string]*backends.Gate

	results []backends.ClaimResult
	left    int64 // bytes of payload that the present claim can still return
	at      int   // the present claim
	queue   int   // of the next part
	part    *gatePart
	parts   []Claims // that ran
}

// gatePart is a claim of consecutive queues without limits, or of one queue with limits.
type gatePart struct {
	claims  Claims
	gate    *backends.Gate
	wanted  int
	allowed int
}

func (c *Commit) startGated(ctx context.Context, tx Tx, queues []string) (Claims, error) {
	g := &gatedClaims{c: c, tx: tx, gates: map[string]*backends.Gate{}, results: make([]backends.ClaimResult, len(c.batch.Claims))}
	keeper, ok := tx.(Gatekeeper)
	if !ok { // the queue can't have limits
		for i := range g.results {
			for _, q := range queues {
				g.results[i].Gates = append(g.results[i].Gates, backends.GateResult{Queue: q, Removed: true})
			}
		}
	} else {
		all, err := keeper.Gates(ctx, queues)
		if err != nil {
			return nil, err
		}
		for _, one := range all {
			g.gates[one.Queue] = one
			if next := one.Next(); one.Rate.Jobs > 0 && next != one.NextAt { // the clock was set back
				keeper.PassGate(one, next, 0, nil)
				one.NextAt = next
			}
		}
	}
	g.left = g.maxBytes()
	if g.next(ctx); ok && g.part == nil && len(c.given.Writes) == 0 && !c.hooks.Writes {
		keeper.PassNone()
	}
	return g, nil
}

func (g *gatedClaims) maxBytes() int64 {
	return cmp.Or(max(g.c.batch.Claims[g.at].MaxBytes, 0), math.MaxInt64)
}

// next queues the first statement of the next part. It leaves part nil if there is none.
func (g *gatedClaims) next(ctx context.Context) {
	for g.part = nil; g.at < len(g.results); {
		c, r := &g.c.batch.Claims[g.at], &g.results[g.at]
		wanted := len(c.Slots) - len(r.Jobs)
		if g.queue == len(c.Queues) || wanted == 0 || r.More {
			if g.at, g.queue = g.at+1, 0; g.at < len(g.results) {
				g.left = g.maxBytes()
			}
			continue
		}
		from := g.queue
		gate := g.gates[c.Queues[from].Queue]
		for g.queue++; gate == nil && g.queue < len(c.Queues) && g.gates[c.Queues[g.queue].Queue] == nil; {
			g.queue++
		}
		allowed := wanted
		if gate != nil {
			allowed = gate.Starts(wanted)
		}
		if allowed == 0 {
			r.Gates = append(r.Gates, gate.Result(wanted, 0, 0))
			continue
		}
		sub := *c
		sub.Queues, sub.Slots = c.Queues[from:g.queue], c.Slots[len(r.Jobs):len(r.Jobs)+allowed]
		sub.MaxBytes, sub.Strict = max(g.left, 1), c.Strict || len(r.Jobs) > 0
		g.part = &gatePart{claims: g.c.begin(ctx, g.tx, []backends.Claim{sub}), gate: gate, wanted: wanted, allowed: allowed}
		return
	}
}

// Finish implements Claims.
func (g *gatedClaims) Finish(ctx context.Context) ([]backends.ClaimResult, error) {
	for g.part != nil {
		p, r := g.part, &g.results[g.at]
		all, err := p.claims.Finish(ctx)
		if err != nil {
			return nil, err
		}
		g.parts = append(g.parts, p.claims)
		one := all[0]
		for i := range one.Jobs {
			g.left -= int64(len(one.Jobs[i].Payload))
		}
		r.Jobs, r.More, r.Gates = append(r.Jobs, one.Jobs...), one.More, append(r.Gates, one.Gates...)
		r.Failed.AddAll(one.Failed)
		r.Groups = append(r.Groups, one.Groups...)
		if p.gate != nil {
			g.pass(p, r, one.Jobs)
		}
		if g.next(ctx); g.part != nil {
			if err := g.tx.Flush(ctx); err != nil {
				return nil, err
			}
		}
	}
	return g.results, nil
}

// pass records the jobs that a part claimed.
func (g *gatedClaims) pass(p *gatePart, r *backends.ClaimResult, jobs []backends.Job) {
	r.Gates = append(r.Gates, p.gate.Result(p.wanted, p.allowed, len(jobs)))
	if len(jobs) == 0 || !p.gate.Some() {
		return
	}
	ids := make([]int64, 0, len(jobs))
	for i := range jobs {
		if id, ok := Number(jobs[i].ID); ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	next, advance := p.gate.Next(), p.gate.Advance(len(jobs))
	g.tx.(Gatekeeper).PassGate(p.gate, next, advance, ids)
	p.gate.Claimed += int64(len(jobs))
	p.gate.NextAt = max(next, p.gate.Now) + advance
}

// Committed implements Claims.
func (g *gatedClaims) Committed() {
	for _, c := range g.parts {
		c.Committed()
	}
}

// setLimits carries out a command of the kind backends.Limit.
func setLimits(ctx context.Context, tx Tx, c *backends.Command) (ready bool, err error) {
	keeper, ok := tx.(Gatekeeper)
	if !ok {
		return false, &backends.UnsupportedError{Queue: c.Queue, What: "limits", NoLimits: true}
	}
	groups, ok := tx.(Grouper)
	if !ok && c.Limits.OfGroups() {
		return false, &backends.UnsupportedError{Queue: c.Queue, What: groupLimitOf(c.Limits), NoGroups: true}
	}
	old, err := keeper.QueueLimits(ctx, c.Queue)
	if err != nil {
		return false, err
	}
	l, err := c.Limits.Apply(old)
	if err != nil {
		return false, err
	}
	if ok && (l.GroupLimit != old.GroupLimit || l.GroupReady != old.GroupReady) {
		groups.NoteAllGroups(c.Queue)
	}
	return keeper.SetLimits(ctx, c.Queue, l)
}

// missedGates returns the missed queues of err.
func missedGates(err error) []string {
	missed, _ := errors.AsType[errMissedGates](err)
	return missed
}

// groupLimitOf returns the name of the limit of groups that a change names.
func groupLimitOf(l backends.LimitsChange) string {
	switch {
	case l.GroupLimit != nil:
		return "group_limit"
	case l.GroupReady != nil:
		return "group_ready"
	}
	return "group_on_failure"
}
