package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/databases"
	"github.com/qsidecar/qsidecar/internal/logging"
	"github.com/qsidecar/qsidecar/internal/traces"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// Daemon is a sidecar with its config, its databases and its listeners.
type Daemon struct {
	input     config.Input
	load      func() (config.Config, error)
	log       *logging.Log
	bridge    *bridge.Bridge
	bridgePtr atomic.Pointer[bridge.Bridge] // bridge, for goroutines that start before it exists
	admin     *admin
	traces    *traces.Exporter

	inherited         []*net.UnixListener
	version, revision string          // of the program
	manager           *serviceManager // nil: there is none to notify
	openFunc          databases.Opener
	checkFunc         func(ctx context.Context, c *config.Config, log *slog.Logger) []protocol.Finding // nil: none
	checking          sync.Mutex                                                                       // held while a check runs
	openTimeout       time.Duration                                                                    // after which the start continues without an unreachable database; 0: it fails

	mu       sync.Mutex // not held while databases open
	config   config.Config
	sources  config.Snapshot
	rejected config.Snapshot    // the files that were rejected last
	open     map[string]*openDB // by name
	loading  *pendingReload     // the running reload; nil: none

	stateMu     sync.Mutex // guards the fields below, which are read during a reload
	generation  int64
	loadedAt    time.Time // when the running config was loaded
	reloadErr   error     // why the newest files were rejected; nil: they run
	reloadErrAt time.Time
	history     []protocol.Reload // the oldest first, at most maxHistory

	stopTimeout atomic.Int64 // stopTimeout of the running config, in nanoseconds

	closing sync.WaitGroup // databases that a reload replaced
}

// stopMargin is the time for the last commits (5 s in the bridge) on a slow host.
const stopMargin = 15 * time.Second

// start loads the config, opens its databases and creates the bridge. It doesn't run the
// bridge.
func (d *Daemon) start(ctx context.Context) (err error) {
	var c config.Config
	if c, d.sources, err = config.ReadConsistent(d.input.File, d.load); err != nil {
		return err
	}
	d.log.Set(c.Log.Level.SlogLevel(), c.Log.JSON())
	for _, l := range c.Listen {
		if err := d.input.MakeSocketDir(l.Socket); err != nil {
			return err
		}
	}
	d.admin = newAdmin(d.registry(), d.input.MakeSocketDir, d.version, d.log.Logger)
	if _, err := d.admin.change(&c); err != nil { // first, because it reports the progress of the start
		return cmp.Or(d.servedElsewhere(&c), err)
	}
	defer func() {
		if err != nil {
			d.admin.close()
		}
	}()
	if d.open, err = d.openMissing(ctx, &c, nil, d.openTimeout); err != nil {
		return err
	}
	if d.bridge, err = bridge.New(d.options(&c, d.open), d.log.Logger); err != nil {
		return errors.Join(&config.Error{Err: fmt.Errorf("the configuration does not hold together:\n%w", err)}, d.close(nil))
	}
	d.bridgePtr.Store(d.bridge)
	d.config = c
	d.stateMu.Lock() // the listener already reads the metrics
	d.generation, d.loadedAt = 1, time.Now()
	d.remember([]string{"started"}, nil)
	d.stateMu.Unlock()
	d.stopTimeout.Store(int64(stopTimeout(&c)))
	d.bridge.SetControl(d)
	d.traces = traces.New(d.bridge.Events(), d.version, d.log.Logger)
	if err := d.traces.Configure(c.Traces.Endpoint); err != nil {
		return errors.Join(&config.Error{Err: err}, d.close(nil))
	}
	d.admin.setBridge(d.bridge, d.traces)
	return nil
}

// servedElsewhere returns an error if another sidecar serves one of the sockets. Such a sidecar usually has the port of the
// admin listener too, and the user must learn of the sidecar, not of the port.
func (d *Daemon) servedElsewhere(c *config.Config) error {
	if len(d.inherited) > 0 {
		return nil
	}
	for _, l := range c.Listen {
		if err := unixsocket.CheckFree(l.Socket); err != nil {
			return fmt.Errorf("socket %s: %w", l.Socket, err)
		}
	}
	return nil
}

// options returns the options of the bridge.
func (d *Daemon) options(c *config.Config, open map[string]*openDB) bridge.Options {
	all := make(map[string]backends.Backend, len(open))
	for name, o := range open {
		all[name] = o.Backend
	}
	opts := c.BridgeOptions(all)
	opts.Inherited = d.inherited
	opts.Server = "qsidecar/" + d.version
	for name, o := range open {
		database := opts.Databases[name]
		database.Replica = o.replica
		database.Done = func() { d.closing.Go(func() { d.closeReplaced(name, o) }) }
		opts.Databases[name] = database
	}
	return opts
}

// close closes the databases after the bridge has ended, and waits for those that reloads
// replaced.
func (d *Daemon) close(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.traces != nil {
		d.traces.Close()
	}
	err = errors.Join(err, closeUnused(d.open, nil)) // unblocks the replaced databases
	d.closing.Wait()
	d.admin.close()
	return err
}

// Config implements bridge.Control.
func (d *Daemon) Config() (generation int64, failed error, since time.Time) {
	d.stateMu.Lock()
	defer d.stateMu.Unlock()
	return d.generation, d.reloadErr, d.reloadErrAt
}

// Admin implements bridge.Control.
func (d *Daemon) Admin() string { return d.admin.address() }

// Page implements bridge.Control.
func (d *Daemon) Page() string { return d.admin.pageURL() }

// loadNonEmpty loads the config with its snapshot, and rejects an empty file.
func (d *Daemon) loadNonEmpty() (c config.Config, src config.Snapshot, err error) {
	if c, src, err = config.ReadConsistent(d.input.File, d.load); err == nil {
		err = d.input.CheckNotEmpty()
	}
	return c, src, err
}

// stopTimeout returns the longest duration of an orderly exit: the drain, settles that wait
// for an unreachable database, and the last writes.
func stopTimeout(c *config.Config) time.Duration {
	lease := time.Duration(0)
	for _, d := range c.Databases {
		lease = max(lease, time.Duration(d.SidecarTimeout))
	}
	return time.Duration(c.DrainTimeout) + lease + stopMargin
}
