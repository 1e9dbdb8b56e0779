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
func (p *Daemon) start(ctx context.Context) (err error) {
	var c config.Config
	if c, p.sources, err = config.ReadConsistent(p.input.File, p.load); err != nil {
		return err
	}
	p.log.Set(c.Log.Level.SlogLevel(), c.Log.JSON())
	for _, l := range c.Listen {
		if err := p.input.MakeSocketDir(l.Socket); err != nil {
			return err
		}
	}
	p.admin = newAdmin(p.registry(), p.input.MakeSocketDir, p.version, p.log.Logger)
	if _, err := p.admin.change(&c); err != nil { // first, because it reports the progress of the start
		return err
	}
	defer func() {
		if err != nil {
			p.admin.close()
		}
	}()
	if p.open, err = p.openMissing(ctx, &c, nil, p.openTimeout); err != nil {
		return err
	}
	if p.bridge, err = bridge.New(p.options(&c, p.open), p.log.Logger); err != nil {
		return errors.Join(&config.Error{Err: fmt.Errorf("the configuration does not hold together:\n%w", err)}, p.close(nil))
	}
	p.bridgePtr.Store(p.bridge)
	p.config = c
	p.stateMu.Lock() // the listener already reads the metrics
	p.generation, p.loadedAt = 1, time.Now()
	p.remember([]string{"started"}, nil)
	p.stateMu.Unlock()
	p.stopTimeout.Store(int64(stopTimeout(&c)))
	p.bridge.SetControl(p)
	p.traces = traces.New(p.bridge.Events(), p.version, p.log.Logger)
	if err := p.traces.Configure(c.Traces.Endpoint); err != nil {
		return errors.Join(&config.Error{Err: err}, p.close(nil))
	}
	p.admin.setBridge(p.bridge, p.traces)
	return nil
}

// openMissing returns the databases of c. It reuses those of have with the same key, and
// opens the others concurrently. If one fails, openMissing closes what it opened. If timeout
// is positive, it replaces a database that is unreachable, or not open by then, by a
// pendingDatabase.
func (p *Daemon) openMissing(ctx context.Context, c *config.Config, have map[string]*openDB, timeout time.Duration) (map[string]*openDB, error) {
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
			opening[name] = p.startOpen(ctx, *c, name, key)
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
func (p *Daemon) options(c *config.Config, open map[string]*openDB) bridge.Options {
	all := make(map[string]backends.Backend, len(open))
	for name, o := range open {
		all[name] = o.Backend
	}
	opts := c.BridgeOptions(all)
	opts.Inherited = p.inherited
	opts.Server = "qsidecar/" + p.version
	for name, o := range open {
		d := opts.Databases[name]
		d.Replica = o.replica
		d.Done = func() { p.closing.Go(func() { p.closeReplaced(name, o) }) }
		opts.Databases[name] = d
	}
	return opts
}

// closeReplaced closes a database that a reload replaced.
func (p *Daemon) closeReplaced(name string, o *openDB) {
	if err := o.Close(); err != nil {
		p.log.Warn("can't close a replaced database", "event", "database_close_failed", "database", name, "error", err)
	}
}

// close closes the databases after the bridge has ended, and waits for those that reloads
// replaced.
func (p *Daemon) close(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.traces != nil {
		p.traces.Close()
	}
	err = errors.Join(err, closeUnused(p.open, nil)) // unblocks the replaced databases
	p.closing.Wait()
	p.admin.close()
	return err
}

// Config implements bridge.Control.
func (p *Daemon) Config() (generation int64, failed error, since time.Time) {
	p.stateMu.Lock()
	defer p.stateMu.Unlock()
	return p.generation, p.reloadErr, p.reloadErrAt
}

// Admin implements bridge.Control.
func (p *Daemon) Admin() string { return p.admin.address() }

// Page implements bridge.Control.
func (p *Daemon) Page() string { return p.admin.pageURL() }

// loadNonEmpty loads the config with its snapshot, and rejects an empty file.
func (p *Daemon) loadNonEmpty() (c config.Config, src config.Snapshot, err error) {
	if c, src, err = config.ReadConsistent(p.input.File, p.load); err == nil {
		err = p.input.CheckNotEmpty()
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
