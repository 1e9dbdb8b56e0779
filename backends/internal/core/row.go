package core

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Lease names a claimed row and proves the claim, as the table stores it.
type Lease struct {
	ID              int64 // 0: the text isn't an id, so no row has it
	Sidecar, Number int64 // the token
	Owner           int64 // not 0: the claim must belong to this sidecar

	Result []byte // of an ack, for Writer.Ack of an engine with Traits.AcksAll; nil: none
}

// Row is the row of a claimed job, locked by a transaction, and the outcome for it.
type Row struct {
	ID       int64
	Queue    string
	Key      string // empty: none
	Group    string // in which it has a slot; empty: none
	Batch    int64  // of which it is a member; 0: none
	Priority int16
	Position int64
	Fence    int64

	Token backends.Token
	Owner backends.Identity
	Lease time.Duration // 0: a session lease

	// AttemptState.Attempts includes the current attempt, even if the job is prefetched.
	backends.AttemptState

	Kept      bool           // an ack keeps the job
	Pending   bool           // its key can have a pending job
	Failed    bool           // it has failure records; false can also mean that the engine doesn't need to know
	HasWorker bool           // a worker is recorded
	Cause     backends.Cause // set by Maintainer.LockDue and LockLost

	Change Change
	Engine any // data of the engine
}

// ChangeKind is what a transaction does to a row.
type ChangeKind int

// The kinds of changes.
const (
	Untouched ChangeKind = iota
	Renewed              // it stays claimed
	Ended                // the claim ends and the job stays
	Deleted              // the job is deleted
)

// Change is the outcome for a row.
type Change struct {
	Kind  ChangeKind
	State backends.State // with Ended and Deleted

	// The row's counts. Attempts doesn't include an attempt that is Prefetched.
	Attempts       int
	Losses         int
	Prefetched     bool
	PrefetchLosses int

	// With Ended.
	Delay        time.Duration  // until a scheduled job is due
	SamePosition bool           // a ready job keeps its position, and the queue's count of returns grows
	Cause        backends.Cause // of the failure record; empty: none
	Message      string
	Result       []byte // of a done job; nil: none

	// With Renewed. If the time limit has not begun, because the job was prefetched, it begins Ago before this.
	Ago       time.Duration
	Owner     backends.Identity
	Lease     time.Duration
	NewDue    bool // the lease begins now; otherwise its end doesn't change
	SetWorker bool
	Worker    string
}

// proves reports whether the lease is that of the row's present claim.
func (r *Row) proves(l Lease) bool {
	ended := r.Change.Kind == Ended || r.Change.Kind == Deleted
	return !ended && int64(r.Token.Sidecar) == l.Sidecar && int64(r.Token.Number) == l.Number && (l.Owner == 0 || int64(r.owner()) == l.Owner)
}

// endsKey reports whether the change writes to the row of the job's key.
func (r *Row) endsKey() bool {
	c := &r.Change
	return r.Key != "" && (c.Kind == Deleted || c.Kind == Ended && (c.State == backends.StateDone || c.State == backends.StateDead))
}

// owner returns the owner of the claim after the change.
func (r *Row) owner() backends.Identity {
	if r.Change.Kind == Renewed {
		return r.Change.Owner
	}
	return r.Owner
}

// ack ends the claim with success.
func (r *Row) ack(result []byte) {
	r.Change = Change{Kind: Deleted, State: backends.StateDone}
	if r.Kept {
		r.Change = Change{Kind: Ended, State: backends.StateDone, Attempts: r.Attempts, Losses: r.Losses, PrefetchLosses: r.PrefetchLosses, Result: result}
	}
}

// end ends the claim without success.
func (r *Row) end(d backends.Disposition) {
	r.Change = Change{
		Kind: Ended, State: d.State, Attempts: d.Attempts, Losses: d.Losses, PrefetchLosses: d.PrefetchLosses,
		Delay: d.Delay, SamePosition: d.SamePosition, Cause: d.Cause, Message: d.Message,
	}
}

// renew begins a change of a claim that continues. It also records the delivery, because the claim's worker
// certainly has the job.
func (r *Row) renew() {
	if r.Change.Kind == Renewed {
		return
	}
	r.Change = Change{Kind: Renewed, Attempts: r.Attempts, Losses: r.Losses, Owner: r.Owner, Lease: r.Lease}
	r.Prefetched, r.PrefetchLosses = false, 0
}

// deliver records that the job was handed out. A second call has no effect.
func (r *Row) deliver(d backends.Delivery) {
	if r.Change.Kind != Renewed {
		r.renew()
		r.Change.Ago = d.Ago
	}
	if !r.HasWorker && d.Worker != "" {
		r.HasWorker, r.Change.SetWorker, r.Change.Worker = true, true, d.Worker
	}
}

// extend renews or binds the claim. If it only checks a session lease, it writes nothing.
func (r *Row) extend(e backends.Extend) {
	switch {
	case e.Bind != 0:
		r.renew()
		r.Change.Owner, r.Change.Lease, r.Change.NewDue = e.Bind, 0, true
		r.Change.SetWorker, r.Change.Worker = true, e.Worker
	case e.Lease > 0 || r.Lease > 0:
		r.renew()
		r.Change.NewDue = true
		if e.Lease > 0 {
			r.Change.Lease = e.Lease
		}
	case r.Prefetched || r.PrefetchLosses > 0:
		r.renew()
	}
}
