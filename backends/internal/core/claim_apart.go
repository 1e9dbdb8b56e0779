package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
)

// The database can refuse to change rows of qsidecar_jobs: a trigger, a CHECK, a policy. Then the claims of their queue fail. These
// rows must keep neither other queues nor the other rows from their workers. While a queue has such rows, each claim of it runs
// apart from others.

// CommitWith implements backends.Adopter.
func (s *Store) CommitWith(ctx context.Context, b backends.CommitContent, hooks backends.TxHooks) (backends.Results, error) {
	for try := 1; ; try++ {
		inner, leave := s.tables.Enter(ctx, backends.AllOwnTables)
		open, out, err := s.leaveLockedOut(b, hooks)
		if err != nil {
			leave()
			return backends.Results{}, err
		}
		if len(open.Writes)+len(open.Claims) == 0 && hooks.Before == nil && hooks.After == nil && out.rights {
			leave()
			return out.fill(backends.Results{}), nil
		}
		res, err := s.commitOpen(inner, open, hooks)
		why := s.endedByLock(ctx, inner, err)
		leave()
		switch {
		case why != nil: // once more without what needs the table
		case try < mostRightTries && backends.LacksRight(err) && s.findRights(ctx, false): // once more without what needs the right
		case err != nil:
			if isLockedError(err) && !hooks.Writes && !hooks.Claims { // rows of adopted tables often are
				s.tables.Suspect()
			}
			return backends.Results{}, err
		default:
			return out.fill(res), nil
		}
	}
}

// commitOpen commits what needs no locked table, as far as it is known.
func (s *Store) commitOpen(ctx context.Context, b backends.CommitContent, hooks backends.TxHooks) (backends.Results, error) {
	open, closed, apart := s.openQueues(b)
	alone := len(b.Writes) == 0 && len(b.Claims) == 1 && hooks.Before == nil && hooks.After == nil
	if alone && len(apart) > 0 {
		return only(s.claimApart(ctx, b.Sidecar, apart[0], false))
	}
	res, err := s.commitMixed(ctx, open, hooks)
	if alone && backends.IsRefused(err) {
		return only(s.claimApart(ctx, b.Sidecar, open.Claims[0], true))
	}
	if err != nil {
		return backends.Results{}, err
	}
	if s.obstacles.Some() {
		s.claimed(open, res)
		s.settled(open, res)
	}
	for n, err := range closed {
		res.Claims[n].Err = err
	}
	for n, c := range apart { // the rest is committed, so that its results must reach the caller
		one, err := s.claimApart(ctx, b.Sidecar, c, false)
		if errors.Is(err, backends.ErrEvicted) {
			one.More = true
		} else if err != nil {
			one.Err = err
		}
		res.Claims[n] = one
		res.Groups = append(res.Groups, one.Groups...)
	}
	return res, nil
}

func isLockedError(err error) bool {
	_, locked := errors.AsType[*backends.LockedError](err)
	return locked
}

func only(one backends.ClaimResult, err error) (backends.Results, error) {
	if err != nil {
		return backends.Results{}, err
	}
	return backends.Results{Writes: []backends.WriteResult{}, Claims: []backends.ClaimResult{one}, Groups: one.Groups}, nil
}

// openQueues leaves the queues out of claims that are obstacles. closed has the errors of claims of no others. apart are the claims
// of queues with refused rows, which open has without queues.
func (s *Store) openQueues(b backends.CommitContent) (open backends.CommitContent, closed map[int]error, apart map[int]backends.Claim) {
	if !s.obstacles.Some() || len(b.Claims) == 0 {
		return b, nil, nil
	}
	closed, apart = map[int]error{}, map[int]backends.Claim{}
	b.Claims = slices.Clone(b.Claims)
	for n := range b.Claims {
		c := &b.Claims[n]
		var why error
		c.Queues = slices.DeleteFunc(slices.Clone(c.Queues), func(p backends.Policy) bool {
			wait := s.obstacles.Waits(p.Queue, "", backends.DoingClaim)
			if o := s.obstacles.Find(p.Queue, "", backends.DoingClaim); wait && o != nil {
				why = refusedQueue(p.Queue, o.Err)
			}
			return wait
		})
		switch {
		case len(c.Queues) == 0 && why != nil:
			closed[n] = why
		case slices.ContainsFunc(c.Queues, func(p backends.Policy) bool { return s.hasRefused(p.Queue) }):
			apart[n] = *c
			c.Queues = nil
		}
	}
	return b, closed, apart
}

func (s *Store) hasRefused(queue string) bool {
	all, _ := s.obstacles.JobsOf(backends.DoingClaim, queue)
	return len(all) > 0
}

func refusedQueue(queue string, err error) error {
	return &backends.UnavailableError{Queue: queue, Err: fmt.Errorf("claims of its jobs in qsidecar_jobs fail, and are tried again: %w", err)}
}

// claimed ends the obstacles of queues whose claims succeeded. Only the first queue of a claim was certainly tried.
func (s *Store) claimed(b backends.CommitContent, res backends.Results) {
	for n := range b.Claims {
		if all := b.Claims[n].Queues; len(all) > 0 && res.Claims[n].Err == nil {
			s.obstacles.Clear(all[0].Queue, "", backends.DoingClaim)
		}
	}
}

// settled makes the next claims try refused rows again after a settle, which can have ended obstacles. The queue of a settled
// job isn't always known, so those of all queues are tried.
func (s *Store) settled(b backends.CommitContent, res backends.Results) {
	for n, w := range b.Writes {
		if !hasLeases(w) || res.Writes[n].Err != nil {
			continue
		}
		for queue, r := range s.retries.each {
			if s.hasRefused(queue) {
				r.Settled()
				addQueue(&res.Writes[n], queue)
			}
		}
	}
}

// claimApart carries out a claim, from each queue in transactions of its own. refused: the database refused the claim in one
// transaction.
func (s *Store) claimApart(ctx context.Context, sidecar backends.Identity, c backends.Claim, refused bool) (backends.ClaimResult, error) {
	all := ClaimParts{Claim: c, Left: c.MaxBytes}
	var failed, slotFailed, held error
	worked := false
	queues := c.Queues
	gatesLast := isMixed(c) && s.heldGates.next() // see commitMixed
	if gatesLast {
		queues = append(slices.DeleteFunc(slices.Clone(c.Queues), func(p backends.Policy) bool { return p.Gated }), slices.DeleteFunc(slices.Clone(c.Queues), func(p backends.Policy) bool { return !p.Gated })...)
	}
	for _, p := range queues {
		if gatesLast && p.Gated && len(all.Res.Jobs) > 0 {
			all.Res.More = true
		}
		if all.Full() {
			break
		}
		part := ClaimParts{Claim: all.Next([]backends.Policy{p}), Left: all.Left}
		err := s.claimFrom(ctx, sidecar, &part, refused && len(c.Queues) == 1)
		switch _, ofSlot := errors.AsType[*backends.SlotError](err); {
		case err == nil:
			worked = true
			s.obstacles.Clear(p.Queue, "", backends.DoingClaim)
			all.Add(part.Res)
		case ofSlot:
			slotFailed = err
		case backends.IsRefused(err):
			s.obstacles.Note(backends.Obstacle{Queue: p.Queue, Doing: backends.DoingClaim, Err: err})
			failed = refusedQueue(p.Queue, err)
		case p.Gated && isLockedError(err) && isMixed(c):
			s.heldGates.n.Store(heldGateCommits)
			held = err
		case all.Unless(err) != nil:
			return backends.ClaimResult{}, err
		}
	}
	switch {
	case len(all.Res.Jobs) > 0:
		all.Res.More = all.Res.More || held != nil
	case held != nil:
		return backends.ClaimResult{}, held
	case slotFailed != nil:
		all.Res.Err = slotFailed
	case !worked:
		all.Res.Err = failed
	}
	return all.Res, nil
}

// claimFrom claims from the only queue of a claim, and leaves its refused rows out. refused: the database refused the claim, so
// that there are others.
func (s *Store) claimFrom(ctx context.Context, sidecar backends.Identity, all *ClaimParts, refused bool) error {
	p := all.Claim.Queues[0]
	known, due := s.obstacles.JobsOf(backends.DoingClaim, p.Queue)
	var retry []string // rows to try again
	if len(known) > 0 {
		began, retries := s.obstacles.Time(), s.retries.of(p.Queue)
		if retry = retries.Take(known, due, began); len(retry) > 0 {
			defer func() { retries.Took(began, s.obstacles.Time()) }()
		}
	}
	tried := func(c backends.Claim, got backends.ClaimResult) {
		for _, job := range retry { // those that the last claim of the queue didn't get are gone
			if last := len(got.Jobs) < len(c.Slots) && !got.More; last || slices.ContainsFunc(got.Jobs, func(j backends.Job) bool { return j.ID == job }) {
				s.obstacles.Clear(p.Queue, job, backends.DoingClaim)
			}
		}
	}
	n := max(1, len(all.Claim.Slots)/2)
	if !refused {
		var k *Careful
		if len(known) > 0 {
			k = &Careful{Except: s.exceptions(p.Queue, retry, nil)}
		}
		got, err := s.claimOnly(ctx, sidecar, all.Claim, k)
		if err == nil {
			tried(all.Claim, got)
			all.Add(got)
			return nil
		}
		if !backends.IsRefused(err) {
			return err
		}
		if len(retry) > 0 { // probably one of these
			n = 1
		}
	}
	search := RefusedSearch{Set: &s.obstacles, Queue: p, Few: func(ctx context.Context, c backends.Claim, n int, except []string, dry bool) (backends.ClaimResult, []string, error) {
		c.Slots = c.Slots[:min(n, len(c.Slots))]
		k := &Careful{Except: s.exceptions(p.Queue, retry, except), Few: true, dry: dry}
		got, err := s.claimOnly(ctx, sidecar, c, k)
		if err == nil {
			tried(backends.Claim{}, got)
		}
		rows := make([]string, len(k.Tried))
		for i, id := range k.Tried {
			rows[i] = ID(id)
		}
		return got, rows, err
	}}
	return search.Run(ctx, all, n)
}

// claimOnly carries out one claim as a transaction of its own.
func (s *Store) claimOnly(ctx context.Context, sidecar backends.Identity, c backends.Claim, k *Careful) (backends.ClaimResult, error) {
	res, err := s.commitWith(ctx, backends.CommitContent{Sidecar: sidecar, Claims: []backends.Claim{c}}, backends.TxHooks{}, k)
	if err != nil {
		return backends.ClaimResult{}, err
	}
	return res.Claims[0], nil
}

// exceptions are the ids of the queue's refused rows without those in retry, and of those in others.
func (s *Store) exceptions(queue string, retry, others []string) []int64 {
	known, _ := s.obstacles.JobsOf(backends.DoingClaim, queue)
	known = slices.DeleteFunc(known, func(job string) bool { return slices.Contains(retry, job) })
	ids := idsOf(slices.Concat(known, others))
	slices.Sort(ids)
	return ids
}

// queueRetries are the Retries of queues that have or had refused rows.
type queueRetries struct {
	mu  sync.Mutex
	all map[string]*Retries
}

func (q *queueRetries) of(queue string) *Retries {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all == nil {
		q.all = map[string]*Retries{}
	}
	if q.all[queue] == nil {
		q.all[queue] = &Retries{}
	}
	return q.all[queue]
}

func (q *queueRetries) each(yield func(string, *Retries) bool) {
	q.mu.Lock()
	all := maps.Clone(q.all)
	q.mu.Unlock()
	maps.All(all)(yield)
}
