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
	// claimWait is how long one claim waits for a job. The next claim follows at once.
	claimWait = time.Minute

	// claimPause is the pause after a claim that failed because the sidecar was unavailable.
	claimPause = 2 * time.Second

	// firstSettlePause is the pause before a settle is repeated after an internal error. It
	// doubles, up to claimPause.
	firstSettlePause = 50 * time.Millisecond

	// claimTimeout limits a claim that doesn't wait for jobs.
	claimTimeout = time.Minute

	giveBackTimeout = 5 * time.Second
)

// ErrNoJob is the error of Run if Options.Once is set and no job is ready.
var ErrNoJob = errors.New("no job was ready")

// errJobLost ends a run whose lease is lost.
var errJobLost = errors.New("the job was taken back (by its timeout, an operator, or because the sidecar was away for too long); its command was stopped")

// Options configure which jobs a worker claims and how it runs them.
type Options struct {
	Queues  []string // in order of preference
	Command []string // the command and its arguments
	Program string   // the path of Command[0]
	Jobs    int      // runs at once, at least 1

	PayloadArg  bool // pass the payload as the command's last argument
	PayloadFile bool // pass the payload in a file, whose path is the last argument
	Raw         bool // pass the payload's bytes as they are, also those of a JSON string
	Result      bool // the command's stdout is the job's result
	Persistent  bool // start the command once; it reads jobs as lines of JSON

	Once  bool // run one job if one is ready
	Drain bool // stop when no job is ready

	DeadOn      []int          // exit codes that make a job dead
	Timeout     time.Duration  // of one run; 0: none
	KillAfter   time.Duration  // from SIGTERM to SIGKILL
	SnoozeDelay *time.Duration // after ExitSnooze; nil: the queue's back-off

	Stdout, Stderr io.Writer

	// WithTimeout limits how long a request waits for its answer. The cause of its context
	// becomes the error of Run.
	WithTimeout func(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc)
	// TryAgain reports whether a failed claim can succeed later.
	TryAgain func(error) bool
}

// Worker claims jobs and runs a command for each. It settles every job whose lease it still
// holds.
type Worker struct {
	opts    Options
	starter *starter
	out     io.Writer // a file, which commands inherit, or a writer for several goroutines
	errOut  io.Writer
	client  *qsidecar.Client
	socket  string
	dir     string      // of payload files; empty: Options.PayloadFile is not set
	idle    chan runner // opts.Jobs of them, minus the busy ones

	mu      sync.Mutex
	running map[string]context.CancelCauseFunc // by lease
}

// New returns a worker. The client that is passed to Run must report lost leases to
// LostLeases.
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

// Run claims and runs jobs until stop ends, or until Options.Once or Options.Drain stops it. It
// returns when every command has exited. If abort ends, Run kills the commands. Run returns nil
// if stop ended it in order.
func (w *Worker) Run(stop, abort context.Context, c *qsidecar.Client, socket string) error {
	w.client, w.socket = c, socket
	g, err := startGuard(func(err error) {
		w.logf("the guard is gone (%v): if this worker is killed, processes that its commands started continue", err)
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

// LostLeases stops the commands whose leases are lost.
func (w *Worker) LostLeases(leases []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range leases {
		if end := w.running[s]; end != nil { // otherwise the run has ended, or runJob is about to check the lease
			end(errJobLost)
		}
	}
}

// runJobs is Run after the guard was started.
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
			if v := w.runInTurn(claiming, abort, r, job); v.fatal != nil {
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
		err = context.Cause(claiming) // nil, a signal, or a fatal outcome
	}
	if endedBy(stop, err) && abort.Err() == nil {
		return nil // stopped in order
	}
	return err
}

// endedBy reports whether err is the cause with which ctx ended.
func endedBy(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
}

func (w *Worker) runner() runner {
	if w.opts.Persistent {
		return &persistentRunner{w: w}
	}
	return commandRunner{w}
}

// runInTurn runs a job, and then those that its settle claims, until there is none. It returns the last outcome.
func (w *Worker) runInTurn(claiming, abort context.Context, r runner, job protocol.Job) outcome {
	for {
		v, next := w.runJob(claiming, abort, r, job)
		if len(next) > 0 && (claiming.Err() != nil || v.fatal != nil || v.pause > 0) {
			if err := w.giveBack(abort, next); err != nil && v.fatal == nil {
				v.fatal = err
			}
			next = nil
		}
		if len(next) == 0 {
			return v
		}
		job = next[0]
	}
}

// runJob runs a job and settles it. The settle also claims a job, unless the worker stops.
func (w *Worker) runJob(claiming, abort context.Context, r runner, job protocol.Job) (outcome, []protocol.Job) {
	ctx, end := context.WithCancelCause(abort)
	defer end(nil)
	w.mu.Lock()
	w.running[job.Lease] = end
	w.mu.Unlock()
	if !w.client.Holds(job.Lease) { // lost before the run began
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
		return v, nil
	}
	if claiming.Err() == nil && v.fatal == nil && v.pause == 0 && !w.opts.Once && !w.opts.Drain {
		v.request.Claim = &protocol.NextClaim{Queues: w.opts.Queues}
	}
	next, err := w.settle(claiming, abort, job, v.request)
	if err != nil && v.fatal == nil {
		v.fatal = fmt.Errorf("job %s of %s could not be settled: %w", job.ID, job.Queue, err)
	}
	return v, next
}

// forget removes a lease that is settled or lost.
func (w *Worker) forget(lease string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, lease)
}

// settle sends the request of an outcome, and returns the jobs that its claim got. The client repeats it while
// the sidecar is unavailable. settle repeats it after an internal error, until the worker stops: the job was
// run, and another outcome would run it again.
func (w *Worker) settle(claiming, abort context.Context, job protocol.Job, req *protocol.Request) (next []protocol.Job, err error) {
	req.Lease = job.Lease
	for tries := 1; ; tries++ {
		rep, err := w.client.Call(abort, req)
		if rep != nil && len(rep.Jobs) > 0 {
			next, req.Claim = rep.Jobs, nil
		}
		var twice *qsidecar.SettledOrLostError
		switch {
		case err == nil:
			return next, nil
		case errors.As(err, &twice), qsidecar.IsLost(err):
			w.logf("job %s of %s: %v", job.ID, job.Queue, err)
			return next, nil
		case abort.Err() != nil:
			return next, context.Cause(abort) // the session gives back unsettled jobs
		case qsidecar.IsCode(err, protocol.CodeInternal) && claiming.Err() == nil:
			w.logf("job %s of %s could not be settled yet: %v", job.ID, job.Queue, err)
			sleep(claiming, min(firstSettlePause<<min(tries-1, 10), claimPause))
		case req.Op == protocol.OpAck && !qsidecar.IsCode(err, protocol.CodeInternal):
			// The server rejected the contents of this ack, so a repetition would fail too.
			w.logf("job %s of %s: %v", job.ID, job.Queue, err)
			req = &protocol.Request{Op: protocol.OpNack, Lease: job.Lease, Error: "the job was done, but: " + err.Error()}
		default:
			return next, err
		}
	}
}

func (w *Worker) logf(format string, args ...any) {
	fmt.Fprintf(w.errOut, "qsidecar: "+format+"\n", args...)
}

// sleep pauses for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
