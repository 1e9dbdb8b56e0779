package worker

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

	// claimTimeout is how long a claim that does not wait may take.
	claimTimeout = time.Minute

	giveBackTimeout = 5 * time.Second
)

// ErrNoJob: with Once, no job was ready.
var ErrNoJob = errors.New("no job was ready")

// errJobLost ends the run of a job that is not this worker's any more.
var errJobLost = errors.New("the job was taken back (by its timeout, an operator, or because the sidecar was away for too long); its command was stopped")

// Options say which jobs a worker claims and how it runs them.
type Options struct {
	Queues  []string // in order of preference
	Command []string // the command and its arguments
	Program string   // the file of Command[0]
	Jobs    int      // how many jobs run at once

	PayloadArg  bool // the payload is the command's last argument
	PayloadFile bool // the payload is in a file, which the last argument names
	Result      bool // the command's stdout is the job's result
	Persistent  bool // one command reads jobs as lines of JSON

	Once  bool // claim one job, and don't wait for it
	Drain bool // stop if no job is ready

	DeadOn      []int          // exit codes that make a job dead
	Timeout     time.Duration  // of one run; 0: none
	KillAfter   time.Duration  // from SIGTERM to SIGKILL
	SnoozeDelay *time.Duration // after ExitSnooze; nil: the queue's back-off

	Stdout, Stderr io.Writer

	// WithTimeout limits how long a request waits for its answer.
	WithTimeout func(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc)
	// Unavailable reports whether the same request can succeed later.
	Unavailable func(error) bool
}

// Worker claims jobs and runs a command for each.
type Worker struct {
	opts    Options
	starter *starter
	out     io.Writer // a file, which commands get themselves, or a writer for several goroutines
	errOut  io.Writer
	client  *qsidecar.Client
	socket  string
	dir     string      // of payload files; empty: none are asked for
	idle    chan runner // opts.Jobs of them, less those that work

	mu      sync.Mutex
	running map[string]context.CancelCauseFunc // by lease
}

// New makes a worker. Run runs it.
func New(o Options) *Worker {
	w := &Worker{
		opts: o, out: o.Stdout, errOut: &lockedWriter{w: o.Stderr},
		idle:    make(chan runner, o.Jobs),
		running: make(map[string]context.CancelCauseFunc),
	}
	if _, file := w.out.(*os.File); !file {
		w.out = &lockedWriter{w: w.out}
	}
	return w
}

// Run works until stop ends, or until the options say so, and returns when every command has
// ended. abort kills the commands. The client must report its lost leases to LostLeases.
func (w *Worker) Run(stop, abort context.Context, c *qsidecar.Client, socket string) error {
	w.client, w.socket = c, socket
	g, err := startGuard(func(err error) {
		w.logf("the guard is gone (%v): if this worker is killed, what its commands have started goes on", err)
	})
	if err != nil {
		return err
	}
	w.starter = newStarter(g)
	err = w.runJobs(stop, abort)
	if e := w.starter.close(); e != nil {
		w.logf("the guard ended: %v", e)
	}
	return err
}

// LostLeases ends the runs of the jobs whose leases are lost.
func (w *Worker) LostLeases(leases []string) {
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
func (w *Worker) runJobs(stop, abort context.Context) error {
	if w.opts.PayloadFile {
		dir, err := os.MkdirTemp("", "qsidecar-work-")
		if err != nil {
			return fmt.Errorf("a directory for payloads: %w", err)
		}
		defer os.RemoveAll(dir)
		w.dir = dir
	}
	for range w.opts.Jobs {
		w.idle <- w.runner()
	}
	claiming, end := context.WithCancelCause(stop)
	defer end(nil)
	var jobs sync.WaitGroup
	err := w.claimAll(claiming, func(r runner, job protocol.Job) {
		jobs.Go(func() {
			if v := w.runJob(abort, r, job); v.fatal != nil {
				end(v.fatal)
			} else if v.pause > 0 {
				sleep(claiming, v.pause)
			}
			w.idle <- r
		})
	})
	jobs.Wait()
	var closers sync.WaitGroup
	for range w.opts.Jobs {
		r := <-w.idle
		closers.Go(r.close)
	}
	closers.Wait()
	if err == nil || endedBy(stop, err) {
		err = context.Cause(claiming) // nil, a signal, or why the worker cannot go on
	}
	if endedBy(stop, err) && abort.Err() == nil {
		return nil // told to stop, and stopped
	}
	return err
}

// endedBy reports whether err is the end of ctx.
func endedBy(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
}

func (w *Worker) runner() runner {
	if w.opts.Persistent {
		return &persistentRunner{w: w}
	}
	return commandRunner{w}
}

// one works a job and settles it.
func (w *Worker) runJob(abort context.Context, r runner, job protocol.Job) outcome {
	ctx, end := context.WithCancelCause(abort)
	defer end(nil)
	w.mu.Lock()
	w.running[job.Lease] = end
	w.mu.Unlock()
	if !w.client.ClaimsInTx(job.Lease) { // lost before its run began
		end(errJobLost)
	}
	defer w.forget(job.Lease)
	v := outcome{reason: errJobLost.Error()}
	if ctx.Err() == nil {
		v = r.run(ctx, job)
	}
	if v.reason != "" {
		trace := ""
		if id, ok := protocol.TraceID(job.Headers[protocol.HeaderTraceParent]); ok {
			trace = ", trace " + id
		}
		w.logf("job %s of %s, attempt %d of %d%s: %s", job.ID, job.Queue, job.Attempt, job.MaxAttempts, trace, v.reason)
	}
	if v.request == nil {
		return v
	}
	if err := w.settle(abort, job, v.request); err != nil && v.fatal == nil {
		v.fatal = fmt.Errorf("job %s of %s could not be settled: %w", job.ID, job.Queue, err)
	}
	return v
}

// over forgets a lease that is settled or lost.
func (w *Worker) forget(lease string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, lease)
}

// settle carries a verdict out, through outages.
func (w *Worker) settle(ctx context.Context, job protocol.Job, req *protocol.Request) error {
	req.Lease = job.Lease
	_, err := w.client.Call(ctx, req)
	var twice *qsidecar.SettledOrLostError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &twice), qsidecar.IsLost(err):
		w.logf("job %s of %s: %v", job.ID, job.Queue, err)
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx) // what is not settled is given back
	case req.Op == protocol.OpAck:
		// An answer to this ack, not to this moment: what it carries cannot be kept.
		w.logf("job %s of %s: %v", job.ID, job.Queue, err)
		return w.settle(ctx, job, &protocol.Request{Op: protocol.OpNack, Error: "the job was done, but: " + err.Error()})
	}
	return err
}

func (w *Worker) logf(format string, args ...any) {
	fmt.Fprintf(w.errOut, "qsidecar: "+format+"\n", args...)
}

// rest pauses, for as long as ctx lasts.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
