package dispatch

import (
	"container/list"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Request is one claim of a session. The caller sets the exported fields except Queues and Reserved. It has these states:
//
//	state       in         inCommit  begun by                                        ended by
//	fresh       fresh      no        add, retryDeferred                              gather, leave
//	in a commit any list   yes       gather                                          deliver, fail
//	idle        idle       no        deliver (no job), add (the gate is closed)      gather (announced jobs), leave
//	held        deferred   no        deliver (a job is returning, or holdForOthers), retryDeferred, leave
//	                                 add (the cap is full and a settle under way, or comesBack)
//	answered    nil queue  no        end                                             -
//
// A claim that doesn't wait (Once) is never idle. leaving asks for the answer after the commit under way. moved ends the wait
// with ErrAgain.
type Request struct {
	Session  *quota.Session
	Slots    int
	Since    time.Time        // when it arrived
	Template backends.Slot    // the kind of lease and the worker
	Once     bool             // it does not wait: one commit answers it
	Rotate   bool             // its queues take turns
	Weights  map[string]int64 // with Rotate: turns of a queue where one that it doesn't have gets one
	queue    *waitQueue       // nil: it has its answer
	Queues   []string         // the queues of the field queue
	in       *list.List       // the list of the wait queue that contains it
	at       *list.Element    // of in
	Reserved int              // of the session's job quota, for the commit under way or the answer
	inCommit bool             // the commit under way includes it
	holds    int              // how often it was held, see mostHolds
	leaving  bool             // answered as soon as the commit under way ends
	lastErr  error            // of the last commit that included it
	moved    error            // ErrAgain, once its queues are not served here

	answer     chan Answer // buffered: the matcher never waits for the session
	onAnswered func()      // see WhenAnswered; nil: nothing
}

// Answer is the result of a claim. If it has no jobs, Err is the reason. If Err is nil, the queues have none.
type Answer struct {
	Jobs       []backends.Job
	Asked      time.Duration // Group.Asked
	At         time.Duration // of the answer, by Config.Clock
	Unrecorded bool          // the hand-out is not recorded in the database yet
	Err        error
}

// end answers the claim.
func (r *Request) end(a Answer) {
	answered := r.onAnswered // the receiver of the answer can use r again
	r.answer <- a
	if answered != nil {
		answered()
	}
}

// reserve reserves job quota of the session and returns for how many jobs. A timed lease only needs a session that has no
// job alone. full is true if the session holds as many jobs as it can. For probe see quota.JobQuota.Reserve.
func (r *Request) reserve(want int) (n int, full, probe bool) {
	if r.Template.Lease > 0 {
		if r.Session.Jobs.Exclusive() {
			return 0, false, false
		}
		return want, false, false
	}
	r.Reserved, full, probe = r.Session.Jobs.Reserve(want, r.Session.Client.MaxJobs())
	return r.Reserved, full, probe
}

// unanswered returns the quota of a claim that got no job.
func (r *Request) unanswered() {
	r.Session.SettleJobs(r.Reserved, 0)
	r.Reserved = 0
}
