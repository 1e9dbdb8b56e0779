// Package bridge runs a sidecar: workers on one side, databases on the other.
//
// It has the sessions of clients, their operations, permissions and limits, reload, and metrics. Each database has a
// pipeline (bridge/internal/pipeline), which queues claims and groups commits. The package depends on the wire format
// (protocol) and on the interface of a job table (backends). It does not depend on any engine, config file, flag or
// signal.
//
// Start reading at Bridge.Run. session.go reads the requests of one connection, ops.go starts them.
package bridge

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"

	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/internal/jobevents"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// flushTimeout bounds how long an exit waits for the queued writes after the last session.
const flushTimeout = 5 * time.Second

// Bridge is one sidecar.
type Bridge struct {
	plan    atomic.Pointer[plan] // never nil
	control Control              // nil without a config
	began   time.Time
	log     *slog.Logger
	system  system
	ready   chan struct{}
	aborted chan struct{}
	abort   sync.Once

	metrics   *metrics.Set
	draining  atomic.Bool
	runCtx    context.Context // done when Run begins to stop
	stopRun   context.CancelFunc
	lockCheck lockCheck

	reload  sync.Mutex // one change of the plan at a time
	running *running   // nil: Run is not running, or stopping. reload guards it

	listening atomic.Pointer[map[string]*unixsocket.Listener] // nil: Run did not begin yet

	queueNames quota.QueueNames // names of auto-created queues
	rejects    quota.RejectLimiter
	memory     quota.Memory
	events     jobevents.Hub
	concurrent atomic.Int64 // requests of all sessions that their readers do not wait for

	mu       sync.Mutex
	sessions map[*session]struct{}
	users    map[uint32]int // number of connections by user id
	refusing int            // connections over the limit that are being refused now
	serving  sync.WaitGroup
	closing  bool
}

// running is the state of Run that a reload changes.
type running struct {
	listeners map[string]*unixsocket.Listener // by path
	watcher   *unixsocket.HangUpWatcher
	accepting sync.WaitGroup
	left      sync.WaitGroup          // what reloads removed but still runs: sessions, databases
	stop      context.Context         // done when Run begins to stop
	fail      context.CancelCauseFunc // ends stop
	work      context.Context         // done when no session is left
	hard      context.Context         // done when the time for the last commits is over
}

// system is what a Bridge uses of the operating system. Tests on a virtual clock replace it.
type system struct {
	clock  func() time.Duration                                    // never jumps; see heartbeat.BootTime
	listen func(s unixsocket.Config) (*unixsocket.Listener, error) // for a socket that was not inherited
}

// New checks the options and returns a Bridge that does not run. The error lists everything that is wrong with the
// options.
func New(o Options, log *slog.Logger) (*Bridge, error) {
	return newBridge(o, log, system{clock: heartbeat.BootTime, listen: unixsocket.Listen})
}

func newBridge(o Options, log *slog.Logger, sys system) (*Bridge, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	b := &Bridge{
		log:      log,
		system:   sys,
		began:    time.Now(),
		metrics:  metrics.New(),
		ready:    make(chan struct{}),
		aborted:  make(chan struct{}),
		sessions: make(map[*session]struct{}),
		users:    make(map[uint32]int),
	}
	b.runCtx, b.stopRun = context.WithCancel(context.Background())
	b.memory.Limit = func() int64 { return int64(b.plan.Load().opts.Limits.BufferMemory) }
	p := newPlan(o)
	for name, d := range o.Databases {
		if err := p.add(name, b.newDatabase(name, d)); err != nil {
			return nil, err
		}
	}
	b.plan.Store(p)
	b.label(p)
	return b, nil
}

// Ready is closed when every socket listens and the first connection attempt to each database has ended.
func (b *Bridge) Ready() <-chan struct{} { return b.ready }

// Abort ends a drain at once: Run closes all connections and returns. Leases stay valid for the restart grace.
func (b *Bridge) Abort() { b.abort.Do(func() { close(b.aborted) }) }

// Events returns the hub of what happens to the jobs of this sidecar.
func (b *Bridge) Events() *jobevents.Hub { return &b.events }

// Run serves until ctx is done, then drains. A drain hands out no more jobs. It waits until no connection holds a
// job or the drain timeout is over, and closes the connections without releasing anything. Run commits the
// remaining writes before it leaves the databases.
func (b *Bridge) Run(ctx context.Context) error {
	r, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer r.fail(nil)
	var stopWork, stopHard context.CancelFunc
	r.work, stopWork = context.WithCancel(context.Background())
	r.hard, stopHard = context.WithCancel(context.Background())
	defer stopWork()
	defer stopHard()

	var join sync.WaitGroup
	for _, db := range b.plan.Load().databases {
		join.Go(func() { db.Join(ctx) })
	}
	join.Wait()
	b.reload.Lock()
	for _, db := range b.plan.Load().databases {
		b.runDatabase(r, db)
	}
	for _, ln := range r.listeners {
		b.serve(r, ln)
	}
	b.running = r
	b.setListening(r)
	b.reload.Unlock()
	close(b.ready)

	<-r.stop.Done()
	b.draining.Store(true)
	b.stopRun()     // also ends a reload in progress, which can wait for a database
	b.reload.Lock() // waits for a reload in progress
	b.running = nil
	b.reload.Unlock()
	b.drain()
	err = closeAll(r.listeners)
	b.closeSessions()
	b.awaitSessions()
	r.left.Wait()
	stopWork()
	timer := time.AfterFunc(flushTimeout, stopHard)
	defer timer.Stop()
	for _, db := range b.plan.Load().databases {
		err = errors.Join(err, db.end())
	}
	err = errors.Join(err, r.watcher.Close())
	r.accepting.Wait()
	if cause := context.Cause(r.stop); ctx.Err() == nil && cause != nil {
		err = errors.Join(cause, err)
	}
	return err
}

// begin listens and creates the state of Run.
func (b *Bridge) begin(ctx context.Context) (*running, error) {
	lns, err := b.listenAll(&b.plan.Load().opts)
	if err != nil {
		return nil, err
	}
	r := &running{listeners: lns}
	r.stop, r.fail = context.WithCancelCause(ctx)
	r.watcher = unixsocket.NewHangUpWatcher(r.fail)
	return r, nil
}

// serve accepts connections on ln. b.reload is held.
func (b *Bridge) serve(r *running, ln *unixsocket.Listener) {
	r.accepting.Go(func() {
		if err := b.accept(ln, r.watcher); err != nil {
			r.fail(err)
		}
	})
}

// drain refuses claims and waits until no connection holds a job.
func (b *Bridge) drain() {
	for _, db := range b.plan.Load().databases {
		db.StopClaims(errDraining)
	}
	b.mu.Lock()
	for s := range b.sessions {
		s.sendEvent(protocol.EventDraining, nil)
	}
	b.mu.Unlock()
	timeout := time.NewTimer(max(b.plan.Load().opts.DrainTimeout, 0))
	defer timeout.Stop()
	check := time.NewTicker(drainCheck)
	defer check.Stop()
	for {
		if b.idle() {
			return
		}
		select {
		case <-check.C:
		case <-b.aborted:
			b.log.Warn("drain aborted", "event", "drain_aborted")
			return
		case <-timeout.C:
			b.log.Warn("drain timeout reached", "event", "drain_timeout")
			return
		}
	}
}

// drainCheck is how often a drain checks whether all jobs are settled.
const drainCheck = 20 * time.Millisecond

// idle reports whether no connection holds a job or waits for a reply.
func (b *Bridge) idle() bool {
	for _, db := range b.plan.Load().databases {
		if db.HeldBySessions() > 0 {
			return false
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.sessions {
		if len(s.slots) > s.watch.Asked() {
			return false
		}
	}
	return true
}

// lostInEvent is the maximum number of leases in one event. They fit the smallest max_reply.
const lostInEvent = 500

// reportLost sends lost leases to the sessions that asked for these events, and logs them.
func (b *Bridge) reportLost(db *database, lost map[*quota.Session][]lease.Held) {
	for a, gone := range lost {
		s := a.Client.(*session)
		db.logGone(s, gone)
		texts := make([]string, len(gone))
		for i, h := range gone {
			texts[i] = wirejob.FormatLease(db.Info.Database, h.Lease)
		}
		for part := range slices.Chunk(texts, lostInEvent) {
			s.sendEvent(protocol.EventLost, part)
		}
	}
}
