package pipeline

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Claim queues a claim. If it can answer the claim immediately with prefetched jobs, answered is true.
func (b *Pipeline) Claim(w *ClaimRequest, queues []string) (a Answer, answered bool) {
	return b.dispatcher.add(w, queues)
}

// AwaitClaim waits for the answer of a queued claim. If ctx ends, it returns soon, possibly with jobs of the commit
// under way.
func (b *Pipeline) AwaitClaim(ctx context.Context, w *ClaimRequest) Answer {
	return b.dispatcher.wait(ctx, w)
}

// ReturnUndelivered releases jobs that were claimed for a session that has ended.
func (b *Pipeline) ReturnUndelivered(jobs []backends.Job) {
	if len(jobs) > 0 {
		b.committer.returnUndelivered(jobs[0].Token.Host, jobs)
	}
}

// HandOut gives the session as many jobs of an answer as fit one reply, and returns those. It releases the others.
func (b *Pipeline) HandOut(w *ClaimRequest, a *Answer, fitting func(jobs []backends.Job) int) ([]backends.Job, error) {
	host := a.Jobs[0].Token.Host
	// Checked again as late as possible: the process was possibly suspended since the commit, and other sidecars have
	// the jobs then.
	if b.heartbeat.Fresh() != host {
		b.committer.returnUndelivered(host, a.Jobs)
		return nil, backends.Unavailable(errHeartbeatLate)
	}
	if n := fitting(a.Jobs); n < len(a.Jobs) {
		b.committer.returnUndelivered(host, a.Jobs[n:])
		a.Jobs = a.Jobs[:n]
	}
	now := time.Now()
	if !b.leaseTable.Give(a.Jobs, w.Session, w.Template.Lease > 0, now) {
		return nil, backends.Unavailable(errHeartbeatLate)
	}
	if a.prefetched {
		b.leaseTable.NoteHandOut(a.Jobs, w.Template.Worker, now.Sub(b.dispatcher.began))
		b.prefetcher.wake()
	}
	b.Metrics.Load().CountHandOut(a.Jobs, now, now.Sub(w.Since))
	b.committer.events.handedOut(a.Jobs, now, w.Session)
	return a.Jobs, nil
}

// Reroute ends claims with ErrMoved if served reports false for their queues, or if their session is no longer
// allowed to claim from them.
func (b *Pipeline) Reroute(served func(queues []string) bool) {
	b.prefetcher.returnJobs(b.dispatcher.reroute(served))
}

// StopClaims answers every claim with err, now and from now on.
func (b *Pipeline) StopClaims(err error) { b.dispatcher.stop(err) }

// WakeClaims includes the waiting claims in the next commit again.
func (b *Pipeline) WakeClaims() { b.committer.WakeClaims() }
