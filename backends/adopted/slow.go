package adopted

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// A statement for an adopted table can take long: a trigger waits, or a cascade or a condition has no index. It must not
// delay other queues. So a commit that others wait for ends such a statement after slowAfter. Its parts then run apart,
// and the queue that is slow again counts as slow for slowFor. Until then group commits leave its writes out, and the
// caller tries each alone. It also claims from the queue in commits that delay no others (CommitContent.WaitForLocks). These have no
// such limit.

const (
	slowAfter = 5 * time.Second
	slowFor   = time.Minute
)

// whenSlow calls f once a statement that begins now takes too long. stop prevents that, and reports whether it came in time: false means
// that the statement is slow. Tests replace it: on a busy machine any statement can take that long.
var whenSlow = func(f func()) (stop func() bool) { return time.AfterFunc(slowAfter, f).Stop }

// errSlow ends a statement that others wait for.
var errSlow = core.ErrSlow

// slowQueues are the queues whose statements took too long.
type slowQueues struct {
	some atomic.Bool // mirrors len(all) > 0
	mu   sync.Mutex
	all  map[string]time.Time // since when
}

// Slow implements backends.Mixed.
func (s *Store) Slow(queue string) bool {
	if !s.slow.some.Load() {
		return false
	}
	s.slow.mu.Lock()
	defer s.slow.mu.Unlock()
	since, slow := s.slow.all[queue]
	return slow && s.now().Sub(since) < slowFor
}

// noteSlow records that the statements of the queues take too long.
func (s *Store) noteSlow(queues ...string) {
	s.slow.mu.Lock()
	defer s.slow.mu.Unlock()
	if s.slow.all == nil {
		s.slow.all = map[string]time.Time{}
	}
	for _, queue := range queues {
		s.slow.all[queue] = s.now()
		s.ObstacleSet().Note(backends.Obstacle{Queue: queue, Table: s.tableName(queue), Doing: backends.DoingShare, Err: errSlow})
	}
	s.slow.some.Store(len(s.slow.all) > 0)
}

// forgetSlow forgets the queues that are not slow any more.
func (s *Store) forgetSlow() {
	if !s.slow.some.Load() {
		return
	}
	s.slow.mu.Lock()
	defer s.slow.mu.Unlock()
	for queue, since := range s.slow.all {
		if s.now().Sub(since) >= slowFor {
			delete(s.slow.all, queue)
			s.ObstacleSet().Clear(queue, "", backends.DoingShare)
		}
	}
	s.slow.some.Store(len(s.slow.all) > 0)
}

// slowClaim is the error of a claim that must not delay others.
func (s *Store) slowClaim(queue string) error {
	return &backends.UnavailableError{Queue: queue, Err: fmt.Errorf("its table %s is claimed from apart from other queues: %w", s.tableName(queue), errSlow)}
}

// limited runs a part of a commit that is about adopted tables. If others wait for the commit and the part takes too long,
// the error is errSlow.
func (s *Store) limited(ctx context.Context, alone bool, part func(ctx context.Context) error) error {
	if alone {
		return part(ctx)
	}
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer s.whenSlow(func() { cancel(errSlow) })()
	err := part(limited)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(limited), errSlow) {
		return errSlow
	}
	return err
}

// adoptedQueues are the queues of the writes, as far as the transaction got to know them, and those of the claims.
func (k *commitment) adoptedQueues() []string {
	all := map[string]bool{}
	for _, of := range k.queues {
		maps.Copy(all, of)
	}
	for _, c := range k.claims {
		for _, p := range c.Queues {
			all[p.Queue] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// slowApart goes on after a part of the transaction took too long.
func (s *Store) slowApart(ctx context.Context, k *commitment, at *attempt) (backends.Results, error) {
	b, queues := k.batch, k.adoptedQueues()
	same := true // all writes are of the same queues
	for _, of := range k.queues {
		same = same && len(of) == len(queues)
	}
	switch {
	case len(queues) == 0: // not even the leases were found in time
		return backends.Results{}, backends.Unavailable(errSlow)
	case len(queues) == 1 || len(k.claims) == 0 && same:
		s.noteSlow(queues...)
		return s.commit(ctx, b, at)
	case len(k.claims) > 0:
		return s.claimApart(ctx, b, at)
	}
	return s.writesApart(ctx, k, errSlow, at)
}

// noteTime begins a claim, and returns the function that ends it: it notes the queues as slow if the claim took too long.
func (s *Store) noteTime(queues []backends.Policy) (end func()) {
	stop := s.whenSlow(func() {})
	return func() {
		if !stop() {
			for _, p := range queues {
				s.noteSlow(p.Queue)
			}
		}
	}
}

// promptNames are the settledNames without the queues that are slow. Their claims are taken back by reapSlow.
func (s *Store) promptNames() []string {
	return slices.DeleteFunc(s.settledNames(), s.Slow)
}

// reapEach takes back the claims of each queue apart, after those of all queues together took too long. A queue that is slow
// again is left to reapSlow.
func (s *Store) reapEach(ctx context.Context, r *backends.MaintenanceResult, m backends.Maintenance, what reaping, claims []*lease.Lease) (seen []*lease.Lease, all bool, errs error) {
	queues := map[string]bool{}
	for _, l := range claims {
		queues[l.Queue] = true
	}
	if len(queues) == 1 {
		s.noteSlow(claims[0].Queue)
		return nil, false, nil
	}
	for _, queue := range slices.Sorted(maps.Keys(queues)) {
		some, _, err := s.reapBatch(ctx, r, m, what, []string{queue}, false)
		if seen = append(seen, some...); err != nil && core.IsOutage(ctx, err) {
			return seen, false, err
		}
		errs = errors.Join(errs, err)
	}
	return seen, false, errs
}

// slowReap takes back the claims of slow queues beside maintenance, which doesn't wait for it.
type slowReap struct {
	mu     sync.Mutex
	cancel context.CancelFunc // of the run under way; nil: none
	closed bool
	result backends.MaintenanceResult // of the runs since the last maintenance
	err    error                      // of the last of them
	runs   sync.WaitGroup
}

// reapSlow adds to r what was taken back since its last call, and begins to take back the due claims of slow queues. The
// error is of the last run.
func (s *Store) reapSlow(r *backends.MaintenanceResult, m backends.Maintenance) (last error) {
	reap := &s.slowReap
	reap.mu.Lock()
	defer reap.mu.Unlock()
	for cause, n := range reap.result.Reaped {
		r.Reaped[cause] += n
	}
	r.Failed.AddAll(reap.result.Failed)
	addQueues(&r.MadeReady, reap.result.MadeReady...)
	last, reap.result, reap.err = reap.err, backends.MaintenanceResult{}, nil
	queues := slices.DeleteFunc(s.settledNames(), func(queue string) bool { return !s.Slow(queue) })
	if len(queues) == 0 || reap.cancel != nil || reap.closed {
		return last
	}
	ctx, cancel := context.WithCancel(context.Background())
	reap.cancel = cancel
	reap.runs.Go(func() {
		defer cancel()
		got := backends.MaintenanceResult{Reaped: map[backends.Cause]int{}}
		var errs error
		for _, what := range []reaping{s.dueLeases(), s.lostLeases()} {
			_, _, err := s.reapBatch(ctx, &got, m, what, queues, true)
			errs = errors.Join(errs, err)
		}
		reap.mu.Lock()
		defer reap.mu.Unlock()
		reap.cancel, reap.result, reap.err = nil, got, errs
	})
	return last
}

// close ends the run under way.
func (s *slowReap) close() {
	s.mu.Lock()
	s.closed = true
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Unlock()
	s.runs.Wait()
}
