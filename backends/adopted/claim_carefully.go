package adopted

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
)

// The database can refuse the claim of single rows: a unique index of the rows that run, a trigger, a value that can't be
// converted. Such a row fails the whole transaction. So claims are tried again with fewer and fewer rows, until the row is
// alone. It becomes an obstacle of the ObstacleSet, and claims leave it out.

const (
	// carefulTries is how many transactions one claim tries to find refused rows.
	carefulTries = 32
	// probeTries is how many refused rows one claim tries again.
	probeTries = 4
	// probeShare is the part of the time in which refused rows are tried again: 1/probeShare.
	probeShare = 10
)

// retries decide which refused rows of a queue are tried again: those that are due, and all of them after a settle, which
// can have removed the obstacle. They take a bounded part of the time.
type retries struct {
	mu      sync.Mutex
	settled bool      // something was settled since sweep was filled
	sweep   []string  // to try because of a settle
	next    time.Time // before this time none is tried
}

// take returns rows to try now.
func (r *retries) take(all, due []string, now time.Time) (jobs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(all) == 0 || now.Before(r.next) {
		return nil
	}
	if len(r.sweep) == 0 && r.settled {
		r.settled, r.sweep = false, byNumber(all)
	}
	for len(r.sweep) > 0 && len(jobs) < probeTries {
		if slices.Contains(all, r.sweep[0]) {
			jobs = append(jobs, r.sweep[0])
		}
		r.sweep = r.sweep[1:]
	}
	for _, job := range byNumber(due) {
		if len(jobs) < probeTries && !slices.Contains(jobs, job) {
			jobs = append(jobs, job)
		}
	}
	return jobs
}

// byNumber sorts ids as numbers if they are numbers: most tables number their rows in the order of claims.
func byNumber(jobs []string) []string {
	return slices.SortedFunc(slices.Values(jobs), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
}

// took paces the tries.
func (r *retries) took(began, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = now.Add((probeShare - 1) * now.Sub(began))
}

// isDue reports whether take returns rows.
func (r *retries) isDue(all, due int, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return all > 0 && !now.Before(r.next) && (r.settled || len(r.sweep) > 0 || due > 0)
}

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
	h.retries.mu.Lock()
	defer h.retries.mu.Unlock()
	h.retries.settled = true
	return true
}

// wantsRetry reports whether a claim of the queue has to try refused rows again.
func (s *Store) wantsRetry(queue string) bool {
	h := s.heads[queue]
	if h == nil {
		return false
	}
	all, due := s.ObstacleSet().JobsOf(backends.DoingClaim, queue)
	return h.retries.isDue(len(all), len(due), s.now())
}

// retryRows returns those of the queue's refused rows that a claim has to try again.
func (s *Store) retryRows(queue string) []string {
	if !s.ObstacleSet().Some() {
		return nil
	}
	all, due := s.ObstacleSet().JobsOf(backends.DoingClaim, queue)
	return s.heads[queue].retries.take(all, due, s.now())
}

// claimCarefully claims from one queue in several transactions, and finds the rows that the database refuses. With retry
// it first tries some that it refused earlier.
func (s *Store) claimCarefully(ctx context.Context, host backends.Identity, c backends.Claim, retry []string, refused bool) (backends.ClaimResult, error) {
	all := claimParts{claim: c, left: c.MaxBytes}
	if len(retry) > 0 {
		began := s.now()
		for _, job := range retry {
			if all.full() {
				break
			}
			got, tried, err := s.claimFew(ctx, host, all.next(c.Queues), 1, []string{job})
			switch {
			case err == nil:
				s.ObstacleSet().Clear(c.Queues[0].Queue, job, backends.DoingClaim) // it is claimed, or doesn't wait any more
				all.add(got)
			case backends.IsRefused(err) && len(tried) > 0:
				s.refuse(c.Queues[0].Queue, job, err)
			default:
				return all.unless(err)
			}
		}
		s.heads[c.Queues[0].Queue].retries.took(began, s.now())
	}
	if !refused {
		if all.full() {
			return all.res, nil
		}
		got, err := s.claimPlainly(ctx, host, all.next(c.Queues))
		if err != nil {
			return all.unless(err)
		}
		all.add(got)
		return all.res, nil
	}
	most := max(1, (len(c.Slots)-len(all.res.Jobs))/2)
	for range carefulTries {
		if all.full() {
			return all.res, nil
		}
		got, tried, err := s.claimFew(ctx, host, all.next(c.Queues), most, nil)
		switch {
		case err == nil && len(got.Jobs)+len(got.Failed) == 0: // none waits, or others have locked them
			return all.res, nil
		case err == nil:
			all.add(got)
			most = min(2*most, len(c.Slots))
		case !backends.IsRefused(err) || len(tried) == 0:
			return all.unless(err)
		case len(tried) == 1:
			s.refuse(c.Queues[0].Queue, tried[0], err)
		default:
			most = max(1, len(tried)/2)
		}
	}
	all.res.More = true // each claim leaves out more of the refused rows
	return all.res, nil
}

// unless returns the error, unless jobs were claimed before: these must reach the caller, and the next claim finds out.
func (p *claimParts) unless(err error) (backends.ClaimResult, error) {
	if len(p.res.Jobs) > 0 {
		p.res.More = true
		return p.res, nil
	}
	return p.res, err
}

// refuse notes a row whose claim the database refused.
func (s *Store) refuse(queue, job string, err error) {
	s.ObstacleSet().Note(backends.Obstacle{Queue: queue, Table: s.tableName(queue), Job: job, Doing: backends.DoingClaim, Err: err})
}

// claimFew claims at most `most` rows in one transaction: the first ones, or those of the ids. tried are the rows that it tried.
func (s *Store) claimFew(ctx context.Context, host backends.Identity, request backends.Claim, most int, only []string) (res backends.ClaimResult, tried []string, err error) {
	c := s.newClaim(0, request)
	c.most, c.only = most, only
	k := &commitment{s: s, batch: backends.Batch{Host: host, Claims: []backends.Claim{request}}, claims: []*claim{c}}
	k.managed.Host = host
	err = k.run(ctx)
	return c.res, c.tried, err
}

// claimPlainly claims from one queue, as part of no other transaction.
func (s *Store) claimPlainly(ctx context.Context, host backends.Identity, c backends.Claim) (backends.ClaimResult, error) {
	k := &commitment{s: s, batch: backends.Batch{Host: host, Claims: []backends.Claim{c}}, claims: []*claim{s.newClaim(0, c)}}
	k.managed.Host = host
	if err := k.run(ctx); err != nil {
		return backends.ClaimResult{}, err
	}
	return k.res.Claims[0], nil
}

// few is candidates for claimFew. It finds out the ids before it reads other columns: a value that can't be read then has
// a row.
func (c *claim) few(ctx context.Context, sql backends.SQL, q *statement.Queue, p backends.Policy, n int) (rows []*statement.Candidate, err error) {
	scan := statement.Scan{Only: c.only}
	if c.only == nil {
		scan = c.scan(q.Queue)
	}
	c.tried = nil
	if err := sql.Do(ctx, q.CandidateItems(p, n, scan, func(item string) { c.tried = append(c.tried, item) })); err != nil || len(c.tried) == 0 {
		return nil, err
	}
	return rows, sql.Do(ctx, q.Candidates(p, n, statement.Scan{Only: c.tried}, &rows))
}
