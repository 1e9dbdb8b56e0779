package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// runner runs jobs, one at a time.
type runner interface {
	// run runs a job. If ctx ends, because the lease is lost or a second signal arrived, run
	// stops the command and returns no request.
	run(ctx context.Context, job protocol.Job) outcome

	// close ends a command that run left running.
	close()
}

// commandRunner starts a command for each job.
type commandRunner struct{ w *Worker }

func (c commandRunner) close() {}

func (c commandRunner) run(ctx context.Context, job protocol.Job) outcome {
	w := c.w
	args := w.opts.Command[1:]
	env := w.environment(job)
	feed := false
	payload := job.Payload
	if !w.opts.Raw {
		payload = PayloadText(payload)
	}
	switch {
	case w.opts.PayloadArg:
		if bytes.IndexByte(payload, 0) >= 0 {
			return failed("the payload has a NUL byte, which no argument can hold: work it without --payload-arg", "")
		}
		args = append(slices.Clip(args), string(payload))
	case w.opts.PayloadFile:
		path, err := w.payloadFile(payload)
		if err != nil {
			return cannotRun(err)
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
	result := &cappedBuffer{limit: int(w.client.Server().MaxPayload)}
	if w.opts.Result {
		out = result
	}
	p := newProcess(cmd, w.errOut)
	if err := p.start(w.starter, feed, out); err != nil {
		return w.notStarted(err)
	}
	if feed {
		p.writeStdin(payload)
	}
	v, over := w.waitForExit(ctx, p)
	p.release()
	if !over {
		v = w.judge(p)
	}
	if w.opts.Result && v.reason == "" && v.request != nil {
		if result.size > result.limit {
			return failed(fmt.Sprintf("it wrote %d bytes, and a result has %d at most", result.size, result.limit), "")
		}
		v.request.Result = append([]byte{}, result.buf...)
	}
	return v
}

// waitForExit waits until the command exits. It stops the command at the deadline, or when
// ctx ends, and then returns the outcome and true.
func (w *Worker) waitForExit(ctx context.Context, p *process) (v outcome, over bool) {
	late, stop := w.deadline()
	defer stop()
	select {
	case <-p.exited:
		return outcome{}, false
	case <-late:
		p.stop(w.opts.KillAfter)
		return w.timedOut(p), true
	case <-ctx.Done():
		p.stop(w.graceAfter(ctx))
		return outcome{reason: context.Cause(ctx).Error()}, true
	}
}

// lateGrace is how much later than Options.Timeout a run is stopped. If this process was suspended
// or got no processor, its timer can fire before it notices that the command finished in time.
const lateGrace = 100 * time.Millisecond

// deadline returns a channel that receives lateGrace after the end of a job's run time. The channel
// is nil without a timeout.
func (w *Worker) deadline() (late <-chan time.Time, stop func()) {
	if w.opts.Timeout == 0 {
		return nil, func() {}
	}
	c := make(chan time.Time, 1)
	t := time.AfterFunc(w.opts.Timeout, func() { // the grace starts when this process runs again
		time.AfterFunc(lateGrace, func() { c <- time.Now() })
	})
	return c, func() { t.Stop() }
}

func (w *Worker) timedOut(p *process) outcome {
	return failed(fmt.Sprintf("it took longer than %s (--timeout) and was stopped", textfmt.FormatDuration(w.opts.Timeout)), p.stderr.text())
}

// graceAfter returns how long a command has to exit after ctx ended: KillAfter if the lease
// was lost, 0 after a second signal.
func (w *Worker) graceAfter(ctx context.Context) time.Duration {
	if _, lost := errors.AsType[jobLost](context.Cause(ctx)); lost {
		return w.opts.KillAfter
	}
	return 0
}

// payloadFile writes a payload to a new file and returns its path.
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
