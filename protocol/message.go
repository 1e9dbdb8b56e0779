package protocol

// Version is the highest version of the protocol that this package speaks.
const Version = 1

// Op names one operation of a request, as it stands in the field "op".
type Op string

// The operations of version 1.
const (
	OpHello   Op = "hello"
	OpEnqueue Op = "enqueue"
	OpClaim   Op = "claim"
	OpAck     Op = "ack"
	OpNack    Op = "nack"
	OpExtend  Op = "extend"
	OpCancel  Op = "cancel"
	OpBye     Op = "bye"
	OpStats   Op = "stats"
	OpPeek    Op = "peek"
	OpRetry   Op = "retry"
	OpDelete  Op = "delete"
	OpRelease Op = "release"
	OpPurge   Op = "purge"
	OpPause   Op = "pause"
	OpResume  Op = "resume"
	OpPing    Op = "ping"
	OpReload  Op = "reload"
	OpStatus  Op = "status"
)

// Opt is a field that may be absent, without a pointer's allocation.
type Opt[T any] struct {
	Value T
	Set   bool
}

// Some is a field that is present.
func Some[T any](v T) Opt[T] { return Opt[T]{Value: v, Set: true} }

// Or is the field's value, or def where it is absent.
func (o Opt[T]) Or(def T) T {
	if o.Set {
		return o.Value
	}
	return def
}

// Get is the field's value and whether it is present.
func (o Opt[T]) Get() (T, bool) { return o.Value, o.Set }

// RequestID is the "id" of a request: absent (the zero value), an unsigned
// integer up to 2^53-1, or a string of at most 64 bytes. It is comparable, so
// that open requests can be kept in a map.
type RequestID struct {
	kind idKind
	num  uint64
	text string
}

type idKind uint8

const (
	idAbsent idKind = iota
	idNumber
	idText
)

// NumberID is a numeric request id. n must not exceed 2^53-1.
func NumberID(n uint64) RequestID { return RequestID{kind: idNumber, num: n} }

// TextID is a textual request id. s must not exceed 64 bytes.
func TextID(s string) RequestID { return RequestID{kind: idText, text: s} }

// IsSet reports whether the request carried an id.
func (id RequestID) IsSet() bool { return id.kind != idAbsent }

// Request is one decoded request of any op. Which fields an op takes and which
// of them it needs is held by one table (see DecodeRequest): a field that the op
// does not take is refused, so that a field which is set here is meant.
//
// Durations are integer milliseconds, instants milliseconds since the Unix
// epoch, UTC. Byte slices and strings are copies: they outlive the reader's
// buffer.
type Request struct {
	ID RequestID
	Op Op

	// hello
	Version Opt[int64]
	Worker  string
	Events  []string

	// enqueue: either Jobs, or the one job in Job (whose Queue is also the
	// queue of claim, stats, peek and the operator's ops: see Queue).
	Job  NewJob
	Jobs []NewJob // nil: the single form

	// claim; stats, peek, retry, delete, release, purge, pause and resume use Queue alone
	Queue  string
	Queues []string
	Max    Opt[int64]
	WaitMS int64

	// claim and extend
	LeaseMS Opt[int64]

	// ack, nack, extend: either Lease or Leases
	Lease   string
	Leases  []string // nil: the single form
	Result  []byte   // ack; nil: absent
	Enqueue []NewJob // ack

	// nack
	Error   string
	DelayMS Opt[int64]
	Dead    bool
	Charge  Opt[bool] // absent: true

	// extend
	Bind bool

	// cancel
	Cancel RequestID // the field "request"

	// peek, retry, delete, release, purge
	IDs   []string
	State State
	After string
	All   bool
}

// NewJob is a job as a producer describes it.
type NewJob struct {
	Queue       string
	Payload     []byte
	Priority    int64 // -32768…32767
	DelayMS     Opt[int64]
	RunAt       Opt[int64]
	Key         string // empty: none
	Headers     map[string]string
	MaxAttempts Opt[int64]
	TimeoutMS   Opt[int64]
}

// State is where a job is in its life.
type State string

// The states of a job, and StateDeleted for the answer to a duplicate key whose
// job is gone.
const (
	StateReady     State = "ready"
	StateScheduled State = "scheduled"
	StateClaimed   State = "claimed"
	StateDone      State = "done"
	StateDead      State = "dead"
	StateDeleted   State = "deleted"
)

// Reply is one message from the server: the answer to a request, or an event.
type Reply struct {
	ID    RequestID
	Event string // set: an event, which has neither OK nor Error
	OK    bool
	Error *Error // set: the request failed, and OK is false

	Hello *HelloReply // hello

	Enqueued    *EnqueuedJob  // enqueue of one job: the field "job"
	EnqueuedAll []EnqueuedJob // enqueue of a list: the field "jobs"; ack with enqueue: the field "enqueued"

	Jobs    []Job       // claim; never nil in its reply, which has "jobs" also when empty
	Views   []JobView   // peek: the field "jobs"; likewise never nil
	Queues  []QueueStat // stats; likewise never nil
	Settled *Settled    // ack, nack, extend
	Count   Opt[int64]  // retry, delete, release, purge
	Changes []string    // reload; never nil in its reply
	Why     string      // reload, where Changes is empty: why nothing is different, for people
	Status  *Status     // status: its fields stand in the reply itself

	Lost []string // event "lost": the leases
}

// HelloReply is what the server tells of itself.
type HelloReply struct {
	Version    int64
	Server     string
	Session    string
	Features   []string
	MaxFrame   int64
	MaxPayload int64
	MaxReply   int64
}

// EnqueuedJob is the answer for one enqueued job.
type EnqueuedJob struct {
	ID        string
	Duplicate bool
	State     State // of the first job with the key; empty unless Duplicate
}

// Settled is the answer to ack, nack and extend.
type Settled struct {
	Verb  string // "acked", "nacked" or "extended": the field that holds Count
	Count int64
	Lost  []string // never nil in a reply
}

// Job is a claimed job with its lease.
type Job struct {
	ID          string
	Queue       string
	Lease       string
	Payload     []byte
	Attempt     int64
	MaxAttempts int64
	Fence       int64
	Priority    int64
	EnqueuedAt  int64
	TimeoutMS   Opt[int64]
	Headers     map[string]string
	Key         string
	LastError   string
}

// JobView is a job as peek shows it.
type JobView struct {
	ID          string
	Queue       string
	State       State
	Payload     []byte
	Priority    int64
	Attempt     int64
	MaxAttempts int64
	EnqueuedAt  int64
	RunAt       Opt[int64]
	ClaimedAt   Opt[int64]
	FinishedAt  Opt[int64]
	Worker      string
	Key         string
	Headers     map[string]string
	Result      []byte     // nil: none
	LeftOut     Opt[int64] // bytes of Payload and Result, which are empty because no reply has room for them
	Errors      []Failure
}

// Failure is one failed attempt.
type Failure struct {
	Attempt int64
	Cause   string
	Message string
	At      int64
}

// Status is what the sidecar tells of itself to whoever looks after it.
type Status struct {
	UptimeMS    int64
	Generation  int64  // counts the configs that ran, from 1
	ConfigError string // why the newest config does not run; empty: it does
	FailedAt    Opt[int64]
	Admin       string // where metrics and health are served; empty: nowhere
	Sockets     []SocketStatus
	Databases   []DatabaseStatus
	Sessions    []SessionStatus
}

// SocketStatus is a socket that is listened on.
type SocketStatus struct {
	Path     string
	Sessions int64
}

// DatabaseStatus is a database that is open.
type DatabaseStatus struct {
	Name    string
	Engine  string
	Version string
	Place   string // its address, without secrets
	BeatMS  int64  // since the last beat that reached it; −1: none has
	Error   string // why the last commit failed; empty: it did not
	Leaving bool   // it is not configured any more, and stays open for its last leases
	Held    int64  // jobs that connections hold

	// Connections of the pool: as many as it may have (0: the engine has no pool), of them
	// at work, and open without work.
	PoolMax, PoolInUse, PoolIdle int64
}

// SessionStatus is a connection.
type SessionStatus struct {
	Session string
	Worker  string
	Socket  string // empty: stdio
	UID     Opt[int64]
	PID     Opt[int64]
	AgeMS   int64
	Held    int64 // jobs
	HeldMS  int64 // the one that it has had for longest
	Waiting int64 // claims
	Open    int64 // requests that are not answered yet

	// Holds tells what it holds, by queue, the longest held first; at most MaxHolds.
	Holds []HeldStatus
}

// MaxHolds is how many queues a SessionStatus tells of.
const MaxHolds = 8

// HeldStatus is what a connection holds of one queue.
type HeldStatus struct {
	Queue  string // empty: not known here, as of a lease that another sidecar gave
	Jobs   int64
	HeldMS int64  // the one that it has had for longest
	Job    string // that one's id
}

// QueueStat is one queue's counts.
type QueueStat struct {
	Queue           string
	Ready           int64
	Scheduled       int64
	Claimed         int64
	Dead            int64
	Done            int64
	Paused          bool
	OldestReadyMS   int64
	OldestClaimedMS int64
	Approx          bool
}
