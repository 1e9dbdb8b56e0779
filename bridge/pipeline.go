package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/qsidecar/qsidecar/backends"
)

// leaveTimeout bounds the last beat of an orderly exit. Without it the leases
// still stay valid for what is left of the host lease.
const leaveTimeout = 5 * time.Second

// pipeline is everything between the sessions and one backend.
type pipeline struct {
	name       string        // in errors and in the log
	info       backends.Info // of the backend that it began with: the database is the same
	canInspect bool          // the backend can be looked into
	link       *link
	times      *leaseTimes
	ledger     *ledger
	broker     *broker
	committer  *committer
	keeper     *keeper
	sweeper    *sweeper
	attendant  *attendant
	depths     depths
	census     census
	metrics    atomic.Pointer[databaseMetrics] // under the name that the database has now; set before it is used
	log        *slog.Logger
}

// pipelineConfig is what a pipeline needs. Its functions must not block.
type pipelineConfig struct {
	name    string
	backend backends.Backend
	done    func()        // see link.replace
	timeout time.Duration // how long the leases of sessions outlive the last beat
	grace   time.Duration // how long they outlive an orderly exit
	log     *slog.Logger
	clock   func() time.Duration // never jumps, and goes on while the machine is suspended
	memory  *buffers

	policy     func(queue string) (backends.Policy, bool) // false: the queue is not in this database
	maxPayload func() int64
	claimBytes func() int64                 // of payload, in one claim's answer
	trace      func(j *backends.Job) string // the trace id for the log; empty: none
	lost       func(map[*account][]heldJob) // is told which claims the sessions no longer have
}

func newPipeline(pc pipelineConfig) *pipeline {
	b := &pipeline{
		name:   pc.name,
		link:   newLink(pc.backend, pc.done),
		times:  newLeaseTimes(pc.timeout, pc.grace),
		info:   pc.backend.Info(),
		ledger: newLedger(pc.trace),
		log:    pc.log,
	}
	_, b.canInspect = pc.backend.(backends.Inspector)
	c := &committer{
		backend:    b.link,
		ledger:     b.ledger,
		policy:     pc.policy,
		times:      b.times,
		maxPayload: pc.maxPayload,
		claimBytes: pc.claimBytes,
		log:        b.log,
		room:       semaphore.NewWeighted(queueBytes),
		settles:    semaphore.NewWeighted(settleBytes),
		writes:     newLane(),
		claims:     newLane(),
		both:       !b.info.Concurrent,
		memory:     pc.memory,
		seen:       make(map[backends.Token]struct{}),
	}
	b.committer = c
	c.metrics, b.ledger.metrics = b.metrics.Load, b.metrics.Load
	b.broker = newBroker(c.wakeClaims)
	b.keeper = &keeper{
		backend: b.link,
		times:   b.times,
		ledger:  b.ledger,
		log:     b.log,
		clock:   pc.clock,
		lost:    pc.lost,
		release: func(owner backends.Identity, leases []backends.Lease) { c.release(owner, leases, nil) },
		revived: c.wakeClaims,
		metrics: b.metrics.Load,
		poke:    make(chan struct{}, 1),
		watched: make(map[backends.Identity]watch),
	}
	b.sweeper = &sweeper{
		logged:  map[string]string{},
		prune:   pruning{alone: !b.info.Concurrent},
		backend: b.link,
		keeper:  b.keeper,
		claims:  b.broker,
		times:   b.times,
		metrics: b.metrics.Load,
		log:     b.log,
		poke:    make(chan struct{}, 1),
	}
	b.keeper.suspected = b.sweeper.wake
	b.keeper.abandoned = func() {
		jobs, _ := b.broker.takeAhead(0) // lost like all the rest
		b.broker.areBack(queuesOfJobs(jobs))
	}
	c.broker, c.keeper = b.broker, b.keeper
	b.broker.fresh = b.keeper.fresh
	b.broker.clock = pc.clock
	b.broker.buffers = b.info.Prefetch
	b.broker.memory = pc.memory
	b.broker.most = c.claimBytes
	b.broker.direct = b.link.adopted
	b.attendant = &attendant{broker: b.broker, ledger: b.ledger, committer: c, poke: make(chan struct{}, 1)}
	b.broker.buffered = b.attendant.wake
	b.depths.count = b.readyJobs
	b.census.wake = make(chan struct{}, 1)
	return b
}

// join makes the first attempt to join, so that the first claim finds an
// identity. It may fail: run goes on trying.
func (b *pipeline) join(ctx context.Context) {
	if err := b.keeper.turn(ctx); err != nil {
		b.log.Warn("the database cannot be had yet; serving all the same, requests are answered `unavailable`", "error", err)
	}
}

// run works until work is done (no session is left), then commits what is
// queued and leaves the database. Housekeeping ends with ctx. hard ends it all.
func (b *pipeline) run(ctx, work, hard context.Context) error {
	var g errgroup.Group
	keep, stopKeeping := context.WithCancel(hard)
	defer stopKeeping()
	g.Go(func() error { return b.sweeper.run(ctx) })
	g.Go(func() error { return b.keeper.run(keep) })
	g.Go(func() error { b.listen(ctx); return nil })
	g.Go(func() error { b.census.run(keep, b.readDepths); return nil })
	writes, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	var wrote errgroup.Group
	wrote.Go(func() error { return b.committer.runWrites(writes, hard) })
	attend := make(chan struct{})
	go func() {
		defer close(attend)
		b.attendant.run(work)
	}()
	var err error
	if b.committer.both {
		<-work.Done()
	} else {
		err = b.committer.runClaims(work, hard) // what it gives back is still written
	}
	<-attend
	stopWriting()
	err = errors.Join(err, wrote.Wait())
	stopKeeping()
	if err2 := g.Wait(); err == nil {
		err = err2
	}
	leaveCtx, cancel := answerWithin(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err2 := b.keeper.leave(leaveCtx); err2 != nil && err == nil {
		err = fmt.Errorf("the last beat failed, leases held here end with the host lease instead of the restart grace: %w", err2)
	}
	if err != nil {
		return fmt.Errorf("database %s: %w", b.name, err)
	}
	return nil
}

// listen turns other sidecars' notifications into hints, until ctx is done.
func (b *pipeline) listen(ctx context.Context) {
	b.link.notifications(ctx, func(queue string) {
		if queue == "" {
			b.sweeper.wake() // names may have been missed: look for all who wait
			return
		}
		b.broker.hint([]string{queue}, someJobs)
	})
}
