package session

import (
	"cmp"
	"context"
	"errors"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/depth"
	"github.com/qsidecar/qsidecar/protocol"
)

// retryHint is sent with unavailable: a database that restarts is often back after this time.
const retryHint = 1000 // milliseconds

// ErrDraining is the error of requests for jobs while the sidecar stops.
var ErrDraining = protocol.Errorf(protocol.CodeDraining,
	"this sidecar is stopping and gives out no more jobs; settle what you hold and connect again")

// toClient maps any error to the one that the client sees. An unknown error is internal, and is logged in full, but not each
// time while it lasts.
func (s *Session) toClient(err error) *protocol.Error {
	var pe *protocol.Error
	var unsupported *backends.UnsupportedError
	var locked *backends.LockedError
	var full *depth.FullError
	var schedule *backends.ScheduleError
	var batch *backends.BatchError
	switch {
	case errors.As(err, &full):
		e := protocol.Errorf(protocol.CodeBusy, "%v", full)
		if full.Temporary() {
			e.RetryMS = protocol.Some(depth.ReadyAge.Milliseconds())
		}
		return e
	case errors.Is(err, backendref.ErrNoLocator):
		return protocol.Errorf(protocol.CodeUnsupported, "%v", err)
	case errors.As(err, &pe):
		return pe
	case errors.As(err, &unsupported):
		return protocol.Errorf(protocol.CodeUnsupported, "%v", unsupported)
	case backends.Retryable(err), errors.As(err, &locked), backends.LacksRight(err):
		e := protocol.Errorf(protocol.CodeUnavailable, "nothing was written; try again: %v", err)
		e.RetryMS = protocol.Some[int64](retryHint)
		return e
	case backends.IsRefused(err):
		return protocol.Errorf(protocol.CodeBadRequest, "%v", err)
	case errors.Is(err, backends.ErrUnknownOutcome), errors.Is(err, context.DeadlineExceeded):
		return protocol.Errorf(protocol.CodeUnknownOutcome,
			"the outcome is unknown: send it again (an enqueue only with a key): %v", err)
	case errors.Is(err, backends.ErrNoSuchJob):
		return protocol.BadField("after", "the job to go on from is gone; start again without `after`")
	case errors.As(err, &batch):
		return protocol.BadField("batch", "%v", batch)
	case errors.As(err, &schedule):
		return protocol.BadField(cmp.Or(schedule.Field, "schedule"), "%v", schedule)
	case errors.Is(err, backends.ErrNoSuchSchedule):
		return protocol.BadField("schedule", "%v: `schedules` lists them", err)
	case errors.Is(err, backends.ErrLimits):
		return protocol.BadField("burst", "%v", err)
	default:
		if s.shared.failed.IsNew("request", err) {
			s.log().Error("request failed", "event", "request_failed", "error", err)
		}
		return protocol.Errorf(protocol.CodeInternal, "unexpected error, see the sidecar's log: %v", err)
	}
}

func leaseLost() *protocol.Error {
	return protocol.Errorf(protocol.CodeLeaseLost,
		"this lease is no longer valid: the job is already settled, or the lease ended and another worker can have the job")
}
