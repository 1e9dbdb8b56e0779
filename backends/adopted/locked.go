package adopted

import (
	"context"
	"errors"

	"github.com/qsidecar/qsidecar/backends"
)

func locked(err error) bool {
	var l *backends.LockedError
	return errors.As(err, &l)
}

// apart is a commit in which another program's lock was in the way of a claim, or of a
// write beside it: all but the claims of adopted queues is made first, and then each
// such queue is asked by itself. One whose rows are locked has nothing to give just now,
// and holds up no other.
func (s *Store) apart(ctx context.Context, b backends.Batch) (backends.Results, error) {
	res := backends.Results{Writes: make([]backends.WriteResult, len(b.Writes)), Claims: make([]backends.ClaimResult, len(b.Claims))}
	rest := backends.Batch{Host: b.Host, Writes: b.Writes}
	var others, mine []int
	asked := map[string]bool{}
	for n, c := range b.Claims {
		if s.allOf(c, ofAdopted) {
			mine = append(mine, n)
			for _, p := range c.Queues {
				asked[p.Queue] = true
			}
		} else {
			others, rest.Claims = append(others, n), append(rest.Claims, c)
		}
	}
	if len(rest.Writes)+len(rest.Claims) > 0 {
		got, err := s.commit(ctx, rest)
		if err != nil {
			return backends.Results{}, err
		}
		res.Writes = got.Writes
		for i, n := range others {
			res.Claims[n] = got.Claims[i]
		}
	}
	if len(b.Writes) == 0 && len(asked) == 1 {
		return res, nil // that one it was
	}
	for _, n := range mine {
		res.Claims[n] = s.claimEach(ctx, b.Host, b.Claims[n])
	}
	return res, nil
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
func (s *Store) claimEach(ctx context.Context, host backends.Identity, c backends.Claim) (all backends.ClaimResult) {
	left := c.MaxBytes
	for _, p := range c.Queues {
		if len(all.Jobs) == len(c.Slots) || all.More {
			break
		}
		one := backends.Claim{Queues: []backends.Policy{p}, Slots: c.Slots[len(all.Jobs):], MaxBytes: left, MaxPayload: c.MaxPayload}
		res, err := s.commit(ctx, backends.Batch{Host: host, Claims: []backends.Claim{one}})
		switch {
		case err == nil:
		case len(all.Jobs) > 0 || errors.Is(err, backends.ErrHostLost):
			all.More = true // what came before is done and must be told: it is asked again
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
