package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
)

// A batch that the database refuses. It is divided until the write or the claim that causes the error is alone, and the others are
// committed. Its client gets the error. Releases have no client that repeats them, so the sidecar does, rarely.

// isolate finds the member that the database refuses or has no disk space for. Halves of the batch run on their own,
// until that member is alone with its error. One refused member of n costs the others about 2 log2(n) commits.
func (e *executor) isolate(hard context.Context, b batch, err error) error {
	if len(b.writes) > 0 && len(b.claims) > 0 {
		err1 := e.commit(hard, b.with(b.writes))
		return errors.Join(err1, e.commit(hard, batch{claims: b.claims}))
	}
	if n := len(b.claims); n > 0 {
		if n == 1 {
			if e.failures.IsNew("claim", err) {
				e.log.Error("claim failed", "event", "claim_failed", "queues", b.claims[0].Queues(), "error", err)
			}
			e.dropClaims(b.claims, err)
			return nil
		}
		return errors.Join(e.commit(hard, batch{claims: b.claims[:n/2]}), e.commit(hard, batch{claims: b.claims[n/2:]}))
	}
	if n := len(b.writes); n > 1 {
		err1 := e.commit(hard, b.with(b.writes[:n/2]))
		if err1 != nil && !backends.IsDiskFull(err1) {
			e.putBack(b.writes[n/2:]) // the database became unreachable
			return err1
		}
		return errors.Join(err1, e.commit(hard, b.with(b.writes[n/2:])))
	}
	if mustHappen(b.writes[0]) {
		return e.commitApart(hard, b.writes[0], err)
	}
	e.fail(b.writes[0], err)
	return nil
}

// fail ends a write with the error that it alone caused.
func (e *executor) fail(p *PendingWrite, err error) {
	var unsupported *backends.UnsupportedError
	if !backends.IsRefused(err) && !errors.As(err, &unsupported) && !isLocked(err) && e.failures.IsNew("write", err) {
		e.log.Error("write failed", "event", "write_failed", "kind", fmt.Sprintf("%T", p.write), "error", err)
	}
	e.finish(p, Outcome{Err: err})
}

// mustHappen reports whether no client repeats the write: a release, or the record of hand-outs.
func mustHappen(p *PendingWrite) bool {
	switch p.write.(type) {
	case backends.Release, backends.Deliver:
		return true
	}
	return false
}

// refusedReleases are the releases that the database refused: a trigger or a constraint keeps a job from being given
// back. No client repeats them, so the sidecar does, rarely, as long as it has its identity. If that ends, other
// sidecars reap the jobs.
type refusedReleases struct {
	obstacles backends.ObstacleSet

	mu  sync.Mutex
	all map[backends.Token]*refusedRelease
}

// refusedRelease is the release of one job.
type refusedRelease struct {
	*PendingWrite      // the last try
	trying        bool // it has not ended
}

// wholeWrite is a write about several jobs, whose parts are committed by themselves.
type wholeWrite struct {
	mu     sync.Mutex
	left   int // parts that have not ended
	result backends.WriteResult
	err    error
}

// partsOf splits a release, or a record of hand-outs, into those of its leases. The last of them to end also ends the whole.
func (e *executor) partsOf(p *PendingWrite) (parts []*PendingWrite) {
	p.endTry()
	n := len(backends.LeasesOf(p.write))
	whole := &wholeWrite{left: n}
	for i := range n {
		var one backends.Write
		switch w := p.write.(type) {
		case backends.Release:
			w.Leases = w.Leases[i : i+1]
			one = w
		case backends.Deliver:
			w.Deliveries = w.Deliveries[i : i+1]
			one = w
		}
		part := &PendingWrite{
			write: one, position: p.position, size: sizeOf(one), holder: p.holder, pushed: p.pushed, state: committing, Done: make(chan Outcome, 1),
		}
		if i < len(p.runs) {
			part.runs = p.runs[i : i+1]
		}
		part.onEnd = func(o Outcome) {
			whole.mu.Lock()
			defer whole.mu.Unlock()
			r := &whole.result
			r.Lost = append(r.Lost, o.Result.Lost...)
			r.MadeReady = append(r.MadeReady, o.Result.MadeReady...)
			r.Failed.AddAll(o.Result.Failed)
			whole.err = errors.Join(whole.err, o.Err)
			if whole.left--; whole.left == 0 {
				e.finish(p, Outcome{Result: *r, Err: whole.err})
			}
		}
		parts = append(parts, part)
	}
	return parts
}

// commitApart continues after a write that no client repeats failed with an error that its commit as a whole doesn't have.
func (e *executor) commitApart(hard context.Context, p *PendingWrite, err error) error {
	unavailable, isUnavailable := errors.AsType[*backends.UnavailableError](err)
	if isUnavailable && unavailable.Queue == "" || errors.Is(err, backends.ErrUnknownOutcome) {
		e.putBack([]*PendingWrite{p})
		return nil
	}
	if len(backends.LeasesOf(p.write)) > 1 {
		return e.commit(hard, batch{writes: e.partsOf(p)})
	}
	if locked, is := errors.AsType[*backends.LockedError](err); is && !locked.Conflict {
		e.setLockedAside(hard, p) // its job would stay claimed, or have no time limit
		return nil
	}
	if _, ok := p.write.(backends.Deliver); ok { // the worker's settle will be refused too, and reports it
		e.fail(p, err)
		return nil
	}
	o := e.obstacleOf(p)
	if isUnavailable { // an adopted table that is out of order refuses all jobs alike
		o.Job = ""
	}
	o.Err = err
	e.refused.obstacles.Note(o)
	l := backends.LeasesOf(p.write)[0]
	e.refused.mu.Lock()
	e.refused.all[l.Token] = &refusedRelease{PendingWrite: p}
	e.refused.mu.Unlock()
	e.finish(p, Outcome{Result: backends.WriteResult{Lost: []backends.Lease{l}}})
	return nil
}

// obstacleOf returns the obstacle that a release of one job is if it is refused.
func (e *executor) obstacleOf(p *PendingWrite) backends.Obstacle {
	held := lease.Held{Lease: backends.LeasesOf(p.write)[0]}
	if len(p.runs) > 0 {
		held = p.runs[0].Held
	}
	return backends.Obstacle{Queue: held.Queue, Table: e.backend.AdoptedTable(held.Queue), Job: held.ID(), Doing: backends.DoingGiveBack}
}

// retryReleases tries the refused releases again whose time has come. A lease that has ended in another way is lost then, and
// ends its obstacle.
func (e *executor) retryReleases() {
	if !e.refused.obstacles.Some() {
		return
	}
	e.refused.mu.Lock()
	defer e.refused.mu.Unlock()
	for token, r := range e.refused.all {
		o := e.obstacleOf(r.PendingWrite)
		if r.trying || e.refused.obstacles.Waits(o.Queue, o.Job, o.Doing) || e.refused.obstacles.Waits(o.Queue, "", o.Doing) {
			continue
		}
		p := r.PendingWrite
		again := &PendingWrite{write: p.write, holder: p.holder, runs: p.runs, aside: true}
		r.PendingWrite, r.trying = again, true
		again.onEnd = func(out Outcome) {
			e.refused.mu.Lock()
			accepted := out.Err == nil && e.refused.all[token] == r // otherwise it was refused again, or the sidecar stops
			if accepted {
				delete(e.refused.all, token)
			}
			e.refused.mu.Unlock()
			if accepted {
				e.refused.obstacles.Clear(o.Queue, o.Job, o.Doing)
				e.refused.obstacles.Clear(o.Queue, "", o.Doing)
			}
		}
		e.pushFree(again)
	}
}

// forgetReleases forgets the refused releases of an identity that has ended.
func (e *executor) forgetReleases() {
	e.refused.mu.Lock()
	clear(e.refused.all)
	e.refused.mu.Unlock()
	e.refused.obstacles.Keep(func(*backends.Obstacle) bool { return false })
}

// releaseUnknown releases claims of this sidecar that no session has, except those whose release was refused. It returns how
// many.
func (e *executor) releaseUnknown(owner backends.Identity, jobs []backends.ClaimedJob) (n int) {
	var leases []backends.Lease
	var runs []lease.Run
	e.refused.mu.Lock()
	for i := range jobs {
		l := jobs[i].Lease
		if e.refused.all[l.Token] == nil {
			leases = append(leases, l)
			runs = append(runs, lease.Run{Held: lease.Held{Lease: l, Queue: jobs[i].Queue, Info: lease.Info{ID: cmp.Or(jobs[i].ID, l.Job)}}, Took: -1})
		}
	}
	e.refused.mu.Unlock()
	if len(leases) > 0 {
		e.release(owner, leases, runs, nil)
	}
	return len(leases)
}
