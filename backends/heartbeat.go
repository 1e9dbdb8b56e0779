package backends

import (
	"cmp"
	"time"
)

// Heartbeat is how a sidecar proves that it is alive.
type Heartbeat struct {
	Sidecar     Identity
	Kind        HeartbeatKind
	Name        string        // host name and process id, for people
	Version     string        // of the program, for people; at most MaxVersion bytes of UTF-8
	Leases      int64         // of its sessions, for people
	Timeout     time.Duration // the sidecar timeout: for how long, from now on, the sidecar counts as alive
	DepthLeader bool          // it reads the queue depths for all sidecars, or is about to (see Peer.DepthLeader)
	AllPeers    bool          // HeartbeatResult.Peers has to be complete even if HeartbeatResult.Watched is true
}

// Watchers is how many sidecars watch all others of their database: those with the smallest identities whose heartbeats
// are in time. So the work of watching grows with the number of sidecars, and not with its square.
//
// A heartbeat is in time if at least InTime of its validity is left. A sidecar whose heartbeat is late doesn't
// count as a watcher. If all watchers stop, every other sidecar finds out in its next heartbeat, and the next ones
// replace them.
const (
	Watchers = 8
	InTime   = 0.75
)

// MaxVersion is the most bytes of Heartbeat.Version.
const MaxVersion = 64

// PeerTimeout returns Peer.Timeout, given the timeout that the row holds in milliseconds. A negative one means that the
// row holds none. Then the result is at least as long as the timeout of any sidecar.
func PeerTimeout(ms int64) time.Duration {
	if ms < 0 {
		return time.Hour
	}
	return time.Duration(ms)*time.Millisecond + time.Millisecond // engines round up
}

// HeartbeatExpired reports whether a heartbeat is no longer valid. left is the time until its end, by the
// database's clock, and lease the longest that it can be valid (Peer.Timeout). It has expired if its end has
// passed. It has also expired if its end is further away than lease allows, because then the database's clock
// was set back. In that case a living sidecar soon sends a heartbeat by the new clock, and its peers give it
// the time to do so. A sidecar that left (hasLeft) chose its own time, so the second rule does not apply to it.
// PostgreSQL has the same rule in sql/heartbeat.sql, as the fragment expired.
func HeartbeatExpired(left, lease time.Duration, hasLeft bool) bool {
	return left <= 0 || !hasLeft && left > lease
}

// HeartbeatKind is what a heartbeat does.
type HeartbeatKind int

const (
	// HeartbeatJoin inserts the sidecar's row.
	HeartbeatJoin HeartbeatKind = iota
	// HeartbeatRenew updates the row, unless the sidecar was declared dead. Then HeartbeatResult.Alive is
	// false. A row that no longer exists also means that the sidecar was declared dead.
	HeartbeatRenew
	// HeartbeatLeave is the last heartbeat. The sidecar's session leases stay valid for Heartbeat.Timeout (the
	// restart grace). No later claim under its identity succeeds.
	HeartbeatLeave
)

// HeartbeatResult is the answer to a heartbeat.
type HeartbeatResult struct {
	Alive bool
	Peers []Peer // the rows of all other sidecars that aren't reaped completely

	// Watched: at least Watchers other sidecars watch, so this one doesn't need to. Without Heartbeat.AllPeers, Peers
	// can then lack sidecars that don't watch. Engines for few sidecars never set it.
	Watched bool
}

// Peer is another sidecar as the database shows it.
type Peer struct {
	Sidecar     Identity
	Heartbeats  uint64 // changes with each of its heartbeats
	Expired     bool   // its last heartbeat is no longer valid, by the database's clock: see HeartbeatExpired
	Dead        bool   // declared dead; its jobs are being reaped
	DepthLeader bool   // set in its last heartbeat

	Timeout time.Duration // the longest time for which its heartbeats are valid: see PeerTimeout

	// The following are for people.
	Name    string
	Version string
	Leases  int64         // Heartbeat.Leases; < 0: unknown
	Left    time.Duration // the time until the end of its last heartbeat, by the database's clock
	HasLeft bool          // its last heartbeat was HeartbeatLeave
}

// ClaimedJob is a claimed row.
type ClaimedJob struct {
	Lease Lease
	Queue string
	ID    string // the job's id, if that isn't Lease.Job
	Timed bool   // the lease is a timed one, which stays valid if its owner dies
}

// Maintenance asks for one batch of each kind of maintenance. It promotes due jobs. It reaps timed leases that
// ended and attempts that exceeded their deadline. It ends waiting jobs whose Expiry is over. It declares the suspects dead, and reaps the claims of dead
// sidecars and of unknown owners. It prunes finished jobs and keys that expired.
type Maintenance struct {
	Waiting    []string  // queues from which a worker of this sidecar waits for jobs
	Suspects   []Suspect // sidecars to declare dead if they are still as described
	Sidecar    Identity  // the sidecar that asks
	Watched    bool      // see HeartbeatResult: the watchers look for work that isn't this sidecar's, if that costs more in a larger fleet
	Handled    []Token   // of earlier MaintenanceResult.Cancelled: they aren't returned again
	Prune      bool      // also delete what retention allows; not needed in every call
	Limit      int       // the most rows of each kind, > 0
	PruneBatch int       // the most rows that one transaction of pruning deletes; 0: Limit
	Jitter     Jitter    // of the back-offs of the jobs that it reaps

	// AdoptedSchedules: also find schedules of queues in adopted tables. Package adopted sets it. Otherwise the watchers alone find
	// schedules that are due.
	AdoptedSchedules bool
}

// PruneLimit returns the most rows that one transaction of pruning deletes.
func (m Maintenance) PruneLimit() int { return cmp.Or(m.PruneBatch, m.Limit) }

// Suspect is an expired peer whose heartbeat did not change for long enough by the caller's own clock. It is
// declared dead only if it has also expired by the database's clock (see HeartbeatExpired) and its counter is
// still Heartbeats.
type Suspect struct {
	Sidecar    Identity
	Heartbeats uint64
	Timeout    time.Duration // Peer.Timeout
}

// MaintenanceResult is what a call of Maintain did and found. The zero value, except Next, is that of a call that did
// nothing.
type MaintenanceResult struct {
	Ready     []string      // of Waiting, the queues with a ready job (even if the queue is paused)
	MadeReady []string      // queues in which this call made jobs ready, whether in Waiting or not
	Promoted  int           // scheduled → ready
	Expired   int           // waiting → dead or deleted (see Expiry)
	Reaped    map[Cause]int // claimed → ready, scheduled or dead, by cause
	Cancelled []Token       // claims of Maintenance.Sidecar that a Cancel ended, until they are Handled
	Failed    FailedCounts  // the reaped and expired jobs by queue too
	Pending   []StoredPending
	Pruned    int
	More      bool          // some kind except pruning reached Limit: call again at once
	Next      time.Duration // until the next known promotion or end of a lease; < 0: none is known

	ScheduleDue  bool          // a schedule is due: call Scheduler.FireSchedules
	NextSchedule time.Duration // until the first schedule is due; 0: there is none, or it is due now

	BatchesDue bool // there are batches that can possibly end, or be deleted: call Batcher.ResolveBatches with nil

	// With Prune. Deletion isn't urgent: an expired job or key counts as gone for every sidecar already.
	PruneMore    bool          // there is more to prune; call again soon
	LongestPrune time.Duration // duration of the longest transaction that pruned; 0: none did
	PruneOverdue time.Duration // how long ago the first row that was due for pruning expired, as of the start of this call
	Unusable     error         // a row that maintenance can't use and skipped: where it is, why, and what to do; nil: none was found
}

// AddPruned adds the result of one transaction that prunes: it deleted n of the found rows and lasted took.
// most is the limit that it had; if found reaches that, there is more to prune.
func (m *MaintenanceResult) AddPruned(n, found, most int, took time.Duration) {
	m.Pruned += n
	m.PruneMore = m.PruneMore || found >= most
	m.LongestPrune = max(m.LongestPrune, took)
}

// Cause is why an attempt failed.
type Cause string

// The causes, as the protocol names them.
const (
	CauseNacked       Cause = "nacked"
	CauseDisconnected Cause = "disconnected"
	CauseTimedOut     Cause = "timed_out"
	CauseLeaseEnded   Cause = "lease_ended"
	CauseSidecarLost  Cause = "sidecar_lost"
	CauseTooLarge     Cause = "too_large"
	CauseTxLost       Cause = "transaction_lost" // of a job that is claimed in an open transaction
	CauseCancelled    Cause = "cancelled"        // an operator ended the job; it can have been waiting
	CauseExpired      Cause = "expired"          // the time until which the job had to start was over; it was waiting
)
