package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// claimWait is one wait for a job; the next follows at once.
	claimWait = time.Minute

	// claimPause is between two claims where the sidecar could not carry one out
	// for all of its wait.
	claimPause = 2 * time.Second
)

// errJobLost ends the run of a job that is not this worker's any more.
var errJobLost = errors.New("the job was taken back (by its timeout, an operator, or because the sidecar was away for too long); its command was stopped")

// worker claims jobs and has them worked, up to atOnce at a time.
type worker struct {
	a       *app
	flags   *workFlags
	starter *starter
	out     io.Writer // a file, which commands get themselves, or a writer for several goroutines
	errOut  io.Writer
	client  *qsidecar.Client
	socket  string
	dir     string      // of payload files; empty: none are asked for
	idle    chan runner // atOnce of them, less those that work

	mu      sync.Mutex
	running map[string]context.CancelCauseFunc // by lease
}

func newWorker(a *app, f *workFlags) *worker {
	w := &worker{
		a: a, flags: f, out: a.stdout, errOut: &oneAtATime{w: a.errOut},
		idle:    make(chan runner, f.atOnce),
		running: make(map[string]context.CancelCauseFunc),
	}
	if _, file := w.out.(*os.File); !file {
		w.out = &oneAtATime{w: w.out}
	}
	return w
}

// oneAtATime is a writer for several goroutines.
type oneAtATime struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (o *oneAtATime) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.Write(p)
}

// lost is told leases that are somebody else's by now.
func (w *worker) lost(leases []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range leases {
		if end := w.running[s]; end != nil { // else its run is over, or has not begun: one asks then
			end(errJobLost)
		}
	}
}

// work claims until stop ends or the flags say so, and returns when every command
// has ended. abort ends the commands.
func (w *worker) work(stop, abort context.Context) error {
	if w.flags.payloadFile {
		dir, err := os.MkdirTemp("", "qsidecar-work-")
		if err != nil {
			return fmt.Errorf("a directory for payloads: %w", err)
		}
		defer os.RemoveAll(dir)
		w.dir = dir
	}
	for range w.flags.atOnce {
		w.idle <- w.runner()
	}
	stop, end := context.WithCancelCause(stop)
	defer end(nil)
	var jobs sync.WaitGroup
	err := w.claimAll(stop, func(r runner, job protocol.Job) {
		jobs.Go(func() {
			if v := w.one(abort, r, job); v.fatal != nil {
				end(v.fatal)
			} else if v.pause > 0 {
				rest(stop, v.pause)
			}
			w.idle <- r
		})
	})
	jobs.Wait()
	var closers sync.WaitGroup
	for range w.flags.atOnce {
		r := <-w.idle
		closers.Go(r.close)
	}
	closers.Wait()
	if err == nil || errors.Is(err, errInterrupted) {
		err = context.Cause(stop) // nil, a signal, or why the worker cannot go on
	}
	if errors.Is(err, errInterrupted) && abort.Err() == nil {
		return nil // told to stop, and stopped
	}
	return err
}

func (w *worker) runner() runner {
	if w.flags.line {
		return &lineRunner{w: w}
	}
	return oneShot{w}
}

// claimAll claims jobs for runners that are idle, and has each worked.
func (w *worker) claimAll(ctx context.Context, begin func(runner, protocol.Job)) error {
	for {
		free, err := w.free(ctx)
		if err != nil {
			return err
		}
		jobs, err := w.claim(ctx, len(free))
		if ctx.Err() != nil && len(jobs) > 0 { // they came all the same
			err = w.a.giveBack(context.WithoutCancel(ctx), w.client, jobs)
			jobs = nil
		}
		for i, r := range free {
			if i < len(jobs) {
				begin(r, jobs[i])
			} else {
				w.idle <- r
			}
		}
		switch {
		case ctx.Err() != nil:
			if !errors.Is(err, context.Cause(ctx)) { // not the claim that it ended
				return errors.Join(context.Cause(ctx), err)
			}
			return context.Cause(ctx)
		case err != nil:
			return err
		case w.flags.once && len(jobs) == 0:
			return &codeError{code: exitNoJob}
		case w.flags.once, w.flags.drain && len(jobs) == 0 && len(free) == w.flags.atOnce:
			return nil
		case w.flags.drain && len(jobs) == 0:
			// What runs may enqueue more: look again when one of them is done.
			if err := w.oneMore(ctx, len(free)); err != nil {
				return err
			}
		}
	}
}

// free waits for idle runners and takes all there are.
func (w *worker) free(ctx context.Context) ([]runner, error) {
	var free []runner
	select {
	case r := <-w.idle:
		free = append(free, r)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for {
		select {
		case r := <-w.idle:
			free = append(free, r)
		default:
			return free, nil
		}
	}
}

// oneMore waits until more than n runners are idle.
func (w *worker) oneMore(ctx context.Context, n int) error {
	var taken []runner
	defer func() {
		for _, r := range taken {
			w.idle <- r
		}
	}()
	for len(taken) <= n {
		select {
		case r := <-w.idle:
			taken = append(taken, r)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// claim asks for up to most jobs. Nothing but a wrong request, or the end of ctx,
// is an error of a worker that is to go on.
func (w *worker) claim(ctx context.Context, most int) ([]protocol.Job, error) {
	cl := qsidecar.Claim{Queues: w.flags.queues, Max: most, Wait: claimWait}
	if w.flags.once || w.flags.drain {
		cl.Wait = 0
		var cancel context.CancelFunc
		ctx, cancel = answering(ctx, answerTimeout)
		defer cancel()
		return w.client.Claim(ctx, cl)
	}
	jobs, err := w.client.Claim(ctx, cl)
	if err != nil && ctx.Err() == nil && exitCode(err) == exitUnavailable {
		w.say("claim: %v; going on", err)
		rest(ctx, claimPause)
		return nil, nil
	}
	return jobs, err
}

// one works a job and settles it.
func (w *worker) one(abort context.Context, r runner, job protocol.Job) verdict {
	ctx, end := context.WithCancelCause(abort)
	defer end(nil)
	w.mu.Lock()
	w.running[job.Lease] = end
	w.mu.Unlock()
	if !w.client.Holds(job.Lease) { // lost before its run began
		end(errJobLost)
	}
	defer w.over(job.Lease)
	v := verdict{why: errJobLost.Error()}
	if ctx.Err() == nil {
		v = r.run(ctx, job)
	}
	if v.why != "" {
		trace := ""
		if id, ok := protocol.TraceID(job.Headers[protocol.HeaderTraceParent]); ok {
			trace = ", trace " + id
		}
		w.say("job %s of %s, attempt %d of %d%s: %s", job.ID, job.Queue, job.Attempt, job.MaxAttempts, trace, v.why)
	}
	if v.settle == nil {
		return v
	}
	if err := w.settle(abort, job, v.settle); err != nil && v.fatal == nil {
		v.fatal = fmt.Errorf("job %s of %s could not be settled: %w", job.ID, job.Queue, err)
	}
	return v
}

// over forgets a lease that is settled or lost.
func (w *worker) over(lease string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, lease)
}

// settle carries a verdict out, through outages.
func (w *worker) settle(ctx context.Context, job protocol.Job, req *protocol.Request) error {
	req.Lease = job.Lease
	_, err := w.client.Call(ctx, req)
	var twice *qsidecar.SettledOrLostError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &twice), qsidecar.IsLost(err):
		w.say("job %s of %s: %v", job.ID, job.Queue, err)
		return nil
	case ctx.Err() != nil:
		return errInterrupted // what is not settled is given back
	case req.Op == protocol.OpAck:
		// An answer to this ack, not to this moment: what it carries cannot be kept.
		w.say("job %s of %s: %v", job.ID, job.Queue, err)
		return w.settle(ctx, job, &protocol.Request{Op: protocol.OpNack, Error: "the job was done, but: " + err.Error()})
	}
	return err
}

func (w *worker) say(format string, args ...any) {
	fmt.Fprintf(w.errOut, "qsidecar: "+format+"\n", args...)
}

// rest pauses, for as long as ctx lasts.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
