package pipeline

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
)

// Writes that are carried out apart from the group commits, so that they hold up no others: those whose rows, or keys, another
// program keeps locked, and releases that the database refuses.

func isLocked(err error) bool {
	_, ok := errors.AsType[*backends.LockedError](err)
	return ok
}

// canWaitForKey reports whether it is possible that another program has stored a key of a write of the batch in an open
// transaction, and that the batch waits for its end.
func (b batch) canWaitForKey(p *PendingWrite) bool {
	return !b.alone && slices.ContainsFunc(newJobs(p.write), func(j backends.NewJob) bool { return j.Key != "" })
}

// commitWithoutKeys sets aside the writes that can wait for a key, and commits the others and the claims.
func (e *executor) commitWithoutKeys(hard context.Context, b batch) error {
	var others []*PendingWrite
	for _, p := range b.writes {
		if b.canWaitForKey(p) {
			e.setLockedAside(hard, p)
		} else {
			others = append(others, p)
		}
	}
	if b.writes = others; len(others)+len(b.claims) == 0 {
		return nil
	}
	return e.commit(hard, b)
}

// setLockedAside queues a write of a commit among the locked ones.
func (e *executor) setLockedAside(hard context.Context, p *PendingWrite) {
	p.endTry()
	e.mu.Lock()
	first, over := e.scheduler.setAside(p)
	if first {
		e.locking.Go(func() { e.commitLocked(hard) })
	}
	e.mu.Unlock()
	e.finishOverdue(over)
}

// commitLocked tries the locked writes until there are none. By turns, one of them waits alone for its lock, and one
// commit that waits for no lock carries out those that are free by now. So a locked row delays the writes of others
// by one such wait at most.
func (e *executor) commitLocked(hard context.Context) {
	for alone := true; ; alone = !alone {
		e.mu.Lock()
		writes, n := e.scheduler.takeLocked(alone)
		e.mu.Unlock()
		if len(writes) > 0 && e.commit(hard, batch{writes: writes, alone: alone}) != nil && hard.Err() != nil {
			e.answerAll(hard.Err())
		}
		e.mu.Lock()
		done := e.scheduler.endLocked(n)
		e.mu.Unlock()
		e.loops.writes.poke() // a write is possibly queued again, or was the last one
		if done {
			return
		}
	}
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

// commitApart continues after a write that no client repeats failed with an error that it alone caused.
func (e *executor) commitApart(hard context.Context, p *PendingWrite, err error) error {
	if len(backends.LeasesOf(p.write)) > 1 {
		return e.commit(hard, batch{writes: e.partsOf(p)})
	}
	if isLocked(err) {
		e.putBack([]*PendingWrite{p}) // its job would stay claimed, or have no time limit
		return nil
	}
	if _, ok := p.write.(backends.Deliver); ok { // the worker's settle will be refused too, and reports it
		e.fail(p, err)
		return nil
	}
	o := e.obstacleOf(p)
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
		again := &PendingWrite{write: p.write, holder: p.holder, runs: p.runs}
		r.PendingWrite, r.trying = again, true
		again.onEnd = func(Outcome) {
			e.refused.mu.Lock()
			accepted := e.refused.all[token] == r // otherwise it was refused again
			if accepted {
				delete(e.refused.all, token)
			}
			e.refused.mu.Unlock()
			if accepted {
				e.refused.obstacles.Clear(o.Queue, o.Job, o.Doing)
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
