package core

import (
	"context"
	"fmt"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// The database can refuse to change a claimed row: a trigger, a CHECK, a policy. Then the claims of its queue fail, and must
// not keep those of other queues from their jobs. The queue becomes an obstacle, which claims leave out until it is due.

// CommitWith implements backends.Adopter.
func (s *Store) CommitWith(ctx context.Context, b backends.Batch, hooks backends.TxHooks) (backends.Results, error) {
	if len(b.Claims) == 0 {
		return s.commitWith(ctx, b, hooks)
	}
	open, closed := s.openQueues(b)
	res, err := s.commitWith(ctx, open, hooks)
	switch {
	case err == nil:
		s.claimed(open, res)
	case backends.IsRefused(err) && len(b.Writes) == 0 && len(b.Claims) == 1 && hooks.Before == nil && hooks.After == nil:
		if res, err = s.claimApart(ctx, open, err); err != nil {
			return backends.Results{}, err
		}
	default:
		return backends.Results{}, err
	}
	for n, err := range closed {
		res.Claims[n].Err = err
	}
	return res, nil
}

// openQueues leaves the queues out of claims that are obstacles. closed has the errors of claims of no others.
func (s *Store) openQueues(b backends.Batch) (open backends.Batch, closed map[int]error) {
	if !s.obstacles.Some() {
		return b, nil
	}
	closed = map[int]error{}
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
		if len(c.Queues) == 0 && why != nil {
			closed[n] = why
		}
	}
	return b, closed
}

func refusedQueue(queue string, err error) error {
	return &backends.UnavailableError{Queue: queue, Err: fmt.Errorf("claims of its jobs in qsidecar_jobs fail, and are tried again: %w", err)}
}

// claimed ends the obstacles of queues whose claims succeeded. Only the first queue of a claim was certainly tried.
func (s *Store) claimed(b backends.Batch, res backends.Results) {
	if !s.obstacles.Some() {
		return
	}
	for n := range b.Claims {
		if all := b.Claims[n].Queues; len(all) > 0 && res.Claims[n].Err == nil {
			s.obstacles.Clear(all[0].Queue, "", backends.DoingClaim)
		}
	}
}

// claimApart makes the only claim of a batch again, from each queue in a transaction of its own, after the database refused it
// with why.
func (s *Store) claimApart(ctx context.Context, b backends.Batch, why error) (backends.Results, error) {
	c := b.Claims[0]
	var all backends.ClaimResult
	var failed error
	worked := false
	left := c.MaxBytes
	for _, p := range c.Queues {
		if len(all.Jobs) == len(c.Slots) || all.More {
			break
		}
		part := c
		part.Queues, part.Slots, part.MaxBytes, part.Strict = []backends.Policy{p}, c.Slots[len(all.Jobs):], left, c.Strict || len(all.Jobs) > 0
		one, err := backends.Results{}, why
		if len(c.Queues) > 1 {
			one, err = s.commitWith(ctx, backends.Batch{Host: b.Host, Claims: []backends.Claim{part}}, backends.TxHooks{})
		}
		switch {
		case err == nil:
			worked = true
			s.obstacles.Clear(p.Queue, "", backends.DoingClaim)
			got := one.Claims[0]
			all.Jobs, all.More = append(all.Jobs, got.Jobs...), got.More
			all.Failed.AddAll(got.Failed)
			for i := range got.Jobs {
				left -= int64(len(got.Jobs[i].Payload))
			}
			if left <= 0 && c.MaxBytes > 0 {
				all.More = true
			}
		case backends.IsRefused(err):
			s.obstacles.Note(backends.Obstacle{Queue: p.Queue, Doing: backends.DoingClaim, Err: err})
			failed = refusedQueue(p.Queue, err)
		case len(all.Jobs) > 0: // these are claimed
			all.More = true
		default:
			return backends.Results{}, err
		}
	}
	if !worked {
		all.Err = failed
	}
	return backends.Results{Writes: []backends.WriteResult{}, Claims: []backends.ClaimResult{all}}, nil
}
