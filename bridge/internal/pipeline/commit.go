package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/maintenance"
)

var errHeartbeatLate = errors.New("this sidecar's heartbeat is late, so it must not hand out jobs: it can't reach the database, or was suspended")

var errStalled = errors.New("this sidecar stood still after it claimed the jobs, so it returned them: claim again")

// commit commits one batch and answers its members. If the database is unreachable, it queues the writes again and
// returns an error.
func (c *committer) commit(hard context.Context, writes []*PendingWrite, groups []claimGroup) error {
	began := time.Now()
	res, err := c.try(hard, writes, groups)
	took := time.Since(began)
	c.metrics().CountCommit(took, len(writes), len(groups), res.Claims, err)
	if len(groups) > 0 && !groups[0].beside {
		c.dispatcher.noteClaimTime(took)
	}
	switch {
	case err == nil:
		c.answer(hard, writes, res.Writes)
		c.deliverClaims(hard, groups, res.Claims)
		return nil
	case errors.Is(err, backends.ErrEvicted):
		// Nothing happened. The writes do not need the host. The claims are included again under the next identity.
		c.dropClaims(groups, backends.Unavailable(err))
		c.heartbeat.DropIdentity(hostOf(groups))
		c.heartbeat.SendNow()
		if len(writes) == 0 {
			return nil
		}
		return c.commit(hard, writes, nil)
	case isLocked(err) && slices.ContainsFunc(writes, canWaitForKey):
		return c.commitWithoutKeys(hard, writes, groups)
	case backends.IsDiskFull(err) && len(writes)+len(groups) > 1:
		return c.split(hard, writes, groups, err)
	case backends.Retryable(err):
		c.dropClaims(groups, err)
		c.putBack(writes)
		return err
	case errors.Is(err, backends.ErrUnknownOutcome), hard.Err() != nil:
		c.dropClaims(groups, err)
		if len(groups) > 0 {
			c.heartbeat.SendNow() // it releases the claims if they were committed
		}
		c.endUnknown(writes, err, hard.Err() == nil)
		return nil
	default:
		return c.split(hard, writes, groups, err)
	}
}

// endUnknown ends writes whose commit has an unknown outcome. Those that no client repeats are queued again: their
// tokens keep them from changing a job twice.
func (c *committer) endUnknown(writes []*PendingWrite, err error, again bool) {
	var repeat []*PendingWrite
	for _, p := range writes {
		if mustHappen(p) && again {
			repeat = append(repeat, p)
			continue
		}
		c.finish(p, Outcome{Err: err})
	}
	if len(repeat) > 0 {
		c.putBack(repeat)
	}
}

// mustHappen reports whether no client repeats the write: a release, or the record of hand-outs.
func mustHappen(p *PendingWrite) bool {
	switch p.write.(type) {
	case backends.Release, backends.Deliver:
		return true
	}
	return false
}

// split finds the member that the database refuses or has no disk space for. Halves of the batch run on their own,
// until that member is alone with its error.
func (c *committer) split(hard context.Context, writes []*PendingWrite, groups []claimGroup, err error) error {
	if len(writes) > 0 && len(groups) > 0 {
		err1 := c.commit(hard, writes, nil)
		return errors.Join(err1, c.commit(hard, nil, groups))
	}
	if n := len(groups); n > 0 {
		if n == 1 {
			if c.failures.isNew("claim", err, c.dispatcher.clock()) {
				c.log.Error("claim failed", "event", "claim_failed", "queues", groups[0].queue.queues, "error", err)
			}
			c.dropClaims(groups, err)
			return nil
		}
		return errors.Join(c.commit(hard, nil, groups[:n/2]), c.commit(hard, nil, groups[n/2:]))
	}
	if n := len(writes); n > 1 {
		err1 := c.commit(hard, writes[:n/2], nil)
		if err1 != nil && !backends.IsDiskFull(err1) {
			c.putBack(writes[n/2:]) // the database became unreachable
			return err1
		}
		return errors.Join(err1, c.commit(hard, writes[n/2:], nil))
	}
	if mustHappen(writes[0]) {
		return c.commitApart(hard, writes[0], err)
	}
	c.fail(writes[0], err)
	return nil
}

// fail ends a write with the error that it alone caused.
func (c *committer) fail(p *PendingWrite, err error) {
	var unsupported *backends.UnsupportedError
	if !backends.IsRefused(err) && !errors.As(err, &unsupported) && !isLocked(err) && c.failures.isNew("write", err, c.dispatcher.clock()) {
		c.log.Error("write failed", "event", "write_failed", "kind", fmt.Sprintf("%T", p.write), "error", err)
	}
	c.finish(p, Outcome{Err: err})
}

func (c *committer) try(hard context.Context, writes []*PendingWrite, groups []claimGroup) (backends.Results, error) {
	batch, most := backends.Batch{Host: hostOf(groups), WaitForLocks: len(writes) == 1 && writes[0].alone || len(groups) > 0 && groups[0].beside, Jitter: c.jitter}, c.claimBytes()
	if len(writes) > 0 {
		batch.Writes = make([]backends.Write, 0, len(writes))
	}
	for _, p := range writes {
		batch.Writes = append(batch.Writes, p.current())
	}
	for _, a := range groups {
		claim := backends.Claim{Slots: a.slots, MaxBytes: most, MaxPayload: c.maxPayload()}
		if a.bytes > 0 {
			claim.MaxBytes, claim.Strict = min(a.bytes, most), true
		}
		for _, q := range a.queue.queues {
			if policy, ok := c.policy(q); ok {
				claim.Queues = append(claim.Queues, policy)
			}
		}
		batch.Claims = append(batch.Claims, claim)
	}
	ctx, cancel := backendref.WithTimeout(hard, c.times.Timeout())
	defer cancel()
	return c.backend.Commit(ctx, batch)
}

func (c *committer) answer(hard context.Context, writes []*PendingWrite, results []backends.WriteResult) {
	m := c.metrics()
	for i, p := range writes {
		switch err := results[i].Err; {
		case !p.alone && isLocked(err) && mustHappen(p) && len(backends.LeasesOf(p.write)) > 1: // one locked row keeps no other job
			for _, part := range c.partsOf(p) {
				c.setLockedAside(hard, part)
			}
			continue
		case !p.alone && isLocked(err):
			c.setLockedAside(hard, p)
			continue
		case mustHappen(p) && err != nil && !errors.Is(err, backends.ErrUnknownOutcome) && !backends.Retryable(err):
			_ = c.commitApart(hard, p, err) // an outage queues the parts again
			continue
		}
		m.CountWrite(p.write, p.run, p.unseen, &results[i]) // before the client can read the metrics
		c.events.written(p, &results[i])
		c.finish(p, Outcome{Result: results[i], Err: results[i].Err})
		switch p.write.(type) {
		case backends.Enqueue, backends.Ack:
			if p.marked {
				continue
			}
		}
		c.dispatcher.notify(results[i].MadeReady, readyJobs(p.write))
	}
}

// deliverClaims answers claims with the claimed jobs if the heartbeat is not late. If it is late, other sidecars have
// possibly declared this one dead.
func (c *committer) deliverClaims(hard context.Context, groups []claimGroup, results []backends.ClaimResult) {
	if len(groups) == 0 {
		return
	}
	host := hostOf(groups)
	var claimed int
	for i := range results {
		claimed += len(results[i].Jobs)
		c.leases.Forget(groups[i].slots[len(results[i].Jobs):])
	}
	if claimed > 0 && !c.confirmed(hard, host) {
		for i := range groups {
			c.returnUndelivered(host, results[i].Jobs)
			c.dispatcher.fail(groups[i], backends.Unavailable(errHeartbeatLate))
		}
		return
	}
	for i := range groups {
		if err := results[i].Err; err != nil {
			var unavailable *backends.UnavailableError
			var slot *backends.SlotError
			known := errors.As(err, &slot) || errors.As(err, &unavailable) && unavailable.Queue != "" // the client gets it, or it has a line of its own
			if !known && c.failures.isNew("adopted claim", err, c.dispatcher.clock()) {
				c.log.Warn("claim from an adopted table failed", "event", "adopted_claim_failed", "queues", groups[i].queue.queues, "error", err)
			}
			c.dispatcher.failAlone(groups[i], err)
			continue
		}
		maintenance.LogFailed(c.log, results[i].Failed)
		c.events.failed(results[i].Failed)
		if left := c.dispatcher.deliver(groups[i], results[i]); len(left) > 0 {
			c.returnJobs(host, left)
		}
	}
}

func (c *committer) confirmed(hard context.Context, host backends.Identity) bool {
	if c.heartbeat.Fresh() == host {
		return true
	}
	ctx, cancel := backendref.WithTimeout(hard, c.times.Timeout()/4)
	defer cancel()
	return c.heartbeat.Confirm(ctx, host)
}

// returnUndelivered is returnJobs for jobs that were on their way to a worker.
func (c *committer) returnUndelivered(host backends.Identity, jobs []backends.Job) {
	c.dispatcher.mu.Lock()
	c.dispatcher.markReturning(jobs)
	c.dispatcher.mu.Unlock()
	c.returnJobs(host, jobs)
}

// returnJobs releases jobs that were claimed but not handed out, without using up an attempt. The dispatcher has
// counted them as returning. They are no longer if the release must be tried again: it is unknown for how long.
func (c *committer) returnJobs(host backends.Identity, jobs []backends.Job) {
	if len(jobs) == 0 {
		return
	}
	leases, runs := make([]backends.Lease, len(jobs)), make([]lease.Run, len(jobs))
	for i := range jobs {
		leases[i] = jobs[i].Lease()
		runs[i] = lease.Run{Held: lease.Held{Lease: leases[i], Queue: jobs[i].Queue, Info: lease.Info{ID: jobs[i].ID}}, Took: -1}
	}
	c.leases.BeginReturn(leases)
	queues := queuesOfJobs(jobs)
	c.release(host, leases, runs, func() { c.dispatcher.returned(queues) })
}

// queuesOfJobs returns the queue of each job.
func queuesOfJobs(jobs []backends.Job) []string {
	queues := make([]string, len(jobs))
	for i := range jobs {
		queues[i] = jobs[i].Queue
	}
	return queues
}

// release releases claims that no worker had, without using up an attempt, as far as they still belong to host. tried
// can be nil. It is called when the first commit of the release has ended.
func (c *committer) release(host backends.Identity, leases []backends.Lease, runs []lease.Run, tried func()) {
	w := backends.Release{Leases: leases, Owner: host, Uncounted: true}
	c.push(&PendingWrite{write: w, size: sizeOf(w), runs: runs, onEnd: func() { c.leases.Remove(leases) }, onTry: tried, unseen: true, Done: make(chan Outcome, 1)})
}

func (c *committer) dropClaims(groups []claimGroup, err error) {
	for _, a := range groups {
		c.leases.Forget(a.slots)
		c.dispatcher.fail(a, err)
	}
}

func hostOf(groups []claimGroup) backends.Identity {
	if len(groups) == 0 {
		return 0
	}
	return groups[0].slots[0].Token.Host
}

func sizeOf(w backends.Write) size {
	n := len(backends.LeasesOf(w))
	s := size{jobs: n, settled: n}
	add := func(jobs []backends.NewJob) {
		s.jobs += len(jobs)
		for i := range jobs {
			s.bytes += int64(len(jobs[i].Payload) + len(jobs[i].Key))
			for name, value := range jobs[i].Headers {
				s.bytes += int64(len(name) + len(value))
			}
		}
	}
	switch w := w.(type) {
	case backends.Enqueue:
		add(w.Jobs)
	case backends.Ack:
		add(w.Enqueue)
		s.bytes += int64(len(w.Result))
	case backends.Nack:
		s.bytes += int64(len(w.Error))
	}
	return s
}

// newJobs returns the jobs that the write stores.
func newJobs(w backends.Write) []backends.NewJob {
	switch w := w.(type) {
	case backends.Enqueue:
		return w.Jobs
	case backends.Ack:
		return w.Enqueue
	}
	return nil
}

func isReady(j *backends.NewJob) bool { return j.Delay == 0 && j.RunAt.IsZero() }

// readyQueues lists the queues for which the write has ready jobs.
func readyQueues(w backends.Write) (out []string) {
	jobs := newJobs(w)
	for i := range jobs {
		if q := jobs[i].Queue; isReady(&jobs[i]) && (len(out) == 0 || out[len(out)-1] != q) {
			out = append(out, q)
		}
	}
	if len(out) > 1 {
		slices.Sort(out)
		out = slices.Compact(out)
	}
	return out
}

// readyJobs returns how many jobs the write can make ready.
func readyJobs(w backends.Write) (n int) {
	switch w.(type) {
	case backends.Enqueue, backends.Ack:
		jobs := newJobs(w)
		for i := range jobs {
			if isReady(&jobs[i]) {
				n++
			}
		}
		return n
	}
	return len(backends.LeasesOf(w))
}
