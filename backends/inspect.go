package backends

import "time"

// State is where a job is in its life.
type State string

// The states of a stored job, and StateDeleted for a key whose job is gone.
const (
	StateReady     State = "ready"
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
	Scheduled     int64
	Claimed       int64
	Dead          int64
	Done          int64
	Paused        bool
	OldestReady   time.Duration // age of the longest waiting ready job; 0: none
	OldestClaimed time.Duration
	Approx        bool
}

// Peek asks to see jobs of a queue: those of IDs in any state, else those in
// State, at most Max, from just after the job After (empty: from the first), in
// the order of claims for ready ones, by due time for scheduled ones, else the
// longest in their state first.
type Peek struct {
	Queue    string
	IDs      []string
	State    State
	Max      int
	After    string
	MaxBytes int64 // stop before the payloads and results exceed this, after at least one
}

// View is a job as Peek shows it.
type View struct {
	ID          string
	Queue       string
	State       State
	Payload     []byte
	Priority    int16
	Attempt     int // charged deliveries so far
	MaxAttempts int // the effective one where the job was ever claimed, else the job's own; 0: the queue's
	EnqueuedAt  time.Time
	RunAt       time.Time // zero: none
	ClaimedAt   time.Time // zero: not claimed
	FinishedAt  time.Time // zero: not finished
	Worker      string
	Key         string
	Headers     map[string]string
	Result      []byte // nil: none
	Failures    []Failure
}

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
	IDs   []string // Retry, Delete, Reclaim
	All   bool     // Retry: every dead job
	State State    // Purge: any but StateClaimed

	// Progress is called after each transaction of a command that takes several. nil: nothing.
	Progress func()
}

// Progressed reports that a transaction of the command is committed.
func (c *Command) Progressed() {
	if c.Progress != nil {
		c.Progress()
	}
}

// CommandKind is what an operator wants.
type CommandKind int

const (
	// Retry makes dead jobs ready, in a new position, attempts back to 0. It is
	// refused as a whole with ErrKeyTaken where another job has a job's key by now, or
	// two of them have the same. More than a thousand are retried in several transactions:
	// one whose key is taken while they run stays dead, and an error comes with the count
	// of those that are retried.
	Retry CommandKind = iota
	// Delete removes jobs in any state but claimed.
	Delete
	// Reclaim takes claimed jobs back, uncharged; their leases are lost.
	Reclaim
	// Purge removes every job in a state.
	Purge
	// Pause stops claims of the queue for every host, once committed.
	Pause
	// Resume lets them go on.
	Resume
)
