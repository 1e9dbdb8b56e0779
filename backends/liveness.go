package backends

import (
	"cmp"
	"strconv"
	"strings"
	"time"
)

// Heartbeat is a sidecar's sign of life.
type Heartbeat struct {
	Host        Identity
	Kind        HeartbeatKind
	Name        string        // host name and pid, for people
	Timeout     time.Duration // how long the sidecar is taken to live from now on
	DepthLeader bool          // it reads the depths of the queues for all, or is about to (Peer.Reads)
}

// readsMark ends the name of a sidecar that reads, and before it stands leaseMark with the
// milliseconds of Beat.Lease. They need no column, and older sidecars neither write nor mind them.
const (
	readsMark = " +depths"
	leaseMark = " +lease_ms="
)

// RowName is the name as the sidecar's row has it, from its last beat on.
func (b Heartbeat) RowName() string {
	row := b.Name + leaseMark + strconv.FormatInt(b.Timeout.Milliseconds(), 10)
	if b.DepthLeader {
		row += readsMark
	}
	return row
}

// IsDepthLeader is Beat.Reads of a row with that name.
func IsDepthLeader(row string) bool { return strings.HasSuffix(row, readsMark) }

// longestLease is no shorter than any sidecar's.
const longestLease = time.Hour

// TimeoutOf is how long a beat of a row with that name can last at most.
func TimeoutOf(row string) time.Duration {
	_, text, _ := strings.Cut(strings.TrimSuffix(row, readsMark), leaseMark)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return longestLease // it is an older sidecar's
	}
	return time.Duration(n)*time.Millisecond + time.Millisecond // engines round up
}

// HeartbeatExpired reports whether a beat's time is over: its end has passed, or is further away than any
// beat's can be, because the database's clock was set back since. A sidecar that lives beats by
// the new clock soon: those that watch it give it the time. One that left has a time of its own.
func HeartbeatExpired(left, lease time.Duration, hasLeft bool) bool {
	return left <= 0 || !hasLeft && left > lease
}

// HeartbeatKind is what a beat wants.
type HeartbeatKind int

const (
	// HeartbeatJoin inserts the sidecar's row.
	HeartbeatJoin HeartbeatKind = iota
	// HeartbeatRenew updates it, unless it was given up: then Pulse.Alive is false. A
	// row that is gone was given up.
	HeartbeatRenew
	// HeartbeatLeave is the last beat: the sidecar's session leases stay valid for Lease
	// (the restart grace), and no claim under its identity succeeds any more.
	HeartbeatLeave
)

// HeartbeatResult is the answer to a beat.
type HeartbeatResult struct {
	Alive bool
	Peers []Peer // every other sidecar's row that is not reaped to the end
}

// Peer is another sidecar as the database shows it.
type Peer struct {
	Host        Identity
	Heartbeats  uint64 // moves with each of its beats
	Expired     bool   // its time is over, by the database's clock: see Ended
	Dead        bool   // given up; its jobs are being taken back
	DepthLeader bool   // it said so with its last beat

	Timeout time.Duration // how long its beats last at most: TimeoutOf; 0 where the engine has no use for it
}

// ClaimedJob is a claimed row.
type ClaimedJob struct {
	Lease Lease
	Queue string
	Timed bool // a timed lease: it does not need its owner to live
}

// Maintenance asks for a bite of housekeeping: promote what is due, take back timed
// leases that ended and runs over their deadline, give up the suspects and take
// back what dead sidecars and unknown owners hold, delete finished jobs and keys
// whose time is over.
type Maintenance struct {
	Waiting    []string  // queues somebody here waits for
	Suspects   []Suspect // sidecars to give up, if they still look the same
	Prune      bool      // also delete what retention says; not needed at every sweep
	Limit      int       // rows of each kind at most, > 0
	PruneBatch int       // rows that pruning deletes in one transaction at most; 0: Limit
}

// PruneLimit is how many rows pruning may delete in one transaction.
func (s Maintenance) PruneLimit() int { return cmp.Or(s.PruneBatch, s.Limit) }

// Suspect is a peer that the caller saw expired while its beat did not move for
// long enough by the caller's own clock. It is given up only if its time is over
// by the database's clock (see HeartbeatExpired) and its counter is still Beats.
type Suspect struct {
	Host       Identity
	Heartbeats uint64
	Timeout    time.Duration // the peer's
}

// MaintenanceResult says what a sweep did and saw.
type MaintenanceResult struct {
	Ready     []string      // of Waiting, the queues with a ready job (pause not considered)
	MadeReady []string      // queues in which the sweep made jobs ready, waited for or not
	Promoted  int           // scheduled → ready
	Reaped    map[Cause]int // claimed → ready, scheduled or dead, by cause
	Failed    FailedCounts  // the same, by queue too
	Pruned    int
	More      bool          // some kind reached Limit (but for pruning): sweep again at once
	Next      time.Duration // until the next promotion or end of a lease known now; < 0: none

	// With Prune. Deleting is in no hurry: what is over is so for everybody already.
	PruneMore    bool          // there is more to be pruned: some other time soon
	LongestPrune time.Duration // how long the longest transaction that pruned took; 0: none did
	PruneOverdue time.Duration // for how long the first of what was there to prune had been over, before this sweep
	Unusable     error         // a row that no sweep can use, passed over: where it is, why and what to do; nil: none was found
	PruneRefused error         // the database will not have something of it deleted, however often it is tried; nil: it had all
}

// AddPruned adds what one transaction that prunes did: it deleted n rows of those that
// it found, most at the most, and took so long.
func (s *MaintenanceResult) AddPruned(n, found, most int, took time.Duration) {
	s.Pruned += n
	s.PruneMore = s.PruneMore || found >= most
	s.LongestPrune = max(s.LongestPrune, took)
}

// Cause says why an attempt failed.
type Cause string

// The causes, as the wire names them.
const (
	CauseNacked       Cause = "nacked"
	CauseDisconnected Cause = "disconnected"
	CauseTimedOut     Cause = "timed_out"
	CauseLeaseEnded   Cause = "lease_ended"
	CauseSidecarLost  Cause = "sidecar_lost"
	CauseTooLarge     Cause = "too_large"
)
