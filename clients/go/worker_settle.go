package qsidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// retryable reports whether an error can be over after some time.
func retryable(err error) bool {
	for _, code := range []protocol.Code{
		protocol.CodeUnavailable, protocol.CodeUnknownOutcome, protocol.CodeBusy, protocol.CodeDraining, protocol.CodeInternal,
	} {
		if IsCode(err, code) {
			return true
		}
	}
	return false
}

// settle sends the outcome of a job and tries until it succeeds. If it gave up while the database
// is unavailable, finished work would be done twice. It also claims, which saves a round trip, and
// returns the jobs.
func (r *workerRun) settle(ctx context.Context, job *Job, failed error, log *slog.Logger) (next []protocol.Job) {
	wasRefused := false
	for tries := 1; ; tries++ {
		jobs, err := r.sendOutcome(job, failed, len(next) == 0 && ctx.Err() == nil)
		next = append(next, jobs...)
		var either *SettledOrLostError
		switch {
		case err == nil:
			return next
		case errors.As(err, &either):
			log.Info("qsidecar: the job was settled by an earlier try, or was lost")
			return next
		case IsLost(err):
			log.Warn("qsidecar: the job could not be settled: its lease was lost", "tries", tries)
			return next
		case !wasRefused && rejected(err): // its Result, Then or Delay are invalid, which is the handler's mistake
			log.Error("qsidecar: the job's outcome was refused, so the attempt has failed", "error", err)
			failed, wasRefused = err, true
			continue
		case !retryable(err) || ctx.Err() != nil:
			log.Error("qsidecar: the job could not be settled", "error", err)
			return next
		}
		log.Warn("qsidecar: the job could not be settled yet", "error", err)
		pause(ctx, 4*backoff(tries))
	}
}

// rejected reports whether the sidecar rejected a settle as invalid. Without another outcome the
// job would stay with this worker until the worker ends.
func rejected(err error) bool {
	for _, code := range []protocol.Code{
		protocol.CodeBadRequest, protocol.CodeTooLarge, protocol.CodeUnknownQueue, protocol.CodeForbidden, protocol.CodeUnsupported,
	} {
		if IsCode(err, code) {
			return true
		}
	}
	return false
}

// wireText returns the text of an error as the wire allows it: UTF-8 without NUL, cut at the limit.
// fmt recovers from the panic of a nil pointer in the error.
func wireText(err error) string {
	s := strings.ReplaceAll(fmt.Sprint(err), "\x00", "")
	if len(s) > protocol.MaxErrorText {
		s = s[:protocol.MaxErrorText]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// sendOutcome settles the job, with a claim if the worker goes on. It can return jobs beside an error.
func (r *workerRun) sendOutcome(job *Job, failed error, claims bool) ([]protocol.Job, error) {
	req := &protocol.Request{Op: protocol.OpAck, Result: job.Result, Enqueue: job.Then}
	if failed != nil {
		req = nackOf(failed).request()
	}
	req.Lease = job.Lease
	if claims {
		req.Claim = &protocol.NextClaim{Queues: r.Queues}
	}
	rep, err := r.client.Call(r.base, req)
	if rep == nil {
		return nil, err
	}
	return rep.Jobs, err
}

// failureLog returns the level and the text of the log message about a failed attempt.
func failureLog(job *Job, failed error) (level slog.Level, text string) {
	level, text = slog.LevelError, "qsidecar: the job will be tried again"
	defer func() { _ = recover() }() // see nackOf
	switch n := nackOf(failed); {
	case n.Dead:
		text = "qsidecar: the job is dead"
	case !n.Snooze && job.Attempt >= job.MaxAttempts:
		text = "qsidecar: the job is dead, after its last attempt"
	case n.Snooze:
		level, text = slog.LevelWarn, "qsidecar: the job is snoozed"
	case errors.As(failed, new(*RetryError)):
		level = slog.LevelWarn
	}
	return level, text
}

// nackOf returns the nack for a handler's error. An error that panics in its methods (a nil pointer
// in an interface) is a plain failure.
func nackOf(failed error) (n Nack) {
	n.Error = wireText(failed)
	defer func() { _ = recover() }()
	var retry *RetryError
	var snooze *SnoozeError
	var dead *DeadError
	switch {
	case errors.As(failed, &dead) && dead != nil:
		n.Dead = true
	case errors.As(failed, &retry) && retry != nil:
		n.Delay = positive(retry.Delay)
	case errors.As(failed, &snooze) && snooze != nil:
		n.Snooze, n.Delay = true, positive(snooze.Delay)
	}
	return n
}

// positive returns a pointer to d, or nil if d is not positive.
func positive(d time.Duration) *time.Duration {
	if d <= 0 {
		return nil
	}
	return &d
}
