package main

import (
	"bytes"
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
)

// instance is a sidecar that runs, and the config that it runs by.
type instance struct {
	setup setup
	read  func(setup) (config, error)
	ready func(socket string) error // makes the place of a socket
	log   *slog.Logger
	logs  *logSettings
	b     *bridge.Bridge
	made  atomic.Pointer[bridge.Bridge] // b, for who does not know whether it was made
	admin *admin

	inherited []*net.UnixListener
	manager   *manager // nil: nobody is told
	opens     opener
	patience  time.Duration // for what cannot be reached at the start, which is then awaited; 0: none

	mu      sync.Mutex // not held while databases open
	config  config
	sources sources
	refused sources            // what the files had when they were not taken last
	open    map[string]*openDB // by name
	under   *loading           // the reload under way; nil: none

	state      sync.Mutex // of what follows, which is told while a reload goes on
	generation int64
	takenAt    time.Time // the config that runs
	failed     error     // why the newest files were not taken; nil: they run
	failedAt   time.Time

	longest atomic.Int64 // config.stopsWithin of the one that runs

	closing sync.WaitGroup // databases that are not in use any more
}

// stopMargin is for the last commits (bridge: 5 s), and for a slow host.
const stopMargin = 15 * time.Second

// openDB is an open database, and all of the config that it was opened by.
type openDB struct {
	backends.Backend
	by string
}

// start reads the config, opens its databases and makes the Bridge. It runs nothing.
func (p *instance) start(ctx context.Context) (err error) {
	var c config
	if c, p.sources, err = p.steady(); err != nil {
		return err
	}
	p.logs.set(c.Log)
	for _, l := range c.Listen {
		if err := p.ready(l.Socket); err != nil {
			return err
		}
	}
	p.admin = newAdmin(p.registry(), p.ready, p.log)
	if _, err := p.admin.change(c.Admin); err != nil { // first: it tells how the start goes on
		return err
	}
	defer func() {
		if err != nil {
			p.admin.close()
		}
	}()
	if p.open, err = p.openMissing(ctx, &c, nil, p.patience); err != nil {
		return err
	}
	if p.b, err = bridge.New(p.options(&c, p.open), p.log); err != nil {
		return errors.Join(&usageError{fmt.Errorf("the configuration does not hold together:\n%w", err)}, p.close(nil))
	}
	p.made.Store(p.b)
	p.config = c
	p.state.Lock() // the metrics are asked already
	p.generation, p.takenAt = 1, time.Now()
	p.state.Unlock()
	p.longest.Store(int64(c.stopsWithin()))
	p.b.SetControl(p)
	p.admin.begin(p.b)
	return nil
}

// openMissing is the databases of c: those of `have` that c has in the very same way, and
// others that it opens, all at a time. With an error what it opened is closed again. One that
// cannot be reached is an error, unless there is patience: then it is awaited, and so is one
// that takes longer than that to open.
func (p *instance) openMissing(ctx context.Context, c *config, have map[string]*openDB, patience time.Duration) (map[string]*openDB, error) {
	all := make(map[string]*openDB, len(c.Databases))
	under := make(map[string]*attempt)
	var errs error
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) {
		by, err := c.openedBy(name)
		if err != nil {
			errs = errors.Join(errs, c.inDatabase(name, err))
		} else if o := openBy(have, by); o != nil {
			all[name] = o
		} else {
			under[name] = p.attempt(ctx, *c, name, by)
		}
	}
	until, cancel := ctx, context.CancelFunc(func() {})
	if patience > 0 {
		until, cancel = context.WithTimeoutCause(ctx, patience, fmt.Errorf("it is not open after %v", patience))
	}
	defer cancel()
	for _, name := range slices.Sorted(maps.Keys(under)) {
		b, err := under[name].within(until, c, name, patience > 0)
		if err != nil {
			errs = errors.Join(errs, c.inDatabase(name, err))
			continue
		}
		all[name] = &openDB{Backend: b, by: under[name].by}
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
func openBy(have map[string]*openDB, by string) *openDB {
	for _, o := range have {
		if o.by == by {
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
func succeed(open, before map[string]*openDB) {
	for _, o := range open {
		for _, was := range before {
			last, did := was.Backend.(*adopted.Store)
			if !did || o == was || o.Info().Database != last.Info().Database {
				continue
			}
			next, adopts := o.Backend.(*adopted.Store)
			if engine, can := o.Backend.(backends.Adopter); !adopts && can {
				next = adopted.Empty(engine)
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
func limitHeld(open map[string]*openDB, c *config) {
	for name, o := range open {
		if store, adopts := o.Backend.(*adopted.Store); adopts {
			store.SetMaxHeld(c.Databases[name].MaxHeld)
		}
	}
}

// options are the Bridge's.
func (p *instance) options(c *config, open map[string]*openDB) bridge.Options {
	all := make(map[string]backends.Backend, len(open))
	for name, o := range open {
		all[name] = o.Backend
	}
	opts := c.options(all)
	opts.Inherited = p.inherited
	for name, o := range open {
		d := opts.Databases[name]
		d.Done = func() { p.closing.Go(func() { p.closeLate(name, o) }) }
		opts.Databases[name] = d
	}
	return opts
}

// closeLate closes a database that a reload took out of use.
func (p *instance) closeLate(name string, o *openDB) {
	if err := o.Close(); err != nil {
		p.log.Warn("closing a database that is not in use any more", "database", name, "error", err)
	}
}

// close closes what is open, after the Bridge has ended, and waits for what reloads closed.
func (p *instance) close(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err = errors.Join(err, closeUnused(p.open, nil)) // which lets go what the others wait for
	p.closing.Wait()
	p.admin.close()
	return err
}

// Config implements bridge.Control.
func (p *instance) Config() (generation int64, failed error, since time.Time) {
	p.state.Lock()
	defer p.state.Unlock()
	return p.generation, p.failed, p.failedAt
}

// Admin implements bridge.Control.
func (p *instance) Admin() string { return p.admin.address() }

// unsteady is how often files may be different from one reading to the next.
const unsteady = 10

var (
	errUnsteady = errors.New("the config's files change while they are read")
	// errEmptyConfig: whoever writes a file in place empties it first.
	errEmptyConfig = errors.New("the config file is empty: it is taken for one that is just being written (for the defaults, a comment will do)")
)

// look is steady, and wants something in the config file.
func (p *instance) look() (c config, src sources, err error) {
	if c, src, err = p.steady(); err == nil {
		err = p.hasText()
	}
	return c, src, err
}

// steady reads the files, all as they were at one time: what changes from then on is found
// by comparing them with src.
func (p *instance) steady() (c config, src sources, err error) {
	for range unsteady {
		before := src
		if c, err = p.read(p.setup); err != nil {
			return c, src, err
		}
		if src, err = readSources(p.setup, &c); err != nil {
			return c, src, err
		}
		if src.same(before) {
			return c, src, nil
		}
	}
	return c, src, errUnsteady
}

// hasText wants something in the config file.
func (p *instance) hasText() error {
	if p.setup.config == "" {
		return nil
	}
	text, err := readFile(p.setup.config)
	if err == nil && len(bytes.TrimSpace(text)) == 0 {
		err = errEmptyConfig
	}
	return err
}

// stopsWithin is how long an orderly exit takes at most: the drain, settles that wait for
// a database that is away, and what is left to write.
func (c *config) stopsWithin() time.Duration {
	lease := time.Duration(0)
	for _, d := range c.Databases {
		lease = max(lease, time.Duration(d.HostLease))
	}
	return time.Duration(c.DrainTimeout) + lease + stopMargin
}
