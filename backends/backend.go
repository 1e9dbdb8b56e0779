// Package backends says what a job table is: the Backend interface that every
// engine implements, the jobs, leases and policies that pass through it, and its
// errors. It knows no wire and no engine: package bridge uses it, the packages
// below this one implement it, and backendtest holds each of them to the promises
// written here.
package backends

import (
	"cmp"
	"context"
	"time"
)

// Backend is one database with its job tables. Every method may be called
// concurrently. Each is one transaction (Sweep: one per bite), and every instant
// in it is the database's clock, never the caller's.
//
// Errors. A method that returns an error has changed nothing, unless the error
// is ErrUnknownOutcome. The error says what may be done about it: Retryable (the
// database cannot be had just now), a *RefusedError (the database will not have
// this, however often), or ErrUnknownOutcome.
type Backend interface {
	// Info describes the database. It asks nothing.
	Info() Info

	// Commit carries out a group of writes and then a group of claims in one
	// transaction, and returns when that is durable by the server's own settings
	// or has certainly failed. A commit whose outcome got lost on the way is found
	// out before Commit returns; where ctx ends first the error is
	// ErrUnknownOutcome.
	//
	// All leases in one batch are distinct: the caller sees to it.
	//
	// A lost lease is no error (WriteResult.Lost). A write that the database
	// refuses (a trigger, a constraint) fails the whole commit with a
	// *RefusedError; the caller then commits its members alone.
	//
	// Claims are refused with ErrEvicted, and nothing of the batch happens, when
	// Batch.Host is no longer alive. Batches without claims need no living host.
	Commit(ctx context.Context, b Batch) (Results, error)

	// Beat proves that a sidecar lives, on a connection of its own so that no load
	// delays it. See Beat for the kinds.
	Heartbeat(ctx context.Context, b Heartbeat) (HeartbeatResult, error)

	// Held lists the claimed rows whose claim's owner is host, at most limit of
	// them in ascending order of job id from just after the id `after` (empty:
	// from the beginning; the order is the backend's own, stable, and need not be
	// that of the strings).
	ClaimedBy(ctx context.Context, host Identity, after string, limit int) ([]ClaimedJob, error)

	// Sweep does the housekeeping that is due, a small bite of each kind, and
	// looks where work is ready. Any number of sidecars may sweep at once.
	Maintain(ctx context.Context, s Maintenance) (MaintenanceResult, error)

	// Close gives the connections back. Calls under way end with an error.
	Close() error
}

// Inspector is a Backend that people can look into and act upon.
type Inspector interface {
	// Stats counts the jobs of one queue, or with an empty name of every queue
	// that has a row or a pause flag. Counts up to StatsExact are exact and fresh;
	// beyond it they may be estimates up to 10 s old, and Approx is set.
	Stats(ctx context.Context, queue string) ([]QueueStats, error)

	// Peek shows jobs without touching them. An After whose job is gone is
	// ErrNoSuchJob.
	Peek(ctx context.Context, p Peek) ([]View, error)

	// Command carries out an operator's command and returns how many jobs it
	// changed (pause and resume: 0). What it made ready is in freed.
	Command(ctx context.Context, c Command) (count int64, freed bool, err error)
}

// StatsExact is the largest count that Stats always gives exactly.
const StatsExact = 10_000

// Info describes an open database.
type Info struct {
	Engine   string // "sqlite", "postgres", …: for people and logs
	Version  string // the server's, or the library's
	Address  string // the address without secrets, for messages
	Database string // the random id kept in the database: 11 characters of [A-Za-z0-9_-]. Empty: it was not reached yet, and every call is Unavailable

	// Ahead: Slot.Ahead and Deliver are understood.
	Prefetch bool
	// Concurrent: two commits at the same time are faster than one of both.
	Concurrent bool
}

// Identity names one run of one sidecar in one database: random, never zero,
// new at each start and after each loss of liveness.
type Identity uint64

// Token proves a claim. It is compared, together with the job's id, with what
// the claim stored in the row. The sidecar makes it: its identity at that time
// and a number counted in its memory, because whatever the database counts
// repeats after a crash that loses commits.
type Token struct {
	Host   Identity
	Number uint64
}

// Lease is the right to settle one claimed job.
type Lease struct {
	Job   string // the job's id, or Job.Handle
	Token Token
}

// NewJob is a job to be stored.
type NewJob struct {
	Queue       string
	Payload     []byte
	Priority    int16
	Delay       time.Duration // > 0: ready that long after the commit
	RunAt       time.Time     // not zero: ready then (never together with Delay)
	Key         string        // empty: none
	KeyTTL      time.Duration // how long Key is remembered at least
	Headers     map[string]string
	MaxAttempts int           // 0: the queue's at the time of the claim
	Timeout     time.Duration // 0: the queue's at the time of the claim
}

// Policy is what a queue's configuration says about a claim. The claim writes
// into the row what later housekeeping needs of it (limit of attempts, deadline,
// back-off, retention), so that any sidecar can reap the row by it, whoever's
// configuration it was.
type Policy struct {
	Queue       string
	MaxAttempts int           // where the job names none
	Timeout     time.Duration // where the job names none; 0: no limit
	Backoff     time.Duration // before the first retry; doubles with each
	BackoffMax  time.Duration
	RetainDone  time.Duration // how long a done job stays; 0: deleted by its ack
	RetainDead  time.Duration // how long a dead job stays; 0: for ever
	LIFO        bool          // within a priority, newest first
}

// Batch is what one commit carries out, writes first, each group in its order.
//
// A write whose adopted row another program has locked must not hold up its
// neighbours: they are committed without it, and its WriteResult.Err is a
// *LockedError. Its caller tries it again in a batch of its own with WaitForLocks.
//
// Where another program has stored a key of the batch in a transaction that is open, the
// whole commit may be a *LockedError: nothing happened, and its caller tries the writes
// that store keys again, each in a batch of its own with WaitForLocks.
type Batch struct {
	Host         Identity // who claims
	Writes       []Write
	Claims       []Claim
	WaitForLocks bool // wait a moment for rows of adopted tables, and for keys, that other programs have locked
}

// Write is one request's change. It happens as a whole or not at all; lost
// leases are left out of it and reported. The kinds are Enqueue, Ack, Nack, Extend,
// Release and Deliver.
type Write interface{ write() }

// Enqueue stores jobs, in the order of the list. A job whose key is remembered
// is not stored (Stored.Duplicate); of equal keys in one commit the first is.
type Enqueue struct{ Jobs []NewJob }

// Ack settles jobs as done: deletes them or keeps them as the claim's policy
// said. With Enqueue, and only with a single lease: those jobs are stored in the same
// transaction, but not when the lease is lost.
type Ack struct {
	Leases  []Lease
	Result  []byte // kept with a kept job; nil: none
	Enqueue []NewJob
}

// Nack settles jobs as failed: back to scheduled after Delay or the back-off, or
// to dead when they are out of attempts or Dead is set. It keeps a failure with
// CauseNacked and Error. With Uncharged this delivery does not count and no
// failure is kept (*not now* rather than *failed*); the back-off is then that of
// the attempts before it, at least the initial one, and doubles with each such nack in a row.
type Nack struct {
	Leases   []Lease
	Error    string
	Delay    time.Duration
	HasDelay bool // Delay counts, also when it is 0 (ready at once, in a new position)
	Dead     bool
	Snooze   bool
}

// Extend renews leases. Without Lease and Bind a timed lease gets the time it
// was given again, and a session lease is only looked at. Where the delivery was
// not recorded it is now: only its worker extends a claim.
type Extend struct {
	Leases []Lease
	Lease  time.Duration // > 0: a timed lease of that length from now on
	Bind   Identity      // not 0: a session lease, alive as long as this host
	Worker string        // with Bind: who has it now
}

// Release takes claimed jobs back for their worker. Uncharged: the delivery does
// not count, the job is ready at once in its old position, and no failure is kept.
// Otherwise the failure is kept with Cause, and the job is dead when out of
// attempts, ready at once (in a new position) after the first loss in a row, and
// scheduled after the back-off from the second loss in a row on. A loss is any
// cause but CauseNacked; a nack that is charged ends the row. CauseTimedOut backs
// off the first time too (design.md §3).
type Release struct {
	Leases    []Lease
	Owner     Identity // not 0: only leases whose claim still belongs to this host (extend with bind may have moved it); others count as lost
	Uncounted bool
	Cause     Cause
	Message   string
}

// Deliver records that jobs claimed ahead were handed out: from then on the
// delivery is charged, and Worker is kept with the claim. A settle of a job whose
// delivery is not recorded counts it all the same: its worker had it.
type Deliver struct{ Deliveries []Delivery }

// Delivery is one job claimed ahead and the worker who got it.
type Delivery struct {
	Lease  Lease
	Worker string
}

func (Deliver) write() {}
func (Enqueue) write() {}
func (Ack) write()     {}
func (Nack) write()    {}
func (Extend) write()  {}
func (Release) write() {}

// Claim asks for ready jobs of one or more queues, for up to len(Slots) takers.
// The i-th job given belongs to the i-th slot. Jobs come from the first queue
// until it has no more that are ready and unlocked, then from the next; inside a queue higher
// priority first, then by position. A paused queue gives nothing. The statement
// stops by bytes too: it takes at least one job if there is one (where Strict is
// set, only one that fits too), and no further one that would bring the payloads
// above MaxBytes. A stored job whose payload exceeds MaxPayload goes to dead with
// CauseTooLarge instead.
type Claim struct {
	Queues     []Policy // each queue once
	Slots      []Slot
	MaxBytes   int64
	MaxPayload int64
	Strict     bool
}

// Slot is one taker of a claim.
type Slot struct {
	Token  Token
	Lease  time.Duration // 0: a session lease
	Worker string        // kept with the claim, for people

	// Ahead: claimed for nobody yet. The delivery is not charged before Deliver or
	// a settle. When the host dies before that, the job goes back uncharged, in its
	// old position and without a failure; one that this happens to as many times in a
	// row as its max_attempts is charged from then on (it may be what kills hosts).
	Prefetch bool
}

// Job is a claimed job. Attempt counts this delivery, also one claimed ahead.
type Job struct {
	ID          string
	Handle      string // what leases call the job, where that is not its ID
	Queue       string
	Token       Token
	Payload     []byte
	Attempt     int
	MaxAttempts int
	Fence       int64 // grows with each claim of the job, never reused
	Priority    int16
	EnqueuedAt  time.Time
	Timeout     time.Duration // the effective one; 0: none
	Headers     map[string]string
	Key         string
	LastError   string
}

// Lease is the right to settle the job.
func (j *Job) Lease() Lease { return Lease{Job: cmp.Or(j.Handle, j.ID), Token: j.Token} }

// Results are the answers of a commit, in the batch's order.
type Results struct {
	Writes []WriteResult
	Claims []ClaimResult
}

// WriteResult is the answer to one write.
type WriteResult struct {
	Stored    []Stored     // for each job of Enqueue, or of an Ack's Enqueue
	Lost      []Lease      // the leases that were not valid; nothing happened to their jobs
	MadeReady []string     // queues in which this write made jobs ready, each once
	Failed    FailedCounts // what a Nack or a Release ended

	// Err: why this write did not happen, or not all of it, where it is no part of the
	// others' transaction (see Mixed.Holding). Its kinds are those of Commit's. nil: it did.
	Err error
}

// Stored says what became of one new job.
type Stored struct {
	ID        string
	Duplicate bool
	State     State // with Duplicate: of the first job with the key
}

// ClaimResult is the answer to one claim.
type ClaimResult struct {
	Jobs []Job // at most one for each slot, in the order of the slots
	More bool  // stopped by bytes: there may be more ready

	Failed FailedCounts // jobs that went to dead with CauseTooLarge

	// Err: why nothing was claimed, where the claim is no part of the others'
	// transaction. nil: it was looked.
	Err error
}
