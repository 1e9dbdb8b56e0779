package worker

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// ExitSnooze is EX_TEMPFAIL of sysexits.h, with which a command says *not now*.
const ExitSnooze = 75

// verdict is what becomes of a job that was worked.
type outcome struct {
	request *protocol.Request // an ack or a nack without its lease; nil: the job is not ours to settle any more
	reason  string            // for people; empty: it went well
	fatal   error             // the worker cannot go on
	pause   time.Duration     // before the next job
}

func done() outcome { return outcome{request: &protocol.Request{Op: protocol.OpAck}} }

// failed is a failure, with the end of stderr in the job's error; who reads ours
// has seen it.
func failed(why, stderr string) outcome {
	text := why
	if stderr != "" {
		text += ": " + stderr
	}
	return outcome{request: &protocol.Request{Op: protocol.OpNack, Error: text}, reason: why}
}

// notNow gives a job back, to come again after the back-off.
func snoozed(why string) outcome {
	return outcome{request: &protocol.Request{Op: protocol.OpNack, Charge: protocol.Some(false)}, reason: why}
}

// cannot is a verdict on the command: the job goes back as if never taken.
func cannotRun(err error) outcome {
	v := snoozed("")
	v.request.DelayMS = protocol.Some[int64](0)
	v.fatal = err
	return v
}

// judge says what the end of a command means for its job.
func (w *Worker) judge(p *process) outcome {
	code := p.cmd.ProcessState.ExitCode()
	switch code {
	case 0:
		return done()
	case ExitSnooze:
		v := snoozed(fmt.Sprintf("not now (%s)", p.exitText()))
		if w.opts.SnoozeDelay != nil {
			v.request.DelayMS = protocol.Some(w.opts.SnoozeDelay.Milliseconds())
		}
		return v
	}
	v := failed(p.exitText(), p.stderr.text())
	v.request.Dead = slices.Contains(w.opts.DeadOn, code)
	return v
}

// notStarted says what it means that a command could not be started: mostly that
// none will.
func (w *Worker) notStarted(err error) outcome {
	switch {
	case errors.Is(err, syscall.E2BIG):
		return failed("the payload is too large for an argument: work it without --payload-arg", "")
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE),
		errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ETXTBSY):
		v := snoozed(fmt.Sprintf("%s could not be started just now: %v", w.opts.Command[0], textfmt.RootCause(err)))
		v.pause = time.Second // this host has no room for more: other jobs would fare no better
		return v
	case errors.Is(err, syscall.ENOEXEC):
		return cannotRun(fmt.Errorf("%s cannot be run: %w: does a script lack its first line, #!/bin/sh?", w.opts.Command[0], textfmt.RootCause(err)))
	case errors.Is(err, syscall.ENOENT):
		return cannotRun(fmt.Errorf("%s cannot be run: it, or the interpreter that its first line names, is not there", w.opts.Command[0]))
	}
	return cannotRun(fmt.Errorf("%s cannot be run: %w", w.opts.Command[0], textfmt.RootCause(err)))
}
