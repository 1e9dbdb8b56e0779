package worker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// stableAfter is how long a command must run to be restarted without a pause.
	stableAfter = time.Second

	// firstRestartDelay and maxRestartDelay bound that pause, so that a broken command doesn't
	// fail a whole queue of jobs within seconds.
	firstRestartDelay = 100 * time.Millisecond
	maxRestartDelay   = 10 * time.Second
)

// persistentRunner runs jobs through one command that reads them as lines.
type persistentRunner struct {
	w         *Worker
	command   *process // nil: no command runs
	startedAt time.Time
	answers   chan answer
	closed    chan struct{} // closed when no more answers are read
	answered  bool          // the command has answered at least one job
	fastExits int           // commands in a row that exited early and answered no job
}

// answer is one line of the command's stdout.
type answer struct {
	line []byte
	err  error // no more answers: io.EOF, or an invalid line
}

// answerReader sends each line of a command's stdout to a channel. It implements
// io.ReaderFrom, so io.Copy calls ReadFrom.
type answerReader struct {
	to      chan<- answer
	maxLine int // in bytes
	closed  <-chan struct{}
}

// Write is never called: io.Copy prefers ReadFrom.
func (a *answerReader) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }

// ReadFrom implements io.ReaderFrom.
func (a *answerReader) ReadFrom(r io.Reader) (int64, error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := readBounded(lines, a.maxLine)
		select {
		case a.to <- answer{line, err}:
		case <-a.closed:
			err = io.EOF // no more answers are read
		}
		if err != nil {
			_, err = io.Copy(io.Discard, lines) // the command must not block on a full pipe
			return 0, err
		}
	}
}

// readBounded reads a line of up to most bytes, with its newline.
func readBounded(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > most {
			return nil, fmt.Errorf("its answer has more than %d bytes, the most that the sidecar takes", most)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, io.EOF // an incomplete last line is not an answer
		}
	}
}

func (r *persistentRunner) run(ctx context.Context, job protocol.Job) outcome {
	line, err := jobLine(job)
	if err != nil {
		return failed(err.Error(), "")
	}
	for {
		if v, ok := r.ensureRunning(ctx); !ok {
			return v
		}
		p, hadAnswered := r.command, r.answered
		p.stderr.reset()
		p.copies.Go(func() { _, _ = p.stdin.Write(line) }) // if it fails the command exits, and await reports that
		v, ok := r.await(ctx, job)
		if ok || !hadAnswered {
			return v
		}
		// The command exited in order after its last answer, so a new command gets the job.
	}
}

// await waits for the answer to a job. It returns false if the command exited with code 0
// and without an answer.
func (r *persistentRunner) await(ctx context.Context, job protocol.Job) (outcome, bool) {
	p, w := r.command, r.w
	late, stop := w.deadline()
	defer stop()
	exited := p.exited
	for {
		select {
		case a := <-r.answers:
			if errors.Is(a.err, io.EOF) {
				return r.judgeExit()
			}
			v, err := parseAnswer(a, job, protocol.NewLimits(int(w.client.Server().MaxFrame)))
			if err != nil { // the next line can belong to another job
				r.stop(w.opts.KillAfter)
				return failed(err.Error(), p.stderr.text()), true
			}
			r.answered = true
			return v, true
		case <-exited: // its answer, or the end of its stdout, can still arrive
			exited = nil
			exitTimer := time.NewTimer(outputGrace)
			defer exitTimer.Stop()
			late = exitTimer.C
		case <-late:
			if exited == nil {
				return r.judgeExit()
			}
			r.stop(w.opts.KillAfter)
			return w.timedOut(p), true
		case <-ctx.Done():
			r.stop(w.graceAfter(ctx))
			return outcome{reason: context.Cause(ctx).Error()}, true
		}
	}
}

// judgeExit returns the outcome of a job if the command closed its stdout before it
// answered.
func (r *persistentRunner) judgeExit() (outcome, bool) {
	p := r.command
	exitTimer := time.NewTimer(outputGrace)
	defer exitTimer.Stop()
	select {
	case <-p.exited:
	case <-exitTimer.C: // no answer can follow
		r.stop(r.w.opts.KillAfter)
		return failed("it closed its stdout without an answer", p.stderr.text()), true
	}
	r.release()
	if v := r.w.judge(p); v.reason != "" {
		return v, true
	}
	return failed("it ended without an answer ("+p.exitText()+")", p.stderr.text()), false
}

// ensureRunning starts the command unless it runs and waits for a job.
func (r *persistentRunner) ensureRunning(ctx context.Context) (outcome, bool) {
	if r.command != nil {
		select {
		case a := <-r.answers: // it exited between two jobs, or wrote an unexpected line
			if !errors.Is(a.err, io.EOF) {
				r.w.logf("%s wrote a line that no job had asked for, and is restarted: %.100q", r.w.opts.Command[0], a.line)
			}
		case <-r.command.exited:
		default:
			return outcome{}, true
		}
		r.stop(r.w.opts.KillAfter)
	}
	if r.fastExits > 0 {
		sleep(ctx, min(firstRestartDelay<<min(r.fastExits-1, 10), maxRestartDelay))
		if ctx.Err() != nil {
			return outcome{reason: context.Cause(ctx).Error()}, false
		}
	}
	w := r.w
	cmd := exec.Command(w.opts.Program, w.opts.Command[1:]...)
	cmd.Args[0] = w.opts.Command[0]
	cmd.Env = w.commonEnvironment()
	p := newProcess(cmd, w.errOut)
	r.answers, r.closed = make(chan answer), make(chan struct{})
	out := &answerReader{to: r.answers, maxLine: int(w.client.Server().MaxFrame), closed: r.closed}
	if err := p.start(w.starter, true, out); err != nil {
		return w.notStarted(err), false
	}
	r.command, r.startedAt, r.answered = p, time.Now(), false
	return outcome{}, true
}

// stop ends the command and its process group.
func (r *persistentRunner) stop(grace time.Duration) {
	r.command.stop(grace)
	r.release()
}

// release frees the resources of a command that has exited, and counts early exits.
func (r *persistentRunner) release() {
	close(r.closed)
	r.command.release()
	r.command = nil
	if !r.answered && time.Since(r.startedAt) < stableAfter {
		r.fastExits++
	} else {
		r.fastExits = 0
	}
}

// close closes the command's stdin. If the command doesn't exit within KillAfter, close
// stops it.
func (r *persistentRunner) close() {
	if r.command == nil {
		return
	}
	_ = r.command.stdin.Close() // closing a pipe doesn't fail
	late := time.NewTimer(r.w.opts.KillAfter)
	defer late.Stop()
	select {
	case <-r.command.exited:
		r.release()
	case <-late.C:
		r.stop(r.w.opts.KillAfter)
	}
}

// jobLine returns the job as the protocol encodes it, without its lease and with a newline.
func jobLine(job protocol.Job) ([]byte, error) {
	var reply struct {
		Jobs []map[string]json.RawMessage `json:"jobs"`
	}
	if err := json.Unmarshal(protocol.JSON.AppendReply(nil, &protocol.Reply{OK: true, Jobs: []protocol.Job{job}}), &reply); err != nil {
		return nil, fmt.Errorf("writing the job as JSON: %w", err)
	}
	delete(reply.Jobs[0], "lease")
	line, err := json.Marshal(reply.Jobs[0])
	if err != nil {
		return nil, fmt.Errorf("writing the job as JSON: %w", err)
	}
	return append(line, '\n'), nil
}

// parseAnswer reads an answer: an ack or nack of the protocol, with the job's id in place of
// the lease. The command doesn't know the lease. The id prevents a second answer to one job
// from settling the next job.
func parseAnswer(a answer, job protocol.Job, limits protocol.Limits) (outcome, error) {
	if a.err != nil {
		return outcome{}, a.err
	}
	rest, ok := bytes.CutPrefix(bytes.TrimSpace(a.line), []byte("{"))
	if !ok {
		return outcome{}, fmt.Errorf(`its answer is not a JSON object such as {"op":"ack","id":%q}: %.100q`, job.ID, a.line)
	}
	line := `{"lease":"` + job.Lease + `"`
	if !bytes.HasPrefix(bytes.TrimSpace(rest), []byte("}")) {
		line += ","
	}
	var req protocol.Request
	if err := protocol.JSON.DecodeRequest(append([]byte(line), rest...), limits, &req); err != nil {
		return outcome{}, fmt.Errorf("its answer is wrong: %s: %.100q", err.Message, a.line)
	}
	if req.ID != protocol.TextID(job.ID) {
		return outcome{}, fmt.Errorf(`its answer is not for this job: it must have the job's "id":%q: %.100q`, job.ID, a.line)
	}
	v := outcome{request: &req}
	switch req.Op {
	case protocol.OpAck:
	case protocol.OpNack:
		v.reason = "nack"
		if req.Error != "" {
			v.reason = textfmt.OneLine(req.Error, 200)
		}
	default:
		return outcome{}, fmt.Errorf(`its answer is %q, and must be an ack or a nack`, req.Op)
	}
	return v, nil
}
