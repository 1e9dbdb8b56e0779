package backends

import (
	"fmt"
	"time"
)

// The rules that every engine shares and that do not belong to its SQL.

// Standing is what a claimed row says about its tries: Attempts counts the
// current one, Limit is the effective max_attempts, Losses those in a row.
type Standing struct {
	Attempts, Limit, Losses int
	Backoff, BackoffMax     time.Duration
}

// Fate is what becomes of a claimed job that was not acked.
type Fate struct {
	State            State         // ready, scheduled or dead
	Delay            time.Duration // with scheduled
	SamePosition     bool          // with ready: where it was before
	Attempts, Losses int
	Cause            Cause // of the failure to keep; empty: none is kept
	Message          string
}

// Nacked is the fate of a nacked job.
func (s Standing) Nacked(n Nack) Fate {
	if n.Uncharged {
		s.Attempts--
	} else {
		s.Losses = 0
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
		return Fate{State: StateReady, SamePosition: true, Attempts: s.Attempts - 1, Losses: s.Losses}
	}
	s.Losses++
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

func (s Standing) again(delay time.Duration) Fate {
	f := Fate{State: StateReady, Attempts: s.Attempts, Losses: s.Losses}
	if delay > 0 {
		f.State, f.Delay = StateScheduled, delay
	}
	return f
}

// backoff doubles with each attempt, from the initial one to the limit.
func (s Standing) backoff() time.Duration {
	d := s.Backoff
	for n := s.Attempts; n > 1 && d < s.BackoffMax; n-- {
		d *= 2
	}
	return min(d, s.BackoffMax)
}

// TooLarge is the message of a failure with CauseTooLarge: size and limit in bytes.
func TooLarge(size, limit int64) string {
	return fmt.Sprintf("the payload has %d bytes; this sidecar delivers at most %d (raise max_frame, then retry the job)", size, limit)
}
