package qsidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// claimWait is how long one claim of a Worker waits.
	claimWait = 5 * time.Minute

	// maxConcurrency is how many claims of one connection may wait.
	maxConcurrency = 256

	// drainTime is how long a Worker that drains waits for the answer to a claim.
	drainTime = time.Minute

	// byeTime is how long a Worker that ends gives the sidecar to take back what it holds.
	byeTime = 5 * time.Second
)

// ErrLost is the cause of the end of a handler's context where the job's lease was
// lost: another worker may have the job by now.
var ErrLost = errors.New("the job's lease was lost")

// ErrStopped is the cause of the end of a handler's context where the Worker was
// told to stop and its Grace is over.
var ErrStopped = errors.New("the worker was told to stop, and its grace is over")

// Handler does one job. Where it returns nil the job is acked; a *RetryError or a
// *DeadError, also wrapped, says what else becomes of it; any other error, a panic and
// runtime.Goexit are a failed attempt with its text. What the handler leaves to other
// goroutines is not waited for: return when the work is done.
//
// ctx has the values of Run's, and ends when the job's lease is lost (ErrLost), when
// its time limit is over, and when the Worker's Grace is (ErrStopped); it does not end
// with Run's.
type Handler func(ctx context.Context, job *Job) error

// Job is one that a Handler is given, and what goes with its ack.
type Job struct {
	protocol.Job

	Result []byte            // kept with the job, where its queue keeps jobs; nil: none
	Then   []protocol.NewJob // stored with the ack or not at all
}

// RetryError fails an attempt, of which the job may have more.
type RetryError struct {
	Err      error         // kept with the job; nil: no words
	Delay    time.Duration // until it is ready again, rounded up to a millisecond; 0: the queue's back-off
	NoCharge bool          // *not now* rather than *failed*: this delivery does not count
}

// Error implements error.
func (e *RetryError) Error() string { return words(e.Err, "retry") }

// Unwrap gives the cause.
func (e *RetryError) Unwrap() error { return e.Err }

// DeadError fails a job for good: it has no further attempt.
type DeadError struct{ Err error }

// Error implements error.
func (e *DeadError) Error() string { return words(e.Err, "dead") }

// Unwrap gives the cause.
func (e *DeadError) Unwrap() error { return e.Err }

func words(err error, none string) string {
	if err == nil {
		return none
	}
	return err.Error()
}

// Worker works on the jobs of queues. Its fields are not changed while it runs.
type Worker struct {
	Queues  []string // in order of preference; at least one
	Handler Handler

	// Concurrency is how many jobs are worked on at once, each in a goroutine of its
	// own, over one connection: 1 to 256; 0: one.
	Concurrency int

	// Grace is how long handlers may go on when Run's context has ended, before their own
	// contexts end. 0: for as long as they take.
	Grace time.Duration

	// Drain has Run return also when no job is ready, and with an error where that cannot be
	// asked: no sidecar answers, or its database is away.
	Drain bool

	// Options say how to reach the sidecar. OnLost and OnDraining are called too.
	Options Options

	// Logger is told of its start and end, of jobs that are to be tried again or dead, and when
	// jobs cannot be claimed and can again; nil: slog.Default().
	Logger *slog.Logger
}

// Run works until ctx ends, and returns nil then: it claims no more, gives back
// what came too late, uncharged, waits for the handlers, and settles their jobs.
// Where no sidecar answers at first it tries again, unless it drains. An error is one that
// trying again cannot mend, as that of a queue that does not exist.
func (w *Worker) Run(ctx context.Context) error {
	if len(w.Queues) == 0 || w.Handler == nil || w.Concurrency < 0 || w.Concurrency > maxConcurrency {
		return fmt.Errorf("qsidecar: a Worker needs Queues, a Handler and a Concurrency of 1 to %d", maxConcurrency)
	}
	r := &running{Worker: w, log: w.Logger, jobs: make(map[string]context.CancelCauseFunc)}
	if r.log == nil {
		r.log = slog.Default()
	}
	if err := r.dial(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	r.log.Info("qsidecar: worker started", "queues", w.Queues, "concurrency", max(1, w.Concurrency))
	defer r.log.Info("qsidecar: worker stopped")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.base = context.WithoutCancel(ctx)
	r.handlers, r.stop = context.WithCancelCause(r.base)
	defer r.stop(nil)
	defer r.graceAfter(ctx)()
	var all sync.WaitGroup
	for range max(1, w.Concurrency) {
		all.Go(func() {
			if err := r.work(ctx); err != nil {
				cancel(&fatalError{err}) // the others stop as well
			}
		})
	}
	all.Wait()
	byeCtx, done := context.WithTimeout(r.base, byeTime)
	defer done()
	if err := r.client.Bye(byeCtx); err != nil && !errors.Is(err, ErrClosed) {
		r.log.Info("qsidecar: the sidecar was not told goodbye", "error", err)
	}
	if fatal, ok := errors.AsType[*fatalError](context.Cause(ctx)); ok {
		return fatal.err
	}
	return nil
}

// fatalError is the cause of a context that one of the workers ended.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }

// running is a Worker that runs.
type running struct {
	*Worker
	log      *slog.Logger
	client   *Client
	base     context.Context // has the values of Run's, and no end
	handlers context.Context // parent of the handlers' contexts
	stop     context.CancelCauseFunc

	mu   sync.Mutex
	jobs map[string]context.CancelCauseFunc // under way, by lease
	away bool                               // no jobs can be claimed
}

// dial connects, for as long as it takes.
func (r *running) dial(ctx context.Context) (err error) {
	opts := r.Options
	opts.OnLost = func(leases []string) {
		r.onLost(leases)
		if r.Options.OnLost != nil {
			r.Options.OnLost(leases)
		}
	}
	opts.onOutage = r.outage
	for tries := 1; ; tries++ {
		r.client, err = r.dialOnce(ctx, opts)
		var wire *protocol.Error
		if err == nil || errors.As(err, &wire) || r.Drain {
			return err
		}
		if tries == 1 {
			r.log.Warn("qsidecar: " + err.Error() + "; it is tried again")
		}
		if !pause(ctx, backoff(tries)) {
			return err
		}
	}
}

// dialOnce connects. If the Worker drains it gives up a stopped sidecar after drainTime.
func (r *running) dialOnce(ctx context.Context, opts Options) (*Client, error) {
	if r.Drain {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, drainTime, errNoHello)
		defer cancel()
	}
	return Dial(ctx, opts)
}

// graceAfter ends the handlers' contexts when the grace after ctx's end is over; what
// it returns stops that.
func (r *running) graceAfter(ctx context.Context) (end func()) {
	if r.Grace <= 0 {
		return func() {}
	}
	ended := context.AfterFunc(ctx, func() {
		if pause(r.handlers, r.Grace) {
			r.stop(ErrStopped)
		}
	})
	return func() { ended() }
}

func (r *running) onLost(leases []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range leases {
		if end := r.jobs[l]; end != nil { // else its job has ended, or has not begun: do asks then
			end(ErrLost)
		}
	}
}

// work claims and does one job after another until ctx ends.
func (r *running) work(ctx context.Context) error {
	wait := claimWait
	if r.Drain {
		wait = 0
	}
	for failures := 0; ctx.Err() == nil; {
		jobs, err := r.claim(ctx, wait)
		switch {
		case ctx.Err() != nil:
			r.giveBack(jobs)
			return nil
		case err != nil && (r.Drain || !mends(err)):
			return err
		case err != nil:
			r.outage(err)
			failures++
			pause(ctx, 4*backoff(failures))
			continue
		case len(jobs) == 0 && r.Drain:
			return nil
		}
		failures = 0
		r.outage(nil)
		for _, j := range jobs {
			r.do(ctx, &Job{Job: j})
		}
	}
	return nil
}

// outage logs that no jobs can be claimed, or (nil) that they can: once, and not for each of the
// jobs at once.
func (r *running) outage(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil && !r.away:
		r.log.Warn("qsidecar: no jobs just now", "error", err)
	case err == nil && r.away:
		r.log.Warn("qsidecar: jobs can be claimed again")
	}
	r.away = err != nil
}

// claim asks for a job, and does not wait for ever for a sidecar that has gone from a Worker
// that drains.
func (r *running) claim(ctx context.Context, wait time.Duration) ([]protocol.Job, error) {
	if r.Drain {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, drainTime)
		defer cancel()
	}
	return r.client.Claim(ctx, Claim{Queues: r.Queues, Wait: wait})
}

// giveBack is for jobs that came when it was too late.
func (r *running) giveBack(jobs []protocol.Job) {
	for _, j := range jobs {
		at := time.Duration(0)
		if err := r.client.Nack(r.base, j.Lease, Nack{NoCharge: true, Delay: &at}); err != nil {
			r.log.Warn("qsidecar: a job goes back with the connection", "job", j.ID, "error", err)
		}
	}
}

// do has the handler do a job, and settles it.
func (r *running) do(ctx context.Context, job *Job) {
	handling, cancel := context.WithCancelCause(r.handlers)
	defer cancel(nil)
	if ms, ok := job.TimeoutMS.Get(); ok {
		var done context.CancelFunc
		handling, done = context.WithTimeout(handling, time.Duration(ms)*time.Millisecond)
		defer done()
	}
	r.mu.Lock()
	r.jobs[job.Lease] = cancel
	r.mu.Unlock()
	if !r.client.ClaimsInTx(job.Lease) { // lost before it was among the jobs
		cancel(ErrLost)
	}
	err := r.handle(handling, job)
	r.mu.Lock()
	delete(r.jobs, job.Lease)
	r.mu.Unlock()
	log := r.log.With("job", job.ID, "queue", job.Queue, "attempt", job.Attempt)
	if errors.Is(context.Cause(handling), ErrLost) {
		log.Warn("qsidecar: the job's lease was lost while it ran: another worker may have it", "error", err)
		return
	}
	if err != nil {
		level, text := fate(job, err)
		log.Log(ctx, level, text, "error", err)
	}
	r.settle(ctx, job, err, log)
}

// handle calls the handler, in a goroutine that is the handler's to end.
func (r *running) handle(ctx context.Context, job *Job) (err error) {
	done := make(chan struct{})
	err = errors.New("the handler ended its goroutine (runtime.Goexit)")
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		err = r.Handler(ctx, job)
	}()
	<-done
	return err
}
