package bridge

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/session"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// flushTimeout bounds how long an exit waits for the queued writes after the last session.
const flushTimeout = 5 * time.Second

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
		sessions: make(map[*session.Session]struct{}),
		users:    make(map[uint32]int),
	}
	b.stopping, b.stop = context.WithCancel(context.Background())
	b.shared.Sidecar, b.shared.Log = server{b}, log
	b.shared.Memory.Limit = func() int64 { return int64(b.config.Load().opts.Limits.BufferMemory) }
	databases := make(map[string]*database, len(o.Databases))
	for name, d := range o.Databases {
		databases[name] = b.newDatabase(name, d)
	}
	if err := checkTwins(databases); err != nil {
		return nil, err
	}
	c := newConfig(o, databases, nil)
	b.config.Store(c)
	b.label(c)
	return b, nil
}

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
	for _, db := range b.config.Load().databases {
		join.Go(func() { db.Join(ctx) })
	}
	join.Wait()
	b.reload.Lock()
	for _, db := range b.config.Load().databases {
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
	b.stop()        // also ends a reload in progress, which can wait for a database
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
	for _, db := range b.config.Load().databases {
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
	lns, err := b.listenAll(&b.config.Load().opts)
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
	for _, db := range b.config.Load().databases {
		db.StopClaims(session.ErrDraining)
	}
	b.mu.Lock()
	for s := range b.sessions {
		s.Notify(protocol.EventDraining)
	}
	b.mu.Unlock()
	timeout := time.NewTimer(max(b.config.Load().opts.DrainTimeout, 0))
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

// idle reports whether no connection holds a job or waits for a reply.
func (b *Bridge) idle() bool {
	for _, db := range b.config.Load().databases {
		if db.HeldBySessions() > 0 {
			return false
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.sessions {
		if s.Busy() {
			return false
		}
	}
	return true
}

// server is a Bridge as its sessions see it: it implements session.Sidecar.
type server struct{ b *Bridge }

func (s server) Plan() *plan.Plan          { return s.b.config.Load().Plan }
func (s server) Stopping() context.Context { return s.b.stopping }
func (s server) Status() *protocol.Status  { return s.b.status() }
func (s server) ForgetNames()              { s.b.forgetNames() }

func (s server) Control() session.Control {
	if s.b.control == nil {
		return nil
	}
	return s.b.control
}
