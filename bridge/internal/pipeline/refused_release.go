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

// wholeRelease is a release of several jobs, whose parts are committed by themselves.
type wholeRelease struct {
	mu     sync.Mutex
	left   int // parts that have not ended
	result backends.WriteResult
	err    error
}

// partsOf splits a release into those of its leases. The last of them to end also ends the release.
func (c *committer) partsOf(p *PendingWrite) (parts []*PendingWrite) {
	p.endTry()
	how := p.write.(backends.Release)
	whole := &wholeRelease{left: len(how.Leases)}
	for i, l := range how.Leases {
		one := how
		one.Leases = []backends.Lease{l}
		part := &PendingWrite{write: one, number: p.number, size: sizeOf(one), holder: p.holder, unseen: p.unseen, Done: make(chan Outcome, 1)}
		if i < len(p.runs) {
			part.runs = p.runs[i : i+1]
		}
		part.state.Store(taken)
		part.ended = func(o Outcome) {
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

// releaseApart continues after a release that failed with an error that it alone caused.
func (c *committer) releaseApart(hard context.Context, p *PendingWrite, err error) error {
	if len(backends.LeasesOf(p.write)) > 1 {
		return c.commit(hard, c.partsOf(p), nil)
	}
	if isLocked(err) {
		c.putBack([]*PendingWrite{p}) // no client tries it again, and its jobs would stay claimed
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
		again := &PendingWrite{write: p.write, size: sizeOf(p.write), holder: p.holder, unseen: p.unseen, runs: p.runs, Done: make(chan Outcome, 1)}
		r.PendingWrite, r.trying = again, true
		again.ended = func(Outcome) {
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
		c.push(again)
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
