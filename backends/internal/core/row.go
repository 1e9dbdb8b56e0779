package core

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Lease names a claimed row and proves the claim, as the table has it.
type Lease struct {
	ID           int64 // 0 for a text that is no id: no row has it
	Host, Number int64 // the token
	Owner        int64 // not 0: the claim must belong to this sidecar

	Result []byte // of an ack, for Writer.Ack of an engine that AcksAll; nil: none
}

// Row is a claimed job's row, locked by a transaction, and what becomes of it.
type Row struct {
	ID       int64
	Queue    string
	Key      string // empty: none
	Priority int16
	Position int64
	Fence    int64

	Token backends.Token
	Owner backends.Identity
	Lease time.Duration // 0: a session lease

	// AttemptState.Attempts counts the current attempt, also one that is prefetched.
	backends.AttemptState

	Kept      bool           // an ack keeps the job
	Failed    bool           // it has failures; false may also mean that the engine does not need to know
	HasWorker bool           // a worker is recorded
	Cause     backends.Cause // set by Maintainer.LockDue and LockLost

	Change Change
	Engine any // what else the engine knows of the row
}

// ChangeKind is what a transaction does to a row.
type ChangeKind int

// The kinds.
const (
	Untouched ChangeKind = iota
	Renewed              // it stays claimed
	Ended                // the claim ends and the job stays
	Deleted              // the job goes
)

// Change is the outcome for a row.
type Change struct {
	Kind  ChangeKind
	State backends.State // with Ended and Deleted

	// The row's counts. Attempts does not count one that is Prefetched.
	Attempts       int
	Losses         int
	Prefetched     bool
	PrefetchLosses int

	// With Ended.
	Delay        time.Duration  // until a scheduled job is due
	SamePosition bool           // a ready job keeps its position; the queue's count of returns grows
	Cause        backends.Cause // of the failure to record; empty: none
	Message      string
	Result       []byte // of a done job; nil: none

	// With Renewed.
	Owner     backends.Identity
	Lease     time.Duration
	NewDue    bool // the lease begins now; otherwise its end stays
	SetWorker bool
	Worker    string
}

// proves reports whether a lease is that of the row's present claim.
func (r *Row) proves(l Lease) bool {
	ended := r.Change.Kind == Ended || r.Change.Kind == Deleted
	return !ended && int64(r.Token.Host) == l.Host && int64(r.Token.Number) == l.Number && (l.Owner == 0 || int64(r.owner()) == l.Owner)
}

// owner is who owns the claim after the change.
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

// renew begins a change of a claim that goes on. Its worker has the job for certain.
func (r *Row) renew() {
	if r.Change.Kind == Renewed {
		return
	}
	r.Change = Change{Kind: Renewed, Attempts: r.Attempts, Losses: r.Losses, Owner: r.Owner, Lease: r.Lease}
	r.Prefetched, r.PrefetchLosses = false, 0
}

// deliver records that the job was handed out. To do it twice has no effect.
func (r *Row) deliver(worker string) {
	r.renew()
	if !r.HasWorker && worker != "" {
		r.HasWorker, r.Change.SetWorker, r.Change.Worker = true, true, worker
	}
}

// extend renews or binds the claim. It does not write to a session lease that it only
// looks at.
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
