package pipeline

import (
	"container/list"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// ClaimRequest is one claim of a session. The caller sets the exported fields except Queues and Reserved.
type ClaimRequest struct {
	Session  *quota.Session
	Slots    int
	Since    time.Time     // when it arrived
	Template backends.Slot // the kind of lease and the worker
	Once     bool          // it does not wait: one commit answers it
	queue    *waitQueue
	Queues   []string      // the queues of the field queue
	in       *list.List    // the list of the wait queue that contains it
	at       *list.Element // of in
	Reserved int           // of the session's job quota, for the commit under way or the answer
	inCommit bool          // the commit under way includes it
	leaving  bool          // answered as soon as the commit under way ends
	lastErr  error         // of the last commit that included it
	moved    error         // ErrMoved, once its queues are not served here

	answer     chan Answer // buffered: the dispatcher never waits for the session
	onAnswered func()      // see Pipeline.WhenAnswered; nil: nothing
}

// Answer is the result of a claim. If it has no jobs, Err is the reason. If Err is nil, the queues have none.
type Answer struct {
	Jobs       []backends.Job
	asked      time.Duration // claimGroup.asked
	prefetched bool          // the hand-out is not recorded in the database yet
	Err        error
}

// end answers the claim. dispatcher.mu is held.
func (w *ClaimRequest) end(a Answer) {
	answered := w.onAnswered // the receiver of the answer can use w again
	w.answer <- a
	if answered != nil {
		answered()
	}
}

// Claim queues a claim. If it can answer the claim immediately with prefetched jobs, answered is true.
func (b *Pipeline) Claim(w *ClaimRequest, queues []string) (a Answer, answered bool) {
	return b.dispatcher.add(w, queues)
}

// AwaitClaim waits for the answer of a queued claim. If over is closed, it returns soon, possibly with jobs of the commit
// under way.
//
// If the process stood still since the jobs were claimed, AwaitClaim returns them to the database, and claims again.
func (b *Pipeline) AwaitClaim(over <-chan struct{}, w *ClaimRequest) Answer {
	for {
		a := b.dispatcher.wait(over, w)
		if len(a.Jobs) == 0 || !b.stalls.since(a.asked) {
			return a
		}
		w.Session.AddUnread(-quota.JobBytes(a.Jobs))
		w.unanswered()
		b.ReturnUndelivered(a.Jobs)
		queues := w.Queues
		*w = ClaimRequest{Session: w.Session, Since: w.Since, Slots: w.Slots, Template: w.Template, Once: w.Once, Queues: queues}
		if a, answered := b.Claim(w, queues); answered {
			return a
		}
	}
}

// WhenAnswered calls f, which must not block, as soon as a queued claim has its answer.
func (b *Pipeline) WhenAnswered(w *ClaimRequest, f func()) {
	b.dispatcher.mu.Lock()
	defer b.dispatcher.mu.Unlock()
	if w.queue == nil {
		f()
		return
	}
	w.onAnswered = f
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
	if b.stalls.since(a.asked) {
		b.committer.returnUndelivered(host, a.Jobs)
		return nil, backends.Unavailable(errStalled)
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
