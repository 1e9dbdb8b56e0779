package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	name      string
	backend   backends.Backend
	inspector backends.Inspector // nil: the backend cannot be looked into
	info      backends.Info
	hostLease time.Duration
	ledger    *ledger
	broker    *broker
	committer *committer
	keeper    *keeper
	sweeper   *sweeper
	attendant *attendant
	log       *slog.Logger
}

func newBank(name string, d Database, limits protocol.Limits, policy func(string) (backends.Policy, bool),
	lost func(*bank, map[*session][]backends.Lease), log *slog.Logger,
) *bank {
	b := &bank{
		name:      name,
		backend:   d.Backend,
		info:      d.Backend.Info(),
		hostLease: d.HostLease,
		ledger:    newLedger(),
		log:       log.With("database", name),
	}
	b.inspector, _ = d.Backend.(backends.Inspector)
	c := &committer{
		backend:    d.Backend,
		ledger:     b.ledger,
		policy:     policy,
		patience:   d.HostLease,
		maxPayload: int64(limits.MaxPayload),
		claimBytes: protocol.ClaimBytes,
		log:        b.log,
		room:       semaphore.NewWeighted(queueBytes),
		writes:     newLane(),
		claims:     newLane(),
		both:       !b.info.Concurrent,
		seen:       make(map[backends.Token]struct{}),
	}
	b.committer = c
	b.broker = newBroker(c.wakeClaims)
	b.keeper = &keeper{
		backend: d.Backend,
		lease:   d.HostLease,
		grace:   d.RestartGrace,
		ledger:  b.ledger,
		log:     b.log,
		clock:   bootTime,
		lost:    func(m map[*session][]backends.Lease) { lost(b, m) },
		release: c.release,
		revived: c.wakeClaims,
		poke:    make(chan struct{}, 1),
		watched: make(map[backends.Identity]watch),
	}
	b.sweeper = &sweeper{
		backend: d.Backend,
		keeper:  b.keeper,
		broker:  b.broker,
		timeout: d.HostLease,
		log:     b.log,
		poke:    make(chan struct{}, 1),
	}
	b.keeper.suspected = b.sweeper.wake
	b.keeper.abandoned = func() { b.broker.takeAhead(0) } // lost like all the rest
	c.broker, c.keeper = b.broker, b.keeper
	b.broker.fresh = b.keeper.fresh
	b.broker.clock = bootTime
	b.broker.buffers = b.info.Ahead
	if m, ok := d.Backend.(backends.Mixed); ok {
		b.broker.direct = m.Adopted
	}
	b.attendant = &attendant{broker: b.broker, ledger: b.ledger, committer: c, poke: make(chan struct{}, 1)}
	b.broker.buffered = b.attendant.wake
	return b
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
	leaveCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
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
	n, ok := b.backend.(backends.Notifier)
	if !ok {
		return
	}
	queues, ok := n.Notifications(ctx)
	if !ok {
		return
	}
	for q := range queues {
		if q == "" {
			b.sweeper.wake() // names may have been missed: look for all who wait
			continue
		}
		b.broker.hint([]string{q})
	}
}
