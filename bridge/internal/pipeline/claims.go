package pipeline

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/dispatch"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// ClaimRequest is one claim of a session.
type ClaimRequest = dispatch.Request

// Answer is the result of a claim.
type Answer = dispatch.Answer

// ErrAgain ends the wait of a claim that its session has to make again.
var ErrAgain = dispatch.ErrAgain

// Claim queues a claim. If it can answer the claim immediately with prefetched jobs, answered is true.
func (p *Pipeline) Claim(w *ClaimRequest, queues []string) (a Answer, answered bool) {
	return p.dispatcher.Add(w, queues)
}

// AwaitClaim waits for the answer of a queued claim. If over is closed, it returns soon, possibly with jobs of the commit
// under way. If the process stood still since the jobs were claimed, it returns them to the database, and ErrAgain.
func (p *Pipeline) AwaitClaim(over <-chan struct{}, w *ClaimRequest) Answer {
	a := p.dispatcher.Wait(over, w)
	if len(a.Jobs) > 0 && p.stalls.since(a.Asked) {
		p.drop(w, &a)
		return Answer{Err: ErrAgain}
	}
	return a
}

// Jobs returns the answer of a queued claim if it has come and has jobs. Then AwaitClaim must not be called.
func (p *Pipeline) Jobs(w *ClaimRequest) (a Answer, ok bool) { return p.dispatcher.Jobs(w) }

// answerAge is how long an answer with jobs can wait for the settle that came in the same request. Their leases and time limits have
// begun, and other workers could have them.
const answerAge = 500 * time.Millisecond

// DropOld returns the jobs of an answer to the database if it has waited for a settle for long. It reports whether it did. Other
// answers have no such limit: on a machine without free CPU, each one would be old, and no job would be handed out.
func (p *Pipeline) DropOld(w *ClaimRequest, a *Answer) bool {
	if len(a.Jobs) == 0 || p.clock()-a.At <= answerAge {
		return false
	}
	p.drop(w, a)
	return true
}

// drop returns the jobs of an answer to the database.
func (p *Pipeline) drop(w *ClaimRequest, a *Answer) {
	w.Session.AddUnread(-quota.JobBytes(a.Jobs))
	w.Session.SettleJobs(w.Reserved, 0)
	p.ReturnUndelivered(a.Jobs)
}

// WhenAnswered calls f, which must not block, as soon as a queued claim has its answer.
func (p *Pipeline) WhenAnswered(w *ClaimRequest, f func()) { p.dispatcher.WhenAnswered(w, f) }

// ReturnUndelivered releases jobs that were claimed for a session that has ended.
func (p *Pipeline) ReturnUndelivered(jobs []backends.Job) {
	if len(jobs) > 0 {
		p.executor.returnUndelivered(jobs[0].Token.Sidecar, jobs)
	}
}

// HandOut gives the session as many jobs of an answer as fit one reply, and returns those. It releases the others.
func (p *Pipeline) HandOut(w *ClaimRequest, a *Answer, fitting func(jobs []backends.Job) int) ([]backends.Job, error) {
	sidecar := a.Jobs[0].Token.Sidecar
	// Checked again as late as possible: the process was possibly suspended since the commit, and other sidecars have
	// the jobs then.
	if p.heartbeat.Fresh() != sidecar {
		p.executor.returnUndelivered(sidecar, a.Jobs)
		return nil, heartbeatLate(p.heartbeat)
	}
	if p.stalls.since(a.Asked) {
		p.executor.returnUndelivered(sidecar, a.Jobs)
		return nil, backends.Unavailable(errStalled)
	}
	if n := fitting(a.Jobs); n < len(a.Jobs) {
		p.executor.returnUndelivered(sidecar, a.Jobs[n:])
		a.Jobs = a.Jobs[:n]
	}
	now := time.Now()
	if !p.leaseTable.Give(a.Jobs, w.Session, w.Template.Lease > 0, now) {
		return nil, heartbeatLate(p.heartbeat)
	}
	if a.Unrecorded {
		p.leaseTable.NoteHandOut(a.Jobs, w.Template.Worker, now.Sub(p.began))
		p.prefetcher.poke()
	}
	p.Metrics.Load().CountHandOut(a.Jobs, now, now.Sub(w.Since))
	p.events.handedOut(a.Jobs, now, w.Session)
	return a.Jobs, nil
}

// Reroute ends claims with ErrAgain if served reports false for their queues, or if their session is no longer
// allowed to claim from them.
func (p *Pipeline) Reroute(served func(queues []string) bool) {
	p.prefetcher.returnJobs(p.dispatcher.Reroute(served))
}

// StopClaims answers every claim with err, now and from now on.
func (p *Pipeline) StopClaims(err error) { p.dispatcher.Stop(err) }

// WakeClaims includes the waiting claims in the next commit again.
func (p *Pipeline) WakeClaims() { p.executor.loops.WakeClaims() }

const (
	stallCheck = 200 * time.Millisecond // how often a process that runs takes the time
	// stallLimit is the longest time between two checks that counts as running. A pause of a queue applies a second after its
	// reply, and a commit and prefetch can take the rest of that.
	stallLimit = 600 * time.Millisecond
)

// stalls notices that the process stood still: the machine was suspended, or the process was stopped or got no CPU.
// What a claim read before that is old, for example that its queue is not paused. A slow database doesn't count, because
// claims from it would start again and again.
type stalls struct {
	clock func() time.Duration // never jumps, and goes on while the machine is suspended
	seen  atomic.Int64         // the last check, by clock; 0: it does not run
	ended atomic.Int64         // the end of the last stall, by clock; 0: none
}

func (s *stalls) run(ctx context.Context) {
	tick := time.NewTicker(stallCheck)
	defer tick.Stop()
	s.seen.Store(int64(s.clock()))
	for {
		select {
		case <-tick.C:
			s.check()
		case <-ctx.Done():
			s.seen.Store(0)
			return
		}
	}
}

// check takes the time, and returns the end of the last stall.
func (s *stalls) check() time.Duration {
	now := s.clock()
	if last := time.Duration(s.seen.Load()); last != 0 {
		if now-last > stallLimit {
			s.ended.Store(int64(now)) // before seen, so that no other check misses it
		}
		s.seen.Store(int64(now))
	}
	return time.Duration(s.ended.Load())
}

// begin returns the present time, for since.
func (s *stalls) begin() time.Duration {
	s.check()
	return s.clock()
}

// since reports whether the process stood still at some time after began.
func (s *stalls) since(began time.Duration) bool { return s.check() > began }
