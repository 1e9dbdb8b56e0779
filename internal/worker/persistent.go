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
	lineSteady = time.Second

	// linePauseFirst and linePauseMost bound that pause: a command that cannot work
	// must not fail a whole queue of jobs before anybody looks.
	linePauseFirst = 100 * time.Millisecond
	linePauseMost  = 10 * time.Second
)

// lineRunner works jobs by one command that reads them line by line.
type lineRunner struct {
	w        *Worker
	command  *process // nil: none runs
	began    time.Time
	answers  chan answer
	leave    chan struct{} // closed when nobody asks for answers any more
	answered bool          // the command has answered a job
	short    int           // commands in a row that ended soon and answered nothing
}

// answer is one line of the command's stdout.
type answer struct {
	line []byte
	err  error // no more answers: io.EOF, or what is wrong with the line
}

// answerReader hands the lines of a command's stdout out, one for each that is
// taken. It is an io.ReaderFrom, so that io.Copy leaves the reading to it.
type answerReader struct {
	to    chan<- answer
	most  int // bytes of a line
	leave <-chan struct{}
}

// Write is never called: io.Copy prefers ReadFrom.
func (a *answerReader) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }

// ReadFrom implements io.ReaderFrom.
func (a *answerReader) ReadFrom(r io.Reader) (int64, error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := readBounded(lines, a.most)
		select {
		case a.to <- answer{line, err}:
		case <-a.leave:
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

func (r *lineRunner) run(ctx context.Context, job protocol.Job) verdict {
	line, err := jobLine(job)
	if err != nil {
		return failed(err.Error(), "")
	}
	for {
		if v, ok := r.ready(ctx); !ok {
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
func (r *lineRunner) await(ctx context.Context, job protocol.Job) (verdict, bool) {
	p, w := r.command, r.w
	late, stop := w.deadline()
	defer stop()
	exited := p.exited
	for {
		select {
		case a := <-r.answers:
			if errors.Is(a.err, io.EOF) {
				return r.ended()
			}
			v, err := verdictOf(a, job, protocol.NewLimits(int(w.client.Server().MaxFrame)))
			if err != nil { // what follows may answer another job
				r.stop(w.opts.KillAfter)
				return failed(err.Error(), p.stderr.text()), true
			}
			r.answered = true
			return v, true
		case <-exited: // its answer, or the end of its stdout, may still be on the way
			exited = nil
			soon := time.NewTimer(afterExit)
			defer soon.Stop()
			late = soon.C
		case <-late:
			if exited == nil {
				return r.ended()
			}
			r.stop(w.opts.KillAfter)
			return w.tooLate(p), true
		case <-ctx.Done():
			r.stop(w.graceAfter(ctx))
			return verdict{why: context.Cause(ctx).Error()}, true
		}
	}
}

// ended judges a command whose stdout ended in the middle of a job.
func (r *lineRunner) ended() (verdict, bool) {
	p := r.command
	soon := time.NewTimer(afterExit)
	defer soon.Stop()
	select {
	case <-p.exited:
	case <-soon.C: // it closed its stdout: no answer can come
		r.stop(r.w.opts.KillAfter)
		return failed("it closed its stdout without an answer", p.stderr.text()), true
	}
	r.gone()
	if v := r.w.judge(p); v.why != "" {
		return v, true
	}
	return failed("it ended without an answer ("+p.ending()+")", p.stderr.text()), false
}

// ready sees to it that a command runs and waits for a job.
func (r *lineRunner) ready(ctx context.Context) (verdict, bool) {
	if r.command != nil {
		select {
		case a := <-r.answers: // it ended between two jobs, or speaks without being asked
			if !errors.Is(a.err, io.EOF) {
				r.w.say("%s wrote a line that no job had asked for, and is started anew: %.100q", r.w.opts.Command[0], a.line)
			}
		case <-r.command.exited:
		default:
			return verdict{}, true
		}
		r.stop(r.w.opts.KillAfter)
	}
	if r.short > 0 {
		rest(ctx, min(linePauseFirst<<min(r.short-1, 10), linePauseMost))
		if ctx.Err() != nil {
			return verdict{why: context.Cause(ctx).Error()}, false
		}
	}
	w := r.w
	cmd := exec.Command(w.opts.Program, w.opts.Command[1:]...)
	cmd.Args[0] = w.opts.Command[0]
	cmd.Env = w.commonEnvironment()
	p := newProcess(cmd, w.errOut)
	r.answers, r.leave = make(chan answer), make(chan struct{})
	out := &answerReader{to: r.answers, most: int(w.client.Server().MaxFrame), leave: r.leave}
	if err := p.start(w.starter, true, out); err != nil {
		return w.notStarted(err), false
	}
	r.command, r.began, r.answered = p, time.Now(), false
	return verdict{}, true
}

// stop ends the command and its group.
func (r *lineRunner) stop(grace time.Duration) {
	r.command.stop(grace)
	r.gone()
}

// gone lets go of a command that has exited.
func (r *lineRunner) gone() {
	close(r.leave)
	r.command.finish()
	r.command = nil
	if !r.answered && time.Since(r.began) < lineSteady {
		r.short++
	} else {
		r.short = 0
	}
}

// close ends the command by the end of its stdin, and by force where it does not heed that.
func (r *lineRunner) close() {
	if r.command == nil {
		return
	}
	_ = r.command.stdin.Close() // a pipe
	late := time.NewTimer(r.w.opts.KillAfter)
	defer late.Stop()
	select {
	case <-r.command.exited:
		r.gone()
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
func verdictOf(a answer, job protocol.Job, limits protocol.Limits) (verdict, error) {
	if a.err != nil {
		return verdict{}, a.err
	}
	rest, ok := bytes.CutPrefix(bytes.TrimSpace(a.line), []byte("{"))
	if !ok {
		return verdict{}, fmt.Errorf(`its answer is not a JSON object such as {"op":"ack","id":%q}: %.100q`, job.ID, a.line)
	}
	line := `{"lease":"` + job.Lease + `"`
	if !bytes.HasPrefix(bytes.TrimSpace(rest), []byte("}")) {
		line += ","
	}
	var req protocol.Request
	if err := protocol.JSON.DecodeRequest(append([]byte(line), rest...), limits, &req); err != nil {
		return verdict{}, fmt.Errorf("its answer is wrong: %s: %.100q", err.Message, a.line)
	}
	if req.ID != protocol.TextID(job.ID) {
		return verdict{}, fmt.Errorf(`its answer is not for this job: it must have the job's "id":%q: %.100q`, job.ID, a.line)
	}
	v := verdict{settle: &req}
	switch req.Op {
	case protocol.OpAck:
	case protocol.OpNack:
		v.why = "nack"
		if req.Error != "" {
			v.why = textfmt.OneLine(req.Error, 200)
		}
	default:
		return verdict{}, fmt.Errorf(`its answer is %q, and must be an ack or a nack`, req.Op)
	}
	return v, nil
}
