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
	// lineSteady is how long a command lasts that is started again without a pause.
	stableAfter = time.Second

	// linePauseFirst and linePauseMost bound that pause: a command that cannot work
	// must not fail a whole queue of jobs before anybody looks.
	restartDelayMin = 100 * time.Millisecond
	restartDelayMax = 10 * time.Second
)

// lineRunner works jobs by one command that reads them line by line.
type persistentRunner struct {
	w         *Worker
	command   *process // nil: none runs
	startedAt time.Time
	answers   chan answer
	closed    chan struct{} // closed when nobody asks for answers any more
	answered  bool          // the command has answered a job
	fastExits int           // commands in a row that ended soon and answered nothing
}

// answer is one line of the command's stdout.
type answer struct {
	line []byte
	err  error // no more answers: io.EOF, or what is wrong with the line
}

// answerReader hands the lines of a command's stdout out, one for each that is
// taken. It is an io.ReaderFrom, so that io.Copy leaves the reading to it.
type answerReader struct {
	to      chan<- answer
	maxLine int // bytes of a line
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
			err = io.EOF // nobody asks any more
		}
		if err != nil {
			_, err = io.Copy(io.Discard, lines) // lest it wait for a reader
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
			return nil, io.EOF // also of a line without its end
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
		p, seasoned := r.command, r.answered
		p.stderr.reset()
		p.copies.Go(func() { _, _ = p.stdin.Write(line) }) // where it fails the command ends, and that is told
		v, ok := r.await(ctx, job)
		if ok || !seasoned {
			return v
		}
		// It had ended in order, after its last answer: the job is its successor's.
	}
}

// await waits for the answer to a job. It is false for the end of the command with exit
// code 0, without an answer.
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
			if err != nil { // what follows may answer another job
				r.stop(w.opts.KillAfter)
				return failed(err.Error(), p.stderr.text()), true
			}
			r.answered = true
			return v, true
		case <-exited: // its answer, or the end of its stdout, may still be on the way
			exited = nil
			soon := time.NewTimer(outputGrace)
			defer soon.Stop()
			late = soon.C
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

// ended judges a command whose stdout ended in the middle of a job.
func (r *persistentRunner) judgeExit() (outcome, bool) {
	p := r.command
	soon := time.NewTimer(outputGrace)
	defer soon.Stop()
	select {
	case <-p.exited:
	case <-soon.C: // it closed its stdout: no answer can come
		r.stop(r.w.opts.KillAfter)
		return failed("it closed its stdout without an answer", p.stderr.text()), true
	}
	r.release()
	if v := r.w.judge(p); v.reason != "" {
		return v, true
	}
	return failed("it ended without an answer ("+p.exitText()+")", p.stderr.text()), false
}

// ready sees to it that a command runs and waits for a job.
func (r *persistentRunner) ensureRunning(ctx context.Context) (outcome, bool) {
	if r.command != nil {
		select {
		case a := <-r.answers: // it ended between two jobs, or speaks without being asked
			if !errors.Is(a.err, io.EOF) {
				r.w.logf("%s wrote a line that no job had asked for, and is started anew: %.100q", r.w.opts.Command[0], a.line)
			}
		case <-r.command.exited:
		default:
			return outcome{}, true
		}
		r.stop(r.w.opts.KillAfter)
	}
	if r.fastExits > 0 {
		sleep(ctx, min(restartDelayMin<<min(r.fastExits-1, 10), restartDelayMax))
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

// stop ends the command and its group.
func (r *persistentRunner) stop(grace time.Duration) {
	r.command.stop(grace)
	r.release()
}

// gone lets go of a command that has exited.
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

// close ends the command by the end of its stdin, and by force where it does not heed that.
func (r *persistentRunner) close() {
	if r.command == nil {
		return
	}
	_ = r.command.stdin.Close() // a pipe
	late := time.NewTimer(r.w.opts.KillAfter)
	defer late.Stop()
	select {
	case <-r.command.exited:
		r.release()
	case <-late.C:
		r.stop(r.w.opts.KillAfter)
	}
}

// jobLine is a job as the wire shows it, without its lease, and a newline.
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

// verdictOf reads an answer: an ack or nack as on the wire, with the job's id in place of
// the lease, which the command does not know. The id keeps a second answer to one job from
// settling the next one, whose work has not run.
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
