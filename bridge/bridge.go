// Package bridge runs a sidecar: workers on one side, databases on the other.
//
// This package is the server: sockets, connections, reload, status and metrics. It starts a session
// (bridge/internal/session) for each connection, which carries out its requests, and a pipeline
// (bridge/internal/pipeline) for each database, which queues claims and groups commits. Both are given the current
// configuration as a plan (bridge/internal/plan). The package depends on the wire format (protocol) and on the interface
// of a job table (backends). It does not depend on any engine, config file, flag or signal.
//
// Start reading at Bridge.Run.
package bridge

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/session"
	"github.com/qsidecar/qsidecar/internal/jobevents"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// drainCheck is how often a drain, or the end of a removed database, checks whether all jobs are settled.
const drainCheck = 20 * time.Millisecond

// Bridge is one sidecar.
type Bridge struct {
	config  atomic.Pointer[config] // never nil
	control Control                // nil without a config
	began   time.Time
	log     *slog.Logger
	system  system
	ready   chan struct{}
	aborted chan struct{}
	abort   sync.Once

	metrics   *metrics.Set
	stopping  context.Context // done when Run begins to stop
	stop      context.CancelFunc
	lockCheck lockCheck

	reload  sync.Mutex // one change of the config at a time
	running *running   // nil: Run is not running, or stopping. reload guards it

	listening atomic.Pointer[map[string]*unixsocket.Listener] // nil: Run did not begin yet

	shared session.Shared // what all sessions use

	mu       sync.Mutex
	sessions map[*session.Session]struct{}
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

// Ready is closed when every socket listens and the first connection attempt to each database has ended.
func (b *Bridge) Ready() <-chan struct{} { return b.ready }

// Abort ends a drain at once: Run closes all connections and returns. Leases stay valid for the restart grace.
func (b *Bridge) Abort() { b.abort.Do(func() { close(b.aborted) }) }

// Events returns the hub of what happens to the jobs of this sidecar.
func (b *Bridge) Events() *jobevents.Hub { return &b.shared.Events }

// Control is the interface of a Bridge to the process that it runs in.
type Control interface {
	// Reload reads the config again and reloads the Bridge with it. It returns the changes as text for people. If
	// nothing changed, changes is empty and why gives the reason. After an error the previous config stays in use.
	// ctx is cancelled when the sidecar stops.
	Reload(ctx context.Context) (changes []string, why string, err error)

	// Config returns the number of the running config, counted from 1. If a newer config could not be applied, it
	// also returns the error and the time of the first failure; otherwise failed is nil.
	Config() (generation int64, failed error, since time.Time)

	// Report returns the reply to the ops config and check, which concern more than the Bridge. ctx is cancelled when
	// the reply can't be sent any more.
	Report(ctx context.Context, op protocol.Op) (*protocol.Reply, error)

	// Admin returns the address of metrics and health, or "" if they are not served.
	Admin() string
	// Page returns the URL of the web page, or "" if no proxy serves it.
	Page() string
}

// SetControl sets the Control that the ops reload, config, check and status use. Call it before Run. Without it reload,
// config and check are unsupported.
func (b *Bridge) SetControl(c Control) { b.control = c }
