package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// leaveTimeout bounds the last beat of an orderly exit. Without it the leases
// still stay valid for what is left of the host lease.
const leaveTimeout = 5 * time.Second

// bank is the bridge's side of one database: everything between the sessions
// and that backend.
type bank struct {
	name        string // what it was called at first; see plan.nameOf
	link        *link
	times       *leaseTimes
	inspectable bool          // the backend can be looked into
	info        backends.Info // of the backend that it began with: the database is the same
	ledger      *ledger
	broker      *broker
	committer   *committer
	keeper      *keeper
	sweeper     *sweeper
	attendant   *attendant
	depths      depths
	census      census
	metrics     atomic.Pointer[databaseMetrics] // under the name that it has now; set by Bridge.label, before it is used
	accounts    sync.Mutex                      // of accounted
	accounted   backends.Usage                  // what was counted of the link's usage; see account
	log         *slog.Logger

	// Bridge.reload guards these.
	retiring bool         // it ends when the last lease in it has ended
	end      func() error // ends it, and returns what its run returned
}

func (br *Bridge) newBank(name string, d Database) *bank {
	b := &bank{
		name:   name,
		link:   newLink(d),
		times:  newLeaseTimes(d),
		info:   d.Backend.Info(),
		ledger: newLedger(),
		log:    br.log.With("database", name),
	}
	_, b.inspectable = d.Backend.(backends.Inspector)
	c := &committer{
		backend:    b.link,
		ledger:     b.ledger,
		policy:     func(queue string) (backends.Policy, bool) { return br.plan.Load().policyIn(b, queue) },
		times:      b.times,
		maxPayload: func() int64 { return int64(br.plan.Load().limits.MaxPayload) },
		claimBytes: func() int64 { return int64(br.plan.Load().limits.ClaimBytes) },
		log:        b.log,
		room:       semaphore.NewWeighted(queueBytes),
		settles:    semaphore.NewWeighted(settleBytes),
		writes:     newLane(),
		claims:     newLane(),
		both:       !b.info.Concurrent,
		memory:     &br.buffers,
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
		clock:   br.system.clock,
		lost:    func(m map[*session][]heldJob) { br.tellLost(b, m) },
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
		broker:  b.broker,
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
	b.broker.clock = br.system.clock
	b.broker.buffers = b.info.Prefetch
	b.broker.memory = &br.buffers
	b.broker.most = c.claimBytes
	b.broker.direct = b.link.adopted
	b.attendant = &attendant{broker: b.broker, ledger: b.ledger, committer: c, poke: make(chan struct{}, 1)}
	b.broker.buffered = b.attendant.wake
	b.census.wake = make(chan struct{}, 1)
	return b
}

// follow ends the waits of claims that the plan has no place for here.
func (b *bank) follow(p *plan) {
	back := b.broker.evict(func(queues []string) bool {
		to, wire := p.bankOf(queues)
		return wire == nil && to == b
	})
	b.attendant.giveBackJobs(back)
}

// join makes the first attempt to join, so that the first claim finds an
// identity. It may fail: run goes on trying.
func (b *bank) join(ctx context.Context) {
	if err := b.keeper.turn(ctx); err != nil {
		b.log.Warn("the database cannot be had yet; serving all the same, requests are answered `unavailable`", "error", err)
	}
}

// run works until work is done (no session is left), then commits what is
// queued and leaves the database. Housekeeping ends with ctx. hard ends it all.
func (b *bank) run(ctx, work, hard context.Context) error {
	var g errgroup.Group
	keep, stopKeeping := context.WithCancel(hard)
	defer stopKeeping()
	g.Go(func() error { return b.sweeper.run(ctx) })
	g.Go(func() error { return b.keeper.run(keep) })
	g.Go(func() error { b.listen(ctx); return nil })
	g.Go(func() error { b.census.run(keep, b); return nil })
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
func (b *bank) listen(ctx context.Context) {
	b.link.notifications(ctx, func(queue string) {
		if queue == "" {
			b.sweeper.wake() // names may have been missed: look for all who wait
			return
		}
		b.broker.hint([]string{queue}, someJobs)
	})
}

// notHere says why a session may not do that with a held job; nil: it may, or the
// job is none.
func (b *bank) notHere(op protocol.Op, l backends.Lease, s *session) error {
	switch {
	case !b.link.holding(l):
		return nil
	case op == protocol.OpExtend:
		return &backends.UnsupportedError{What: backends.NoExtend, InTx: true}
	case b.ledger.others(l, s):
		return &backends.UnsupportedError{What: backends.NotElsewhere, InTx: true}
	}
	return nil
}
