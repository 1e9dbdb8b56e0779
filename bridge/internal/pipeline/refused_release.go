package pipeline

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
)

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
func (c *committer) partsOf(p *PendingWrite) (parts []*PendingWrite) {
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
			write: one, number: p.number, size: sizeOf(one), holder: p.holder, pushed: p.pushed, state: committing, Done: make(chan Outcome, 1),
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
				c.finish(p, Outcome{Result: *r, Err: whole.err})
			}
		}
		parts = append(parts, part)
	}
	return parts
}

// commitApart continues after a write that no client repeats failed with an error that it alone caused.
func (c *committer) commitApart(hard context.Context, p *PendingWrite, err error) error {
	if len(backends.LeasesOf(p.write)) > 1 {
		return c.commit(hard, batch{writes: c.partsOf(p)})
	}
	if isLocked(err) {
		c.putBack([]*PendingWrite{p}) // its job would stay claimed, or have no time limit
		return nil
	}
	if _, ok := p.write.(backends.Deliver); ok { // the worker's settle will be refused too, and reports it
		c.fail(p, err)
		return nil
	}
	o := c.obstacleOf(p)
	o.Err = err
	c.refused.obstacles.Note(o)
	l := backends.LeasesOf(p.write)[0]
	c.refused.mu.Lock()
	if c.refused.all == nil {
		c.refused.all = map[backends.Token]*refusedRelease{}
	}
	c.refused.all[l.Token] = &refusedRelease{PendingWrite: p}
	c.refused.mu.Unlock()
	c.finish(p, Outcome{Result: backends.WriteResult{Lost: []backends.Lease{l}}})
	return nil
}

// obstacleOf returns the obstacle that a release of one job is if it is refused.
func (c *committer) obstacleOf(p *PendingWrite) backends.Obstacle {
	held := lease.Held{Lease: backends.LeasesOf(p.write)[0]}
	if len(p.runs) > 0 {
		held = p.runs[0].Held
	}
	return backends.Obstacle{Queue: held.Queue, Table: c.backend.AdoptedTable(held.Queue), Job: held.ID(), Doing: backends.DoingGiveBack}
}

// retryReleases tries the refused releases again whose time has come. A lease that has ended in another way is lost then, and
// ends its obstacle.
func (c *committer) retryReleases() {
	if !c.refused.obstacles.Some() {
		return
	}
	c.refused.mu.Lock()
	defer c.refused.mu.Unlock()
	for token, r := range c.refused.all {
		o := c.obstacleOf(r.PendingWrite)
		if r.trying || c.refused.obstacles.Waits(o.Queue, o.Job, o.Doing) || c.refused.obstacles.Waits(o.Queue, "", o.Doing) {
			continue
		}
		p := r.PendingWrite
		again := &PendingWrite{write: p.write, holder: p.holder, runs: p.runs}
		r.PendingWrite, r.trying = again, true
		again.onEnd = func(Outcome) {
			c.refused.mu.Lock()
			accepted := c.refused.all[token] == r // otherwise it was refused again
			if accepted {
				delete(c.refused.all, token)
			}
			c.refused.mu.Unlock()
			if accepted {
				c.refused.obstacles.Clear(o.Queue, o.Job, o.Doing)
			}
		}
		c.pushFree(again)
	}
}

// forgetReleases forgets the refused releases of an identity that has ended.
func (c *committer) forgetReleases() {
	c.refused.mu.Lock()
	clear(c.refused.all)
	c.refused.mu.Unlock()
	c.refused.obstacles.Keep(func(*backends.Obstacle) bool { return false })
}

// releaseUnknown releases claims of this sidecar that no session has, except those whose release was refused. It returns how
// many.
func (c *committer) releaseUnknown(owner backends.Identity, jobs []backends.ClaimedJob) (n int) {
	var leases []backends.Lease
	var runs []lease.Run
	c.refused.mu.Lock()
	for i := range jobs {
		l := jobs[i].Lease
		if c.refused.all[l.Token] == nil {
			leases = append(leases, l)
			runs = append(runs, lease.Run{Held: lease.Held{Lease: l, Queue: jobs[i].Queue, Info: lease.Info{ID: cmp.Or(jobs[i].ID, l.Job)}}, Took: -1})
		}
	}
	c.refused.mu.Unlock()
	if len(leases) > 0 {
		c.release(owner, leases, runs, nil)
	}
	return len(leases)
}
