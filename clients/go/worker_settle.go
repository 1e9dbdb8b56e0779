package qsidecar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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

// outcome is how a job ended, and what its settle showed so far.
type outcome struct {
	job      protocol.Job // without its payload
	began    time.Time
	request  protocol.Request
	tries    int  // that failed
	refused  bool // the sidecar rejected the handler's outcome, and request is a failed attempt for that
	doubtful bool // an earlier try can have settled the job
}

// newOutcome returns the outcome of a job whose handler returned failed. The handler can use the job, its error and
// what they refer to again, for example a buffer for the next job. So the outcome has copies.
func newOutcome(job *Job, failed error) *outcome {
	o := &outcome{job: job.Job}
	o.job.Payload = nil
	if failed != nil {
		o.request = *nackOf(failed).request()
	} else {
		o.request = protocol.Request{Op: protocol.OpAck, Result: bytes.Clone(job.Result), Enqueue: slices.Clone(job.Then)}
		for i := range o.request.Enqueue {
			then := &o.request.Enqueue[i]
			then.Payload, then.Headers = bytes.Clone(then.Payload), maps.Clone(then.Headers)
		}
	}
	o.request.Lease = job.Lease
	return o
}

// settle sends the outcome of a job behind the worker, which goes on. If the sidecar prefers it, or with
// SyncAck, settle waits, and also claims, which saves a round trip. It then returns the jobs of the claim.
func (w *workerRun) settle(ctx context.Context, o *outcome) (next []protocol.Job) {
	if !w.SyncAck && !w.settler.Joins() {
		w.settler.Settle(&o.request, func(settling context.Context, err error) {
			for err != nil && w.settleAgain(ctx, settling, o, err) {
				_, err = w.client.Call(settling, &o.request)
			}
		})
		return nil
	}
	defer w.settler.End()
	since := time.Now()
	for {
		req := o.request
		if len(next) == 0 && ctx.Err() == nil {
			req.Claim = &protocol.NextClaim{Queues: w.Queues, Order: w.order(), Weights: w.weights()}
		}
		rep, err := w.settler.Call(&req, since)
		if rep != nil { // it can have jobs beside an error
			next = append(next, rep.Jobs...)
		}
		if _, unanswered := errors.AsType[*UnansweredError](err); unanswered {
			w.fail(err)
		}
		if err == nil || !w.settleAgain(ctx, w.base, o, err) {
			return next
		}
	}
}

// settleAgain reports whether to send the outcome again after an error, and pauses before. If the worker gave
// up while the database is unavailable, finished work would be done twice. Once the worker stops (ctx), it gives up
// after an internal error, and pauses until settling ends.
func (w *workerRun) settleAgain(ctx, settling context.Context, o *outcome, err error) bool {
	log := w.jobLog(&o.job)
	o.tries++
	var either *SettledOrLostError
	var unanswered *UnansweredError
	internal := IsCode(err, protocol.CodeInternal)
	switch {
	case errors.As(err, &unanswered):
		log.Error("qsidecar: the job could not be settled: no answer from the sidecar")
		return false
	case errors.As(err, &either), o.doubtful && IsLost(err):
		log.Info("qsidecar: the job was settled by an earlier try, or was lost")
		return false
	case IsLost(err):
		log.Warn("qsidecar: " + lossText(&o.job, o.began, "the job could not be settled: its lease was lost"))
		w.reportLost(o.job.Lease)
		return false
	case !o.refused && rejected(err): // its Result, Then or Delay are invalid, which is the handler's mistake
		log.Error("qsidecar: the job's outcome was refused, so the attempt has failed", "error", err)
		o.request, o.refused = *nackOf(err).request(), true
		o.request.Lease = o.job.Lease
		return true
	case !retryable(err) || internal && ctx.Err() != nil:
		log.Error("qsidecar: the job could not be settled", "error", err)
		return false
	}
	log.Warn("qsidecar: the job could not be settled yet", "error", err)
	o.doubtful = o.doubtful || internal || IsCode(err, protocol.CodeUnknownOutcome)
	if internal {
		settling = ctx
	}
	pause(settling, 4*backoff(o.tries))
	return true
}

// reportLost calls OnLost for a lease whose settle came too late. It is not called by the goroutine that reads.
func (w *workerRun) reportLost(lease string) {
	f := w.Options.OnLost
	if f == nil {
		return
	}
	w.client.callbackMu.Lock()
	defer w.client.callbackMu.Unlock()
	f([]string{lease}, "")
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
