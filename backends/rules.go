package backends

import (
	"fmt"
	"time"
)

// The rules that every engine shares and that do not belong to its SQL.

// AttemptState is what a claimed row says about its tries: Attempts counts the
// current one, also where it is not charged yet, Limit is the effective
// max_attempts, Losses those in a row; below 0 it counts snoozes in a row (uncharged nacks
// without a delay) in their place.
type AttemptState struct {
	Attempts, Limit, Losses int
	Backoff, BackoffMax     time.Duration

	Prefetched     bool // claimed ahead, and its delivery is not recorded
	PrefetchLosses int  // how often in a row its sidecar was lost with it like that
}

// Uncounted reports whether a claim for the slot is left uncharged until its
// delivery is recorded. A job that was lost unrecorded as often as it may be tried
// (limit) is charged at its claim: it may be what kills sidecars.
func (s Slot) Uncounted(unrecorded, limit int) bool { return s.Prefetch && unrecorded < limit }

// Disposition is what becomes of a claimed job that was not acked.
type Disposition struct {
	State            State         // ready, scheduled or dead
	Delay            time.Duration // with scheduled
	SamePosition     bool          // with ready: where it was before
	Attempts, Losses int
	PrefetchLosses   int
	Cause            Cause // of the failure to keep; empty: none is kept
	Message          string
}

// AfterNack is the fate of a nacked job.
func (s AttemptState) AfterNack(n Nack) Disposition {
	switch {
	case !n.Snooze:
		s.Losses, s.PrefetchLosses = 0, 0
	case !n.HasDelay:
		s.Losses = max(min(s.Losses, 0)-1, -mostSnoozes)
		fallthrough
	default:
		s.Attempts--
	}
	f := s.again(s.backoff())
	if n.HasDelay {
		f = s.again(n.Delay)
	}
	if n.Dead || !n.Snooze && s.Attempts >= s.Limit {
		f.State = StateDead
	}
	if !n.Snooze {
		f.Cause, f.Message = CauseNacked, n.Error
	}
	return f
}

// AfterRelease is the fate of a job that was taken back for its worker.
func (s AttemptState) AfterRelease(r Release) Disposition {
	if r.Uncounted {
		return Disposition{State: StateReady, SamePosition: true, Attempts: s.Attempts - 1, Losses: s.Losses, PrefetchLosses: s.PrefetchLosses}
	}
	s.Losses = max(s.Losses, 0) + 1
	if r.Cause != CauseSidecarLost { // then its sidecar outlived the delivery
		s.PrefetchLosses = 0
	}
	f := s.again(s.backoff())
	switch {
	case s.Attempts >= s.Limit:
		f.State = StateDead
	case s.Losses == 1 && r.Cause != CauseTimedOut: // the worker's end, hardly the job's fault
		f = s.again(0)
	}
	f.Cause, f.Message = r.Cause, r.Message
	return f
}

// AfterReap is the fate of a job that was taken back for the cause. A sidecar that is
// lost with a delivery unrecorded may never have made it. One that ran over its
// time may have: that is charged.
func (s AttemptState) AfterReap(c Cause) Disposition {
	if !s.Prefetched || c != CauseSidecarLost {
		return s.AfterRelease(Release{Cause: c})
	}
	f := s.AfterRelease(Release{Uncounted: true})
	f.PrefetchLosses++
	return f
}

func (s AttemptState) again(delay time.Duration) Disposition {
	f := Disposition{State: StateReady, Attempts: s.Attempts, Losses: s.Losses, PrefetchLosses: s.PrefetchLosses}
	if delay > 0 {
		f.State, f.Delay = StateScheduled, delay
	}
	return f
}

// mostSnoozes is as far as they are counted: more double nothing that is not at its limit.
const mostSnoozes = 100

// backoff doubles with each attempt, and with each snooze in a row after the first, from the
// initial one to the limit.
func (s AttemptState) backoff() time.Duration {
	d := s.Backoff
	for n := max(s.Attempts, 1) + max(-s.Losses, 1) - 2; n > 0 && d < s.BackoffMax; n-- {
		d *= 2
	}
	return min(d, s.BackoffMax)
}

// TooLarge is the message of a failure with CauseTooLarge: size and limit in bytes.
func TooLarge(size, limit int64) string {
	return fmt.Sprintf("the payload has %d bytes; this sidecar delivers at most %d (raise max_frame, then retry the job)", size, limit)
}
