package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/dispatch"
	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/maintenance"
)

var (
	errHeartbeatLate = errors.New("this sidecar's heartbeat is late, so it must not hand out jobs: it can't reach the database, or was suspended")

	errStalled = errors.New("this sidecar stood still after it claimed the jobs, so it returned them: claim again")
)

// heartbeatLate returns the error of claims while the heartbeat is late. It includes why the last one failed.
func heartbeatLate(h *heartbeat.Heartbeater) error {
	if why := h.Err(); why != nil {
		return backends.Unavailable(fmt.Errorf("%w: %w", errHeartbeatLate, why))
	}
	return backends.Unavailable(errHeartbeatLate)
}

// batch is what one commit carries out.
type batch struct {
	writes    []*PendingWrite
	claims    []dispatch.Group
	announced bool           // the claims of the commit know about the ready jobs of its writes
	waits     bool           // its only write waits for a locked row
	own       bool           // it is the own commit of a wait queue
	settles   map[string]int // of its queues with limits, when it began; see gates.settles
}

// with returns the part of a batch that has these of its writes, and no claims.
func (b batch) with(writes []*PendingWrite) batch {
	b.writes, b.claims = writes, nil
	return b
}

// commit commits one batch and answers its members. If the database is unreachable, it queues the writes again and
// returns an error. What an error of the whole commit means for its members:
//
//	error                        claims                           writes
//	backends.ErrEvicted          wait for the next identity       committed again at once, without the claims
//	locked, and a write can      committed again at once          those that can wait for a key are set aside,
//	wait for a key                                                the others committed again at once
//	disk full, several members   isolate                          isolate: what needs no space succeeds
//	unavailable                  wait, or fail if they are Once   queued again, in their order
//	backends.ErrUnknownOutcome   wait, or fail if they are Once   fail; those that must happen are queued again
//	the time to stop is over     fail                             fail
//	any other                    isolate; one alone fails         isolate; one alone fails, or is tried apart if it must happen
//
// A claim or a write can also have an error of its own in the results of a commit that succeeded: see answer and deliverClaims.
func (e *executor) commit(hard context.Context, b batch) error {
	began := time.Now()
	res, err := e.try(hard, b)
	took := time.Since(began)
	e.metrics().CountCommit(took, len(b.writes), len(b.claims), res.Claims, err)
	if len(b.claims) > 0 && !b.own {
		e.dispatcher.NoteClaimTime(took)
	}
	switch {
	case err == nil:
		e.batches.add(hard, res.Batches)
		e.admissions.add(hard, res.Groups) // before the answers, whose receivers can claim
		e.answer(hard, b, res.Writes)
		e.deliverClaims(hard, b, res.Claims)
		return nil
	case errors.Is(err, backends.ErrEvicted):
		// Nothing happened. The writes do not need a living sidecar. The claims are included again under the next identity.
		e.dropClaims(b.claims, backends.Unavailable(err))
		e.heartbeat.DropIdentity(sidecarOf(b.claims))
		e.heartbeat.SendNow()
		if len(b.writes) == 0 {
			return nil
		}
		return e.commit(hard, b.with(b.writes))
	case isLocked(err) && slices.ContainsFunc(b.writes, b.canWaitForKey):
		return e.commitWithoutKeys(hard, b)
	case backends.IsDiskFull(err) && len(b.writes)+len(b.claims) > 1:
		return e.isolate(hard, b, err)
	case backends.Retryable(err):
		e.dropClaims(b.claims, err)
		e.putBack(b.writes)
		return err
	case errors.Is(err, backends.ErrUnknownOutcome), hard.Err() != nil:
		e.dropClaims(b.claims, err)
		if len(b.claims) > 0 {
			e.heartbeat.SendNow() // it releases the claims if they were committed
		}
		e.endUnknown(b.writes, err, hard.Err() == nil)
		return nil
	default:
		return e.isolate(hard, b, err)
	}
}

// endUnknown ends writes whose commit has an unknown outcome. Those that no client repeats are queued again: their
// tokens keep them from changing a job twice.
func (e *executor) endUnknown(writes []*PendingWrite, err error, again bool) {
	var repeat []*PendingWrite
	for _, p := range writes {
		if mustHappen(p) && again {
			repeat = append(repeat, p)
			continue
		}
		e.finish(p, Outcome{Err: err})
	}
	if len(repeat) > 0 {
		e.putBack(repeat)
	}
}

func (e *executor) try(hard context.Context, b batch) (backends.Results, error) {
	all, most := backends.CommitContent{Sidecar: sidecarOf(b.claims), WaitForLocks: b.waits || b.own, Jitter: e.jitter}, e.claimBytes()
	if len(b.writes) > 0 {
		all.Writes = make([]backends.Write, 0, len(b.writes))
	}
	for _, p := range b.writes {
		all.Writes = append(all.Writes, p.current())
	}
	for i := range b.claims {
		for n := range b.claims[i].Len() {
			all.Claims = append(all.Claims, e.claim(&b.claims[i], n, most))
		}
	}
	ctx, cancel := backendref.WithTimeout(hard, e.times.Timeout())
	defer cancel()
	return e.backend.Commit(ctx, all)
}

// claim returns a part of a claim group as a claim of at most so many bytes. The parts share the bytes of the group.
func (e *executor) claim(g *dispatch.Group, n int, most int64) backends.Claim {
	part, parts := g.Part(n), int64(g.Len())
	c := backends.Claim{Slots: part.Slots, MaxBytes: most / parts, MaxPayload: e.maxPayload(), Strict: parts > 1}
	if g.Bytes > 0 {
		c.MaxBytes, c.Strict = min(g.Bytes, most)/parts, true
	}
	for _, q := range part.Queues {
		if policy, ok := e.policy(q); ok {
			policy.Gated = e.gates.has(q)
			c.Queues = append(c.Queues, policy)
		}
	}
	return c
}

func (e *executor) answer(hard context.Context, b batch, results []backends.WriteResult) {
	m := e.metrics()
	for i, p := range b.writes {
		switch err := results[i].Err; {
		case !b.waits && isLocked(err) && mustHappen(p) && len(backends.LeasesOf(p.write)) > 1: // one locked row keeps no other job
			for _, part := range e.partsOf(p) {
				e.setLockedAside(hard, part)
			}
			continue
		case !b.waits && isLocked(err):
			e.setLockedAside(hard, p)
			continue
		case mustHappen(p) && err != nil:
			_ = e.commitApart(hard, p, err) // an outage queues the parts again
			continue
		}
		m.CountWrite(p.write, p.run, p.unseen(), &results[i]) // before the client can read the metrics
		e.events.written(p, &results[i])
		e.gates.settled(p)
		e.finish(p, Outcome{Result: results[i], Err: results[i].Err})
		if b.announced && newJobs(p.write) != nil {
			e.dispatcher.NotifyOthers(results[i].MadeReady, readyJobs(p.write))
			continue
		}
		e.dispatcher.Notify(results[i].MadeReady, readyJobs(p.write))
	}
}

// deliverClaims answers claims with the claimed jobs if the heartbeat is not late. If it is late, other sidecars have
// possibly declared this one dead.
func (e *executor) deliverClaims(hard context.Context, b batch, results []backends.ClaimResult) {
	groups := b.claims
	if len(groups) == 0 {
		return
	}
	sidecar := sidecarOf(groups)
	var claimed, first int
	for i := range groups {
		for n := range groups[i].Len() {
			jobs := results[first].Jobs
			claimed += len(jobs)
			e.leases.Forget(groups[i].Part(n).Slots[len(jobs):])
			first++
		}
	}
	if claimed > 0 && !e.confirmed(hard, sidecar) {
		for i := range results {
			e.returnUndelivered(sidecar, results[i].Jobs)
		}
		for i := range groups {
			e.dispatcher.Fail(groups[i], heartbeatLate(e.heartbeat))
		}
		return
	}
	for i := range groups {
		parts := results[:groups[i].Len()]
		results = results[len(parts):]
		e.noteGates(parts, b.settles)
		if err := e.failedClaim(&groups[i], parts); err != nil {
			e.dispatcher.FailApart(groups[i], err)
			continue
		}
		if left := e.dispatcher.Deliver(groups[i], parts...); len(left) > 0 {
			e.returnJobs(sidecar, left)
		}
	}
}

// noteGates records what claims found out about queues with limits. before: see batch.settles.
func (e *executor) noteGates(results []backends.ClaimResult, before map[string]int) {
	for i := range results {
		for _, r := range results[i].Gates {
			if r.Closed {
				e.metrics().CountLimited(r.Queue, r.After > 0)
			}
			changed, again := e.gates.note(r, before)
			if changed {
				e.dispatcher.NoteGate(r.Queue)
			}
			if again {
				e.dispatcher.Reopen(r.Queue)
			}
		}
	}
}

// failedClaim logs what the parts of a claim group did besides claiming. It returns the error of the group: one of a part, if no
// part has a job.
func (e *executor) failedClaim(g *dispatch.Group, parts []backends.ClaimResult) (failed error) {
	claimed := false
	for i := range parts {
		claimed = claimed || len(parts[i].Jobs) > 0
		err := parts[i].Err
		if parts[i].Unknown || errors.Is(err, backends.ErrUnknownOutcome) {
			e.heartbeat.SendNow() // it releases the jobs if they were claimed
		}
		if err == nil {
			maintenance.LogFailed(e.log, parts[i].Failed)
			e.events.failed(parts[i].Failed)
			continue
		}
		failed = cmp.Or(failed, err)
		var unavailable *backends.UnavailableError
		var slot *backends.SlotError
		known := errors.As(err, &slot) || errors.As(err, &unavailable) && unavailable.Queue != "" // the client gets it, or it has a line of its own
		if !known && e.failures.IsNew("adopted claim", err) {
			e.log.Warn("claim from an adopted table failed", "event", "adopted_claim_failed", "queues", g.Queues(), "error", err)
		}
	}
	if claimed {
		return nil
	}
	return failed
}

func (e *executor) confirmed(hard context.Context, sidecar backends.Identity) bool {
	if e.heartbeat.Fresh() == sidecar {
		return true
	}
	ctx, cancel := backendref.WithTimeout(hard, e.times.Timeout()/4)
	defer cancel()
	return e.heartbeat.Confirm(ctx, sidecar)
}

// returnUndelivered is returnJobs for jobs that were on their way to a worker.
func (e *executor) returnUndelivered(sidecar backends.Identity, jobs []backends.Job) {
	e.dispatcher.MarkReturning(jobs)
	e.returnJobs(sidecar, jobs)
}

// returnJobs releases jobs that were claimed but not handed out, without using up an attempt. The dispatcher has
// counted them as returning. They are no longer if the release must be tried again: it is unknown for how long.
func (e *executor) returnJobs(sidecar backends.Identity, jobs []backends.Job) {
	if len(jobs) == 0 {
		return
	}
	leases, runs := make([]backends.Lease, len(jobs)), make([]lease.Run, len(jobs))
	for i := range jobs {
		leases[i] = jobs[i].Lease()
		runs[i] = lease.Run{Held: lease.Held{Lease: leases[i], Queue: jobs[i].Queue, Info: lease.Info{ID: jobs[i].ID}}, Took: -1}
	}
	e.leases.BeginReturn(leases)
	queues := queuesOfJobs(jobs)
	e.release(sidecar, leases, runs, func() { e.dispatcher.Returned(queues) })
}

// queuesOfJobs returns the queue of each job.
func queuesOfJobs(jobs []backends.Job) []string {
	queues := make([]string, len(jobs))
	for i := range jobs {
		queues[i] = jobs[i].Queue
	}
	return queues
}

// release releases claims that no worker had, without using up an attempt, as far as they still belong to the sidecar. tried
// can be nil. It is called when the first commit of the release has ended.
func (e *executor) release(sidecar backends.Identity, leases []backends.Lease, runs []lease.Run, tried func()) {
	w := backends.Release{Leases: leases, Owner: sidecar, Uncounted: true}
	e.pushFree(&PendingWrite{write: w, runs: runs, onEnd: func(Outcome) { e.leases.Remove(leases) }, onTry: tried})
}

func (e *executor) dropClaims(groups []dispatch.Group, err error) {
	for _, a := range groups {
		e.leases.Forget(a.Slots)
		e.dispatcher.Fail(a, err)
	}
}

func sidecarOf(groups []dispatch.Group) backends.Identity {
	if len(groups) == 0 {
		return 0
	}
	return groups[0].Slots[0].Token.Sidecar
}
