package protocol

// Config describes the running config and its history for an operator.
type Config struct {
	Settings []string // each is a key, a colon, a space and its value; in the order of the keys, without secrets
	Reloads  []Reload // the newest first; the last one is the start, unless it was too long ago
}

// Reload is one change of the config, or one attempt.
type Reload struct {
	At         int64
	Generation int64    // number of the config that runs since then
	Changes    []string // for people
	Error      string   // why the newer config was rejected; empty: it runs
}

// Sidecar is a sidecar of the fleet in one of its databases.
type Sidecar struct {
	Database       string // as this sidecar's config names it
	Sidecar        string // its identity in the database
	Name           string // host name and process id
	Version        string // of the program; empty: unknown
	State          SidecarState
	HeartbeatAgeMS int64      // since its last heartbeat
	Leases         Opt[int64] // session leases at that time; absent: unknown
	StatsLeader    bool       // it reads the statistics for the metrics of all
	Self           bool       // it is the sidecar that answers
}

// QueueHistory is what happened to the jobs of a queue, the oldest first. A time in which nothing happened has no point.
type QueueHistory struct {
	Queue   string         // empty: the sum of all queues
	Since   int64          // when the sidecar began to count the first of Minutes
	Minutes []HistoryPoint // of this sidecar
	Hours   []HistoryPoint // of all sidecars of the database
}

// HistoryPoint is what happened in a minute or an hour.
type HistoryPoint struct {
	At                      int64      // when it began
	Ready                   Opt[int64] // the most ready jobs that statistics showed; absent: none showed them
	Enqueued, Acked, Failed int64
	Runs                    int64      // attempts that workers settled
	RunP50MS, RunP95MS      Opt[int64] // half and 95% of them took at most that long; absent: there were none
}

// Finding is a finding of check.
type Finding struct {
	Database string // empty: about the config or the host
	Severity string // error, warning or info
	Topic    string
	Text     string
	Fix      string // empty: nothing to do
}

// SidecarState is the state of a sidecar.
type SidecarState string

// The states of a sidecar.
const (
	SidecarAlive SidecarState = "alive"
	SidecarLate  SidecarState = "late" // its last heartbeat is no longer valid, so it is declared dead soon
	SidecarLeft  SidecarState = "left" // it stopped; its leases are valid until its restart grace ends
	SidecarDead  SidecarState = "dead" // its jobs are being returned
)

// JobEvent is something that happened to a job, as watch shows it.
type JobEvent struct {
	Event       string // enqueued, claimed, acked, failed, dead, snoozed, released, lost, retried or deleted; a later version can have more
	At          int64  // by the sidecar's clock
	Database    string
	Queue       string // empty: not known to the sidecar
	ID          string // empty: Jobs are not known one by one
	Jobs        int64  // 0: the one with the ID
	Attempt     int64  // 0: not known
	MaxAttempts int64  // 0: not known
	Worker      string
	Session     string
	EnqueuedAt  Opt[int64]
	ClaimedAt   Opt[int64] // by the sidecar's clock
	RunAt       Opt[int64]
	Cause       string
	Error       string
	TraceID     string
}
