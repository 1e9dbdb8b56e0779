package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
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
	level *slog.LevelVar
	b     *bridge.Bridge

	mu      sync.Mutex // one reload at a time
	config  config
	sources sources
	open    map[string]*openDB // by name

	state      sync.Mutex // of what follows, which is told while a reload goes on
	generation int64
	failed     error // why the newest files were not taken; nil: they run
	failedAt   time.Time

	closing sync.WaitGroup // databases that are not in use any more
}

// openDB is an open database, and all of the config that it was opened by.
type openDB struct {
	backends.Backend
	by string
}

// start opens the databases of a config and makes the Bridge. It runs nothing.
func (p *instance) start(ctx context.Context, c config) (err error) {
	if p.sources, err = readSources(p.setup, &c); err != nil {
		return err
	}
	if p.open, err = p.openMissing(ctx, &c, nil); err != nil {
		return err
	}
	if p.b, err = bridge.New(p.options(&c, p.open), p.log); err != nil {
		return errors.Join(&usageError{fmt.Errorf("the configuration does not hold together:\n%w", err)}, p.close(nil))
	}
	p.config, p.generation = c, 1
	p.b.SetControl(p)
	return nil
}

// openMissing is the databases of c: those of `have` that c has in the very same way, and
// others that it opens. With an error what it opened is closed again.
func (p *instance) openMissing(ctx context.Context, c *config, have map[string]*openDB) (map[string]*openDB, error) {
	all := make(map[string]*openDB, len(c.Databases))
	var errs error
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) {
		by, err := c.openedBy(name)
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		if o := openBy(have, by); o != nil {
			all[name] = o
			continue
		}
		b, err := openAdopted(ctx, c, name, p.log)
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		all[name] = &openDB{Backend: b, by: by}
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

// succeed has databases that are opened anew go on with the jobs that are held in them.
func succeed(open, before map[string]*openDB) {
	for _, o := range open {
		next, adopts := o.Backend.(*adopted.Store)
		for _, was := range before {
			last, did := was.Backend.(*adopted.Store)
			if adopts && did && o != was && next.Info().Database == last.Info().Database {
				next.Succeed(last)
			}
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
	return err
}

// Config implements bridge.Control.
func (p *instance) Config() (generation int64, failed error, since time.Time) {
	p.state.Lock()
	defer p.state.Unlock()
	return p.generation, p.failed, p.failedAt
}

// Reload reads the files again and has the sidecar run by them, as a whole or not at
// all. The changes are what became different, for people; none: nothing did.
func (p *instance) Reload(ctx context.Context) (changes []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if src, err := readSources(p.setup, &p.config); err == nil && src.same(p.sources) {
		p.healed()
		return nil, nil
	}
	c, src, err := p.look()
	if err == nil {
		changes, err = p.take(ctx, c, src)
	}
	if err != nil {
		p.refuse(err)
		return nil, err
	}
	p.state.Lock()
	defer p.state.Unlock()
	p.generation++
	p.failed = nil
	p.log.Info("the config was reloaded", "generation", p.generation, "changes", strings.Join(changes, "; "))
	return changes, nil
}

// unsteady is how often files may be different from one reading to the next.
const unsteady = 10

var (
	errUnsteady = errors.New("the config's files change while they are read")
	// errEmptyConfig: whoever writes a file in place empties it first.
	errEmptyConfig = errors.New("the config file is empty: it is taken for one that is just being written (for the defaults, a comment will do)")
)

// look reads the files, all as they were at one time.
func (p *instance) look() (c config, src sources, err error) {
	for range unsteady {
		before := src
		if c, err = p.read(p.setup); err != nil {
			return c, src, err
		}
		if src, err = readSources(p.setup, &c); err != nil {
			return c, src, err
		}
		if src.same(before) {
			return c, src, p.hasText()
		}
	}
	return c, src, errUnsteady
}

// hasText wants something in the config file.
func (p *instance) hasText() error {
	if p.setup.config == "" {
		return nil
	}
	text, err := os.ReadFile(p.setup.config)
	if err == nil && len(bytes.TrimSpace(text)) == 0 {
		err = errEmptyConfig
	}
	return err
}

// take has the sidecar run by c. p.mu is held.
func (p *instance) take(ctx context.Context, c config, src sources) ([]string, error) {
	for _, l := range c.Listen {
		if err := p.ready(l.Socket); err != nil {
			return nil, err
		}
	}
	open, err := p.openMissing(ctx, &c, p.open)
	if err != nil {
		return nil, err
	}
	succeed(open, p.open)
	if err := p.b.Reload(p.options(&c, open)); err != nil {
		return nil, errors.Join(err, closeUnused(open, p.open))
	}
	changes := changesOf(p.config, c)
	if src.secrets != p.sources.secrets {
		changes = append(changes, "a secret")
	}
	p.level.Set(c.Log.Level.slog())
	p.config, p.sources, p.open = c, src, open
	return changes, nil
}

// refuse remembers why what the files say does not run. p.mu is held.
func (p *instance) refuse(err error) {
	p.state.Lock()
	defer p.state.Unlock()
	if p.failed == nil || p.failed.Error() != err.Error() {
		p.log.Error("the config was not reloaded: what ran before goes on", "generation", p.generation, "error", err)
	}
	p.failed, p.failedAt = err, time.Now()
}

// healed: the files say again what runs. p.mu is held.
func (p *instance) healed() {
	p.state.Lock()
	defer p.state.Unlock()
	if p.failed != nil {
		p.log.Info("the config files are again as they run", "generation", p.generation)
		p.failed = nil
	}
}
