package bridge

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// submit queues a write of a session for the group commit.
func (b *pipeline) submit(s *account, w backends.Write) (*pending, error) {
	p, err := b.committer.reserve(context.Background(), s, w, 0)
	if err != nil {
		return nil, err
	}
	b.committer.push(p)
	return p, nil
}

// result waits for a submitted write. A write that no commit has taken after patience is
// taken out again: nothing was written then.
func (b *pipeline) result(p *pending, patience time.Duration) (backends.WriteResult, error) {
	return b.committer.wait(p, patience)
}

// settle is an ack, nack or extend of leases of this database, on its way.
type settle struct {
	leases []backends.Lease
	runs   []ran      // what is known of each lease's delivery
	marked []*holding // in the ledger, as being settled
	p      *pending

	// Most settles are of one lease.
	oneMarked [1]*holding
	oneRun    [1]ran
}

// write is what was submitted; nil: it was given up.
func (st *settle) write() backends.Write { return st.p.write }

// mayMove says why a session may not do that with a held job; nil: it may, or the job is none.
func (b *pipeline) mayMove(l backends.Lease, s *account, extend bool) error {
	switch {
	case !b.link.holding(l):
		return nil
	case extend:
		return &backends.UnsupportedError{What: backends.NoExtend, InTx: true}
	case b.ledger.others(l, s):
		return &backends.UnsupportedError{What: backends.NotElsewhere, InTx: true}
	}
	return nil
}

// submitSettle queues a write about st.leases, whose request keeps so many bytes beside it.
func (b *pipeline) submitSettle(st *settle, s *account, w backends.Write, beside int64) error {
	p, err := b.committer.reserve(context.Background(), s, w, beside)
	if err != nil {
		return err
	}
	st.p = p
	st.marked, st.runs = b.ledger.settling(st.leases, st.oneMarked[:0], st.oneRun[:0])
	p.runs = st.runs
	b.committer.push(p)
	return nil
}

// submitBind queues an extend that makes the leases the session's.
func (b *pipeline) submitBind(st *settle, s *account, e backends.Extend, beside int64) error {
	p, err := b.committer.reserve(context.Background(), s, e, beside)
	if err != nil {
		return err
	}
	e.Bind = b.keeper.fresh()
	if e.Bind == 0 {
		b.keeper.beatNow()
		b.committer.drop(p)
		return backends.Unavailable(errBeatLate)
	}
	p.write = e
	if !b.ledger.bind(st.leases, s, s.client.maxJobs(), func() { b.committer.push(p) }) {
		b.committer.drop(p)
		return s.client.tooManyJobs()
	}
	st.p = p
	return nil
}

// settled waits for the database's answer and returns it, after the ledger knows what it means.
func (b *pipeline) settled(st *settle) (backends.WriteResult, error) {
	extend, isExtend := st.p.write.(backends.Extend) // which the wait may give up
	res, err := b.committer.wait(st.p, b.times.patience())
	switch {
	case extend.Bind != 0 && err != nil:
		// It may be bound or not. The session keeps it: a release of a lease that is not
		// this host's changes nothing.
		b.ledger.bound(st.leases, nil)
	case extend.Bind != 0:
		b.ledger.bound(st.leases, res.Lost)
	case err != nil:
		b.ledger.settled(st.marked, nil)
	case isExtend:
		if extend.Lease > 0 {
			b.ledger.unbind(st.leases)
		}
		b.ledger.settled(st.marked, res.Lost)
	default:
		b.ledger.settled(st.marked, st.leases)
	}
	return res, err
}

// releaseSession gives back all that a session holds. It returns what that was, and the write; nil:
// there was nothing to give back.
func (b *pipeline) releaseSession(s *account, how backends.Release) (held []heldJob, p *pending) {
	held = b.ledger.takeSession(s, func(leases []backends.Lease) {
		how.Owner = b.keeper.current()
		if how.Owner == 0 {
			return // given up: whoever gave it up takes them back
		}
		how.Leases = leases
		p = b.committer.pushFree(how, func() { b.ledger.gone(leases) })
	})
	return held, p
}
