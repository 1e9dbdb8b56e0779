package protocol

// Version is the highest protocol version that this package supports.
const Version = 1

// Op is an operation, as in the request's field "op".
type Op string

// The operations of version 1.
const (
	OpHello       Op = "hello"
	OpEnqueue     Op = "enqueue"
	OpClaim       Op = "claim"
	OpAck         Op = "ack"
	OpNack        Op = "nack"
	OpExtend      Op = "extend"
	OpCancelClaim Op = "cancel_claim"
	OpBye         Op = "bye"
	OpStats       Op = "stats"
	OpPeek        Op = "peek"
	OpRetry       Op = "retry"
	OpChange      Op = "change"
	OpDelete      Op = "delete"
	OpReclaim     Op = "reclaim"
	OpCancel      Op = "cancel"
	OpPurge       Op = "purge"
	OpPause       Op = "pause"
	OpResume      Op = "resume"
	OpLimit       Op = "limit"

	OpSchedules      Op = "schedules"
	OpSchedule       Op = "schedule"
	OpChangeSchedule Op = "change_schedule"
	OpOpenBatch      Op = "open_batch"
	OpCloseBatch     Op = "close_batch"
	OpCancelBatch    Op = "cancel_batch"
	OpBatches        Op = "batches"
	OpWatch          Op = "watch"
	OpWait           Op = "wait"
	OpProgress       Op = "progress"
	OpPing           Op = "ping"
	OpReload         Op = "reload"
	OpStatus         Op = "status"
	OpConfig         Op = "config"
	OpFleet          Op = "fleet"
	OpHistory        Op = "history"
	OpCheck          Op = "check"
)

// Opt is a field that can be absent. Its zero value is absent, and Some sets it: job.MaxAttempts = protocol.Some(int64(3)).
// It needs no pointer and so no allocation.
type Opt[T any] struct {
	Value T
	Set   bool
}

// Some returns a field that is present.
func Some[T any](v T) Opt[T] { return Opt[T]{Value: v, Set: true} }

// Or returns the field's value, or def if it is absent.
func (o Opt[T]) Or(def T) T {
	if o.Set {
		return o.Value
	}
	return def
}

// Get returns the field's value and whether it is present.
func (o Opt[T]) Get() (T, bool) { return o.Value, o.Set }

// RequestID is the "id" of a request: absent (the zero value), an unsigned integer up to 2^53-1, or
// a string of at most 64 bytes. It is comparable, so it can be a map key.
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

// NumberID returns a numeric request id. n must not exceed 2^53-1.
func NumberID(n uint64) RequestID { return RequestID{kind: idNumber, num: n} }

// TextID returns a textual request id. s must not exceed 64 bytes.
func TextID(s string) RequestID { return RequestID{kind: idText, text: s} }

// IsSet reports whether the request has an id.
func (r RequestID) IsSet() bool { return r.kind != idAbsent }

// Request is one decoded request of any op. One table defines which fields an op takes and needs
// (see DecodeRequest). The decoder rejects a field that the op does not take, so every field that
// is set has an effect.
//
// Durations are integer milliseconds. Instants are milliseconds since the Unix epoch, UTC. Byte
// slices and strings are copies and stay valid after the next read.
type Request struct {
	ID RequestID
	Op Op

	// hello
	Version Opt[int64]
	Worker  string
	Events  []string

	// enqueue: either Jobs, or one job in Job. The queue of that job is in Queue, as for the other
	// ops.
	Job  NewJob
	Jobs []NewJob // nil: the single form

	// the queue of enqueue, claim, stats, peek, watch and the operator's ops
	Queue  string
	Queues []string
	Max    Opt[int64]
	WaitMS int64

	// claim and extend
	LeaseMS Opt[int64]

	// claim
	Order   Order            // empty: OrderStrict
	Weights map[string]int64 // of queues, with OrderRotate; a queue that it doesn't have has the weight 1

	// ack, nack, extend: either Lease or Leases
	Lease   string
	Leases  []string // nil: the single form
	Result  []byte   // ack; nil: absent
	Enqueue []NewJob // ack

	// ack and nack
	Claim *NextClaim // nil: none

	// nack
	Error   string
	DelayMS Opt[int64]
	Dead    bool
	Snooze  bool // the delivery uses up no attempt

	// extend
	Bind bool

	// cancel_claim
	Cancel RequestID // the field "request"

	// change; it also takes DelayMS
	Priority Opt[int64] // -32768…32767
	RunAt    Opt[int64]

	// limit
	MaxClaimed Opt[int64] // 0: no cap
	Rate       string     // such as 100/s; 0: no rate; empty: absent
	Burst      Opt[int64] // 0: the default
	None       bool       // first remove all limits

	GroupLimit     Opt[int64] // 0: the default
	GroupOnFailure string     // hold or skip; empty: absent
	GroupReady     Opt[int64] // 0: any number

	// cancel
	Delete bool // delete the jobs instead of keeping them as dead ones

	// schedules, schedule, change_schedule
	Schedule *Schedule
	DryRun   bool   // schedule: change nothing
	Do       string // change_schedule

	// wait
	Mode string // WaitAll or WaitAny; empty: WaitAll

	// progress; it also takes Lease
	Data        []byte     // at most MaxProgressData; nil: absent
	Done, Total Opt[int64] // in any unit

	// open_batch, whose callback is in Job and whose key is in Key
	On string // OnSuccess or OnFinish

	Batch string // close_batch, cancel_batch, batches, wait

	// peek, retry, change, delete, reclaim, cancel, purge, wait
	IDs   []string
	State State
	After string // also of schedules: a name, and of batches: an id
	All   bool

	// peek and cancel
	Key        string            // the job that has this key; with State, the jobs in it that were stored with the key
	Text       string            // jobs whose key, payload or header values contain it
	Headers    map[string]string // jobs that have these headers
	AfterQueue string            // with a search of all queues: the queue in which it continues, behind After
	Newest     bool              // done or dead jobs: those that finished last come first
}

// NextClaim is the claim that an ack or a nack carries. It never waits. Its fields are those of a claim.
type NextClaim struct {
	Queue   string
	Queues  []string // nil: the single form
	Max     Opt[int64]
	LeaseMS Opt[int64]
	Order   Order            // empty: OrderStrict
	Weights map[string]int64 // with OrderRotate
}

// Order is in which order a claim asks its queues.
type Order string

// The orders of a claim.
const (
	OrderStrict Order = "strict" // the first queue that has jobs, in the order of the list
	OrderRotate Order = "rotate" // the queues in turn; their order in the list has no meaning
)

// NewJob is a job as a producer describes it. Some sets the fields that can be absent.
type NewJob struct {
	Queue       string
	Payload     []byte
	Priority    int64             // -32768…32767; a higher one comes first
	DelayMS     Opt[int64]        // milliseconds until it is ready: Some((5 * time.Second).Milliseconds())
	RunAt       Opt[int64]        // in place of DelayMS: when it is ready, in milliseconds since 1970, as time.Time.UnixMilli returns
	Key         string            // idempotency key; empty: none
	Group       string            // empty: none
	Headers     map[string]string // nil: none
	MaxAttempts Opt[int64]        // absent: the queue's
	TimeoutMS   Opt[int64]        // milliseconds that a run can take; absent: the queue's
	Batch       string            // of which it is a member; empty: none

	StartBefore   Opt[int64] // no run starts at this instant or later, in milliseconds since 1970; absent: the queue's limit
	StartWithinMS Opt[int64] // in place of StartBefore: milliseconds after the job is ready first
	RetainMS      Opt[int64] // milliseconds that the done job is kept at least; absent: as long as the queue's
	OnExpiry      string     // what becomes of a job that did not start in time: ExpireDead or ExpireDelete; empty: the queue's

	KeyUntil      string     // until when the key returns the job: KeyUntilStart or KeyUntilFinish; empty: KeyUntilFinish
	OnConflict    string     // what becomes of the job if the key returns another one; empty: ConflictKeep
	DebounceMaxMS Opt[int64] // with ConflictDebounce: milliseconds after the first enqueue in which the job is ready at the latest; absent: no limit
}

// Until when a key returns its job.
const (
	KeyUntilStart  = "start"
	KeyUntilFinish = "finish"
)

// What becomes of a job whose key returns another job: it is not stored, it replaces the other one's content, or also its time.
const (
	ConflictKeep     = "keep"
	ConflictReplace  = "replace"
	ConflictDebounce = "debounce"
)

// What becomes of a job that did not start in time.
const (
	ExpireDead   = "dead"
	ExpireDelete = "delete"
)

// State is the state of a job.
type State string

// The states of a job. StateDeleted only occurs in the reply to a duplicate key whose job no longer
// exists.
const (
	StateReady     State = "ready"
	StateBlocked   State = "blocked"
	StateScheduled State = "scheduled"
	StateClaimed   State = "claimed"
	StateDone      State = "done"
	StateDead      State = "dead"
	StateDeleted   State = "deleted"
)

// Reply is one message from the server: the answer to a request, or an event.
type Reply struct {
	ID    RequestID
	Event string // set for an event, which has neither OK nor Error
	OK    bool
	Error *Error // set if the request failed; OK is then false

	Hello *HelloReply // hello

	Enqueued    *EnqueuedJob  // enqueue of one job: the field "job"
	EnqueuedAll []EnqueuedJob // enqueue of a list: the field "jobs"; ack with enqueue: the field "enqueued"

	Jobs    []Job       // claim, and a settle that carries one: never nil, empty if there are no jobs
	Views   []JobView   // peek: the field "jobs", never nil
	Queues  []QueueStat // stats: never nil
	Settled *Settled    // ack, nack, extend

	ClaimError *Error // why a claim that an ack or nack carried failed; Jobs is nil then

	Join bool // claim, and a settle that carries one: a hint to send the next settle with its claim in one request

	Ended []EndedJob // wait: never nil

	JobEvents []JobEvent // watch: the field "events", never nil
	Missed    Opt[int64] // watch
	// peek with a search: how many jobs it read, and the last of them if there are more. A search continues after it.
	Scanned    Opt[int64]
	After      string
	AfterQueue string // of a search of all queues: where it continues, behind After if that isn't empty

	Count     Opt[int64]  // retry, change, delete, reclaim, cancel, purge, cancel_batch
	Unknown   bool        // stats of one queue, and commands on a whole queue: nothing is recorded about the queue
	Unchanged []Unchanged // the named jobs that retry, change, delete, reclaim and cancel left as they are
	Changes   []string    // reload: never nil
	Why       string      // reload without Changes: why nothing changed, for people
	Status    *Status     // status: its fields are fields of the reply itself
	Config    *Config     // config: its fields are fields of the reply itself

	Schedules []Schedule // schedules: never nil
	Declared  *Declared  // schedule

	Batch   *Batch  // open_batch, and wait with a batch
	Batches []Batch // batches: never nil

	Sidecars []Sidecar      // fleet: never nil
	History  []QueueHistory // history: never nil
	Findings []Finding      // check: never nil

	Lost   []string // event "lost": the leases
	Reason string   // also: ReasonCancelled, or empty
}

// Unchanged is a job that an operator's request names and did not change.
type Unchanged struct {
	ID    string
	State State // StateDeleted: the queue has no such job
}

// The modes of wait.
const (
	WaitAll = "all" // until all jobs have ended
	WaitAny = "any" // until one of them has
)

// EndedJob is a job that a wait names and that has ended.
type EndedJob struct {
	ID        string
	State     State      // StateDone, StateDead, or StateDeleted: the queue has no such job, or not any more
	Result    []byte     // of an ack; nil: none
	LastError string     // the message of the last failed attempt
	LeftOut   Opt[int64] // bytes of a result that was left out
}

// ReasonCancelled is Reply.Reason of leases whose jobs an operator cancelled.
const ReasonCancelled = "cancelled"

// HelloReply describes the server.
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
	State     State // of the first job with the key; empty if there is none
	Outcome   Outcome
}

// Outcome is what became of a job whose key returned another job, if it was not a duplicate.
type Outcome string

// The outcomes.
const (
	OutcomeReplaced Outcome = "replaced" // the other job has its content now
	OutcomePending  Outcome = "pending"  // it waits for the end of the other job's run
)

// Verb returns the field of the reply to an ack, nack or extend that holds the count.
func (o Op) Verb() string {
	switch o {
	case OpAck:
		return "acked"
	case OpNack:
		return "nacked"
	default:
		return "extended"
	}
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
	EnqueuedAt  int64      // in milliseconds since 1970, by the database's clock: time.UnixMilli returns the time
	TimeoutMS   Opt[int64] // milliseconds that this run can take; absent: no limit
	Headers     map[string]string
	Key         string
	LastError   string    // of the last failed attempt; empty: none
	Progress    *Progress // that an earlier attempt reported last; nil: none
}

// Progress is how far a worker was when it last reported it.
type Progress struct {
	Done, Total Opt[int64]
	Data        []byte // nil: none
	At          int64  // when the server stored it
}

// Limit is one of the limits of a queue.
type Limit string

// The limits that jobs can wait for.
const (
	LimitMaxClaimed Limit = "max_claimed"
	LimitRate       Limit = "rate"
)

// JobView is a job as peek shows it.
type JobView struct {
	ID          string
	Queue       string
	State       State
	Payload     []byte
	Priority    int64
	Attempt     int64
	MaxAttempts int64
	EnqueuedAt  int64 // 0 if an adopted table has no such time
	RunAt       Opt[int64]
	ClaimedAt   Opt[int64]
	FinishedAt  Opt[int64]
	Worker      string
	Key         string
	Group       string
	Headers     map[string]string
	Result      []byte     // nil if there is none
	LeftOut     Opt[int64] // bytes of Payload and Result if both are omitted because the reply would be too large
	Errors      []Failure
	WaitsFor    WaitsFor  // peek of a few ids, or of a key: what keeps the job from workers; empty: nothing that is known
	Progress    *Progress // nil: none
	StartBefore Opt[int64]
	Behind      []Unchanged // WaitsForGroup: jobs that have the slots of the group; nil: there is a free one
}

// WaitsFor is what keeps a job from workers.
type WaitsFor string

// What jobs wait for.
const (
	WaitsForTime       WaitsFor = "time"
	WaitsForGroup      WaitsFor = "group"
	WaitsForPause      WaitsFor = "pause"
	WaitsForMaxClaimed          = WaitsFor(LimitMaxClaimed)
	WaitsForRate                = WaitsFor(LimitRate)
	WaitsForWorker     WaitsFor = "worker" // no worker of this host asks for jobs of the queue, or has one
)

// Failure is one failed attempt.
type Failure struct {
	Attempt int64
	Cause   string
	Message string
	At      int64
}

// Status describes the sidecar for an operator.
type Status struct {
	UptimeMS    int64
	Generation  int64  // number of the running config, from 1
	ConfigError string // why the newest config does not run; empty if it does
	FailedAt    Opt[int64]
	Admin       string // address of metrics and health; empty if they are off
	Page        string // URL of the web page behind a proxy; empty: it is at Admin
	Sockets     []SocketStatus
	Databases   []DatabaseStatus
	Sessions    []SessionStatus
}

// SocketStatus is a listening socket.
type SocketStatus struct {
	Path     string
	Sessions int64
	Error    string // why clients can't connect to it; empty if they can
}

// DatabaseStatus is an open database.
type DatabaseStatus struct {
	Name    string
	Engine  string
	Version string
	Address string // without secrets
	Cluster string // the server's role in its cluster, for people; empty: unknown
	Error   string // why the last commit failed; empty if it succeeded

	ReplicaError string // why statistics come from the primary instead of the replica; empty: they don't

	HeartbeatAgeMS int64 // since the last heartbeat that reached it; -1 if none did
	Draining       bool  // no longer configured, but open until its last lease ends
	Leases         int64 // session leases: jobs that connections have claimed

	// Connections of the pool: the maximum (0 if the engine has no pool), busy and idle ones.
	PoolMax, PoolInUse, PoolIdle int64

	ObstacleCount int64      // what the database refuses
	Obstacles     []Obstacle // the oldest of them, at most MaxObstacles
}

// MaxObstacles is the largest number of entries in DatabaseStatus.Obstacles.
const MaxObstacles = 20

// Obstacle is something that a database refuses although it has to happen. The sidecar tries it again.
type Obstacle struct {
	Queue     string
	Table     string // of the application; empty: the sidecar's own
	Job       string // empty: the whole queue
	Doing     string // what the sidecar tried
	Error     string
	AgeMS     int64
	NextTryMS int64 // until the next try
}

// SessionStatus is a connection.
type SessionStatus struct {
	Session string
	Worker  string
	Socket  string // empty for stdio
	UID     Opt[int64]
	PID     Opt[int64]
	AgeMS   int64
	Leases  int64 // session leases: jobs that the session has claimed
	Waiting int64 // claims
	Open    int64 // requests without a reply yet

	OldestLeaseMS int64 // age of the oldest lease
	// Queues lists the leases by queue, the oldest first. It has at most MaxSessionQueues entries.
	Queues []QueueLeases
}

// MaxSessionQueues is the largest number of entries in SessionStatus.Queues.
const MaxSessionQueues = 8

// QueueLeases are the leases of a session on the jobs of one queue.
type QueueLeases struct {
	Queue         string // empty if unknown, for example for a lease that another sidecar granted
	Leases        int64
	OldestLeaseMS int64
	OldestJob     string // id of the job with the oldest lease
}

// QueueStat is one queue's counts.
type QueueStat struct {
	Queue           string
	Ready           int64
	Blocked         int64
	Scheduled       int64
	Claimed         int64
	Dead            int64
	Done            int64
	Paused          bool
	OldestReadyMS   int64
	OldestClaimedMS int64
	Approx          bool

	// The limits of the queue. Absent: none.
	MaxClaimed Opt[int64]
	Rate       string
	Burst      Opt[int64]
	Limited    Limit // that keeps its ready jobs from workers at present; empty: none is known

	// Absent: the defaults of groups.
	GroupLimit     Opt[int64]
	GroupOnFailure string
	GroupReady     Opt[int64]

	// Counters of the sidecar that answers, since its start. Absent: the queue has none of its own.
	Enqueued, Acked Opt[int64]
}
