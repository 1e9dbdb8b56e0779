package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

var errBeatLate = errors.New("this sidecar's beat is late, so it must not give out jobs: it cannot reach the database, or was suspended")

// commit carries out one batch and answers its members. It returns an error when
// the database could not be had: those who can wait are queued again.
func (c *committer) commit(hard context.Context, writes []*pending, asks []ask) error {
	began := time.Now()
	res, err := c.try(hard, writes, asks)
	c.metrics().committed(time.Since(began), len(writes), len(asks), res.Claims, err)
	switch {
	case err == nil:
		c.answer(hard, writes, res.Writes)
		c.deliver(hard, asks, res.Claims)
		return nil
	case errors.Is(err, backends.ErrEvicted):
		// Nothing happened. The writes do not need the host; the claims are asked
		// again under the next identity.
		c.dropAsks(asks, backends.Unavailable(err))
		c.keeper.giveUp(hostOf(asks))
		c.keeper.beatNow()
		if len(writes) == 0 {
			return nil
		}
		return c.commit(hard, writes, nil)
	case backends.IsDiskFull(err) && len(writes)+len(asks) > 1:
		return c.split(hard, writes, asks, err)
	case backends.Retryable(err):
		c.dropAsks(asks, err)
		c.putBack(writes)
		return err
	case errors.Is(err, backends.ErrUnknownOutcome), hard.Err() != nil:
		c.dropAsks(asks, err)
		c.lostTrack(writes, err, hard.Err() == nil)
		return nil
	default:
		return c.split(hard, writes, asks, err)
	}
}

// lostTrack ends writes whose commit may have happened. A release is simply
// made again: its tokens keep it from freeing anything twice.
func (c *committer) lostTrack(writes []*pending, err error, again bool) {
	var releases []*pending
	for _, p := range writes {
		if _, ok := p.write.(backends.Release); ok && again {
			releases = append(releases, p)
			continue
		}
		c.finish(p, outcome{err: err})
	}
	if len(releases) > 0 {
		c.putBack(releases)
	}
}

// split finds the member that the database refuses, or has no room for: halves of the batch
// run on their own, until the guilty one is alone with its error.
func (c *committer) split(hard context.Context, writes []*pending, asks []ask, err error) error {
	if len(writes) > 0 && len(asks) > 0 {
		err1 := c.commit(hard, writes, nil)
		return errors.Join(err1, c.commit(hard, nil, asks))
	}
	if n := len(asks); n > 0 {
		if n == 1 {
			c.log.Error("a claim failed", "queues", asks[0].line.queues, "error", err)
			c.dropAsks(asks, err)
			return nil
		}
		return errors.Join(c.commit(hard, nil, asks[:n/2]), c.commit(hard, nil, asks[n/2:]))
	}
	if n := len(writes); n > 1 {
		err1 := c.commit(hard, writes[:n/2], nil)
		if err1 != nil && !backends.IsDiskFull(err1) {
			// The database went away: the rest goes back behind the first half.
			c.requeueAfter(writes[:n/2], writes[n/2:])
			return err1
		}
		return errors.Join(err1, c.commit(hard, writes[n/2:], nil))
	}
	var unsupported *backends.UnsupportedError
	if !backends.IsRefused(err) && !errors.As(err, &unsupported) && !isLocked(err) {
		c.log.Error("a write failed", "kind", fmt.Sprintf("%T", writes[0].write), "error", err)
	}
	c.finish(writes[0], outcome{err: err})
	return nil
}

// requeueAfter queues second again, right behind what is left of first.
func (c *committer) requeueAfter(first, second []*pending) {
	second = c.untaken(second)
	c.mu.Lock()
	defer c.mu.Unlock()
	at := 0
	for at < len(c.queue) && slices.Contains(first, c.queue[at]) {
		at++
	}
	c.queue = slices.Insert(c.queue, at, second...)
}

func (c *committer) try(hard context.Context, writes []*pending, asks []ask) (backends.Results, error) {
	batch, most := backends.Batch{Host: hostOf(asks), WaitForLocks: len(writes) == 1 && writes[0].alone}, c.claimBytes()
	for _, p := range writes {
		batch.Writes = append(batch.Writes, p.write)
	}
	for _, a := range asks {
		claim := backends.Claim{Slots: a.slots, MaxBytes: most, MaxPayload: c.maxPayload()}
		if a.bytes > 0 {
			claim.MaxBytes, claim.Strict = min(a.bytes, most), true
		}
		for _, q := range a.line.queues {
			if policy, ok := c.policy(q); ok {
				claim.Queues = append(claim.Queues, policy)
			}
		}
		batch.Claims = append(batch.Claims, claim)
	}
	ctx, cancel := answerWithin(hard, c.times.patience())
	defer cancel()
	return c.backend.Commit(ctx, batch)
}

func (c *committer) answer(hard context.Context, writes []*pending, results []backends.WriteResult) {
	m := c.metrics()
	for i, p := range writes {
		if !p.alone && isLocked(results[i].Err) {
			c.setAside(hard, p)
			continue
		}
		m.answered(p.write, p.run, p.unseen, &results[i]) // before whoever waits can look
		c.finish(p, outcome{res: results[i], err: results[i].Err})
		switch p.write.(type) {
		case backends.Enqueue, backends.Ack:
			if c.both {
				continue // their queues were marked before the claims were chosen
			}
		}
		c.broker.hint(results[i].MadeReady, p.size.jobs)
	}
}

// deliver hands the claimed jobs to their waiters, if this sidecar is still alive:
// where its beat is late by now, others may have given it up.
func (c *committer) deliver(hard context.Context, asks []ask, results []backends.ClaimResult) {
	if len(asks) == 0 {
		return
	}
	host := hostOf(asks)
	var claimed int
	for i := range results {
		claimed += len(results[i].Jobs)
		c.ledger.forget(asks[i].slots[len(results[i].Jobs):])
	}
	if claimed > 0 && !c.confirmed(hard, host) {
		for i := range asks {
			c.giveUp(host, results[i].Jobs)
			c.broker.fail(asks[i], backends.Unavailable(errBeatLate))
		}
		return
	}
	for i := range asks {
		if err := results[i].Err; err != nil {
			c.log.Warn("a claim failed", "queues", asks[i].line.queues, "error", err)
			c.broker.failAlone(asks[i], err)
			continue
		}
		logFallen(c.log, results[i].Failed)
		if left := c.broker.settle(asks[i], results[i]); len(left) > 0 {
			c.giveBack(host, left)
		}
	}
}

func (c *committer) confirmed(hard context.Context, host backends.Identity) bool {
	if c.keeper.fresh() == host {
		return true
	}
	ctx, cancel := answerWithin(hard, c.times.patience()/4)
	defer cancel()
	return c.keeper.confirm(ctx, host)
}

// giveUp is giveBack for jobs that were on their way to a worker.
func (c *committer) giveUp(host backends.Identity, jobs []backends.Job) {
	c.broker.mu.Lock()
	c.broker.leaves(jobs)
	c.broker.mu.Unlock()
	c.giveBack(host, jobs)
}

// giveBack returns jobs that were claimed but not handed out, uncharged. The broker has counted
// them as leaving.
func (c *committer) giveBack(host backends.Identity, jobs []backends.Job) {
	if len(jobs) == 0 {
		return
	}
	leases := make([]backends.Lease, len(jobs))
	for i := range jobs {
		leases[i] = jobs[i].Lease()
	}
	c.ledger.leaving(leases)
	queues := queuesOfJobs(jobs)
	c.release(host, leases, func() { c.broker.areBack(queues) })
}

// queuesOfJobs has the queue of each job.
func queuesOfJobs(jobs []backends.Job) []string {
	queues := make([]string, len(jobs))
	for i := range jobs {
		queues[i] = jobs[i].Queue
	}
	return queues
}

// release gives claims back, uncharged, as far as they are still host's. ended may be nil.
func (c *committer) release(host backends.Identity, leases []backends.Lease, ended func()) {
	c.pushUnseen(backends.Release{Leases: leases, Owner: host, Uncounted: true}, func() {
		c.ledger.gone(leases)
		if ended != nil {
			ended()
		}
	})
}

func (c *committer) dropAsks(asks []ask, err error) {
	for _, a := range asks {
		c.ledger.forget(a.slots)
		c.broker.fail(a, err)
	}
}

func hostOf(asks []ask) backends.Identity {
	if len(asks) == 0 {
		return 0
	}
	return asks[0].slots[0].Token.Host
}

func leasesOf(w backends.Write) []backends.Lease {
	switch w := w.(type) {
	case backends.Ack:
		return w.Leases
	case backends.Nack:
		return w.Leases
	case backends.Extend:
		return w.Leases
	case backends.Release:
		return w.Leases
	case backends.Deliver:
		leases := make([]backends.Lease, len(w.Deliveries))
		for i := range w.Deliveries {
			leases[i] = w.Deliveries[i].Lease
		}
		return leases
	}
	return nil
}

func sizeOf(w backends.Write) size {
	s := size{jobs: len(leasesOf(w))}
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

// readyQueues lists the queues that the write puts ready jobs into.
func readyQueues(w backends.Write) []string {
	var jobs []backends.NewJob
	switch w := w.(type) {
	case backends.Enqueue:
		jobs = w.Jobs
	case backends.Ack:
		jobs = w.Enqueue
	}
	var out []string
	for i := range jobs {
		if jobs[i].Delay == 0 && jobs[i].RunAt.IsZero() && !slices.Contains(out, jobs[i].Queue) {
			out = append(out, jobs[i].Queue)
		}
	}
	return out
}
