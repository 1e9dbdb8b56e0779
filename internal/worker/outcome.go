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

// ExitSnooze is the exit code by which a command asks to snooze its job (EX_TEMPFAIL of
// sysexits.h).
const ExitSnooze = 75

// outcome is the result of one run of a job.
type outcome struct {
	request *protocol.Request // an ack or a nack without its lease; nil: the lease is lost, don't settle
	reason  string            // logged; empty: the run succeeded
	fatal   error             // the worker must stop
	pause   time.Duration     // before the next job
}

func done() outcome { return outcome{request: &protocol.Request{Op: protocol.OpAck}} }

// failed returns a failure. Only the job's error includes the end of stderr, because our own
// stderr already shows it.
func failed(why, stderr string) outcome {
	text := why
	if stderr != "" {
		text += ": " + stderr
	}
	return outcome{request: &protocol.Request{Op: protocol.OpNack, Error: text}, reason: why}
}

// snoozed returns a job to the queue: it is ready again after the back-off, and no attempt
// is counted.
func snoozed(why string) outcome {
	return outcome{request: &protocol.Request{Op: protocol.OpNack, Snooze: true}, reason: why}
}

// cannotRun returns the job to the queue at once and stops the worker, because no command
// can be started.
func cannotRun(err error) outcome {
	v := snoozed("")
	v.request.DelayMS = protocol.Some[int64](0)
	v.fatal = err
	return v
}

// judge returns the outcome that the exit of the command means.
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

// notStarted returns the outcome if the command couldn't be started. Most causes affect
// every job.
func (w *Worker) notStarted(err error) outcome {
	switch {
	case errors.Is(err, syscall.E2BIG):
		return failed("the payload is too large for an argument: work it without --payload-arg", "")
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE),
		errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ETXTBSY):
		v := snoozed(fmt.Sprintf("%s could not be started now: %v", w.opts.Command[0], textfmt.RootCause(err)))
		v.pause = time.Second // the host is out of resources, so other jobs would fail too
		return v
	case errors.Is(err, syscall.ENOEXEC):
		return cannotRun(fmt.Errorf("%s cannot be run: %w: does a script lack its first line, #!/bin/sh?", w.opts.Command[0], textfmt.RootCause(err)))
	case errors.Is(err, syscall.ENOENT):
		return cannotRun(fmt.Errorf("%s cannot be run: it, or the interpreter that its first line names, is not there", w.opts.Command[0]))
	}
	return cannotRun(fmt.Errorf("%s cannot be run: %w", w.opts.Command[0], textfmt.RootCause(err)))
}
