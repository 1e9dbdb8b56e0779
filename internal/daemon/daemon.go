package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/databases"
	"github.com/qsidecar/qsidecar/internal/logging"
	"github.com/qsidecar/qsidecar/internal/traces"
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

// openDB is an open database, with the key of the config that opened it.
type openDB struct {
	backends.Backend
	replica backends.Replica // nil: none
	key     string
}

// Close closes the database and its replica.
func (o *openDB) Close() error {
	err := o.Backend.Close()
	if o.replica != nil {
		err = errors.Join(err, o.replica.Close())
	}
	return err
}

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
		return err
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

// openMissing returns the databases of c. It reuses those of have with the same key, and
// opens the others concurrently. If one fails, openMissing closes what it opened. If timeout
// is positive, it replaces a database that is unreachable, or not open by then, by a
// pendingDatabase.
func (d *Daemon) openMissing(ctx context.Context, c *config.Config, have map[string]*openDB, timeout time.Duration) (map[string]*openDB, error) {
	all := make(map[string]*openDB, len(c.Databases))
	opening := make(map[string]*openAttempt)
	var errs error
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) {
		key, err := c.OpenKey(name)
		if err != nil {
			errs = errors.Join(errs, c.ErrorIn(name, err))
		} else if o := findOpen(have, key); o != nil {
			all[name] = o
		} else {
			opening[name] = d.startOpen(ctx, *c, name, key)
		}
	}
	until, cancel := ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		until, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it is not open after %v", timeout))
	}
	defer cancel()
	for _, name := range slices.Sorted(maps.Keys(opening)) {
		b, err := opening[name].wait(until, c, name, timeout > 0)
		if err != nil {
			errs = errors.Join(errs, c.ErrorIn(name, err))
			continue
		}
		o := &openDB{Backend: b, key: opening[name].key}
		if _, waits := b.(*pendingDatabase); !waits {
			o.replica = opening[name].replica
		}
		all[name] = o
	}
	if ctx.Err() != nil {
		errs = errors.Join(errs, context.Cause(ctx))
	}
	if errs != nil {
		return nil, errors.Join(errs, closeUnused(all, have))
	}
	return all, nil
}

// findOpen returns the database that was opened with that key, or nil.
func findOpen(have map[string]*openDB, key string) *openDB {
	for _, o := range have {
		if o.key == key {
			return o
		}
	}
	return nil
}

// closeUnused closes the databases of all that are not in inUse.
func closeUnused(all, inUse map[string]*openDB) (err error) {
	used := slices.Collect(maps.Values(inUse))
	for name, o := range all {
		if slices.Contains(used, o) {
			continue
		}
		if e := o.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("closing the database %s: %w", name, e))
		}
	}
	return err
}

// checkNewTables returns an error if an adopted table of a database doesn't fit that is new, or has a new mapping. A start has
// no such error: it serves the queues that fit.
func checkNewTables(open, before map[string]*openDB) (all error) {
	for _, name := range slices.Sorted(maps.Keys(open)) {
		o := open[name]
		if slices.Contains(slices.Collect(maps.Values(before)), o) {
			continue
		}
		var last backends.Backend
		for _, old := range before {
			if old.Info().Database == o.Info().Database {
				last = old.Backend
			}
		}
		all = errors.Join(all, databases.CheckNewTables(name, o.Backend, last))
	}
	return all
}

// inheritClaims passes the claims on adopted tables from each replaced database to its
// successor, even if the successor adopts no table.
func inheritClaims(open, before map[string]*openDB) {
	for _, o := range open {
		for _, old := range before {
			last, oldAdopts := old.Backend.(*adopted.Store)
			if !oldAdopts || o == old || o.Info().Database != last.Info().Database {
				continue
			}
			next, adopts := o.Backend.(*adopted.Store)
			if engine, can := o.Backend.(backends.Engine); !adopts && can {
				next = adopted.Empty(engine)
				o.Backend = next
			}
			if next != nil {
				next.Succeed(last)
			}
		}
	}
}

// setMaxTransactions sets the limits of jobs claimed in transactions. It runs only after c was accepted, because
// replaced databases share these limits.
func setMaxTransactions(open map[string]*openDB, c *config.Config) {
	for name, o := range open {
		if store, adopts := o.Backend.(*adopted.Store); adopts {
			store.SetMaxTransactions(c.Databases[name].MaxTransactions)
		}
	}
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

// closeReplaced closes a database that a reload replaced.
func (d *Daemon) closeReplaced(name string, o *openDB) {
	if err := o.Close(); err != nil {
		d.log.Warn("can't close a replaced database", "event", "database_close_failed", "database", name, "error", err)
	}
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
