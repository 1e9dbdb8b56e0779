package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/depth"
	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/maintenance"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/internal/jobevents"
)

// leaveTimeout bounds the last heartbeat of an orderly exit. Without that heartbeat the leases stay valid for the
// rest of the sidecar timeout.
const leaveTimeout = 5 * time.Second

// Pipeline is everything between the sessions and one database.
type Pipeline struct {
	Name        string        // in errors and in the log
	Info        backends.Info // of the first backend: the database stays the same
	canInspect  bool          // the backend supports inspection
	backend     *backendref.Ref
	times       *heartbeat.Times
	leaseTable  *lease.Table
	dispatcher  *dispatcher
	committer   *committer
	heartbeat   *heartbeat.Heartbeater
	maintenance *maintenance.Maintainer
	prefetcher  *prefetcher
	stalls      *stalls
	ReadyLimits *depth.ReadyLimits
	allDepths   *depth.AllQueues
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
	MaxPayload func() int64
	ClaimBytes func() int64                                           // of payload, in one claim's answer
	Trace      func(headers map[string]string) (parent, state string) // see protocol.TraceContext
	Events     *jobevents.Hub                                         // nil: no one can subscribe
	Lost       func(lease.Lost)                                       // receives the claims that the sessions no longer have
}

// New returns a pipeline that does not run. Metrics must be set before Join.
func New(pc Config) *Pipeline {
	b := &Pipeline{
		Name:       pc.Name,
		backend:    backendref.New(pc.Backend, pc.Replica, pc.Done),
		times:      heartbeat.NewTimes(pc.SidecarTimeout, pc.RestartGrace),
		Info:       pc.Backend.Info(),
		leaseTable: lease.NewTable(pc.Trace),
		stalls:     &stalls{clock: pc.Clock},
		Log:        pc.Log,
	}
	_, b.canInspect = pc.Backend.(backends.Inspector)
	b.leaseTable.Metrics = b.Metrics.Load
	c := newCommitter()
	c.backend, c.leases, c.times, c.metrics, c.log = b.backend, b.leaseTable, b.times, b.Metrics.Load, b.Log
	c.policy, c.jitter, c.maxPayload, c.claimBytes, c.memory = pc.Policy, pc.Jitter, pc.MaxPayload, pc.ClaimBytes, pc.Memory
	c.singleLoop, c.joinJobs = !b.Info.Concurrent, b.Info.JoinJobs
	c.writeCommits = max(1, b.Info.WriteCommits)
	c.joined.Store(c.singleLoop || c.joinJobs > 0)
	c.refused.obstacles.Log, c.refused.obstacles.Address = b.Log, b.Info.Address
	c.events = &jobEvents{hub: pc.Events, database: pc.Name, trace: pc.Trace}
	b.committer = c
	b.dispatcher = newDispatcher(c.WakeClaims)
	b.heartbeat = heartbeat.New(heartbeat.Config{
		Backend: b.backend,
		Times:   b.times,
		Leases:  b.leaseTable,
		Metrics: b.Metrics.Load,
		Log:     b.Log,
		Version: pc.Version,
		Clock:   pc.Clock,
		Lost: func(lost lease.Lost) {
			c.events.lost(lost)
			pc.Lost(lost)
		},
		IdentityDropped: func() {
			c.forgetReleases()
			jobs, _ := b.dispatcher.takePrefetched(0) // dropped with all other leases
			b.dispatcher.returned(queuesOfJobs(jobs))
		},
		Release:    c.releaseUnknown,
		Reconciled: c.retryReleases,
		Suspected:  func() { b.maintenance.Wake() },
		Revived:    c.WakeClaims,
	})
	b.maintenance = maintenance.New(maintenance.Config{
		Backend:   b.backend,
		Heartbeat: b.heartbeat,
		Claims:    b.dispatcher,
		Times:     b.times,
		Metrics:   b.Metrics.Load,
		Failed:    c.events.failed,
		Log:       b.Log,
		Alone:     !b.Info.Concurrent,
		Jitter:    pc.Jitter,
	})
	c.dispatcher, c.heartbeat, c.stalls = b.dispatcher, b.heartbeat, b.stalls
	b.prefetcher = &prefetcher{dispatcher: b.dispatcher, leases: b.leaseTable, committer: c, poke: make(chan struct{}, 1)}
	d := b.dispatcher
	d.identity, d.stalls, d.memory, d.maxBytes = b.heartbeat.Fresh, b.stalls, pc.Memory, pc.ClaimBytes
	d.canPrefetch, d.noPrefetch, d.slow, d.wakePrefetcher = b.Info.Prefetch, b.backend.Adopted, b.backend.Slow, b.prefetcher.wake
	b.ReadyLimits, b.allDepths = depth.NewReadyLimits(b.readyJobs), depth.NewAllQueues(b.readDepths)
	return b
}

// Join makes the first attempt to join, so that the first claim finds an identity. If it fails, Run tries again.
func (b *Pipeline) Join(ctx context.Context) {
	if err := b.heartbeat.Send(ctx); err != nil {
		b.Log.Warn("database unreachable at startup", "event", "database_unreachable", "error", err)
	}
}

// Run works until work is done (no session is left), then commits the queued writes and leaves the database.
// Maintenance ends with ctx. hard ends everything.
func (b *Pipeline) Run(ctx, work, hard context.Context) error {
	var g errgroup.Group
	keep, stopKeeping := context.WithCancel(hard)
	defer stopKeeping()
	g.Go(func() error { return b.maintenance.Run(ctx) })
	g.Go(func() error { return b.heartbeat.Run(keep) })
	g.Go(func() error { b.listen(ctx); return nil })
	g.Go(func() error { b.stalls.run(keep); return nil })
	g.Go(func() error { b.allDepths.Run(keep); return nil })
	writes, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	var wrote errgroup.Group
	wrote.Go(func() error { return b.committer.runWrites(writes, hard) })
	attend := make(chan struct{})
	go func() {
		defer close(attend)
		b.prefetcher.run(work)
	}()
	var err error
	if b.committer.singleLoop {
		<-work.Done()
	} else {
		err = b.committer.runClaims(work, hard) // its releases are still written
	}
	<-attend
	b.committer.beside.Wait() // their releases are still written
	stopWriting()
	err = errors.Join(err, wrote.Wait())
	stopKeeping()
	if err2 := g.Wait(); err == nil {
		err = err2
	}
	leaveCtx, cancel := backendref.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err2 := b.heartbeat.Leave(leaveCtx); err2 != nil && err == nil {
		err = fmt.Errorf("the last heartbeat failed, so leases end with the sidecar timeout instead of the restart grace: %w", err2)
	}
	if err != nil {
		return fmt.Errorf("database %s: %w", b.Name, err)
	}
	return nil
}

// listen passes notifications of other sidecars to the dispatcher until ctx is done.
func (b *Pipeline) listen(ctx context.Context) {
	b.backend.Notifications(ctx, func(queue string) {
		if queue == "" {
			b.maintenance.Wake() // notifications were possibly missed: check the queues of all waiting claims
			return
		}
		b.dispatcher.NotifyReady([]string{queue})
	})
}
