package core

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// Driver is one open database of one engine. Its methods may be called concurrently.
type Driver interface {
	// Info implements backends.Backend.
	Info() backends.Info

	// Transact runs f in a transaction and commits, once. An error that is not
	// backends.ErrUnknownOutcome: nothing was written. Most engines call Transact of this
	// package.
	Transact(ctx context.Context, o TxOptions, f func(ctx context.Context, tx Tx) error) error

	// Read calls f with a view of the database that changes nothing. It tries once.
	Read(ctx context.Context, f func(ctx context.Context, r Reader) error) error

	// Retry reports whether what failed with err, and certainly wrote nothing, may succeed
	// if it is run again, why it failed (see backends.RetryCauses), and how long to wait
	// at least; 0: as long as the core likes.
	Retry(ctx context.Context, err error) (again bool, cause int, wait time.Duration)

	// WithKind gives an error its kind (see backends.Backend) and a text that helps. It is
	// called with errors that have no kind yet.
	WithKind(err error) error

	// FromServer reports whether err is the server's answer, as opposed to a connection
	// that broke or a context that ended.
	FromServer(err error) bool

	// Look finds out, without writing, what maintenance has to do.
	Look(ctx context.Context, q Question) (Due, error)

	// MadeReady is called after a commit with the queues in which it made jobs ready.
	MadeReady(queues []string)

	Traits() Traits
}

// Traits say how an engine differs where the core has to know.
type Traits struct {
	// Silent: a trigger, or a policy, can keep a row from being stored or changed without
	// an error. The core then waits for all answers before the commit and checks them.
	Silent bool

	// AcksAll: Tx.Ack ends every claim whose lease is valid, whatever the job is like, and
	// stores results.
	AcksAll bool

	// FastDeliver: Tx.Deliver is implemented.
	FastDeliver bool

	// MaxRows is how many slots one claim statement fills at most; 0: any number.
	MaxRows int
}

// TxOptions say what a transaction is for.
type TxOptions struct {
	Sidecar  backends.Identity // it claims for this sidecar, which must be alive; 0: it does not claim
	Queues   []string          // the queues that it claims from, for ClaimState.Returns
	Unsynced bool              // the commit need not be on disk when it is answered

	// It writes to, or claims from, tables that other programs use, and must not wait long
	// for the rows that they have locked.
	AdoptedWrites, AdoptedClaims bool

	// It stores jobs that have keys. Another program may have stored a key in a transaction
	// that is open: it must not wait long, or, with WaitForLocks, for a few seconds. If the
	// wait is over, or that for an adopted row, the error is a *backends.LockedError.
	Keyed, WaitForLocks bool
}

// Tx is a transaction. The methods without a context queue statements; their callbacks
// run during a Flush. The methods with a context run at once, after what is queued.
//
// A Tx is used by one goroutine.
type Tx interface {
	backends.SQL

	// Flush sends what is queued and reads the answers. In a transaction with a Sidecar the
	// error is backends.ErrEvicted if that sidecar is no longer alive.
	Flush(ctx context.Context) error

	Writer
	Maintainer
	Commander

	// And Claimer or OwnClaimer.
}

// EndableTx is a transaction that Transact ends. Both methods give the connection back.
type EndableTx interface {
	Tx

	// Commit sends what is still queued and commits. If the answer is lost it finds out
	// the outcome. An error that is not backends.ErrUnknownOutcome: nothing was written.
	Commit(ctx context.Context) error

	// Rollback ends the transaction after cause. ctx may have ended.
	Rollback(ctx context.Context, cause error)
}

// Transact runs f in a transaction that begin starts, and commits.
func Transact[T EndableTx](ctx context.Context, begin func() (T, error), f func(ctx context.Context, tx Tx) error) error {
	tx, err := begin()
	if err != nil {
		return err
	}
	if err := f(ctx, tx); err != nil {
		tx.Rollback(ctx, err)
		return err
	}
	return tx.Commit(ctx)
}

// Writer stores jobs and changes claimed ones.
type Writer interface {
	// Insert stores jobs in their order, or finds the first job with the same key, and
	// calls Stored, Duplicate or PassedOver of each. No two have the same queue and key. If
	// pending is true, a claim must be queued behind the next Flush to see the jobs.
	Insert(jobs []*NewJob) (pending bool)

	// Ack ends claims by one statement, as far as it can, and calls ended with the index
	// of each. Leases are in ascending order of ids, which are distinct. Without
	// Traits.AcksAll the statement need not know jobs that are kept, have a key, or failed
	// before; the core looks at the rows of those. If sure is true it ends all of them, or
	// ErrNotAll comes from a Flush or the Commit, and ended is not called.
	Ack(leases []Lease, ended func(i int)) (sure bool)

	// Deliver records that prefetched jobs were handed out, by one statement, and calls
	// recorded with the index of each valid lease. Leases are as in Ack.
	Deliver(leases []Lease, workers []string, recorded func(i int))

	// Lock locks the claimed rows among some ids, which are distinct and in ascending order,
	// and calls found with each.
	Lock(ids []int64, found func(*Row))

	// Change writes what became of locked rows (Row.Change), in ascending order of ids. It
	// calls changed for each, and gaveBack for each queue in which it counted rows with
	// SamePosition, with the queue's new count.
	Change(rows []*Row, changed func(*Row), gaveBack func(queue string, returns int64))
}

// Claimer is a Tx that claims by runs: one statement for queues of one order.
type Claimer interface {
	// ClaimState is what the last Flush of a transaction with a Sidecar saw.
	ClaimState() ClaimState

	// Claim queues the statement for a run. It calls Give of the run once.
	Claim(r *Run)

	// Bury queues what makes too large jobs dead.
	Bury(jobs []TooLarge)

	// Prove may move the floors of the queues' cursors, now or after the commit. An engine
	// that needs another connection for that does it before it begins the transaction.
	Prove(ctx context.Context, queues []string)
}

// OwnClaimer is a Tx that claims in another way.
type OwnClaimer interface {
	// StartClaims queues the claims' first statements.
	StartClaims(sidecar backends.Identity, claims []backends.Claim) Claims
}

// Claims are claims under way.
type Claims interface {
	// Finish is called after a Flush. It returns when no claim can get more.
	Finish(ctx context.Context) ([]backends.ClaimResult, error)

	// Committed is called once the transaction is committed.
	Committed()
}

// ClaimState is what a transaction that claims knows at the end of a Flush.
type ClaimState struct {
	Returns  []int64      // of TxOptions.Queues: how often jobs were given back
	Wrote    bool         // the transaction wrote something, perhaps only locks
	LeftSome bool         // a lean claim left jobs that did not fit
	Began    cursor.Event // see cursor.Learned
	Ended    int64
	Begun    int64
	Below    int64
}

// Maintainer changes what is due. Rows that others have locked are passed over.
type Maintainer interface {
	// Promote makes at most limit scheduled jobs ready that are due, in that order. It
	// calls promoted with the queue of each, and returns how many rows it looked at.
	Promote(ctx context.Context, d Due, limit int, promoted func(queue string)) (seen int, err error)

	// LockDue locks at most limit claimed rows whose lease or time limit is over, and sets
	// their Cause. seen is how many rows it looked at.
	LockDue(ctx context.Context, d Due, limit int) (rows []*Row, seen int, err error)

	// LockLost locks at most limit rows whose owners are lost and sets their Cause. Timed
	// leases do not need an owner: it sets theirs to 0 and does not return them.
	LockLost(ctx context.Context, d Due, limit int) (rows []*Row, seen int, err error)

	// MarkDead marks sidecars dead that still look as described.
	MarkDead(ctx context.Context, suspects []backends.Suspect) error

	// Forget deletes the rows of dead sidecars that own no job.
	Forget(ctx context.Context, d Due) error

	// Prune deletes at most limit finished jobs, or keys, that expired at from or later. It
	// returns how many it deleted and found, and when the last of them expired.
	Prune(ctx context.Context, what Pruned, from time.Time, limit int) (deleted, found int, last time.Time, err error)
}

// Pruned is what a Prune deletes.
type Pruned int

// The kinds.
const (
	PruneJobs Pruned = iota
	PruneKeys
)

// Commander carries out one transaction of an operator's command.
type Commander interface {
	// Retry makes dead jobs ready: those with the ids, or, if ids is nil, at most limit
	// after a place. If whole is true and another job has one's key, it is
	// backends.ErrKeyTaken; otherwise that job stays dead.
	Retry(ctx context.Context, queue string, ids []int64, after any, limit int64, whole bool) (Retried, error)

	// Delete removes jobs with the ids that are not claimed.
	Delete(ctx context.Context, queue string, ids []int64) (n int64, err error)

	// LockClaimed locks claimed rows with the ids.
	LockClaimed(ctx context.Context, queue string, ids []int64) ([]*Row, error)

	// Purge deletes at most limit jobs in a state, passing over locked ones.
	Purge(ctx context.Context, queue string, state backends.State, limit int64) (n int64, err error)

	// Pause sets or clears the queue's flag. ready: it was cleared, and a job is ready.
	Pause(ctx context.Context, queue string, paused bool) (ready bool, err error)
}

// Retried is what one transaction of a retry did.
type Retried struct {
	N    int64 // made ready
	Seen int64 // dead jobs that it looked at
	Last any   // the place of the last of them, for the next call
}

// Reader sees one state of the database, as far as the engine can.
type Reader interface {
	// Count counts a queue's jobs in a state.
	Count(ctx context.Context, queue string, state backends.State) (int64, error)

	// KeysTaken reports whether a retry of all dead jobs of a queue would give one key to
	// two jobs.
	KeysTaken(ctx context.Context, queue string) (bool, error)

	// Stats counts queues, each count up to backends.StatsExact+1. With nil it counts all
	// queues that have a row or are paused, in the order of their names.
	Stats(ctx context.Context, queues []string) ([]backends.QueueStats, error)

	// Sizes lists ids and sizes in bytes: of the jobs of p.IDs in that order, or from just
	// after a place in the order of p.State.
	Sizes(ctx context.Context, p backends.Peek, ids []int64, after any, each func(id, bytes int64)) error

	// Place is where a list that follows a job goes on; found is false if it is gone.
	Place(ctx context.Context, p backends.Peek, id int64) (place any, found bool, err error)

	// Views shows jobs with their failures.
	Views(ctx context.Context, queue string, ids []int64) ([]backends.View, error)

	// ClaimedBy implements backends.Backend.
	ClaimedBy(ctx context.Context, owner backends.Identity, after int64, limit int) ([]backends.ClaimedJob, error)
}
