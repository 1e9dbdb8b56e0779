// Package backends defines what a database engine does for the sidecar: the Backend interface, the jobs, leases
// and policies that pass through it, and its errors. It contains neither the protocol nor an engine. Package
// bridge uses it, the packages below this one implement it, and package backendtest tests that each of them
// does what these comments promise.
//
// To add an engine, read docs/new-engine.md first.
package backends

import (
	"cmp"
	"context"
	"time"
)

// Backend is one database with its job tables. Every method can be called concurrently. Each call is one
// transaction, except Maintain, which runs one for each batch of each kind of work, and a Commit of which a part has to be apart from
// the others, for example beside a row that the database refuses. Every time that a call
// stores or compares is the database's clock, never the caller's.
//
// Errors: if a method returns an error, it has changed nothing, unless the error is ErrUnknownOutcome.
// (Maintain keeps the transactions that it has already committed.) The error's kind shows whether a retry can
// help:
//
//   - Retryable returns true (an *UnavailableError): the database is unavailable now. The same call can succeed later.
//   - *RefusedError: the database rejects this change. A retry fails in the same way.
//   - *LockedError: another program has locked a row or a key. The same call can succeed later.
//   - ErrUnknownOutcome: the change may have been committed or not.
//
// The methods name any other errors that they return. Queues in adopted tables also return an *UnsupportedError.
//
// Other interfaces of this package extend Backend: Inspector (operators), Adopter and TxClaimer (adopted tables),
// Notifier (notifications), Locator (queues of claimed jobs), Metered (metrics) and Examiner (`qsidecar check`).
type Backend interface {
	// Info describes the database. It sends nothing to the server.
	Info() Info

	// Commit carries out a group of writes and then a group of claims in one transaction. It returns when the
	// transaction is durable according to the server's own settings, or has certainly failed. Claims without writes can be committed without
	// a wait for the disk: a crash of the server then undoes the last of them, and their jobs are ready again. If the connection
	// breaks during the commit, Commit finds out the outcome before it returns. If ctx ends first, the error is
	// ErrUnknownOutcome.
	//
	// The caller makes sure that all leases in one batch are distinct.
	//
	// A lost lease isn't an error: WriteResult.Lost lists it. If the database refuses a write (a trigger, a
	// constraint), the whole commit fails with a *RefusedError. The caller then commits each of its members
	// alone.
	//
	// If the batch has claims and CommitContent.Sidecar is no longer alive, the error is ErrEvicted and nothing of the
	// batch happens. A batch without claims doesn't need a living sidecar.
	Commit(ctx context.Context, b CommitContent) (Results, error)

	// Heartbeat proves that a sidecar is alive. It uses a connection of its own, so that no load delays it. See
	// HeartbeatKind for the kinds.
	Heartbeat(ctx context.Context, b Heartbeat) (HeartbeatResult, error)

	// ClaimedBy lists claimed rows whose claim belongs to the sidecar. It returns at most limit of them, in ascending
	// order of job ids, from the first one after the id `after`. If after is empty, it starts at the beginning.
	// The order is the backend's own. It is stable, and can differ from the order of the strings.
	ClaimedBy(ctx context.Context, sidecar Identity, after string, limit int) ([]ClaimedJob, error)

	// Maintain does the maintenance that is due, one batch of each kind, and reports which queues have ready
	// jobs. Any number of sidecars can run it at the same time. An error of one kind doesn't stop the others, unless the
	// database is unavailable, so the result counts even with an error. A row that the database refuses to change is not
	// an error but an Obstacle, which stops no other row.
	Maintain(ctx context.Context, s Maintenance) (MaintenanceResult, error)

	// Close closes all connections. Calls in progress end with an error.
	Close() error
}

// Inspector is a Backend whose jobs an operator can view and change.
type Inspector interface {
	// Stats counts the jobs of one queue. If the name is empty, it counts those of every queue that has a row
	// or a pause flag. Counts up to StatsExact are exact and current. Larger ones can be estimates that are up
	// to 10 s old; Approx is then set.
	Stats(ctx context.Context, queue string) ([]QueueStats, error)

	// Peek returns jobs without changing them. If the job of Peek.After no longer exists, the error is
	// ErrNoSuchJob.
	Peek(ctx context.Context, p Peek) ([]View, error)

	// Command carries out an operator's command and returns how many jobs it changed (0 for Pause and Resume).
	// freed reports whether it made jobs ready.
	//
	// A Purge, and a Retry of more than a thousand dead jobs, run in several transactions. If one of them
	// fails, the earlier ones stay committed, and count comes with the error.
	Command(ctx context.Context, c Command) (count int64, freed bool, err error)

	// Cancelled returns those claims of the sidecar that a Cancel ended, until they are Maintenance.Handled.
	Cancelled(ctx context.Context, sidecar Identity) ([]Token, error)
}

// StatsExact is the largest count that Stats always returns exactly.
const StatsExact = 10_000

// Info describes an open database.
type Info struct {
	Engine   string // "sqlite", "postgres", …: for people and logs
	Version  string // of the server or the library
	Address  string // without secrets, for messages
	Database string // the random id stored in the database: 11 characters of [A-Za-z0-9_-]; empty: the database was not reached yet, and every call returns an *UnavailableError

	// Cluster describes the server's role in its cluster, for people: "primary of 2, timeline 3, synchronous". It can be some
	// seconds old. Empty: unknown, or the engine has no clusters.
	Cluster string

	// Prefetch: the engine supports Slot.Prefetch and Deliver.
	Prefetch bool
	// Progress: the Backend is a ProgressKeeper that keeps progress.
	Progress bool
	// Concurrent: two concurrent commits are faster than one commit with the work of both.
	Concurrent bool
	// WriteCommits is how many large commits of writes are faster at once than one after the other. 0: one.
	WriteCommits int
	// JoinJobs is the number of jobs of a commit's writes up to which one commit that also claims is better than two
	// concurrent ones: it costs less, and claims the jobs that it stores. 0: none.
	JoinJobs int
}

// Identity names one run of one sidecar in one database. It is random and never zero. A sidecar gets a new one
// at each start, and each time it was declared dead.
type Identity uint64

// Token proves a claim. The engine stores it in the claimed row, and compares it and the job's id with a
// lease's. The sidecar creates it from its identity at that time and a number that it counts in memory. A
// counter in the database would not do, because its values repeat after a crash that loses commits.
type Token struct {
	Sidecar Identity
	Number  uint64
}

// Lease is the right to settle one claimed job.
type Lease struct {
	Job   string // the job's id, or Job.Handle if it isn't empty
	Token Token
}

// NewJob is a job to store.
type NewJob struct {
	Queue       string
	Payload     []byte
	Priority    int16
	Delay       time.Duration // > 0: the job is ready this long after the commit
	RunAt       time.Time     // not zero: the job is ready at this time; never together with Delay
	Key         string        // the idempotency key; empty: none
	KeyTTL      time.Duration // for at least this long, Key returns this job
	Headers     map[string]string
	Group       string        // at most Limits.GroupLimit jobs of a group are claimed at a time; empty: none
	MaxAttempts int           // 0: the queue's limit at the time of the claim
	Timeout     time.Duration // the job's run limit; 0: the queue's at the time of the claim
	Batch       string        // the id of the batch of which it is a member; empty: none
	Expiry      Expiry
	Retain      time.Duration // how long the done job is kept at least, whatever the queue's Policy.RetainDone is; 0: no longer than that

	// With Key. The key of a job with KeyUntilStart returns it until its first claim or its end, and not for KeyTTL.
	KeyUntilStart bool
	OnConflict    OnConflict
	DebounceMax   time.Duration // of ConflictDebounce: the job is ready at most this long after it was enqueued first; 0: no limit
}

// OnConflict is what becomes of a new job whose key returns another job.
type OnConflict string

// With ConflictReplace and ConflictDebounce, a key returns only jobs that have not ended. If that job waits, it gets the payload, the headers and
// the time of the new one. If it is claimed, also for a prefetch, the new job is pending, in place of an earlier pending one. When the claim
// ends, a job that waits again gets the payload and the headers of the pending one, and is ready no earlier than that. If
// the job has ended, the pending one is stored.
const (
	ConflictKeep     OnConflict = ""         // it is not stored
	ConflictReplace  OnConflict = "replace"  // it replaces the other one
	ConflictDebounce OnConflict = "debounce" // the same; its time is Delay from now, but see NewJob.DebounceMax
)

// Outcome is what became of a new job whose key returned another job.
type Outcome string

// The outcomes. Without one, a duplicate was not stored.
const (
	OutcomeReplaced Outcome = "replaced" // it replaced the other job's content
	OutcomePending  Outcome = "pending"  // it is pending until the other job's claim ends
)

// Expiry limits until when an attempt of a job can start. A waiting job whose time is over becomes dead with CauseExpired, or is
// deleted. With the zero value there is no limit.
type Expiry struct {
	StartBefore time.Time     // not zero: no attempt starts at this time or later
	StartWithin time.Duration // > 0: the time after that at which the job is ready first; never together with StartBefore
	Remove      bool          // delete the expired job
	RetainDead  time.Duration // how long the expired job is kept if no claim has stored a policy in it; 0: indefinitely
}

// Some reports whether there is a limit.
func (e *Expiry) Some() bool { return e.StartWithin > 0 || !e.StartBefore.IsZero() }

// Policy is the part of a queue's configuration that a claim needs. The claim writes into the row what
// maintenance needs later (limit of attempts, deadline, back-off, retention). So any sidecar can reap the row
// by this policy, even if its own configuration differs.
type Policy struct {
	Queue       string
	MaxAttempts int           // if the job has none of its own
	Timeout     time.Duration // if the job has none of its own; 0: no limit
	Backoff     time.Duration // before the first retry; doubles with each
	BackoffMax  time.Duration
	RetainDone  time.Duration // how long a done job is kept; 0: its ack deletes it
	RetainDead  time.Duration // how long a dead job is kept; 0: indefinitely
	LIFO        bool          // newest first within a priority

	// Gated: the caller found out that the queue has limits (see Limits). A claim from it locks a row for its transaction, and
	// others wait for it, so it belongs into a commit without writes and without claims of other callers.
	Gated bool
}

// CommitContent is what one commit carries out: first the writes, then the claims, each group in its order.
//
// If another program has locked the row of a write, that write must not delay the others for long. They are
// committed without it, and its WriteResult.Err is a *LockedError. The caller tries the write again in a batch
// of its own, with WaitForLocks.
//
// If another program has stored a key of the batch in a transaction that is still open, the whole commit can
// fail with a *LockedError. Then nothing happened. The caller tries the writes that store keys again, each in a
// batch of its own, with WaitForLocks.
type CommitContent struct {
	Sidecar      Identity // the sidecar that claims
	Writes       []Write
	Claims       []Claim
	WaitForLocks bool   // no other commit waits for this one: wait a limited time, at most a few seconds, for rows and keys that other programs have locked
	Jitter       Jitter // of the back-offs that its writes begin
}

// Empty returns the batch without its writes and claims.
func (c CommitContent) Empty() CommitContent {
	c.Writes, c.Claims = nil, nil
	return c
}

// Write is the change of one request. It happens as a whole or not at all, except that lost leases are left out
// and reported. The kinds are Enqueue, Ack, Nack, Extend, Release and Deliver.
type Write interface{ write() }

// Enqueue stores jobs, in the order of the list. If a job's key belongs to an existing or remembered job, the
// new job isn't stored, and Stored.Duplicate is set (but see OnConflict). If several jobs of one commit have the same key, the first
// is stored. If a batch that one of the jobs names can't get more members, no job is stored, and WriteResult.Err is a
// *BatchError. Such an ack doesn't settle its job.
type Enqueue struct{ Jobs []NewJob }

// Ack settles jobs as done. It deletes each job, or keeps it for the policy's RetainDone or NewJob.Retain, whichever is longer. With Enqueue the ack
// has exactly one lease. Those jobs are stored in the same transaction, unless the lease is lost.
type Ack struct {
	Leases  []Lease
	Result  []byte // stored with a job that is kept; nil: none
	Enqueue []NewJob
}

// Nack settles jobs as failed. A job becomes scheduled after Delay or the back-off. It becomes dead if it is
// out of attempts or Dead is set. Each job gets a failure record with CauseNacked and Error.
//
// With Snooze ("not now" instead of "failed") this delivery doesn't count as an attempt, and there is no
// failure record. The back-off is that of the attempts before it, at least the initial one. It doubles with
// each snooze in a row.
type Nack struct {
	Leases   []Lease
	Error    string
	Delay    time.Duration
	HasDelay bool // use Delay, even if it is 0 (then the job is ready at once, in a new position)
	Dead     bool
	Snooze   bool
}

// Extend renews leases. If Lease and Bind are both zero, a timed lease starts again with its own length, and a
// session lease is only checked. If the delivery wasn't recorded yet, Extend records it, because only the
// claim's worker extends it. The job's time limit then begins now.
type Extend struct {
	Leases []Lease
	Lease  time.Duration // > 0: the lease becomes a timed one of this length, from now on
	Bind   Identity      // not 0: the lease becomes a session lease, valid while this sidecar is alive
	Worker string        // with Bind: the worker that now has the job
}

// Release ends claims on behalf of their workers.
//
// With Uncounted the delivery doesn't count as an attempt. The job is ready at once in its old position, and
// there is no failure record.
//
// Otherwise there is a failure record with Cause and Message, and the job's new state depends on its losses in
// a row. A loss is any cause except CauseNacked and CauseTimedOut; a nack that counts as an attempt ends the row. A
// job that is out of attempts becomes dead. After the first loss it is ready at once, in a new position. From the
// second loss on, and after CauseTimedOut, it is scheduled after the back-off.
type Release struct {
	Leases    []Lease
	Owner     Identity // not 0: a lease counts as lost if its claim no longer belongs to this sidecar (an Extend with Bind can have moved it)
	Uncounted bool
	Cause     Cause
	Message   string
}

// Deliver records that prefetched jobs were handed out. From then on the delivery counts as an attempt, and
// Worker is stored with the claim. The job's time limit has begun Ago before this. If a job is settled before its
// delivery is recorded, the delivery counts too, because a worker had the job.
type Deliver struct{ Deliveries []Delivery }

// Delivery is one prefetched job and the worker that got it.
type Delivery struct {
	Lease  Lease
	Worker string
	Ago    time.Duration // how long the worker has had it
}

func (Deliver) write() {}
func (Enqueue) write() {}
func (Ack) write()     {}
func (Nack) write()    {}
func (Extend) write()  {}
func (Release) write() {}

// LeasesOf returns the leases of a write, in its order. The caller must not change them.
func LeasesOf(w Write) []Lease {
	switch w := w.(type) {
	case Ack:
		return w.Leases
	case Nack:
		return w.Leases
	case Extend:
		return w.Leases
	case Release:
		return w.Leases
	case Deliver:
		leases := make([]Lease, len(w.Deliveries))
		for i := range w.Deliveries {
			leases[i] = w.Deliveries[i].Lease
		}
		return leases
	}
	return nil
}

// Claim asks for ready jobs of one or more queues, at most one for each slot. The i-th claimed job belongs to
// the i-th slot.
//
// Jobs come from the first queue until it has no more that are ready and unlocked, then from the next one.
// Within a queue, jobs of higher priority come first, then those with a smaller position (a larger one if the
// policy is LIFO). A paused queue returns no jobs.
//
// MaxBytes limits the sum of the payloads. The claim returns at least one job if there is one, however large,
// and no further job that would exceed the limit. With Strict the first job must fit too. If a stored job's
// payload exceeds MaxPayload, the claim makes the job dead with CauseTooLarge and doesn't return it. A row of an adopted
// table stays as it is: its own consumers can work it. A claim doesn't return an expired job either: it makes the job dead with
// CauseExpired, or deletes it. After some of them it ends with ClaimResult.More.
type Claim struct {
	Queues     []Policy // each queue once
	Slots      []Slot
	MaxBytes   int64
	MaxPayload int64
	Strict     bool
}

// Slot is one recipient of a claim.
type Slot struct {
	Token  Token
	Lease  time.Duration // 0: a session lease
	Worker string        // stored with the claim, for people

	// Prefetch: the job is claimed before a worker asked for it. Lease is 0. The delivery doesn't count as an attempt
	// before Deliver or a settle, and the job's time limit doesn't begin before Deliver. If the sidecar dies before
	// that, the job returns to its old position, without a failure record, and nothing counts. If this happens
	// max_attempts times in a row, later claims of the job count at once, because the job itself could be what
	// kills sidecars.
	Prefetch bool
}

// Job is a claimed job. Attempt includes this delivery, even if the job is prefetched.
type Job struct {
	ID          string
	Handle      string // the job's name in leases, if that isn't ID
	Queue       string
	Token       Token
	Payload     []byte
	Attempt     int
	MaxAttempts int
	Fence       int64 // grows with each claim of the job, never reused
	Priority    int16
	EnqueuedAt  time.Time
	Timeout     time.Duration // the effective run limit; 0: none
	Headers     map[string]string
	Key         string
	LastError   string

	HasProgress bool      // an attempt before possibly left progress: see ProgressKeeper
	Progress    *Progress // set by the caller of the claim; nil: none

	// StartWithin is the time from the claim until the job must not start any more (see Expiry); 0: there is no limit.
	StartWithin time.Duration

	// Alone: this is the last attempt of a job that was lost with its worker, and its lease is a session lease. The
	// caller gives it to a session without other jobs, and gives that session no other job while it has this one.
	// Until then the job is like one that is prefetched: the delivery doesn't count before Deliver or a settle, the
	// job's time limit doesn't begin, and no worker is stored (except in adopted tables).
	Alone bool
}

// Lease returns the right to settle the job.
func (j *Job) Lease() Lease { return Lease{Job: cmp.Or(j.Handle, j.ID), Token: j.Token} }

// Results are the answers of a commit, in the order of the batch.
type Results struct {
	Writes []WriteResult
	Claims []ClaimResult

	// Groups are those in which jobs can possibly become ready now. The caller calls Admitter.Admit with them soon.
	Groups []Group

	// Batches are those of which a member ended. The caller calls Batcher.ResolveBatches with them soon.
	Batches []string
}

// Group names a group of jobs.
type Group struct{ Queue, Name string }

// Admitter is a Backend whose jobs can have groups.
type Admitter interface {
	// Admit makes blocked jobs of the groups ready, as far as Limits.GroupLimit and Limits.GroupReady allow. It returns the queues with new ready jobs.
	// It waits only briefly for locks. What it can't do, or what no caller does, Maintain does.
	Admit(ctx context.Context, groups []Group) (ready []string)

	// GroupSlots returns jobs that have a slot of the group, at most limit. They are ready, claimed, or scheduled in a back-off.
	GroupSlots(ctx context.Context, g Group, limit int) ([]JobState, error)
}

// WriteResult is the answer to one write.
type WriteResult struct {
	Stored    []Stored     // one for each job of an Enqueue, or of an Ack's Enqueue
	Lost      []Lease      // the invalid leases; their jobs are unchanged
	MadeReady []string     // queues in which this write made jobs ready, each once
	Failed    FailedCounts // the claims that a Nack or a Release ended
	Alone     []Lease      // of an Extend with Bind: those whose jobs must be alone (see Job.Alone)
	Pending   []StoredPending

	// Err is the reason why this write did not happen, or not all of it, if it isn't part of the others'
	// transaction (see Mixed.InTx and CommitContent). It is of the same kinds as the error of Commit. ErrUnknownOutcome can also
	// mean that the write happened and the ids of its new jobs got lost. nil: the write happened.
	Err error
}

// LostTokens returns the tokens of the invalid leases.
func (w *WriteResult) LostTokens() map[Token]bool {
	lost := make(map[Token]bool, len(w.Lost))
	for _, l := range w.Lost {
		lost[l.Token] = true
	}
	return lost
}

// StoredPending is a pending job (see OnConflict) that became a job of its own when the claim ended for which it waited.
type StoredPending struct {
	NewJob // without its payload
	ID     string
}

// Stored is the outcome for one new job.
type Stored struct {
	ID        string
	Duplicate bool
	State     State // with Duplicate: of the first job with the key
	Outcome   Outcome
}

// ClaimResult is the answer to one claim.
type ClaimResult struct {
	Jobs []Job // at most one for each slot, in the order of the slots
	More bool  // the claim stopped because of bytes or of expired jobs, and more jobs can be ready

	// Unknown: besides Jobs, a part of the claim has an unknown outcome (ErrUnknownOutcome). Jobs of the other slots are possibly claimed.
	Unknown bool

	Failed FailedCounts // jobs that became dead with CauseTooLarge, and expired ones

	Gates []GateResult // the queues with limits

	Groups []Group // of claimed jobs of queues with Limits.GroupReady; they are in Results.Groups too

	// Err is the reason why nothing was claimed, if the claim isn't part of the others' transaction. It is an *UnavailableError
	// with a Queue if only the tables of the claim's queues are out of order. nil: the claim was carried out.
	Err error
}
