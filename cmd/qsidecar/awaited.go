package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// awaited stands for a database that could not be reached when the sidecar started: what
// asks it is told that it is unavailable, and why, until it was reached. A sidecar that
// ended instead would keep its pod, or its host, from starting while a database restarts.
type awaited struct {
	backends.Absent
	last *atomic.Pointer[error] // why it could not be had last
}

func newAwaited(c *config, name string, why error) *awaited {
	last := new(atomic.Pointer[error])
	last.Store(&why)
	engine := ""
	if u, err := parseDatabaseURL(c.Databases[name].URL); err == nil {
		engine = u.name
	}
	return &awaited{last: last, Absent: backends.Absent{
		About: backends.Info{Engine: engine, Place: "not reached yet"},
		Why:   func() error { return *last.Load() },
	}}
}

// mayAwait reports whether err is that the database is away just now. A file of this host
// is there or is not.
func (c *config) mayAwait(name string, err error) bool {
	u, parsed := parseDatabaseURL(c.Databases[name].URL)
	return err != nil && backends.IsAway(err) && parsed == nil && !u.file
}

const (
	awaitFirst = 200 * time.Millisecond
	awaitMost  = 2 * time.Second // it is there again for workers as soon as that
)

// await looks for databases that were not reached at the start, until all are there or
// ctx is done.
func (p *instance) await(ctx context.Context) {
	select {
	case <-p.b.Ready():
	case <-ctx.Done():
		return
	}
	for pause := awaitFirst; len(p.missing()) > 0; pause = min(2*pause, awaitMost) {
		select {
		case <-time.After(pause):
			p.arrive(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// missing are the databases that were not reached yet, by name.
func (p *instance) missing() map[string]*openDB {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := maps.Clone(p.open)
	maps.DeleteFunc(all, func(_ string, o *openDB) bool {
		_, waits := o.Backend.(*awaited)
		return !waits
	})
	return all
}

// arrive opens those that are there by now.
func (p *instance) arrive(ctx context.Context) {
	for name, place := range p.missing() {
		p.mu.Lock()
		c := p.config
		p.mu.Unlock()
		if err := p.reach(ctx, &c, name, place); err != nil {
			p.stillAway(name, place.Backend.(*awaited), err)
		}
	}
}

// reach opens one, which takes as long as it takes, and has the sidecar use it.
func (p *instance) reach(ctx context.Context, c *config, name string, place *openDB) error {
	by, err := c.openedBy(name)
	if err != nil {
		return err
	}
	b, err := openAdopted(ctx, c, name, p.log)
	if err != nil {
		return err
	}
	return p.put(name, place, &openDB{Backend: b, by: by})
}

// put has the sidecar use a database that was awaited. One that a reload replaced
// meanwhile is closed again.
func (p *instance) put(name string, place, next *openDB) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[name] != place {
		return next.Close()
	}
	open := maps.Clone(p.open)
	open[name] = next
	succeed(open, p.open)
	if err := p.b.Reload(p.options(&p.config, open)); err != nil {
		return errors.Join(err, next.Close())
	}
	p.open = open
	info := next.Info()
	p.log.Info("the database was reached", "database", name, "engine", info.Engine, "place", info.Place)
	_, failed, _ := p.Config()
	p.tell(failed)
	return nil
}

// stillAway remembers why, for whoever asks, and logs what is new of it.
func (p *instance) stillAway(name string, a *awaited, err error) {
	last := *a.last.Swap(&err)
	if !backends.IsAway(err) && fmt.Sprint(last) != fmt.Sprint(err) {
		p.log.Error("the database is there, and cannot be used; trying again", "database", name, "error", err)
	}
}
