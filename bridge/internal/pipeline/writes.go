package pipeline

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// SubmitWrite queues a write of a session for the group commit.
func (p *Pipeline) SubmitWrite(s *quota.Session, w backends.Write) (*PendingWrite, error) {
	pending := &PendingWrite{write: w, session: s, received: p.events.received()}
	if err := p.executor.reserve(context.Background(), pending, 0); err != nil {
		return nil, err
	}
	p.executor.push(pending)
	return pending, nil
}

// AwaitWrite waits for the outcome of a submitted write. If no commit has taken the write after patience, nothing
// was written and the error is unavailable.
func (p *Pipeline) AwaitWrite(pending *PendingWrite, patience time.Duration) (backends.WriteResult, error) {
	return p.executor.wait(pending, patience, nil)
}

// Settle is an ack, nack or extend of leases of this database. The caller sets Leases.
type Settle struct {
	Leases  []backends.Lease
	Runs    []lease.Run    // what the lease table has about each lease's delivery
	marked  []*lease.Entry // entries of the lease table, marked as being settled
	pending PendingWrite

	// Backing array that saves allocations: most settles have one lease.
	oneMarked [1]*lease.Entry
	oneRun    [1]lease.Run
}

// Write returns the submitted write, or nil if it was dropped.
func (s *Settle) Write() backends.Write { return s.pending.write }

// CheckSettle returns an error if the session cannot settle or extend a lease that is held in a transaction.
func (p *Pipeline) CheckSettle(l backends.Lease, s *quota.Session, extend bool) error {
	switch {
	case !p.backend.InTx(l):
		return nil
	case extend:
		return &backends.UnsupportedError{What: backends.NoExtend, InTx: true}
	case p.leaseTable.HeldByOther(l, s):
		return &backends.UnsupportedError{What: backends.NotElsewhere, InTx: true}
	}
	return nil
}

// SubmitSettle queues a write about st.Leases. Its request keeps beside more bytes in memory.
func (p *Pipeline) SubmitSettle(st *Settle, s *quota.Session, w backends.Write, beside int64) error {
	pending := &st.pending
	pending.write, pending.session, pending.received = w, s, p.events.received()
	if err := p.executor.reserve(context.Background(), pending, beside); err != nil {
		return err
	}
	st.marked, st.Runs = p.leaseTable.BeginSettle(st.Leases, st.oneMarked[:0], st.oneRun[:0])
	pending.runs = st.Runs
	if queues := p.executor.gates.frees(pending); queues != nil {
		p.dispatcher.MarkSettling(queues) // the next claim possibly comes in the same request
		pending.onTry = func() { p.dispatcher.Settled(queues) }
	}
	if _, nack := w.(backends.Nack); nack {
		p.afterProgress(st.Leases, func() { p.executor.push(pending) })
		return nil
	}
	p.executor.push(pending)
	return nil
}

// SubmitBind queues an extend that assigns st.Leases to the session.
func (p *Pipeline) SubmitBind(st *Settle, s *quota.Session, e backends.Extend, beside int64) error {
	pending := &st.pending
	pending.write, pending.session = e, s
	if err := p.executor.reserve(context.Background(), pending, beside); err != nil {
		return err
	}
	e.Bind = p.heartbeat.Fresh()
	if e.Bind == 0 {
		p.heartbeat.SendNow()
		p.executor.drop(pending)
		return heartbeatLate(p.heartbeat)
	}
	pending.write = e
	if !p.leaseTable.Bind(st.Leases, s, s.Client.MaxJobs(), func() { p.executor.push(pending) }) {
		p.executor.drop(pending)
		return s.Client.TooManyJobs()
	}
	return nil
}

// Waiter waits for something beside a settle.
type Waiter interface {
	// Late is called while the settle waits for long, for example for a locked row.
	Late()
}

// AwaitSettle waits for the outcome of a submitted settle and updates the lease table. beside can be nil.
func (p *Pipeline) AwaitSettle(st *Settle, beside Waiter) (backends.WriteResult, error) {
	extend, isExtend := st.pending.write.(backends.Extend) // wait can clear pending.write
	res, err := p.executor.wait(&st.pending, p.times.Timeout(), beside)
	switch {
	case extend.Bind != 0 && err != nil:
		// It is unknown whether the lease is bound. The session keeps it: a release of a lease that is not this
		// host's changes nothing.
		p.leaseTable.EndBind(st.Leases, nil, nil)
	case extend.Bind != 0:
		p.leaseTable.EndBind(st.Leases, res.Lost, res.Alone)
	case err != nil:
		p.leaseTable.EndSettle(st.marked, nil)
	case isExtend:
		if extend.Lease > 0 {
			p.leaseTable.Unbind(st.Leases)
		}
		p.leaseTable.EndSettle(st.marked, res.Lost)
	default:
		p.leaseTable.EndSettle(st.marked, st.Leases)
	}
	return res, err
}

// ReleaseSession releases the jobs that a session holds. With idle, it leaves those that a write under way is about. It returns
// the jobs, and the queued release. pending is nil if there was nothing to release.
func (p *Pipeline) ReleaseSession(s *quota.Session, how backends.Release, idle bool) (held []lease.Held, pending *PendingWrite) {
	held = p.leaseTable.TakeSession(s, idle, func(leases []backends.Lease, held []lease.Held) {
		how.Owner = p.heartbeat.Identity()
		if how.Owner == 0 {
			return // the identity was declared dead: the sidecar that declared it reaps the jobs
		}
		how.Leases = leases
		pending = &PendingWrite{write: how, holder: s, runs: make([]lease.Run, len(held))}
		for i := range held {
			pending.runs[i] = lease.Run{Held: held[i], Took: -1}
		}
		pending.onEnd = func(Outcome) { p.leaseTable.Remove(leases) }
		pending.free()
		p.afterProgress(leases, func() { p.executor.push(pending) })
	})
	return held, pending
}
