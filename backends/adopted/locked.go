package adopted

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

func locked(err error) bool {
	var l *backends.LockedError
	return errors.As(err, &l)
}

// apart is a commit in which another program's lock was in the way of a claim, or of a
// write beside it: the writes are made by themselves, and then each adopted queue is
// asked by itself. One whose rows are locked is blocked: it has nothing to give just
// now, and must hold up no other.
func (s *Store) apart(ctx context.Context, b backends.Batch, blocked map[string]bool) (backends.Results, error) {
	res := backends.Results{Writes: make([]backends.WriteResult, len(b.Writes)), Claims: make([]backends.ClaimResult, len(b.Claims))}
	rest := backends.Batch{Host: b.Host}
	var others, mine []int
	asked := map[string]bool{}
	for n, c := range b.Claims {
		if !s.allOf(c, ofAdopted) {
			others, rest.Claims = append(others, n), append(rest.Claims, c)
			continue
		}
		mine = append(mine, n)
		for _, p := range c.Queues {
			asked[p.Queue] = true
		}
	}
	if len(b.Writes) > 0 {
		got, err := s.commit(ctx, backends.Batch{Host: b.Host, Writes: b.Writes}, blocked)
		if err != nil {
			return backends.Results{}, err
		}
		res.Writes = got.Writes
	} else if len(asked) == 1 {
		maps.Copy(blocked, asked) // that one it was
	}
	for _, n := range mine {
		res.Claims[n] = s.claimEach(ctx, b.Host, b.Claims[n], blocked)
	}
	if len(others) == 0 {
		return res, nil
	}
	got, err := s.commit(ctx, rest, blocked)
	for i, n := range others {
		switch {
		case err == nil:
			res.Claims[n] = got.Claims[i]
		case errors.Is(err, backends.ErrHostLost):
			res.Claims[n].More = true // what came before is done and must be told: it is asked again
		default:
			res.Claims[n].Err = err
		}
	}
	return res, nil
}

// without is the batch whose claims ask no queue that is blocked.
func without(b backends.Batch, blocked map[string]bool) backends.Batch {
	if len(blocked) == 0 {
		return b
	}
	b.Claims = slices.Clone(b.Claims)
	for n := range b.Claims {
		b.Claims[n].Queues = slices.DeleteFunc(slices.Clone(b.Claims[n].Queues), func(p backends.Policy) bool { return blocked[p.Queue] })
	}
	return b
}

func (s *Store) allOf(c backends.Claim, kind int) bool {
	for _, p := range c.Queues {
		if s.kind(p.Queue) != kind {
			return false
		}
	}
	return len(c.Queues) > 0
}

// claimEach asks one adopted queue after another, each in a commit by itself.
func (s *Store) claimEach(ctx context.Context, host backends.Identity, c backends.Claim, blocked map[string]bool) (all backends.ClaimResult) {
	left := c.MaxBytes
	for _, p := range c.Queues {
		if blocked[p.Queue] {
			continue
		}
		if len(all.Jobs) == len(c.Slots) || all.More {
			break
		}
		one := backends.Claim{Queues: []backends.Policy{p}, Slots: c.Slots[len(all.Jobs):], MaxBytes: left, MaxPayload: c.MaxPayload, Strict: c.Strict || len(all.Jobs) > 0}
		res, err := s.commit(ctx, backends.Batch{Host: host, Claims: []backends.Claim{one}}, blocked)
		switch {
		case err == nil:
		case len(all.Jobs) > 0 || errors.Is(err, backends.ErrHostLost):
			all.More = true
			return all
		default:
			all.Err = err
			return all
		}
		got := res.Claims[0]
		all.Jobs, all.More = append(all.Jobs, got.Jobs...), got.More
		for i := range got.Jobs {
			left -= int64(len(got.Jobs[i].Payload))
		}
		if left <= 0 && c.MaxBytes > 0 {
			all.More = true
		}
	}
	return all
}
