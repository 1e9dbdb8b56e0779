package backends

import "time"

// State is the state of a job.
type State string

// The states of a stored job. StateDeleted is the state of a remembered key whose job is gone.
const (
	StateReady     State = "ready"
	StateBlocked   State = "blocked" // it waits for its group
	StateScheduled State = "scheduled"
	StateClaimed   State = "claimed"
	StateDone      State = "done"
	StateDead      State = "dead"
	StateDeleted   State = "deleted"
)

// QueueStats are the counts of one queue.
type QueueStats struct {
	Queue         string
	Ready         int64
	Blocked       int64
	Scheduled     int64
	Claimed       int64
	Dead          int64
	Done          int64
	Paused        bool
	Limits        Limits
	OldestReady   time.Duration // age of the oldest ready job; 0: none
	OldestClaimed time.Duration
	Approx        bool
}

// Peek selects jobs of a queue. With IDs it selects these jobs, in any state, and with Key the job that has the
// key: the one that a second enqueue with it would return. Otherwise it selects jobs in State, at most Max, from just after the job After (empty: from the first one). Ready jobs are in the order of
// claims, scheduled ones in the order of their due times, and blocked ones by group, in the order in which a group admits them. In other states, the jobs that have been in the
// state for the longest time come first.
type Peek struct {
	Queue    string
	IDs      []string
	Key      string
	State    State
	Max      int
	After    string
	Newest   bool  // done or dead jobs: those that finished last come first
	OnlyIDs  bool  // the views have only their IDs; not with Key
	MaxBytes int64 // stop before the payloads and results exceed this many bytes, but return at least one job
}

// View is a job as Peek returns it.
type View struct {
	ID          string
	Queue       string
	State       State
	Payload     []byte
	Priority    int16
	Attempt     int       // attempts that count, so far
	MaxAttempts int       // the effective limit if the job was ever claimed, otherwise the job's own; 0: the queue's
	EnqueuedAt  time.Time // zero: an adopted table has no such time
	RunAt       time.Time // zero: none
	ClaimedAt   time.Time // zero: not claimed
	FinishedAt  time.Time // zero: not finished
	Worker      string
	Key         string
	Group       string
	Headers     map[string]string
	Result      []byte    // nil: none
	StartBefore time.Time // see Expiry; zero: no limit
	Failures    []Failure

	HasProgress bool      // the job possibly has progress: see ProgressKeeper
	Progress    *Progress // set by the caller of Peek; nil: none
}

// Bytes returns the size of the payload and the result.
func (v *View) Bytes() int64 { return int64(len(v.Payload) + len(v.Result)) }

// Failure is one failed attempt.
type Failure struct {
	Attempt int
	Cause   Cause
	Message string
	At      time.Time
}

// Command is an operator's command on a queue.
type Command struct {
	Kind  CommandKind
	Queue string
	IDs   []string // Retry, Delete, Reclaim, Change, Cancel
	All   bool     // Retry: every dead job
	State State    // Purge: any but StateClaimed

	// Change
	Priority *int16         // the new priority; nil: as before
	Delay    *time.Duration // the job is ready this long after the commit; nil: see RunAt
	RunAt    time.Time      // not zero: the job is ready at this time; never together with Delay
	Within   time.Duration  // with Delay, > 0: the job is ready at most this long after it was enqueued

	Limits LimitsChange // Limit

	// Cancel
	Remove     bool          // delete the jobs
	RetainDead time.Duration // how long a dead job that was never claimed is kept; 0: indefinitely

	// Unchanged is called with the named jobs that the command did not change, after the commit, and with the jobs that a Retry of
	// All left. nil: nothing.
	Unchanged func(jobs []JobState)
	// Ended is called with the claims that a Cancel ended, after the commit. nil: nothing.
	Ended func(claims []Token)

	// Pending is called with the pending jobs that became jobs of their own, because the command ended claims, after the commit. nil: nothing.
	Pending func(all []StoredPending)

	// Progress is called after each transaction of a command that takes several. nil: nothing.
	Progress func()
}

// JobState is a job that a command names, and its state when the command ran.
type JobState struct {
	ID        string
	State     State // StateDeleted: there is no such job in the queue
	Cancelled bool  // it is dead because of a Cancel
}

// Changes reports whether the command changes a job in the state.
func (c *Command) Changes(s State) bool {
	switch c.Kind {
	case Retry:
		return s == StateDead
	case Change:
		return s == StateReady || s == StateBlocked || s == StateScheduled
	case Reclaim:
		return s == StateClaimed
	case Cancel:
		return s == StateReady || s == StateBlocked || s == StateScheduled || s == StateClaimed
	default:
		return s != StateClaimed && s != StateDeleted
	}
}

// Progressed reports that a transaction of the command is committed.
func (c *Command) Progressed() {
	if c.Progress != nil {
		c.Progress()
	}
}

// ChangesJobs reports whether the command changes jobs, as opposed to their queue.
func (c *Command) ChangesJobs() bool {
	return c.Kind != Pause && c.Kind != Resume && c.Kind != Limit
}

// Frees reports whether the command can make jobs ready.
func (c *Command) Frees() bool { return c.Kind == Retry || c.Kind == Reclaim || c.Kind == Change }

// CommandKind is what a command does.
type CommandKind int

const (
	// Retry makes dead jobs ready, in a new position, and sets their attempts to 0. They have no Expiry any more. Jobs of groups become blocked. If another job now has a
	// job's key, that job stays dead, and Unchanged gets it. If two of the jobs have the same key, one of them is retried.
	//
	// More than a thousand jobs are retried in several transactions. If one of the transactions fails, the error comes with
	// the count of the jobs already retried.
	Retry CommandKind = iota
	// Delete deletes jobs in any state except claimed.
	Delete
	// Reclaim ends claims and makes their jobs ready. The attempts don't count, and the leases are lost.
	Reclaim
	// Purge deletes every job in a state.
	Purge
	// Pause stops claims of the queue by every sidecar, from its commit on.
	Pause
	// Resume allows claims of a paused queue again.
	Resume
	// Change gives ready, blocked and scheduled jobs another priority or another time, or both. Other jobs stay as they are.
	// A changed job that is ready or blocked goes behind the others of its priority, and waits for its group again. If an adopted table has no column for
	// the change, the error is an *UnsupportedError.
	Change
	// Limit changes the limits of the queue. It applies to claims of every sidecar within a second. If an engine or a table has
	// no limits, the error is an *UnsupportedError.
	Limit
	// Cancel makes ready, blocked, scheduled and claimed jobs dead with CauseCancelled, or deletes them. The leases of claimed ones are
	// lost, and their owners find them in MaintenanceResult.Cancelled. A job that a Cancel made dead before counts as changed,
	// so that a repeated Cancel has the same result.
	Cancel
)

// CancelledMessage is the message of a failure with CauseCancelled, and ExpiredMessage of one with CauseExpired.
const (
	CancelledMessage = "cancelled by an operator"
	ExpiredMessage   = "the job's time to start was over"
)
