package bridge

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// claim queues a claim, or answers it at once with jobs that were claimed ahead.
func (b *pipeline) claim(w *waiter, queues []string) (a answer, answered bool) {
	return b.broker.add(w, queues)
}

// await returns the answer of a claim that was queued. The end of ctx (of the claim's wait, a
// cancel, a hang-up) asks for it early.
func (b *pipeline) await(ctx context.Context, w *waiter) answer { return b.broker.wait(ctx, w) }

// giveUp gives jobs back that were claimed for a session which is gone.
func (b *pipeline) giveUp(jobs []backends.Job) {
	if len(jobs) > 0 {
		b.committer.giveUp(jobs[0].Token.Host, jobs)
	}
}

// handOut makes the jobs of an answer the session's, as many of them as fit one reply, and returns
// those. It gives back the others.
func (b *pipeline) handOut(w *waiter, a *answer, fitting func(jobs []backends.Job) int) ([]backends.Job, error) {
	host := a.jobs[0].Token.Host
	// Asked again, as late as can be: this process may have been suspended since
	// the commit, and others may have the jobs by now.
	if b.keeper.fresh() != host {
		b.committer.giveUp(host, a.jobs)
		return nil, backends.Unavailable(errBeatLate)
	}
	if n := fitting(a.jobs); n < len(a.jobs) {
		b.committer.giveUp(host, a.jobs[n:])
		a.jobs = a.jobs[:n]
	}
	if !b.ledger.give(a.jobs, w.sess, w.lease.Lease > 0) {
		return nil, backends.Unavailable(errBeatLate)
	}
	if a.ahead {
		b.ledger.remember(a.jobs, w.lease.Worker, b.broker.clock())
		b.attendant.wake()
	}
	b.metrics.Load().handed(a.jobs, time.Since(w.since))
	return a.jobs, nil
}

// reroute ends the waits of claims for queues that are not served here any more, with errMoved, and of
// sessions that may not claim from them.
func (b *pipeline) reroute(served func(queues []string) bool) {
	b.attendant.giveBackJobs(b.broker.evict(served))
}

// stopClaims answers every claim, now and from now on, with err.
func (b *pipeline) stopClaims(err error) { b.broker.halt(err) }

// wakeClaims has the claims be gathered again.
func (b *pipeline) wakeClaims() { b.committer.wakeClaims() }
