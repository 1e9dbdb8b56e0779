package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/textfmt"
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

// jobLost is why a run ends whose lease is lost.
type jobLost string

func (j jobLost) Error() string { return string(j) }

const errJobLost jobLost = "the job was taken back (by its timeout, an operator, or because the sidecar was away for too long); its command was stopped"

const errJobCancelled jobLost = "the job was cancelled; its command was stopped"

// Options configure which jobs a worker claims and how it runs them.
type Options struct {
	Queues  []string
	Order   protocol.Order
	Weights map[string]int64 // of queues that take turns; a queue that is missing has 1
	Command []string         // the command and its arguments
	Program string           // the path of Command[0]
	Jobs    int              // runs at once, at least 1

	PayloadArg  bool // pass the payload as the command's last argument
	PayloadFile bool // pass the payload in a file, whose path is the last argument
	Raw         bool // pass the payload's bytes as they are, also those of a JSON string
	Result      bool // the command's stdout is the job's result
	Persistent  bool // start the command once; it reads jobs as lines of JSON

	Once    bool // run one job if one is ready
	Drain   bool // stop when no job is ready
	SyncAck bool // a runner begins its next job only when the one before is settled

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

// orderText describes the order of several queues.
var orderText = map[protocol.Order]string{protocol.OrderRotate: "in rotation", protocol.OrderStrict: "in strict order"}

// Worker claims jobs and runs a command for each. It settles every job whose lease it still
// holds.
type Worker struct {
	opts    Options
	starter *starter
	out     io.Writer // a file, which commands inherit, or a writer for several goroutines
	errOut  io.Writer
	client  *qsidecar.Client
	settler *qsidecar.Settler
	end     context.CancelCauseFunc // stops the claims with a fatal error
	socket  string
	folder  folder
	dir     string      // of payload files; empty: Options.PayloadFile is not set
	idle    chan runner // opts.Jobs of them, minus the busy ones

	newRunner func() runner

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
	w.newRunner = w.runner
	if _, file := w.out.(*os.File); !file {
		w.out = &lockedWriter{w: w.out}
	}
	return w
}

// Run claims and runs jobs until stop ends, or until Options.Once or Options.Drain stops it. It
// returns when every command has exited. If abort ends, Run kills the commands. Run returns nil
// if stop ended it in order, and a *qsidecar.UnansweredError if settles are unanswered for a minute then.
func (w *Worker) Run(stop, abort context.Context, c *qsidecar.Client, socket string) error {
	w.client, w.settler, w.socket = c, qsidecar.NewSettler(abort, c, w.opts.Jobs), socket
	var err error
	if w.folder, err = openFolder(); err != nil {
		return err
	}
	r := newReaper()
	g, err := startGuard(r, func(err error) {
		w.logf("the guard is gone (%v): if this worker is killed, processes that its commands started continue", err)
	})
	if err != nil {
		r.close()
		return err
	}
	w.starter = newStarter(g, r)
	if o := w.opts; len(o.Queues) > 1 && !o.Once && !o.Drain { // a cron job that works reports nothing
		names := slices.Clone(o.Queues)
		for i, q := range names {
			if weight := o.Weights[q]; weight > 0 {
				names[i] = fmt.Sprintf("%s=%d", q, weight)
			}
		}
		w.logf("queues %s %s", strings.Join(names, ", "), orderText[o.Order])
	}
	logged := w.logStop(stop)
	err = w.runJobs(stop, abort)
	logged()
	if e := w.starter.close(); e != nil {
		w.logf("the guard ended: %v", e)
	}
	return err
}

// logStop logs the end of stop if jobs run: the worker would otherwise seem to ignore the signal. end waits for the log, or
// cancels it.
func (w *Worker) logStop(stop context.Context) (end func()) {
	logged := make(chan struct{})
	cancel := context.AfterFunc(stop, func() {
		defer close(logged)
		w.mu.Lock()
		running := len(w.running)
		w.mu.Unlock()
		if running > 0 {
			w.logf("stopping; running jobs: %d; a second signal ends the worker at once", running)
		}
	})
	return func() {
		if !cancel() {
			<-logged
		}
	}
}

// LostLeases stops the commands whose leases are lost.
func (w *Worker) LostLeases(leases []string, reason string) {
	cause := errJobLost
	if reason == protocol.ReasonCancelled {
		cause = errJobCancelled
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range leases {
		if end := w.running[s]; end != nil { // otherwise the run has ended, or runJob is about to check the lease
			end(cause)
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
		w.idle <- w.newRunner()
	}
	claiming, end := context.WithCancelCause(stop)
	defer end(nil)
	w.end = end
	if w.opts.Once || w.opts.Drain {
		w.settler.Limit()
	}
	defer context.AfterFunc(claiming, w.settler.Limit)()
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
	unanswered := w.settler.Finish(abort)
	var closers sync.WaitGroup
	for range w.opts.Jobs {
		r := <-w.idle
		closers.Go(r.close)
	}
	closers.Wait()
	if unanswered != nil && abort.Err() == nil { // after abort, the session gives back unsettled jobs
		return unanswered
	}
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

// runInTurn runs a job, and then those that are claimed after it, until there is none. It returns the last outcome.
func (w *Worker) runInTurn(claiming, abort context.Context, r runner, job protocol.Job) (v outcome) {
	for next := []protocol.Job{job}; len(next) > 0; {
		if v.fatal != nil || v.pause > 0 || w.settler.Begin(claiming) != nil {
			if err := w.giveBack(abort, next); err != nil && v.fatal == nil {
				v.fatal = err
			}
			break
		}
		v, next = w.runJob(claiming, abort, r, next[0])
	}
	return v
}

// runJob runs a job, after Begin, and settles it. It also claims a job, unless the worker stops.
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
		began := time.Now()
		v = w.runIn(ctx, r, job)
		limit := time.Duration(job.TimeoutMS.Or(0)) * time.Millisecond
		if v.reason == errJobLost.Error() && limit > 0 && time.Since(began) > limit-min(lateGrace, limit/2) {
			v.reason = fmt.Sprintf("it ran longer than its time limit of %s and was stopped", textfmt.FormatDuration(limit))
		}
	}
	if v.reason != "" {
		trace := ""
		if id, ok := protocol.TraceID(job.Headers[protocol.HeaderTraceParent]); ok {
			trace = ", trace " + id
		}
		w.logf("job %s of %s, attempt %d of %d%s: %s", job.ID, job.Queue, job.Attempt, job.MaxAttempts, trace, v.reason)
	}
	if v.request == nil {
		w.settler.End()
		return v, nil
	}
	claims := claiming.Err() == nil && v.fatal == nil && v.pause == 0 && !w.opts.Once && !w.opts.Drain
	st := &settling{job: job, request: v.request}
	st.request.Lease = job.Lease
	if w.opts.SyncAck || w.settler.Joins() {
		if claims {
			st.request.Claim = &protocol.NextClaim{Queues: w.opts.Queues, Order: w.opts.Order, Weights: w.opts.Weights}
		}
		next, err := w.settle(claiming, abort, st)
		w.settler.End()
		if v.fatal == nil {
			v.fatal = err
		}
		return v, next
	}
	w.settleBehind(claiming, st)
	if !claims || w.settler.WaitToClaim(claiming) != nil {
		return v, nil
	}
	next, _ := w.client.Claim(claiming, qsidecar.Claim{Queues: w.opts.Queues, Order: w.opts.Order, Weights: w.opts.Weights}) // claimAll's next claim reports the error
	return v, next
}

// runIn runs a job in the working folder. If the folder is gone before, or after a failure, the attempt doesn't count.
func (w *Worker) runIn(ctx context.Context, r runner, job protocol.Job) outcome {
	if err := w.folder.check(); err != nil {
		return cannotRun(err)
	}
	v := r.run(ctx, job)
	if v.request != nil && v.request.Op == protocol.OpNack && v.fatal == nil {
		if err := w.folder.check(); err != nil {
			return cannotRun(err)
		}
	}
	return v
}

// forget removes a lease that is settled or lost.
func (w *Worker) forget(lease string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, lease)
}

// settling is the settle of a job that was run.
type settling struct {
	job      protocol.Job
	request  *protocol.Request
	tries    int  // that failed
	doubtful bool // an earlier try can have settled the job
}

// settleBehind sends a settle and doesn't wait for the reply.
func (w *Worker) settleBehind(claiming context.Context, st *settling) {
	w.settler.Settle(st.request, func(ctx context.Context, err error) {
		for err != nil {
			again, fatal := w.settleAgain(claiming, ctx, st, err)
			if fatal != nil {
				w.end(fatal)
			}
			if !again {
				return
			}
			_, err = w.client.Call(ctx, st.request)
		}
	})
}

// settle sends a settle until it is answered, and returns the jobs that its claim got.
func (w *Worker) settle(claiming, abort context.Context, st *settling) (next []protocol.Job, fatal error) {
	since := time.Now()
	for {
		rep, err := w.settler.Call(st.request, since)
		if rep != nil && len(rep.Jobs) > 0 {
			next, st.request.Claim = rep.Jobs, nil
		}
		if err == nil {
			return next, nil
		}
		if again, fatal := w.settleAgain(claiming, abort, st, err); !again {
			return next, fatal
		}
	}
}

// settleAgain reports whether to send a settle again after an error, and pauses before. The client repeats it
// while the sidecar is unavailable and ctx has not ended. After an internal error settleAgain repeats it, until the worker stops: the
// job was run, and another outcome would run it again.
func (w *Worker) settleAgain(claiming, ctx context.Context, st *settling, err error) (again bool, fatal error) {
	job := st.job
	internal := qsidecar.IsCode(err, protocol.CodeInternal)
	st.tries++
	var twice *qsidecar.SettledOrLostError
	var unanswered *qsidecar.UnansweredError
	switch {
	case st.doubtful && qsidecar.IsLost(err):
		w.logf("job %s of %s was settled by an earlier try, or was lost", job.ID, job.Queue)
		return false, nil
	case errors.As(err, &twice), qsidecar.IsLost(err):
		w.logf("job %s of %s: %v", job.ID, job.Queue, err)
		return false, nil
	case errors.As(err, &unanswered), errors.As(context.Cause(ctx), &unanswered):
		w.logf("job %s of %s could not be settled: no answer from the sidecar", job.ID, job.Queue)
		return false, unanswered
	case ctx.Err() != nil: // the session gives back unsettled jobs
		return false, unsettled(job, context.Cause(ctx))
	case internal && claiming.Err() == nil:
		w.logf("job %s of %s could not be settled yet: %v", job.ID, job.Queue, err)
		st.doubtful = true
		sleep(claiming, min(firstSettlePause<<min(st.tries-1, 10), claimPause))
		return true, nil
	case st.request.Op == protocol.OpAck && !internal:
		// The server rejected the contents of this ack, so a repetition would fail too.
		w.logf("job %s of %s: %v", job.ID, job.Queue, err)
		st.request = &protocol.Request{Op: protocol.OpNack, Lease: job.Lease, Error: "the job was done, but: " + err.Error()}
		return true, nil
	}
	return false, unsettled(job, err)
}

func unsettled(job protocol.Job, err error) error {
	return fmt.Errorf("job %s of %s could not be settled: %w", job.ID, job.Queue, err)
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
