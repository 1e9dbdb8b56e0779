package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/config"
)

// awaited stands for a database that could not be reached when the sidecar started: what
// asks it is told that it is unavailable, and why, until it was reached. A sidecar that
// ended instead would keep its pod, or its host, from starting while a database restarts.
type awaited struct {
	backends.Offline
	last  *atomic.Pointer[error]   // why it could not be had last
	first *atomic.Pointer[attempt] // the one that the start did not wait for; nil: somebody took it
}

// openPatience is how long a start waits for a database: longer than one that is there
// takes to say who it is, and than a connection may take (10 s). What goes on for longer, as
// the building of an index on a large table, goes on while the sockets are served.
const openPatience = 15 * time.Second

func newAwaited(c *config.Config, name string, why error, first *attempt) *awaited {
	a := &awaited{last: new(atomic.Pointer[error]), first: new(atomic.Pointer[attempt])}
	a.last.Store(&why)
	a.first.Store(first)
	a.About.Engine, _ = c.Engine(name)
	a.About.Address = "not reached yet"
	a.Why = func() error { return *a.last.Load() }
	return a
}

// Close implements backends.Backend.
func (a *awaited) Close() error {
	t := a.first.Swap(nil)
	if t == nil {
		return nil
	}
	t.cancel()
	<-t.done
	if t.err != nil {
		return nil // it was to end
	}
	return t.b.Close()
}

// attempt is a database that is being opened.
type attempt struct {
	by     string // all of the config that it is opened by
	cancel context.CancelFunc
	done   chan struct{} // closed when what follows is known
	b      backends.Backend
	err    error
}

// attempt begins to open a database, which takes as long as it takes, or until ctx is done.
func (p *Daemon) attempt(ctx context.Context, c config.Config, name, by string) *attempt {
	ctx, cancel := context.WithCancel(ctx)
	t := &attempt{by: by, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		defer cancel()
		t.b, t.err = p.opens(ctx, &c, name, p.log.Logger)
	}()
	return t
}

// within is what the attempt brings until that context is done. patient: what is away by
// then, or still being opened, is awaited.
func (t *attempt) within(until context.Context, c *config.Config, name string, patient bool) (backends.Backend, error) {
	_, isFile := c.Engine(name)
	patient = patient && !isFile
	select {
	case <-t.done:
	case <-until.Done():
		if patient {
			return newAwaited(c, name, backends.Unavailable(context.Cause(until)), t), nil
		}
		<-t.done
	}
	if patient && backends.IsUnreachable(t.err) {
		return newAwaited(c, name, t.err, nil), nil
	}
	return t.b, t.err
}

const (
	awaitFirst = 200 * time.Millisecond
	awaitMost  = 2 * time.Second // it is there again for workers as soon as that
)

// await looks for databases that were not reached at the start, each by itself, until all
// are there or ctx is done.
func (p *Daemon) await(ctx context.Context) {
	select {
	case <-p.b.Ready():
	case <-ctx.Done():
		return
	}
	p.mu.Lock()
	open := maps.Clone(p.open)
	p.mu.Unlock()
	var all sync.WaitGroup
	for _, place := range open {
		if a, waits := place.Backend.(*awaited); waits {
			all.Go(func() { p.awaitOne(ctx, place, a) })
		}
	}
	all.Wait()
}

// awaitOne looks for the database that a stands for in that place.
func (p *Daemon) awaitOne(ctx context.Context, place *openDB, a *awaited) {
	if t := a.first.Load(); t != nil {
		select {
		case <-t.done:
		case <-ctx.Done():
			return // whoever closes a ends it
		}
		if !a.first.CompareAndSwap(t, nil) || p.arrived(place, a, t) {
			return
		}
	}
	for pause := awaitFirst; ; pause = min(2*pause, awaitMost) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		name, c := p.stands(place)
		if name == "" {
			return
		}
		t := &attempt{}
		if t.by, t.err = c.OpenKey(name); t.err == nil {
			t = p.attempt(ctx, c, name, t.by)
			<-t.done
		}
		if p.arrived(place, a, t) {
			return
		}
	}
}

// stands is the name of the database in that place, by the config that runs; empty: a reload
// took it out.
func (p *Daemon) stands(place *openDB) (string, config.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return nameIn(p.open, place), p.config
}

func nameIn(open map[string]*openDB, place *openDB) string {
	for name, o := range open {
		if o == place {
			return name
		}
	}
	return ""
}

// arrived has the sidecar use what an attempt brought, in that place. false: it brought nothing.
func (p *Daemon) arrived(place *openDB, a *awaited, t *attempt) bool {
	err := t.err
	if err == nil {
		err = p.put(place, &openDB{Backend: t.b, by: t.by})
	}
	if err != nil {
		name, _ := p.stands(place)
		p.stillAway(name, a, err)
	}
	return err == nil
}

// put has the sidecar use a database that was awaited. One that a reload replaced
// meanwhile is closed again.
func (p *Daemon) put(place, next *openDB) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := nameIn(p.open, place)
	if name == "" {
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
	p.log.Info("the database was reached", "database", name, "engine", info.Engine, "place", info.Address)
	_, failed, _ := p.Config()
	p.tell(failed)
	return nil
}

// stillAway remembers why, for whoever asks, and logs what is new of it.
func (p *Daemon) stillAway(name string, a *awaited, err error) {
	last := *a.last.Swap(&err)
	if !backends.IsUnreachable(err) && fmt.Sprint(last) != fmt.Sprint(err) {
		p.log.Error("the database is there, and cannot be used; trying again", "database", name, "error", err)
	}
}
