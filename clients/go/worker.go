package qsidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// claimWait is how long one claim of a Worker waits.
	claimWait = 5 * time.Minute

	// maxConcurrency is how many claims of one connection can wait.
	maxConcurrency = 256

	// drainTime limits the wait for the reply to a claim with Drain.
	drainTime = time.Minute

	// byeTime limits the wait for the replies at the end of a Worker: to bye, and to the return of jobs.
	byeTime = 5 * time.Second
)

// ErrLost is the cause of a handler's context that ended because the job's lease was lost. Another
// worker can have the job by now.
var ErrLost = errors.New("the job's lease was lost")

// ErrCancelled is the cause of a handler's context that ended because the job was cancelled. It wraps ErrLost. Nothing that the
// handler returns changes the job.
var ErrCancelled error = cancelledError{}

type cancelledError struct{}

func (cancelledError) Error() string { return "the job was cancelled" }
func (cancelledError) Unwrap() error { return ErrLost }

// ErrStopped is the cause of a handler's context that ended because the Worker was stopped and its
// Grace is over.
var ErrStopped = errors.New("the worker was stopped, and its grace is over")

// Handler runs one job. If it returns nil, the job is acked. A *RetryError, *SnoozeError or
// *DeadError, also wrapped, selects another outcome. Any other error, a panic or runtime.Goexit is
// a failed attempt with its text. The Worker does not wait for goroutines that the handler started:
// return when the work is done.
//
// ctx has the values of Run's context. It ends if the job is cancelled (ErrCancelled) or its lease is lost (ErrLost), when its time
// limit is over, and when the Worker's Grace is over (ErrStopped). It does not end with Run's
// context.
type Handler func(ctx context.Context, job *Job) error

// Job is the job that a Handler runs, with the data of its ack.
type Job struct {
	protocol.Job

	Result []byte            // stored with the job if its queue keeps done jobs; nil: no result
	Then   []protocol.NewJob // enqueued in the same transaction as the ack
}

// RetryError fails an attempt. If attempts remain, the job is tried again.
type RetryError struct {
	Err   error         // stored with the job; nil: no text
	Delay time.Duration // until it is ready again, rounded up to a millisecond; 0: the queue's back-off
}

// Error implements error.
func (e *RetryError) Error() string { return errorText(e.Err, "retry") }

// Unwrap returns the cause.
func (e *RetryError) Unwrap() error { return e.Err }

// SnoozeError returns a job for later. This delivery uses up no attempt, and no failure is stored.
type SnoozeError struct {
	Err   error         // for the log; nil: no text
	Delay time.Duration // until it is ready again, rounded up to a millisecond; 0: the queue's back-off
}

// Error implements error.
func (e *SnoozeError) Error() string { return errorText(e.Err, "snooze") }

// Unwrap returns the cause.
func (e *SnoozeError) Unwrap() error { return e.Err }

// DeadError fails a job without another attempt.
type DeadError struct{ Err error }

// Error implements error.
func (e *DeadError) Error() string { return errorText(e.Err, "dead") }

// Unwrap returns the cause.
func (e *DeadError) Unwrap() error { return e.Err }

func errorText(err error, none string) string {
	if err == nil {
		return none
	}
	return err.Error()
}

// Worker runs the jobs of queues. Do not change its fields while it runs.
type Worker struct {
	Queues  []string // at least one
	Handler Handler

	// Order is how the worker chooses between its Queues. Empty or protocol.OrderRotate: they take turns.
	// protocol.OrderStrict: it claims from a queue only if those before it are empty, so a full queue starves the others.
	Order protocol.Order

	// Weights are how many turns a queue has where one that is missing here has one: 1 to 1000. They need Queues that take turns.
	Weights map[string]int64

	// Concurrency is how many jobs run at once, each in its own goroutine, over one connection: 1
	// to 256. 0 means one.
	Concurrency int

	// SyncAck lets each goroutine wait until its job is settled before it begins the next one. Otherwise
	// the next job begins as soon as its claim is answered, unless 32 jobs (or twice the Concurrency, if
	// that is more) are begun and not settled, or the settle of one is unanswered for a second. If the
	// worker dies, these jobs can be delivered again, although most of them are done.
	SyncAck bool

	// Grace is how long handlers can continue after Run's context ended, before their contexts end.
	// 0 means no limit.
	Grace time.Duration

	// Drain lets Run return when no job is ready. Run then also fails if no sidecar answers or its
	// database is unavailable, for example with an *UnansweredError.
	Drain bool

	// Options configure the connection. The Worker also calls OnLost and OnDraining. It calls OnLost
	// too if a settle finds that the job's lease was lost.
	Options Options

	// Logger gets messages about the start and end, about jobs that fail, and about outages. nil
	// means slog.Default().
	Logger *slog.Logger
}

// Run works until ctx ends and then returns nil. It stops claiming, returns jobs that arrive late
// without using up an attempt, waits for the handlers and settles their jobs. If no sidecar answers
// at first, it tries again, unless Drain is set. It returns an error if trying again can't help,
// for example if a queue does not exist. If a job fails after the working folder was deleted, Run returns the job without using up an attempt,
// and ends with an error. If a settle is unanswered for a minute at the end, it returns an
// *UnansweredError.
func (w *Worker) Run(ctx context.Context) error {
	if w.Order != "" && w.Order != protocol.OrderRotate && w.Order != protocol.OrderStrict {
		return fmt.Errorf("qsidecar: Order is %q: set it to rotate or strict", w.Order)
	}
	if err := w.checkWeights(); err != nil {
		return err
	}
	switch {
	case len(w.Queues) == 0:
		return errors.New("qsidecar: a Worker needs Queues: name at least one")
	case w.Handler == nil:
		return errors.New("qsidecar: a Worker needs a Handler")
	case w.Concurrency < 0 || w.Concurrency > maxConcurrency:
		return fmt.Errorf("qsidecar: Concurrency is %d: set it to 1 to %d", w.Concurrency, maxConcurrency)
	}
	r := &workerRun{Worker: w, log: w.Logger, jobs: make(map[string]context.CancelCauseFunc)}
	r.folder, _ = syscall.Getwd() // empty if it is gone already: then no job misses it
	if r.log == nil {
		r.log = slog.Default()
	}
	if err := r.dial(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	start := r.log.With("queues", w.Queues)
	if len(w.Queues) > 1 {
		start = start.With("order", r.order())
		if len(w.Weights) > 0 {
			start = start.With("weights", w.Weights)
		}
	}
	start.Info("qsidecar: worker started", "concurrency", max(1, w.Concurrency))
	defer r.log.Info("qsidecar: worker stopped")
	defer r.logStop(ctx)()
	ctx, r.cancel = context.WithCancel(ctx)
	defer r.cancel()
	r.base = context.WithoutCancel(ctx)
	r.settler = NewSettler(r.base, r.client, w.Concurrency)
	if w.Drain {
		r.settler.Limit()
	}
	defer context.AfterFunc(ctx, r.settler.Limit)()
	r.handlers, r.stop = context.WithCancelCause(r.base)
	defer r.stop(nil)
	defer r.graceAfter(ctx)()
	var all sync.WaitGroup
	for range max(1, w.Concurrency) {
		all.Go(func() {
			if err := r.work(ctx); err != nil {
				r.fail(err)
			}
		})
	}
	all.Wait()
	if err := r.settler.Finish(r.base); err != nil {
		r.fail(err)
	}
	byeCtx, done := context.WithTimeout(r.base, byeTime)
	defer done()
	if err := r.client.Bye(byeCtx); err != nil && !errors.Is(err, ErrClosed) {
		r.log.Info("qsidecar: could not send bye to the sidecar", "error", err)
	}
	r.outageLog.Wait()
	return r.failed
}

// fail stops the run, which then returns the error. A settle without an answer explains more than other errors.
func (w *workerRun) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, unanswered := errors.AsType[*UnansweredError](err); unanswered || w.failed == nil {
		w.failed = err
	}
	w.cancel()
}

// workerRun is one run of a Worker.
type workerRun struct {
	*Worker
	log      *slog.Logger
	client   *Client
	settler  *Settler
	base     context.Context // has the values of Run's context and never ends
	handlers context.Context // parent of the handlers' contexts
	stop     context.CancelCauseFunc
	folder   string             // the working folder when the run began
	cancel   context.CancelFunc // stops claiming

	mu           sync.Mutex
	failed       error                              // what Run returns
	jobs         map[string]context.CancelCauseFunc // jobs that run, by lease
	outageLogged bool                               // the log reports an outage
	outages      []error                            // to log: why an outage began, or nil for its end

	outageLog sync.WaitGroup // the goroutine that logs them
}

// dial connects. It tries until ctx ends.
func (w *workerRun) dial(ctx context.Context) (err error) {
	opts := w.Options
	opts.OnLost = func(leases []string, reason string) {
		w.onLost(leases, reason)
		if w.Options.OnLost != nil {
			w.Options.OnLost(leases, reason)
		}
	}
	opts.onOutage = w.outage
	for tries := 1; ; tries++ {
		w.client, err = w.dialOnce(ctx, opts)
		var wire *protocol.Error
		if err == nil || errors.As(err, &wire) || w.Drain {
			return err
		}
		if tries == 1 {
			w.log.Warn("qsidecar: " + err.Error() + "; trying again")
		}
		if !pause(ctx, backoff(tries)) {
			return err
		}
	}
}

// logStop logs the end of ctx: while a long job runs, the program would otherwise seem to ignore the signal. end waits
// for the log, or cancels it.
func (w *workerRun) logStop(ctx context.Context) (end func()) {
	logged := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(logged)
		w.mu.Lock()
		running := len(w.jobs)
		w.mu.Unlock()
		w.log.Info("qsidecar: worker stopping", "running_jobs", running)
	})
	return func() {
		if !cancel() {
			<-logged
		}
	}
}

// dialOnce connects. With Drain it gives up on a stopped sidecar after drainTime.
func (w *workerRun) dialOnce(ctx context.Context, opts Options) (*Client, error) {
	if w.Drain {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, drainTime, errNoHello)
		defer cancel()
	}
	return Dial(ctx, opts)
}

// graceAfter ends the handlers' contexts once the grace after ctx's end is over. end cancels that.
func (w *workerRun) graceAfter(ctx context.Context) (end func()) {
	if w.Grace <= 0 {
		return func() {}
	}
	ended := context.AfterFunc(ctx, func() {
		if pause(w.handlers, w.Grace) {
			w.stop(ErrStopped)
		}
	})
	return func() { ended() }
}

func (w *workerRun) onLost(leases []string, reason string) {
	cause := ErrLost
	if reason == protocol.ReasonCancelled {
		cause = ErrCancelled
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range leases {
		if end := w.jobs[l]; end != nil { // if it is nil, the job has ended, or it has not started and run checks its lease
			end(cause)
		}
	}
}

// work claims and runs one job after another until ctx ends.
func (w *workerRun) work(ctx context.Context) error {
	wait := claimWait
	if w.Drain {
		wait = 0
	}
	for failures := 0; ; {
		if err := w.settler.WaitToClaim(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		unanswered := w.Drain && w.settler.Unanswered() > 0
		jobs, err := w.claim(ctx, wait)
		if unanswered && IsCode(err, protocol.CodeBusy) { // jobs_per_connection counts the jobs of these settles
			err = nil
		}
		switch {
		case ctx.Err() != nil:
			w.returnJobs(jobs)
			return nil
		case err != nil && (w.Drain || !retryable(err)):
			return err
		case err != nil:
			w.outage(err)
			failures++
			pause(ctx, 4*backoff(failures))
			continue
		case len(jobs) == 0 && unanswered: // one of the acks can store follow-up jobs
			_ = w.settler.Wait(ctx) // the loop checks ctx
			continue
		case len(jobs) == 0 && w.Drain:
			return nil
		}
		failures = 0
		w.outage(nil)
		for len(jobs) > 0 && w.settler.Begin(ctx) == nil {
			jobs = append(jobs[1:], w.run(ctx, &Job{Job: jobs[0]})...)
		}
		w.returnJobs(jobs)
	}
}

// outage logs that no jobs can be claimed (err), or that they can again (nil). It logs each outage
// once, whatever the concurrency is. The goroutine that reads calls it, so another one logs: a slog.Handler can
// wait, also for the sidecar.
func (w *workerRun) outage(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.outageLogged == (err != nil) {
		return
	}
	w.outageLogged = err != nil
	w.outages = append(w.outages, err)
	if len(w.outages) == 1 {
		w.outageLog.Go(w.logOutages)
	}
}

// logOutages logs outages in their order until none is left.
func (w *workerRun) logOutages() {
	for more := true; more; {
		w.mu.Lock()
		err := w.outages[0]
		w.mu.Unlock()
		if err != nil {
			w.log.Warn("qsidecar: can't claim jobs", "error", err)
		} else {
			w.log.Warn("qsidecar: jobs can be claimed again")
		}
		w.mu.Lock()
		w.outages = w.outages[1:]
		more = len(w.outages) > 0
		w.mu.Unlock()
	}
}

// claim claims a job. With Drain it limits the wait for a stopped sidecar.
func (w *workerRun) claim(ctx context.Context, wait time.Duration) ([]protocol.Job, error) {
	if w.Drain {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, drainTime)
		defer cancel()
	}
	return w.client.Claim(ctx, Claim{Queues: w.Queues, Order: w.order(), Weights: w.weights(), Wait: wait})
}

// checkWeights checks Weights, because the sidecar would refuse each claim.
func (w *Worker) checkWeights() error {
	if len(w.Weights) > 0 && w.Order == protocol.OrderStrict {
		return errors.New("qsidecar: Weights need queues that take turns: leave Order empty, or leave Weights out")
	}
	for q, weight := range w.Weights {
		if !slices.Contains(w.Queues, q) {
			return fmt.Errorf("qsidecar: Weights has the queue %q, which isn't one of Queues", q)
		}
		if weight < 1 || weight > protocol.MaxWeight {
			return fmt.Errorf("qsidecar: the weight of %q is %d: set it to 1 to %d", q, weight, protocol.MaxWeight)
		}
	}
	return nil
}

// weights are the weights of the worker's claims. A single queue has none.
func (w *workerRun) weights() map[string]int64 {
	if len(w.Queues) == 1 {
		return nil
	}
	return w.Weights
}

// order is the order of the worker's claims. It is empty for a single queue.
func (w *workerRun) order() protocol.Order {
	if len(w.Queues) == 1 {
		return ""
	}
	return cmp.Or(w.Order, protocol.OrderRotate)
}

// returnJobs returns jobs that arrived after the end of ctx.
func (w *workerRun) returnJobs(jobs []protocol.Job) {
	if len(jobs) == 0 {
		return
	}
	ctx, done := context.WithTimeout(w.base, byeTime)
	defer done()
	for _, j := range jobs {
		at := time.Duration(0)
		if err := w.client.Nack(ctx, j.Lease, Nack{Snooze: true, Delay: &at}); err != nil {
			w.log.Warn("qsidecar: could not return a job; it is released when the connection closes", "job", j.ID, "error", err)
		}
	}
}

// run runs the handler, after Begin, and settles the job. It returns the jobs that the settle claimed.
func (w *workerRun) run(ctx context.Context, job *Job) (next []protocol.Job) {
	handling, cancel := context.WithCancelCause(w.handlers)
	defer cancel(nil)
	began := time.Now()
	if ms, ok := job.TimeoutMS.Get(); ok {
		var done context.CancelFunc
		handling, done = context.WithTimeout(handling, time.Duration(ms)*time.Millisecond)
		defer done()
	}
	w.mu.Lock()
	w.jobs[job.Lease] = cancel
	w.mu.Unlock()
	held := w.client.Holds(job.Lease) // otherwise it was lost before r.jobs had the job, possibly while the job waited for Begin
	var err error
	if held {
		err = w.handle(handling, job)
	}
	w.mu.Lock()
	delete(w.jobs, job.Lease)
	w.mu.Unlock()
	switch {
	case !held:
		w.settler.End()
		w.jobLog(&job.Job).Warn("qsidecar: the job's lease was lost before it began: another worker can have it")
		return nil
	case errors.Is(context.Cause(handling), ErrCancelled):
		w.settler.End()
		w.jobLog(&job.Job).Info("qsidecar: the job was cancelled while it ran")
		return nil
	case errors.Is(context.Cause(handling), ErrLost):
		w.settler.End()
		w.jobLog(&job.Job).Warn("qsidecar: "+lossText(&job.Job, began, "the job's lease was lost while it ran: another worker can have it"), "error", err)
		return nil
	}
	if gone := w.folderGone(); err != nil && gone != nil {
		w.fail(gone)
		o := &outcome{job: job.Job, request: *Nack{Snooze: true, Delay: new(time.Duration)}.request()}
		o.request.Lease = job.Lease
		return w.settle(ctx, o)
	}
	if err != nil {
		if wrong := nackOf(err).check(); wrong != nil {
			err = fmt.Errorf("%w (the handler's error: %s)", wrong, wireText(err))
		}
		level, text := failureLog(job, err)
		w.jobLog(&job.Job).Log(ctx, level, text, "error", err)
	}
	o := newOutcome(job, err)
	o.began = began
	return w.settle(ctx, o)
}

// folderGone returns an error if the working folder was deleted since the run began, as a deployment deletes that of an old release. The
// program goes on, but jobs that read its files fail.
func (w *workerRun) folderGone() error {
	if w.folder == "" {
		return nil
	}
	if _, err := syscall.Getwd(); err != nil { // os.Getwd can return $PWD
		return fmt.Errorf("qsidecar: the working folder %s was deleted or is unreachable (%w), and a job failed: start the program again in an existing folder", w.folder, err)
	}
	return nil
}

// almost is how long before its time limit a run that lost its lease was ended by the limit: at most half of it. The sidecar counts the run from the
// commit of the claim.
const almost = 100 * time.Millisecond

// lossText returns why the lease of a job was lost: its time limit, or else the given text.
func lossText(job *protocol.Job, began time.Time, otherwise string) string {
	ms, ok := job.TimeoutMS.Get()
	if limit := time.Duration(ms) * time.Millisecond; ok && time.Since(began) > limit-min(almost, limit/2) {
		return fmt.Sprintf("the job ran longer than its time limit of %v", limit)
	}
	return otherwise
}

func (w *workerRun) jobLog(job *protocol.Job) *slog.Logger {
	return w.log.With("job", job.ID, "queue", job.Queue, "attempt", job.Attempt)
}

// handle calls the handler in its own goroutine, which the handler can end.
func (w *workerRun) handle(ctx context.Context, job *Job) (err error) {
	done := make(chan struct{})
	err = errors.New("the handler ended its goroutine (runtime.Goexit)")
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, panicStack(string(debug.Stack())))
			}
		}()
		err = w.Handler(ctx, job)
	}()
	<-done
	return err
}

// panicStack cuts the frames of this package and of panic from the top of a stack, so that it begins where the handler
// panicked.
func panicStack(stack string) string {
	_, after, found := strings.Cut(stack, "\npanic(")
	_, after, hasFile := strings.Cut(after, "\n")
	_, after, hasMore := strings.Cut(after, "\n")
	if !found || !hasFile || !hasMore {
		return stack
	}
	return after
}
