package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/depth"
	"github.com/qsidecar/qsidecar/bridge/internal/dispatch"
	"github.com/qsidecar/qsidecar/bridge/internal/failurelog"
	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
	"github.com/qsidecar/qsidecar/bridge/internal/history"
	"github.com/qsidecar/qsidecar/bridge/internal/jobends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/maintenance"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/progress"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/internal/jobevents"
)

// leaveTimeout bounds the last heartbeat of an orderly exit. Without that heartbeat the leases stay valid for the
// rest of the sidecar timeout.
const leaveTimeout = 5 * time.Second

// lastHistoryTimeout bounds the last write of the history, which nothing needs.
const lastHistoryTimeout = time.Second

// Pipeline is everything between the sessions and one database.
type Pipeline struct {
	Name        string        // in errors and in the log
	Info        backends.Info // of the first backend: the database stays the same
	canInspect  bool          // the backend supports inspection
	backend     *backendref.Ref
	times       *heartbeat.Times
	leaseTable  *lease.Table
	dispatcher  *dispatch.Dispatcher
	began       time.Time // where clock begins
	lost        func(lost lease.Lost, reason string)
	executor    *executor
	heartbeat   *heartbeat.Heartbeater
	maintenance *maintenance.Maintainer
	prefetcher  *prefetcher
	stalls      *stalls
	events      *jobEvents
	Waits       *jobends.Hub // requests that wait for the ends of jobs
	progress    *progress.Board
	flushes     sync.WaitGroup // of progress, before writes
	failed      failurelog.Log
	batches     *batchEnds
	ReadyLimits *depth.ReadyLimits
	allDepths   *depth.AllQueues
	history     *history.Recorder
	hours       hoursCache
	Metrics     atomic.Pointer[metrics.Database] // of the current name of the database; set before use
	Log         *slog.Logger
}

// Config configures a Pipeline. Its functions must not block.
type Config struct {
	Name           string
	Backend        backends.Backend
	Replica        backends.Replica // nil: none
	Done           func()           // see backendref.Ref.Replace
	SidecarTimeout time.Duration    // how long the leases of sessions outlive the last heartbeat
	RestartGrace   time.Duration    // how long they outlive an orderly exit
	Log            *slog.Logger
	Clock          func() time.Duration // never jumps, and goes on while the machine is suspended
	Memory         *quota.Memory
	Version        func() string // of the program, for people

	Policy     func(queue string) (backends.Policy, bool) // false: the queue is not in this database
	Jitter     backends.Jitter                            // of back-offs
	Expiry     backends.QueueExpiry                       // of jobs of schedules
	MaxPayload func() int64
	ClaimBytes func() int64                                           // of payload, in one claim's answer
	Trace      func(headers map[string]string) (parent, state string) // see protocol.TraceContext
	Events     *jobevents.Hub                                         // nil: no one can subscribe
	Lost       func(lost lease.Lost, reason string)                   // receives the claims that the sessions no longer have; reason is empty if it isn't known
}

// New returns a pipeline that does not run. Metrics must be set before Join.
func New(c Config) *Pipeline {
	p := &Pipeline{
		Name:       c.Name,
		Info:       c.Backend.Info(),
		Log:        c.Log,
		backend:    backendref.New(c.Backend, c.Replica, c.Done),
		times:      heartbeat.NewTimes(c.SidecarTimeout, c.RestartGrace),
		leaseTable: lease.NewTable(c.Trace),
		stalls:     &stalls{clock: c.Clock},
		events:     &jobEvents{hub: c.Events, database: c.Name, trace: c.Trace},
		began:      time.Now(),
	}
	_, p.canInspect = c.Backend.(backends.Inspector)
	p.Waits = jobends.New(p.backend.Peek)
	p.events.waits = p.Waits
	p.progress = progress.New(progress.Config{
		Save: p.backend.SaveProgress, Forget: p.backend.ForgetProgress, List: p.backend.ProgressJobs, Has: p.leaseTable.Has, Log: p.Log,
	})
	p.events.progress = p.progress
	p.batches = &batchEnds{
		ask: p.backend.ResolveBatches,
		states: func(ctx context.Context, ids []string) ([]backends.Batch, error) {
			return p.backend.Batches(ctx, backends.BatchList{States: ids})
		},
		ended: func(r *backends.ResolvedBatches) { p.maintenance.LogBatches(r) },
		wake:  make(chan struct{}, 1),
	}
	p.leaseTable.Metrics = p.Metrics.Load
	loops, prefetch := newLoops(p.Info), newWake()
	p.heartbeat = heartbeat.New(heartbeat.Config{
		Backend: p.backend,
		Times:   p.times,
		Leases:  p.leaseTable,
		Metrics: p.Metrics.Load,
		Log:     p.Log,
		Version: c.Version,
		Clock:   c.Clock,
		Lost:    func(lost lease.Lost) { p.lost(lost, "") },
		Cancelled: func(ctx context.Context, id backends.Identity) {
			if claims, err := p.backend.Cancelled(ctx, id); err == nil { // without an answer they are lost for an unknown reason
				p.cancelled(claims)
			}
		},
		IdentityDropped: func() {
			p.executor.forgetReleases()
			jobs, _ := p.dispatcher.TakePrefetched(0) // dropped with all other leases
			p.dispatcher.Returned(queuesOfJobs(jobs))
		},
		Release: func(owner backends.Identity, jobs []backends.ClaimedJob) int {
			return p.executor.releaseUnknown(owner, jobs)
		},
		Reconciled: func() { p.executor.retryReleases() },
		Suspected:  func() { p.maintenance.Wake() },
		Revived:    loops.WakeClaims,
	})
	gates := newGates(p.clock, func(queue string) bool { return p.dispatcher.Reopen(queue) })
	p.dispatcher = dispatch.New(dispatch.Config{
		Wake:           loops.WakeClaims,
		WakePrefetcher: prefetch.poke,
		Identity:       p.heartbeat.Fresh,
		Stalled:        p.stalls.since,
		Clock:          p.clock,
		CanPrefetch:    p.Info.Prefetch,
		NoPrefetch:     p.backend.Adopted,
		Slow:           p.backend.Slow,
		Gated:          gates.has,
		Closed:         gates.isClosed,
		Full:           gates.isFull,
		Memory:         c.Memory,
		MaxBytes:       c.ClaimBytes,
	})
	p.executor = newExecutor(executorConfig{
		info:       p.Info,
		backend:    p.backend,
		loops:      loops,
		dispatcher: p.dispatcher,
		gates:      gates,
		heartbeat:  p.heartbeat,
		leases:     p.leaseTable,
		memory:     c.Memory,
		stalls:     p.stalls,
		times:      p.times,
		clock:      p.clock,
		policy:     c.Policy,
		jitter:     c.Jitter,
		maxPayload: c.MaxPayload,
		claimBytes: c.ClaimBytes,
		metrics:    p.Metrics.Load,
		events:     p.events,
		batches:    p.batches,
		log:        p.Log,
	})
	p.prefetcher = &prefetcher{
		wake:       prefetch,
		dispatcher: p.dispatcher,
		heartbeat:  p.heartbeat,
		leases:     p.leaseTable,
		executor:   p.executor,
		clock:      p.clock,
	}
	p.maintenance = maintenance.New(maintenance.Config{
		Backend:   p.backend,
		Heartbeat: p.heartbeat,
		Claims:    p.dispatcher,
		Times:     p.times,
		Metrics:   p.Metrics.Load,
		Failed:    p.events.failed,
		Pending:   p.storedPending,
		Cancelled: p.cancelled,
		Batches:   p.batches.pass,
		Log:       p.Log,
		Alone:     !p.Info.Concurrent,
		Jitter:    c.Jitter,
		Expiry:    c.Expiry,
	})
	p.lost = func(lost lease.Lost, reason string) {
		p.events.lost(lost, reason)
		for _, gone := range lost {
			for i := range gone {
				p.progress.Ended(gone[i].Lease.Token, gone[i].ID())
			}
		}
		c.Lost(lost, reason)
	}
	p.hours.ask = p.backend.History
	p.history = history.New(history.Config{Count: p.countHistory, Log: p.Log, Write: func(ctx context.Context, now time.Time, rows []backends.HourTotals) error {
		defer p.hours.forget() // what is written isn't unwritten any more
		return p.backend.AddHistory(ctx, now, rows)
	}})
	p.ReadyLimits, p.allDepths = depth.NewReadyLimits(p.readyJobs), depth.NewAllQueues(p.readDepths)
	return p
}

// cancelled passes on that an operator cancelled claims of this sidecar. It returns those that it need not see again.
func (p *Pipeline) cancelled(claims []backends.Token) (handled []backends.Token) {
	lost, handled := p.leaseTable.Cancel(claims)
	if len(lost) > 0 {
		p.lost(lost, string(backends.CauseCancelled))
	}
	return handled
}

// clock is the clock of the pace of prefetch and of the age of prefetched jobs. Unlike that of the heartbeat it stands still
// while the machine is suspended, and is cheap.
func (p *Pipeline) clock() time.Duration { return time.Since(p.began) }

// Join makes the first attempt to join, so that the first claim finds an identity. If it fails, Run tries again.
func (p *Pipeline) Join(ctx context.Context) {
	if err := p.heartbeat.Send(ctx); err != nil {
		p.Log.Warn("database unreachable at startup", "event", "database_unreachable", "error", err)
	}
}

// Run works until work is done (no session is left), then commits the queued writes and leaves the database.
// Maintenance ends with ctx. hard ends everything.
func (p *Pipeline) Run(ctx, work, hard context.Context) error {
	var g errgroup.Group
	keep, stopKeeping := context.WithCancel(hard)
	defer stopKeeping()
	g.Go(func() error { return p.maintenance.Run(ctx) })
	g.Go(func() error { return p.heartbeat.Run(keep) })
	g.Go(func() error { p.listen(ctx); return nil })
	g.Go(func() error { p.stalls.run(keep); return nil })
	g.Go(func() error { p.allDepths.Run(keep); return nil })
	g.Go(func() error { p.batches.run(keep); return nil })
	g.Go(func() error { p.history.Run(keep); return nil })
	g.Go(func() error {
		p.Waits.Run(keep, func(err error) {
			p.Log.Warn("can't query ends of waited jobs", "event", "wait_query_failed", "error", err)
		})
		return nil
	})
	if p.Info.Progress {
		g.Go(func() error { p.progress.Run(keep); return nil })
	}
	writes, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	var wrote errgroup.Group
	wrote.Go(func() error { return p.executor.runWrites(writes, hard) })
	attend := make(chan struct{})
	go func() {
		defer close(attend)
		p.prefetcher.run(work)
	}()
	err := p.executor.runClaims(work, hard) // its releases are still written
	<-attend
	p.flushes.Wait()
	stopWriting()
	err = errors.Join(err, wrote.Wait())
	p.executor.gates.stop()
	p.executor.admissions.wait()
	p.batches.waitForEnd()
	stopKeeping()
	if err2 := g.Wait(); err == nil {
		err = err2
	}
	last, cancel := backendref.WithTimeout(context.WithoutCancel(ctx), lastHistoryTimeout)
	p.history.Close(last)
	cancel()
	if p.progress.Used() {
		last, cancel := backendref.WithTimeout(context.WithoutCancel(ctx), lastProgressTimeout)
		p.progress.Close(last)
		cancel()
	}
	leaveCtx, cancel := backendref.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err2 := p.heartbeat.Leave(leaveCtx); err2 != nil && err == nil {
		err = fmt.Errorf("the last heartbeat failed, so leases end with the sidecar timeout instead of the restart grace: %w", err2)
	}
	if err != nil {
		return fmt.Errorf("database %s: %w", p.Name, err)
	}
	return nil
}

// listen passes notifications of other sidecars to the dispatcher until ctx is done.
func (p *Pipeline) listen(ctx context.Context) {
	p.backend.Notifications(ctx, func(queue string) {
		if queue == "" {
			p.maintenance.Wake() // notifications were possibly missed: check the queues of all waiting claims
			return
		}
		p.dispatcher.NotifyReady([]string{queue})
	})
}
