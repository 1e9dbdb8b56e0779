package backends

import (
	"fmt"
	"time"
)

// The rules that every engine shares and that do not belong to its SQL.

// Standing is what a claimed row says about its tries: Attempts counts the
// current one, also where it is not charged yet, Limit is the effective
// max_attempts, Losses those in a row; below 0 it counts snoozes in a row (uncharged nacks
// without a delay) in their place.
type Standing struct {
	Attempts, Limit, Losses int
	Backoff, BackoffMax     time.Duration

	Ahead      bool // claimed ahead, and its delivery is not recorded
	Unrecorded int  // how often in a row its sidecar was lost with it like that
}

// Uncharged reports whether a claim for the slot is left uncharged until its
// delivery is recorded. A job that was lost unrecorded as often as it may be tried
// (limit) is charged at its claim: it may be what kills sidecars.
func (s Slot) Uncharged(unrecorded, limit int) bool { return s.Ahead && unrecorded < limit }

// Fate is what becomes of a claimed job that was not acked.
type Fate struct {
	State            State         // ready, scheduled or dead
	Delay            time.Duration // with scheduled
	SamePosition     bool          // with ready: where it was before
	Attempts, Losses int
	Unrecorded       int
	Cause            Cause // of the failure to keep; empty: none is kept
	Message          string
}

// Nacked is the fate of a nacked job.
func (s Standing) Nacked(n Nack) Fate {
	switch {
	case !n.Uncharged:
		s.Losses, s.Unrecorded = 0, 0
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
	if n.Dead || !n.Uncharged && s.Attempts >= s.Limit {
		f.State = StateDead
	}
	if !n.Uncharged {
		f.Cause, f.Message = CauseNacked, n.Error
	}
	return f
}

// Released is the fate of a job that was taken back for its worker.
func (s Standing) Released(r Release) Fate {
	if r.Uncharged {
		return Fate{State: StateReady, SamePosition: true, Attempts: s.Attempts - 1, Losses: s.Losses, Unrecorded: s.Unrecorded}
	}
	s.Losses = max(s.Losses, 0) + 1
	if r.Cause != CauseSidecarLost { // then its sidecar outlived the delivery
		s.Unrecorded = 0
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

// Reaped is the fate of a job that was taken back for the cause. A sidecar that is
// lost with a delivery unrecorded may never have made it. One that ran over its
// time may have: that is charged.
func (s Standing) Reaped(c Cause) Fate {
	if !s.Ahead || c != CauseSidecarLost {
		return s.Released(Release{Cause: c})
	}
	f := s.Released(Release{Uncharged: true})
	f.Unrecorded++
	return f
}

func (s Standing) again(delay time.Duration) Fate {
	f := Fate{State: StateReady, Attempts: s.Attempts, Losses: s.Losses, Unrecorded: s.Unrecorded}
	if delay > 0 {
		f.State, f.Delay = StateScheduled, delay
	}
	return f
}

// mostSnoozes is as far as they are counted: more double nothing that is not at its limit.
const mostSnoozes = 100

// backoff doubles with each attempt, and with each snooze in a row after the first, from the
// initial one to the limit.
func (s Standing) backoff() time.Duration {
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
