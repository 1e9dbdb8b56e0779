package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// ExitSnooze is EX_TEMPFAIL of sysexits.h, with which a command says *not now*.
const ExitSnooze = 75

// verdict is what becomes of a job that was worked.
type verdict struct {
	settle *protocol.Request // an ack or a nack without its lease; nil: the job is not ours to settle any more
	why    string            // for people; empty: it went well
	fatal  error             // the worker cannot go on
	pause  time.Duration     // before the next job
}

func done() verdict { return verdict{settle: &protocol.Request{Op: protocol.OpAck}} }

// failed is a failure, with the end of stderr in the job's error; who reads ours
// has seen it.
func failed(why, stderr string) verdict {
	text := why
	if stderr != "" {
		text += ": " + stderr
	}
	return verdict{settle: &protocol.Request{Op: protocol.OpNack, Error: text}, why: why}
}

// notNow gives a job back, to come again after the back-off.
func notNow(why string) verdict {
	return verdict{settle: &protocol.Request{Op: protocol.OpNack, Charge: protocol.Some(false)}, why: why}
}

// cannot is a verdict on the command: the job goes back as if never taken.
func cannot(err error) verdict {
	v := notNow("")
	v.settle.DelayMS = protocol.Some[int64](0)
	v.fatal = err
	return v
}

// runner works jobs, one at a time.
type runner interface {
	// run works a job. When ctx ends, by the loss of the job or a second signal, it
	// ends the command and settles nothing.
	run(ctx context.Context, job protocol.Job) verdict

	// close ends what run left running.
	close()
}

// oneShot runs a command for each job.
type oneShot struct{ w *Worker }

func (r oneShot) close() {}

func (r oneShot) run(ctx context.Context, job protocol.Job) verdict {
	w := r.w
	args := w.opts.Command[1:]
	env := w.environment(job)
	feed := false
	switch {
	case w.opts.PayloadArg:
		if bytes.IndexByte(job.Payload, 0) >= 0 {
			return failed("the payload has a NUL byte, which no argument can hold: work it without --payload-arg", "")
		}
		args = append(slices.Clip(args), string(job.Payload))
	case w.opts.PayloadFile:
		path, err := w.payloadFile(job.Payload)
		if err != nil {
			return cannot(err)
		}
		defer os.Remove(path)
		args = append(slices.Clip(args), path)
		env = append(env, "QSIDECAR_PAYLOAD_FILE="+path)
	default:
		feed = true
	}
	cmd := exec.Command(w.opts.Program, args...)
	cmd.Args[0] = w.opts.Command[0]
	cmd.Env = env
	out := w.out
	result := &capped{most: int(w.client.Server().MaxPayload)}
	if w.opts.Result {
		out = result
	}
	p := newProcess(cmd, w.errOut)
	if err := p.start(w.starter, feed, out); err != nil {
		return w.notStarted(err)
	}
	if feed {
		p.feed(job.Payload)
	}
	v, over := w.watch(ctx, p)
	p.finish()
	if !over {
		v = w.judge(p)
	}
	if w.opts.Result && v.why == "" && v.settle != nil {
		if result.size > result.most {
			return failed(fmt.Sprintf("it wrote %d bytes, and a result has %d at most", result.size, result.most), "")
		}
		v.settle.Result = append([]byte{}, result.buf...)
	}
	return v
}

// watch waits until the command exits, and ends it when its time is over or ctx
// is: then it says what is to be said.
func (w *Worker) watch(ctx context.Context, p *process) (v verdict, over bool) {
	late, stop := w.deadline()
	defer stop()
	select {
	case <-p.exited:
		return verdict{}, false
	case <-late:
		p.stop(w.opts.KillAfter)
		return w.tooLate(p), true
	case <-ctx.Done():
		p.stop(w.graceAfter(ctx))
		return verdict{why: context.Cause(ctx).Error()}, true
	}
}

// deadline tells when a job's time is over: never, without --timeout.
func (w *Worker) deadline() (late <-chan time.Time, stop func()) {
	if w.opts.Timeout == 0 {
		return nil, func() {}
	}
	t := time.NewTimer(w.opts.Timeout)
	return t.C, func() { t.Stop() }
}

func (w *Worker) tooLate(p *process) verdict {
	return failed(fmt.Sprintf("it took longer than %s (--timeout) and was stopped", textfmt.FormatDuration(w.opts.Timeout)), p.stderr.text())
}

// graceAfter is how long a command has to end, after what ended ctx.
func (w *Worker) graceAfter(ctx context.Context) time.Duration {
	if errors.Is(context.Cause(ctx), errJobLost) {
		return w.opts.KillAfter
	}
	return 0
}

// judge says what the end of a command means for its job.
func (w *Worker) judge(p *process) verdict {
	code := p.cmd.ProcessState.ExitCode()
	switch code {
	case 0:
		return done()
	case ExitSnooze:
		v := notNow(fmt.Sprintf("not now (%s)", p.ending()))
		if w.opts.SnoozeDelay != nil {
			v.settle.DelayMS = protocol.Some(w.opts.SnoozeDelay.Milliseconds())
		}
		return v
	}
	v := failed(p.ending(), p.stderr.text())
	v.settle.Dead = slices.Contains(w.opts.DeadOn, code)
	return v
}

// notStarted says what it means that a command could not be started: mostly that
// none will.
func (w *Worker) notStarted(err error) verdict {
	switch {
	case errors.Is(err, syscall.E2BIG):
		return failed("the payload is too large for an argument: work it without --payload-arg", "")
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE),
		errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ETXTBSY):
		v := notNow(fmt.Sprintf("%s could not be started just now: %v", w.opts.Command[0], textfmt.RootCause(err)))
		v.pause = time.Second // this host has no room for more: other jobs would fare no better
		return v
	case errors.Is(err, syscall.ENOEXEC):
		return cannot(fmt.Errorf("%s cannot be run: %w: does a script lack its first line, #!/bin/sh?", w.opts.Command[0], textfmt.RootCause(err)))
	case errors.Is(err, syscall.ENOENT):
		return cannot(fmt.Errorf("%s cannot be run: it, or the interpreter that its first line names, is not there", w.opts.Command[0]))
	}
	return cannot(fmt.Errorf("%s cannot be run: %w", w.opts.Command[0], textfmt.RootCause(err)))
}

// payloadFile writes a payload to a file of its own.
func (w *Worker) payloadFile(payload []byte) (string, error) {
	f, err := os.CreateTemp(w.dir, "payload-")
	if err != nil {
		return "", fmt.Errorf("the payload's file: %w", err)
	}
	_, err = f.Write(payload)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return "", fmt.Errorf("the payload's file: %w", err)
	}
	return f.Name(), nil
}

// environment is what a command gets for one job.
func (w *Worker) environment(job protocol.Job) []string {
	env := w.commonEnvironment()
	for _, v := range JobVariables(job) {
		env = append(env, "QSIDECAR_"+v[0]+"="+v[1])
	}
	for name, value := range job.Headers {
		env = append(env, "QSIDECAR_HEADER_"+variableName(name)+"="+value)
	}
	if _, ok := protocol.TraceID(job.Headers[protocol.HeaderTraceParent]); ok {
		env = append(env, "TRACEPARENT="+job.Headers[protocol.HeaderTraceParent])
		if state := job.Headers[protocol.HeaderTraceState]; state != "" {
			env = append(env, "TRACESTATE="+state)
		}
	}
	return env
}

// commonEnvironment is ours, without what another job may have left there, the trace in
// which this worker was started, and the database's address, which may hold a password and
// is the sidecar's alone; and with the sidecar's socket.
func (w *Worker) commonEnvironment() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case name == "QSIDECAR_LEASE", name == "QSIDECAR_PAYLOAD", name == "QSIDECAR_PAYLOAD_B64",
			name == "QSIDECAR_PAYLOAD_FILE", name == "QSIDECAR_DATABASE",
			name == "TRACEPARENT", name == "TRACESTATE", strings.HasPrefix(name, "QSIDECAR_HEADER_"):
		case serviceManagers[name]: // said to this process, not to what it starts
		default:
			env = append(env, v)
		}
	}
	socket := w.socket
	if abs, err := filepath.Abs(socket); err == nil { // a command may change its directory
		socket = abs
	}
	return append(env, "QSIDECAR_SOCKET="+socket)
}

// JobVariables are what an environment tells of a job, beside lease and payload.
// The names lack their QSIDECAR_.
func JobVariables(j protocol.Job) [][2]string {
	headers := "{}"
	if len(j.Headers) > 0 {
		var buf bytes.Buffer
		e := json.NewEncoder(&buf)
		e.SetEscapeHTML(false)
		if err := e.Encode(j.Headers); err != nil {
			panic(err) // a map of strings
		}
		headers = strings.TrimSpace(buf.String())
	}
	return [][2]string{
		{"JOB", j.ID},
		{"QUEUE", j.Queue},
		{"ATTEMPT", strconv.FormatInt(j.Attempt, 10)},
		{"MAX_ATTEMPTS", strconv.FormatInt(j.MaxAttempts, 10)},
		{"FENCE", strconv.FormatInt(j.Fence, 10)},
		{"PRIORITY", strconv.FormatInt(j.Priority, 10)},
		{"KEY", j.Key},
		{"HEADERS", headers},
		{"LAST_ERROR", strings.ReplaceAll(j.LastError, "\x00", "")},
	}
}

// serviceManagers are the variables by which a service manager talks with the process that
// it started (sd_notify(3), sd_listen_fds(3)).
var serviceManagers = map[string]bool{
	"NOTIFY_SOCKET": true, "WATCHDOG_USEC": true, "WATCHDOG_PID": true, "FDSTORE": true,
	"LISTEN_FDS": true, "LISTEN_PID": true, "LISTEN_FDNAMES": true,
}

// variableName makes a header's name one of a shell variable.
func variableName(header string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '_'
	}, header)
}
