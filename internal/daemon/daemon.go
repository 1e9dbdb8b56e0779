package daemon

import (
	"context"
	"errors"
	"fmt"
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
)

// Daemon is a sidecar that runs, and the config that it runs by.
type Daemon struct {
	input     config.Input
	load      func() (config.Config, error)
	log       *logging.Log
	bridge    *bridge.Bridge
	bridgePtr atomic.Pointer[bridge.Bridge] // b, for who does not know whether it was made
	admin     *admin

	inherited         []*net.UnixListener
	version, revision string          // of the program
	manager           *serviceManager // nil: nobody is told
	openFunc          databases.Opener
	openTimeout       time.Duration // for what cannot be reached at the start, which is then awaited; 0: none

	mu       sync.Mutex // not held while databases open
	config   config.Config
	sources  config.Snapshot
	rejected config.Snapshot    // what the files had when they were not taken last
	open     map[string]*openDB // by name
	loading  *pendingReload     // the reload under way; nil: none

	stateMu     sync.Mutex // of what follows, which is told while a reload goes on
	generation  int64
	loadedAt    time.Time // the config that runs
	reloadErr   error     // why the newest files were not taken; nil: they run
	reloadErrAt time.Time

	stopTimeout atomic.Int64 // config.stopsWithin of the one that runs

	closing sync.WaitGroup // databases that are not in use any more
}

// stopMargin is for the last commits (bridge: 5 s), and for a slow host.
const stopMargin = 15 * time.Second

// openDB is an open database, and all of the config that it was opened by.
type openDB struct {
	backends.Backend
	key string
}

// start reads the config, opens its databases and makes the Bridge. It runs nothing.
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
	p.admin = newAdmin(p.registry(), p.input.MakeSocketDir, p.log.Logger)
	if _, err := p.admin.change(c.Admin); err != nil { // first: it tells how the start goes on
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
	p.stateMu.Lock() // the metrics are asked already
	p.generation, p.loadedAt = 1, time.Now()
	p.stateMu.Unlock()
	p.stopTimeout.Store(int64(stopTimeout(&c)))
	p.bridge.SetControl(p)
	p.admin.setBridge(p.bridge)
	return nil
}

// openMissing is the databases of c: those of `have` that c has in the very same way, and
// others that it opens, all at a time. With an error what it opened is closed again. One that
// cannot be reached is an error, unless there is patience: then it is awaited, and so is one
// that takes longer than that to open.
func (p *Daemon) openMissing(ctx context.Context, c *config.Config, have map[string]*openDB, patience time.Duration) (map[string]*openDB, error) {
	all := make(map[string]*openDB, len(c.Databases))
	under := make(map[string]*openAttempt)
	var errs error
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) {
		by, err := c.OpenKey(name)
		if err != nil {
			errs = errors.Join(errs, c.ErrorIn(name, err))
		} else if o := findOpen(have, by); o != nil {
			all[name] = o
		} else {
			under[name] = p.startOpen(ctx, *c, name, by)
		}
	}
	until, cancel := ctx, context.CancelFunc(func() {})
	if patience > 0 {
		until, cancel = context.WithTimeoutCause(ctx, patience, fmt.Errorf("it is not open after %v", patience))
	}
	defer cancel()
	for _, name := range slices.Sorted(maps.Keys(under)) {
		b, err := under[name].wait(until, c, name, patience > 0)
		if err != nil {
			errs = errors.Join(errs, c.ErrorIn(name, err))
			continue
		}
		all[name] = &openDB{Backend: b, key: under[name].key}
	}
	if ctx.Err() != nil {
		errs = errors.Join(errs, context.Cause(ctx))
	}
	if errs != nil {
		return nil, errors.Join(errs, closeUnused(all, have))
	}
	return all, nil
}

// openBy is the database that was opened in that very way, whatever it was called; nil:
// there is none.
func findOpen(have map[string]*openDB, by string) *openDB {
	for _, o := range have {
		if o.key == by {
			return o
		}
	}
	return nil
}

// closeUnused closes those of all that are not in use.
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

// succeed has databases that are opened anew go on with the jobs of adopted tables that were
// claimed in them, also where no queue is in such a table any more.
func inheritClaims(open, before map[string]*openDB) {
	for _, o := range open {
		for _, was := range before {
			last, did := was.Backend.(*adopted.Store)
			if !did || o == was || o.Info().Database != last.Info().Database {
				continue
			}
			next, adopts := o.Backend.(*adopted.Store)
			if engine, can := o.Backend.(backends.Adopter); !adopts && can {
				next = adopted.Bare(engine)
				o.Backend = next
			}
			if next != nil {
				next.Succeed(last)
			}
		}
	}
}

// limitHeld has the databases hold as many jobs as c says: what they share with those before
// must not change where c is refused.
func setMaxHeld(open map[string]*openDB, c *config.Config) {
	for name, o := range open {
		if store, adopts := o.Backend.(*adopted.Store); adopts {
			store.SetMaxHeld(c.Databases[name].MaxHeld)
		}
	}
}

// options are the Bridge's.
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
		d.Done = func() { p.closing.Go(func() { p.closeReplaced(name, o) }) }
		opts.Databases[name] = d
	}
	return opts
}

// closeLate closes a database that a reload took out of use.
func (p *Daemon) closeReplaced(name string, o *openDB) {
	if err := o.Close(); err != nil {
		p.log.Warn("closing a database that is not in use any more", "database", name, "error", err)
	}
}

// close closes what is open, after the Bridge has ended, and waits for what reloads closed.
func (p *Daemon) close(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err = errors.Join(err, closeUnused(p.open, nil)) // which lets go what the others wait for
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

// look is steady, and wants something in the config file.
func (p *Daemon) loadNonEmpty() (c config.Config, src config.Snapshot, err error) {
	if c, src, err = config.ReadConsistent(p.input.File, p.load); err == nil {
		err = p.input.CheckNotEmpty()
	}
	return c, src, err
}

// stopsWithin is how long an orderly exit takes at most: the drain, settles that wait for
// a database that is away, and what is left to write.
func stopTimeout(c *config.Config) time.Duration {
	lease := time.Duration(0)
	for _, d := range c.Databases {
		lease = max(lease, time.Duration(d.HostLease))
	}
	return time.Duration(c.DrainTimeout) + lease + stopMargin
}
