package jobevents

import "time"

// Kind is what happened to a job.
type Kind string

// The kinds, as the protocol names them.
const (
	Enqueued Kind = "enqueued"
	Claimed  Kind = "claimed"  // a worker got it
	Acked    Kind = "acked"    // done
	Failed   Kind = "failed"   // it will be tried again
	Dead     Kind = "dead"     // it will not be tried again
	Snoozed  Kind = "snoozed"  // not now: no attempt was used up
	Released Kind = "released" // a worker or an operator returned it: no attempt was used up
	Lost     Kind = "lost"     // the worker's lease is not valid any more; what happened to the job is another event
	Retried  Kind = "retried"  // an operator made a dead job ready
	Deleted  Kind = "deleted"  // an operator removed it
)

// Event is one change of a job, or of several jobs of a queue that are not known one by one.
type Event struct {
	Kind     Kind
	Time     time.Time // by this host's clock
	Database string    // its name in the config
	Queue    string    // empty: not known here, for a job that another sidecar claimed
	Job      string    // id; empty: Jobs are not known one by one
	Jobs     int64     // 1 if Job is set

	Attempt, MaxAttempts int // 0: not known

	// Of the client that caused the event. Empty: no client did.
	Session, Worker string

	ReceivedAt time.Time // of an enqueued job: when its request arrived, by this host's clock; zero: not known
	EnqueuedAt time.Time // by the database's clock; zero: not known
	ClaimedAt  time.Time // when the worker got it, by this host's clock; zero: not known, or it has none
	RunAt      time.Time // of an enqueued job: when it is due; zero: at once

	Cause string // of a failed attempt, as the protocol names it; of other events: more about the kind, or empty
	Error string // message, at most MaxError bytes

	TraceParent string // the job's header traceparent; empty: it has none
	TraceState  string // the same for tracestate
}

// MaxError is how many bytes of a job's error an event and a log line have. The job keeps all of it.
const MaxError = 300
