package qsidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/qsidecar/qsidecar/protocol"
)

// mends reports whether an error is over some time.
func mends(err error) bool {
	for _, code := range []protocol.Code{
		protocol.CodeUnavailable, protocol.CodeUnknownOutcome, protocol.CodeBusy, protocol.CodeDraining, protocol.CodeInternal,
	} {
		if IsCode(err, code) {
			return true
		}
	}
	return false
}

// settle tells the sidecar what became of a job, for as long as it takes: told at
// once that the database is away, work that is done would be done twice.
func (r *running) settle(ctx context.Context, job *Job, failed error, log *slog.Logger) {
	wasRefused := false
	for tries := 1; ; tries++ {
		err := r.tell(job, failed)
		var either *SettledOrLostError
		switch {
		case err == nil:
			return
		case errors.As(err, &either):
			log.Info("qsidecar: the job was settled by an earlier try, or was lost")
			return
		case IsLost(err):
			log.Warn("qsidecar: the job could not be settled: its lease was lost", "tries", tries)
			return
		case !wasRefused && refused(err): // its result, its Then or its Delay: the handler's doing
			log.Error("qsidecar: the job's outcome was refused, so the attempt has failed", "error", err)
			failed, wasRefused = err, true
			continue
		case !mends(err) || ctx.Err() != nil:
			log.Error("qsidecar: the job could not be settled", "error", err)
			return
		}
		log.Warn("qsidecar: the job could not be settled yet", "error", err)
		pause(ctx, 4*backoff(tries))
	}
}

// refused reports whether a settle was wrong as it stood. Left alone, its job would stay this
// worker's until it ends.
func refused(err error) bool {
	for _, code := range []protocol.Code{
		protocol.CodeBadRequest, protocol.CodeTooLarge, protocol.CodeUnknownQueue, protocol.CodeForbidden, protocol.CodeUnsupported,
	} {
		if IsCode(err, code) {
			return true
		}
	}
	return false
}

// text is an error as the wire takes it: UTF-8 without NUL, and no longer than is kept.
// fmt outlives the panic of a nil pointer that was returned as an error.
func text(err error) string {
	s := strings.ReplaceAll(fmt.Sprint(err), "\x00", "")
	if len(s) > protocol.MaxErrorText {
		s = s[:protocol.MaxErrorText]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func (r *running) tell(job *Job, failed error) error {
	if failed == nil {
		_, err := r.client.AckWith(r.base, job.Lease, job.Result, job.Then...)
		return err
	}
	return r.client.Nack(r.base, job.Lease, nackOf(failed))
}

// fate is what a failed attempt makes of a job, in words.
func fate(job *Job, failed error) (level slog.Level, text string) {
	level, text = slog.LevelError, "qsidecar: the job is to be tried again"
	defer func() { _ = recover() }() // as in nackOf
	switch n := nackOf(failed); {
	case n.Dead:
		text = "qsidecar: the job is dead"
	case !n.NoCharge && job.Attempt >= job.MaxAttempts:
		text = "qsidecar: the job is dead, after its last attempt"
	case errors.As(failed, new(*RetryError)):
		level = slog.LevelWarn
	}
	return level, text
}

// nackOf is what a handler's error says of its job. An error that panics when it is asked
// (a nil pointer that was returned as one) is like any other.
func nackOf(failed error) (n Nack) {
	n.Error = text(failed)
	defer func() { _ = recover() }()
	var retry *RetryError
	var dead *DeadError
	switch {
	case errors.As(failed, &dead) && dead != nil:
		n.Dead = true
	case errors.As(failed, &retry) && retry != nil:
		n.NoCharge = retry.NoCharge
		if retry.Delay > 0 {
			n.Delay = &retry.Delay
		}
	}
	return n
}
