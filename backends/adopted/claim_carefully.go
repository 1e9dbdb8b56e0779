package adopted

import (
	"context"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// settled notes that a settle changed the queue's table. It reports whether refused rows can be claimed now.
func (s *Store) settled(queue string) bool {
	h := s.heads[queue]
	if h == nil || !s.ObstacleSet().Some() {
		return false
	}
	all, _ := s.ObstacleSet().JobsOf(backends.DoingClaim, queue)
	if len(all) == 0 {
		return false
	}
	h.retries.Settled()
	return true
}

// wantsRetry reports whether a claim of the queue has to try refused rows again.
func (s *Store) wantsRetry(queue string) bool {
	h := s.heads[queue]
	if h == nil {
		return false
	}
	all, due := s.ObstacleSet().JobsOf(backends.DoingClaim, queue)
	return h.retries.Due(len(all), len(due), s.now())
}

// retryRows returns those of the queue's refused rows that a claim has to try again.
func (s *Store) retryRows(queue string) []string {
	if !s.ObstacleSet().Some() {
		return nil
	}
	all, due := s.ObstacleSet().JobsOf(backends.DoingClaim, queue)
	return s.heads[queue].retries.Take(all, due, s.now())
}

// claimCarefully claims from one queue in several transactions, and finds the rows that the database refuses. With retry
// it first tries some that it refused earlier.
func (s *Store) claimCarefully(ctx context.Context, sidecar backends.Identity, c backends.Claim, retry []string, refused bool) (backends.ClaimResult, error) {
	all := core.ClaimParts{Claim: c, Left: c.MaxBytes}
	if len(retry) > 0 {
		began := s.now()
		for _, job := range retry {
			if all.Full() {
				break
			}
			got, tried, err := s.claimFew(ctx, sidecar, all.Next(c.Queues), &few{most: 1, only: []string{job}})
			switch {
			case err == nil:
				s.ObstacleSet().Clear(c.Queues[0].Queue, job, backends.DoingClaim) // it is claimed, or doesn't wait any more
				all.Add(got)
			case core.RefusesRow(err) && len(tried) > 0:
				s.refuse(c.Queues[0].Queue, job, err)
			default:
				err = all.Unless(err)
				return all.Res, err
			}
		}
		s.heads[c.Queues[0].Queue].retries.Took(began, s.now())
	}
	if !refused {
		if all.Full() {
			return all.Res, nil
		}
		got, err := s.claimPlainly(ctx, sidecar, all.Next(c.Queues))
		if err != nil {
			err = all.Unless(err)
			return all.Res, err
		}
		all.Add(got)
		return all.Res, nil
	}
	search := core.RefusedSearch{
		Set: s.ObstacleSet(), Queue: c.Queues[0], Table: s.tableName(c.Queues[0].Queue),
		Few: func(ctx context.Context, c backends.Claim, n int, except []string, dry bool) (backends.ClaimResult, []string, error) {
			return s.claimFew(ctx, sidecar, c, &few{most: n, except: except, dry: dry})
		},
	}
	err := search.Run(ctx, &all, max(1, (len(c.Slots)-len(all.Res.Jobs))/2))
	return all.Res, err
}

// refuse notes a row whose claim the database refused.
func (s *Store) refuse(queue, job string, err error) {
	s.ObstacleSet().Note(backends.Obstacle{Queue: queue, Table: s.tableName(queue), Job: job, Doing: backends.DoingClaim, Err: err})
}

// few makes a claim get some rows of one queue in one round.
type few struct {
	most   int
	only   []string // the ids of the rows; nil: the first ones
	except []string // ids of rows to leave out besides the obstacles
	dry    bool     // the transaction ends with core.ErrDryRun
}

// claimFew claims in one transaction. tried are the rows that it tried.
func (s *Store) claimFew(ctx context.Context, sidecar backends.Identity, request backends.Claim, f *few) (res backends.ClaimResult, tried []string, err error) {
	c := s.newClaim(0, request)
	c.few = *f
	k := &commitment{s: s, batch: backends.CommitContent{Sidecar: sidecar, Claims: []backends.Claim{request}}, claims: []*claim{c}, apart: true}
	k.managed.Sidecar = sidecar
	err = k.run(ctx)
	return c.res, c.tried, err
}

// claimPlainly claims from one queue, as part of no other transaction.
func (s *Store) claimPlainly(ctx context.Context, sidecar backends.Identity, c backends.Claim) (backends.ClaimResult, error) {
	k := &commitment{s: s, batch: backends.CommitContent{Sidecar: sidecar, Claims: []backends.Claim{c}}, claims: []*claim{s.newClaim(0, c)}, apart: true}
	k.managed.Sidecar = sidecar
	if err := k.run(ctx); err != nil {
		return backends.ClaimResult{}, err
	}
	return k.res.Claims[0], nil
}

// firstFew is candidates for claimFew. It finds out the ids before it reads other columns: a value that can't be read then has
// a row.
func (c *claim) firstFew(ctx context.Context, sql backends.SQL, q *statement.Queue, p backends.Policy, n int) (rows []*statement.Candidate, err error) {
	scan := statement.Scan{Only: c.only}
	if c.only == nil {
		scan = c.scan(q.Queue)
		scan.Except = append(scan.Except, c.except...)
	}
	c.tried = nil
	if err := sql.Do(ctx, q.CandidateItems(p, n, scan, func(item string) { c.tried = append(c.tried, item) })); err != nil || len(c.tried) == 0 {
		return nil, err
	}
	return rows, sql.Do(ctx, q.Candidates(p, n, statement.Scan{Only: c.tried}, &rows))
}
