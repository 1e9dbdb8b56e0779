package core

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// Driver is one open database of one engine. Its methods can be called concurrently.
type Driver interface {
	// Info implements backends.Backend.
	Info() backends.Info

	// Transact runs f in a transaction and commits, once. If the error isn't backends.ErrUnknownOutcome,
	// nothing was written. Most engines call the function Transact of this package.
	Transact(ctx context.Context, o TxOptions, f func(ctx context.Context, tx Tx) error) error

	// Read calls f with a Reader, which changes nothing. It tries once.
	Read(ctx context.Context, f func(ctx context.Context, r Reader) error) error

	// Retry is called with an error of a call that certainly wrote nothing. It reports whether the call can
	// succeed if it is run again, the cause (an index of backends.RetryCauses), and how long to wait at least.
	// 0: the core decides.
	Retry(ctx context.Context, err error) (again bool, cause int, wait time.Duration)

	// WithKind returns the error with its kind (see backends.Backend) and a text that helps the reader. It is
	// called only with errors that have no kind yet.
	WithKind(err error) error

	// FromServer reports whether err is the server's answer, as opposed to a broken connection or a context
	// that ended.
	FromServer(err error) bool

	// FindDue finds out, without writing, what maintenance has to do.
	FindDue(ctx context.Context, q DueQuery) (Due, error)

	// MadeReady is called after a commit with the queues in which that made jobs ready.
	MadeReady(queues []string)

	Traits() Traits
}

// Traits are the differences between engines that the core has to consider.
type Traits struct {
	// Silent: a trigger, or a policy, can keep a row from being stored or changed without an error. The core
	// then waits for all answers before the commit and checks them.
	Silent bool

	// AcksAll: Tx.Ack ends every claim whose lease is valid, for any job but members of batches and jobs of
	// groups, and stores results.
	AcksAll bool

	// FastDeliver: Tx.Deliver is implemented.
	FastDeliver bool

	// Progress: the engine has the table of progress, and its claims return Job.HasProgress.
	Progress bool

	// WholeChanges: one statement of Tx.Change has all tables that the end of a claim can need.
	WholeChanges bool

	// Pending: the engine has the table of pending jobs, and the column key_state of jobs. Row.Pending is set.
	Pending bool

	// MaxRows is how many slots one claim statement fills at most. 0: no limit.
	MaxRows int
}

// TxOptions describe the purpose of a transaction.
type TxOptions struct {
	Sidecar  backends.Identity // it claims for this sidecar, which must be alive; 0: it doesn't claim
	Queues   []string          // the queues that it claims from, for ClaimState.Returns
	Unsynced bool              // the commit can return before it is on disk

	// It writes to, or claims from, tables that other programs use, and in which they can have locked rows.
	AdoptedWrites, AdoptedClaims bool

	// Keyed: it stores jobs that have keys. Another program can have stored a key in a transaction that is
	// still open. Settles: it changes claimed rows, which another program can have locked.
	Keyed, Settles bool

	// A transaction with one of the four options above, with Gated or with Brief, must not wait long for locks. With WaitForLocks, it
	// can wait for a few seconds, because it waits for one row or for one key at most. If this wait is over, the
	// error is a *backends.LockedError.
	WaitForLocks bool

	Gated bool // it locks gates (see Gatekeeper), which another sidecar can have locked

	Brief   bool // a table of the sidecar is locked, and the transaction must not wait long for it
	NoNotes bool // Grouper.NoteGroups does nothing
}

// LimitsLockWaits reports whether the transaction must not wait for locks indefinitely.
func (t TxOptions) LimitsLockWaits() bool {
	return t.AdoptedWrites || t.AdoptedClaims || t.Keyed || t.Settles || t.Gated || t.Brief
}

// Tx is a transaction. Its methods without a context queue statements, whose callbacks run during a Flush. Its
// methods with a context run at once, after the queued statements.
//
// A Tx is used by one goroutine.
type Tx interface {
	backends.SQL

	// Flush sends the queued statements and reads the answers. In a transaction with TxOptions.Sidecar, the
	// error is backends.ErrEvicted if that sidecar is no longer alive.
	Flush(ctx context.Context) error

	Writer
	Maintainer
	Commander
	Historian

	// It also implements Claimer or OwnClaimer, Gatekeeper if queues can have limits, Grouper if jobs can have groups, Expirer if they can
	// expire, and LockFinder if the engine has row locks.
}

// EndableTx is a transaction that Transact ends. Both methods return the connection to its pool.
type EndableTx interface {
	Tx

	// Commit sends the queued statements and commits. If the answer is lost, it finds out the outcome. If the
	// error isn't backends.ErrUnknownOutcome, nothing was written.
	Commit(ctx context.Context) error

	// Rollback ends the transaction because of cause. ctx can have ended already.
	Rollback(ctx context.Context, cause error)
}

// Transact runs f in a transaction that begin starts, and commits. If f returns an error, it rolls back.
func Transact[T EndableTx](ctx context.Context, begin func() (T, error), f func(ctx context.Context, tx Tx) error) error {
	tx, err := begin()
	if err != nil {
		return err
	}
	err = f(ctx, tx)
	if err == nil && ctx.Err() != nil { // a commit would have to find out that it was never sent
		err = Interrupted(ctx, "before the commit")
	}
	if err != nil {
		tx.Rollback(ctx, err)
		return err
	}
	return tx.Commit(ctx)
}

// Writer stores jobs and changes claimed ones.
type Writer interface {
	// Insert stores jobs in their order, or finds the first job with the same key. It calls Stored, Duplicate, Freed or
	// PassedOver of each. No two jobs have the same queue and key. If pending is true, a claim sees the jobs only
	// if it is queued after the next Flush.
	Insert(jobs []*NewJob) (pending bool)

	// Ack ends claims with one statement, as far as it can, and calls ended with the index of each. The leases
	// are in ascending order of their ids, which are distinct. Without Traits.AcksAll, the statement can ignore
	// jobs that are kept, have a key, or failed before, and it ignores those of groups; the core then locks their rows. If sure is true, ended
	// is not called: either the statement ends all of the claims, or a Flush or the Commit returns ErrNotAll.
	Ack(leases []Lease, ended func(i int)) (sure bool)

	// Deliver records with one statement that prefetched jobs were handed out, and calls recorded with the
	// index of each valid lease. The leases are as in Ack. If the time limit of a job has not begun, it begins
	// Delivery.Ago before this, and ends now at the earliest.
	Deliver(leases []Lease, deliveries []backends.Delivery, recorded func(i int))

	// Lock locks the claimed rows among ids and calls found with each. The ids are distinct and in ascending
	// order.
	Lock(ids []int64, found func(*Row))

	// Change writes the outcome of locked rows (Row.Change), which are in ascending order of ids. It calls
	// changed for each row. For each queue with rows that have SamePosition it increases the queue's count of
	// returns, and calls gaveBack with the new count.
	//
	// Change of a KeyLockFinder locks the keys of jobs that end, in the order of queues and keys. It waits for no key: an
	// application that stores several keys in one transaction could wait for another one of them, and would become the
	// victim of that deadlock. If another transaction has locked a key, the transaction fails with a
	// *backends.LockedError.
	Change(rows []*Row, changed func(*Row), gaveBack func(queue string, returns int64))
}

// LockFinder is a Tx that can avoid locked rows. It waits for no lock.
type LockFinder interface {
	// FindLocked locks the claimed rows among ids, except those that other transactions have locked, and returns
	// the ids of these. The ids are as in Lock.
	FindLocked(ctx context.Context, ids []int64) (locked []int64, err error)
}

// KeyLockFinder is a Tx whose Change waits for no key.
type KeyLockFinder interface {
	// FindLockedKeys locks the keys of locked rows, except those that other transactions have locked, and returns the
	// ids of the rows of these.
	FindLockedKeys(ctx context.Context, rows []*Row) (locked []int64, err error)
}

// Claimer is a Tx that claims in runs: one statement for queues of one order.
type Claimer interface {
	// ClaimState returns what the last Flush of a transaction with a Sidecar found out.
	ClaimState() ClaimState

	// Claim queues the statement for a run. It calls Run.Give once.
	Claim(r *Run)

	// Bury queues the statement that makes too large jobs dead.
	Bury(jobs []TooLarge)

	// Prove can move the lows of the queues' cursors, now or after the commit. If an engine needs another
	// connection for that, it uses it before it begins the transaction.
	Prove(ctx context.Context, queues []string)
}

// OwnClaimer is a Tx that claims in another way.
type OwnClaimer interface {
	// StartClaims queues the first statements of the claims. careful is nil, or for the only claim.
	StartClaims(sidecar backends.Identity, claims []backends.Claim, careful *Careful) Claims
}

// Claims are claims in progress.
type Claims interface {
	// Finish is called after a Flush. It returns when no claim can get more jobs.
	Finish(ctx context.Context) ([]backends.ClaimResult, error)

	// Committed is called after the transaction's commit.
	Committed()
}

// ClaimState is what a transaction that claims has found out at the end of a Flush.
type ClaimState struct {
	Returns  []int64      // one for each of TxOptions.Queues: how often jobs returned to their old positions (n); if it has limits, -1-n
	Fair     []bool       // in the same way: whether it has backends.Limits.GroupReady; nil: the engine has no groups
	Wrote    bool         // the transaction wrote something, perhaps only locks
	LeftSome bool         // a lean claim left jobs that did not fit
	Began    cursor.Event // see cursor.Learned
	Ended    int64
	Begun    int64
	Below    int64
}

// Maintainer changes due rows. It skips rows that others have locked.
type Maintainer interface {
	// Promote makes due scheduled jobs ready, at most limit of them, in the order of their due times. It calls
	// promoted with the queue of each, which is empty if the job is blocked, and returns how many rows it read. If only isn't nil, it leaves out other jobs.
	Promote(ctx context.Context, d Due, only []int64, limit int, promoted func(queue string)) (seen int, err error)

	// LockDue locks at most limit claimed rows whose lease or time limit is over, and sets their Cause. seen is
	// how many rows it read.
	LockDue(ctx context.Context, d Due, limit int) (rows []*Row, seen int, err error)

	// LockLost locks at most limit rows whose owners are lost and sets their Cause. Rows with timed leases are among
	// them: their owner becomes 0, so that they aren't found again.
	LockLost(ctx context.Context, d Due, limit int) (rows []*Row, seen int, err error)

	// MarkDead marks those sidecars dead that are still as described (see backends.Suspect).
	MarkDead(ctx context.Context, suspects []backends.Suspect) error

	// ForgetCancelled deletes what NoteCancelled has stored about claims of an owner.
	ForgetCancelled(owner backends.Identity, claims []backends.Token)

	// Forget deletes the rows of dead sidecars that own no job, and what NoteCancelled has stored for owners that aren't alive.
	Forget(ctx context.Context, d Due) error

	// Prune deletes at most limit finished jobs or keys that expired at from or later. It returns how many rows
	// it deleted and found, and when the last of them expired. If only isn't nil, it leaves out other jobs.
	Prune(ctx context.Context, what Pruned, from time.Time, only []int64, limit int) (deleted, found int, last time.Time, err error)

	// FindScheduled finds at most limit jobs that Promote would make ready, and FindExpired those that Prune would delete.
	// Neither waits for locks. They run only if the database has refused a job.
	FindScheduled(ctx context.Context, d Due, limit int) ([]Found, error)
	FindExpired(ctx context.Context, from time.Time, limit int) ([]Found, error)
}

// Found is a job that maintenance has to change.
type Found struct {
	ID    int64
	Queue string
}

// Pruned is what a Prune deletes.
type Pruned int

// The kinds of rows to prune.
const (
	PruneJobs Pruned = iota
	PruneKeys
)

// Retainer is a Tx of an engine whose done jobs can be kept longer than their queues' retention (see backends.NewJob.Retain).
type Retainer interface{ Retains() }

// Expirer is a Tx of an engine whose jobs can expire (see backends.Expiry). Then Due.ExpireAt is set.
type Expirer interface {
	// LockExpired locks at most limit waiting jobs whose time is over, in the order of these times. seen is how many rows it read. If
	// only isn't nil, it leaves out other jobs. It skips rows that others have locked.
	LockExpired(ctx context.Context, d Due, only []int64, limit int) (all []Expired, seen int, err error)

	// Expire makes locked waiting jobs dead, or deletes them. Each dead one gets a failure record with backends.CauseExpired, and a fence
	// of its own. If another transaction has locked the key of a job, the key stays as it is, or the transaction fails with a
	// *backends.LockedError. A claim never has to delete a key: a job that it would have to delete, and that has a key, is dead until
	// retention deletes it. Only on SQL Server can a claim fail so, as after Bury: Store.Commit then waits and tries again.
	Expire(jobs []Expired)
}

// Expired is a waiting job whose time is over.
type Expired struct {
	ID         int64
	Queue      string
	Remove     bool
	RetainDead time.Duration // 0: indefinitely
}

// Commander carries out one transaction of an operator's command.
type Commander interface {
	// Retry makes dead jobs ready: those with the ids, or, if ids is nil, at most limit jobs after the
	// position `after`. If another job has the key of one of them, that one stays dead.
	Retry(ctx context.Context, queue string, ids []int64, after any, limit int64) (Step, error)

	// ChangeWaiting changes the priority or the time of the ready and scheduled jobs with the ids, as a command of the
	// kind backends.Change describes it. A job that is ready then gets a new position. ready: one of them is ready.
	ChangeWaiting(ctx context.Context, queue string, ids []int64, c *backends.Command) (n int64, ready bool, err error)

	// Delete deletes jobs with the ids, except claimed ones.
	Delete(ctx context.Context, queue string, ids []int64) (n int64, err error)

	// LockClaimed locks the claimed rows among ids.
	LockClaimed(ctx context.Context, queue string, ids []int64) ([]*Row, error)

	// States locks the jobs with the ids and returns their states, backends.StateBlocked among them. It leaves out ids that no job of the queue has.
	States(ctx context.Context, queue string, ids []int64) ([]JobState, error)

	// CancelWaiting makes ready, blocked and scheduled jobs dead, which States has locked. Each gets a failure record with
	// CauseCancelled, and a fence of its own. retainDead is the retention of those that have none.
	CancelWaiting(ctx context.Context, queue string, ids []int64, retainDead time.Duration) error

	// NoteCancelled stores for their owners that claims ended by a cancel, until ForgetCancelled or Forget. Row has them as they were.
	NoteCancelled(claims []*Row)

	// Purge deletes at most limit jobs in a state, after the position `after`. It skips locked ones.
	Purge(ctx context.Context, queue string, state backends.State, after any, limit int64) (Step, error)

	// Pause sets or clears the queue's flag. ready: the flag was cleared, and the queue has a ready job.
	Pause(ctx context.Context, queue string, paused bool) (ready bool, err error)
}

// JobState is the state of a job that a command names.
type JobState struct {
	ID        int64
	State     backends.State
	Group     string // whether it has a slot or not; empty: none
	Cancelled bool   // its last failure has CauseCancelled
}

// Historian keeps the totals of queues by hour.
type Historian interface {
	// Clock returns the time of the database's clock.
	Clock(ctx context.Context) (time.Time, error)

	// AddHour adds to a row, or inserts it.
	AddHour(row *backends.HourTotals)

	// ForgetHours deletes the rows of the hours before one.
	ForgetHours(before int64)
}

// Step is the result of one transaction of a retry or a purge. The next one continues after its last job, and so
// doesn't read the index entries again that the earlier ones left behind.
type Step struct {
	N    int64 // jobs changed
	Seen int64 // jobs read
	Last any   // the position of the last of these, for the next call
}

// Reader reads one state of the database, as far as the engine supports that.
type Reader interface {
	// Count counts a queue's jobs in a state.
	Count(ctx context.Context, queue string, state backends.State) (int64, error)

	// Stats counts the jobs of queues, each count up to backends.StatsExact+1. With nil it counts all queues
	// that have a row or are paused, in the order of their names.
	Stats(ctx context.Context, queues []string) ([]backends.QueueStats, error)

	// Sizes lists the ids of jobs and their sizes in bytes: with ids those jobs, in that order; otherwise those
	// in p.State, in its order, from just after a position.
	Sizes(ctx context.Context, p backends.Peek, ids []int64, after any, each func(id, bytes int64)) error

	// Place returns the position after which a list that follows the job continues. found is false if the job
	// is gone.
	Place(ctx context.Context, p backends.Peek, id int64) (place any, found bool, err error)

	// KeyHolder returns the job that has a key. The job can be gone.
	KeyHolder(ctx context.Context, queue, key string) (id int64, found bool, err error)

	// Views returns the jobs with their failures.
	Views(ctx context.Context, queue string, ids []int64) ([]backends.View, error)

	// ClaimedBy implements backends.Backend.
	ClaimedBy(ctx context.Context, owner backends.Identity, after int64, limit int) ([]backends.ClaimedJob, error)

	// Cancelled returns what NoteCancelled has stored for an owner.
	Cancelled(ctx context.Context, owner backends.Identity) ([]backends.Token, error)

	// Hours returns the totals of a queue, or of all queues if the name is empty, by hour and queue.
	Hours(ctx context.Context, queue string) ([]backends.HourTotals, error)
}
