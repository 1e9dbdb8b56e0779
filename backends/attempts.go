package backends

import (
	"fmt"
	"time"
)

// The rules that every engine shares and that don't depend on its SQL.

// AttemptState is the record of attempts in a claimed row. Attempts includes the current one, even if that
// doesn't count yet. Limit is the effective max_attempts. Losses is the number of losses in a row (see Release).
// Below 0, it is minus the number of snoozes in a row (without a delay of their own).
type AttemptState struct {
	Attempts, Limit, Losses int
	Backoff, BackoffMax     time.Duration

	Prefetched     bool // the job is prefetched, and its delivery is not recorded
	PrefetchLosses int  // how often in a row its sidecar was lost in that state
}

// Uncounted reports whether a claim for the slot doesn't count as an attempt until its delivery is recorded.
// unrecorded is how often in a row the job was lost with an unrecorded delivery. If that has reached limit, the
// claim counts at once, because the job itself could be what kills sidecars. The SQL of engines has the same rule: claim_tail in
// backends/postgres/sql/claim.sql, for example.
func (s Slot) Uncounted(unrecorded, limit int, alone bool) bool {
	return (s.Prefetch || alone) && unrecorded < limit
}

// Alone returns Job.Alone of a job that the slot gets, for its attempt, limit of attempts and losses in a row. At
// the end of a worker it is unknown which of its jobs was the cause. So the last attempt of a job that was lost
// before has no others beside it, and only the cause dies.
func (s Slot) Alone(attempt, limit, losses int) bool {
	return s.Lease == 0 && AttemptState{Attempts: attempt, Limit: limit, Losses: losses}.Alone()
}

// Alone reports whether this is the last attempt of a job that was lost with its worker.
func (a AttemptState) Alone() bool { return a.Losses > 0 && a.Attempts >= a.Limit }

// Disposition is the outcome for a claimed job that was not acked.
type Disposition struct {
	State            State         // ready, scheduled or dead
	Delay            time.Duration // with scheduled
	SamePosition     bool          // with ready: the job keeps its position
	Attempts, Losses int
	PrefetchLosses   int
	Cause            Cause // of the failure record; empty: there is none
	Message          string
}

// Jitter returns by which part of itself one back-off of the queue becomes longer, or shorter if it is negative. The
// caller draws a new value each time, so that jobs that failed together don't come back together. nil: none.
type Jitter func(queue string) float64

// Of is the Jitter, or 0 if it is nil.
func (j Jitter) Of(queue string) float64 {
	if j == nil {
		return 0
	}
	return j(queue)
}

// AfterNack returns the outcome for a nacked job. jitter lengthens or shortens a back-off, but no delay of the nack.
func (a AttemptState) AfterNack(n Nack, jitter float64) Disposition {
	switch {
	case !n.Snooze:
		a.Losses, a.PrefetchLosses = 0, 0
	case !n.HasDelay:
		a.Losses = max(min(a.Losses, 0)-1, -mostSnoozes)
		fallthrough
	default:
		a.Attempts--
	}
	f := a.again(a.backoff(jitter))
	if n.HasDelay {
		f = a.again(n.Delay)
	}
	if n.Dead || !n.Snooze && a.Attempts >= a.Limit {
		f.State = StateDead
	}
	if !n.Snooze {
		f.Cause, f.Message = CauseNacked, n.Error
	}
	return f
}

// AfterRelease returns the outcome for a job whose claim was ended on behalf of its worker. jitter changes a back-off.
func (a AttemptState) AfterRelease(r Release, jitter float64) Disposition {
	if r.Uncounted {
		return Disposition{State: StateReady, SamePosition: true, Attempts: a.Attempts - 1, Losses: a.Losses, PrefetchLosses: a.PrefetchLosses}
	}
	if a.Losses = max(a.Losses, 0); r.Cause != CauseTimedOut {
		a.Losses++
	}
	if r.Cause != CauseSidecarLost { // the sidecar outlived the delivery
		a.PrefetchLosses = 0
	}
	f := a.again(a.backoff(jitter))
	switch {
	case a.Attempts >= a.Limit:
		f.State = StateDead
	case a.Losses == 1 && r.Cause != CauseTimedOut: // the worker ended; the job is hardly the reason
		f = a.again(0)
	}
	f.Cause, f.Message = r.Cause, r.Message
	return f
}

// AfterCancel returns the outcome for a cancelled job. The attempt of an unrecorded delivery doesn't count.
func (a AttemptState) AfterCancel() Disposition {
	if a.Prefetched {
		a.Attempts--
	}
	return Disposition{State: StateDead, Attempts: a.Attempts, Losses: a.Losses, PrefetchLosses: a.PrefetchLosses, Cause: CauseCancelled, Message: CancelledMessage}
}

// AfterReap returns the outcome for a job that was reaped for the cause. With an unrecorded delivery, possibly no
// worker ever got the job, so the attempt doesn't count. jitter changes a back-off.
func (a AttemptState) AfterReap(c Cause, jitter float64) Disposition {
	if !a.Prefetched {
		return a.AfterRelease(Release{Cause: c}, jitter)
	}
	f := a.AfterRelease(Release{Uncounted: true}, 0)
	f.PrefetchLosses++
	return f
}

func (a AttemptState) again(delay time.Duration) Disposition {
	f := Disposition{State: StateReady, Attempts: a.Attempts, Losses: a.Losses, PrefetchLosses: a.PrefetchLosses}
	if delay > 0 {
		f.State, f.Delay = StateScheduled, delay
	}
	return f
}

// mostSnoozes is the largest number of snoozes that is counted. More of them don't change a back-off: it is at
// its limit.
const mostSnoozes = 100

// backoff returns the back-off. It starts at Backoff. It doubles with each attempt, and with each snooze in a
// row after the first, up to BackoffMax. The jitter comes last, so that jobs at the maximum differ too.
func (a AttemptState) backoff(jitter float64) time.Duration {
	d := a.Backoff
	for n := max(a.Attempts, 1) + max(-a.Losses, 1) - 2; n > 0 && d < a.BackoffMax; n-- {
		d *= 2
	}
	d = min(d, a.BackoffMax)
	return d + time.Duration(float64(d)*jitter)
}

// TooLarge returns the message of a failure with CauseTooLarge. size and limit are in bytes.
func TooLarge(size, limit int64) string {
	return fmt.Sprintf("the payload has %d bytes; this sidecar delivers at most %d (raise max_frame, then retry the job)", size, limit)
}
