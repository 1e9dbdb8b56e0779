package pipeline

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// SubmitWrite queues a write of a session for the group commit.
func (b *Pipeline) SubmitWrite(s *quota.Session, w backends.Write) (*PendingWrite, error) {
	p := &PendingWrite{write: w, session: s, received: b.committer.events.received()}
	if err := b.committer.reserve(context.Background(), p, 0); err != nil {
		return nil, err
	}
	b.committer.push(p)
	return p, nil
}

// AwaitWrite waits for the outcome of a submitted write. If no commit has taken the write after patience, nothing
// was written and the error is unavailable.
func (b *Pipeline) AwaitWrite(p *PendingWrite, patience time.Duration) (backends.WriteResult, error) {
	return b.committer.wait(p, patience)
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
func (st *Settle) Write() backends.Write { return st.pending.write }

// CheckSettle returns an error if the session cannot settle or extend a lease that is held in a transaction.
func (b *Pipeline) CheckSettle(l backends.Lease, s *quota.Session, extend bool) error {
	switch {
	case !b.backend.InTx(l):
		return nil
	case extend:
		return &backends.UnsupportedError{What: backends.NoExtend, InTx: true}
	case b.leaseTable.HeldByOther(l, s):
		return &backends.UnsupportedError{What: backends.NotElsewhere, InTx: true}
	}
	return nil
}

// SubmitSettle queues a write about st.Leases. Its request keeps beside more bytes in memory.
func (b *Pipeline) SubmitSettle(st *Settle, s *quota.Session, w backends.Write, beside int64) error {
	p := &st.pending
	p.write, p.session, p.received = w, s, b.committer.events.received()
	if err := b.committer.reserve(context.Background(), p, beside); err != nil {
		return err
	}
	st.marked, st.Runs = b.leaseTable.BeginSettle(st.Leases, st.oneMarked[:0], st.oneRun[:0])
	p.runs = st.Runs
	b.committer.push(p)
	return nil
}

// SubmitBind queues an extend that assigns st.Leases to the session.
func (b *Pipeline) SubmitBind(st *Settle, s *quota.Session, e backends.Extend, beside int64) error {
	p := &st.pending
	p.write, p.session = e, s
	if err := b.committer.reserve(context.Background(), p, beside); err != nil {
		return err
	}
	e.Bind = b.heartbeat.Fresh()
	if e.Bind == 0 {
		b.heartbeat.SendNow()
		b.committer.drop(p)
		return backends.Unavailable(errHeartbeatLate)
	}
	p.write = e
	if !b.leaseTable.Bind(st.Leases, s, s.Client.MaxJobs(), func() { b.committer.push(p) }) {
		b.committer.drop(p)
		return s.Client.TooManyJobs()
	}
	return nil
}

// AwaitSettle waits for the outcome of a submitted settle and updates the lease table.
func (b *Pipeline) AwaitSettle(st *Settle) (backends.WriteResult, error) {
	extend, isExtend := st.pending.write.(backends.Extend) // wait can clear pending.write
	res, err := b.committer.wait(&st.pending, b.times.Timeout())
	switch {
	case extend.Bind != 0 && err != nil:
		// It is unknown whether the lease is bound. The session keeps it: a release of a lease that is not this
		// host's changes nothing.
		b.leaseTable.EndBind(st.Leases, nil, nil)
	case extend.Bind != 0:
		b.leaseTable.EndBind(st.Leases, res.Lost, res.Alone)
	case err != nil:
		b.leaseTable.EndSettle(st.marked, nil)
	case isExtend:
		if extend.Lease > 0 {
			b.leaseTable.Unbind(st.Leases)
		}
		b.leaseTable.EndSettle(st.marked, res.Lost)
	default:
		b.leaseTable.EndSettle(st.marked, st.Leases)
	}
	return res, err
}

// ReleaseSession releases all jobs that a session holds. It returns them, and the queued release. p is nil if there
// was nothing to release.
func (b *Pipeline) ReleaseSession(s *quota.Session, how backends.Release) (held []lease.Held, p *PendingWrite) {
	held = b.leaseTable.TakeSession(s, func(leases []backends.Lease, held []lease.Held) {
		how.Owner = b.heartbeat.Identity()
		if how.Owner == 0 {
			return // the identity was declared dead: the sidecar that declared it reaps the jobs
		}
		how.Leases = leases
		p = &PendingWrite{write: how, holder: s, runs: make([]lease.Run, len(held))}
		for i := range held {
			p.runs[i] = lease.Run{Held: held[i], Took: -1}
		}
		p.onEnd = func(Outcome) { b.leaseTable.Remove(leases) }
		b.committer.pushFree(p)
	})
	return held, p
}
