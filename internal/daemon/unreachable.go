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
type pendingDatabase struct {
	backends.Offline
	lastErr *atomic.Pointer[error]       // why it could not be had last
	first   *atomic.Pointer[openAttempt] // the one that the start did not wait for; nil: somebody took it
}

// openPatience is how long a start waits for a database: longer than one that is there
// takes to say who it is, and than a connection may take (10 s). What goes on for longer, as
// the building of an index on a large table, goes on while the sockets are served.
const openTimeout = 15 * time.Second

func newPending(c *config.Config, name string, why error, first *openAttempt) *pendingDatabase {
	a := &pendingDatabase{lastErr: new(atomic.Pointer[error]), first: new(atomic.Pointer[openAttempt])}
	a.lastErr.Store(&why)
	a.first.Store(first)
	a.About.Engine, _ = c.Engine(name)
	a.About.Address = "not reached yet"
	a.Why = func() error { return *a.lastErr.Load() }
	return a
}

// Close implements backends.Backend.
func (a *pendingDatabase) Close() error {
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
type openAttempt struct {
	key    string // all of the config that it is opened by
	cancel context.CancelFunc
	done   chan struct{} // closed when what follows is known
	b      backends.Backend
	err    error
}

// attempt begins to open a database, which takes as long as it takes, or until ctx is done.
func (p *Daemon) startOpen(ctx context.Context, c config.Config, name, by string) *openAttempt {
	ctx, cancel := context.WithCancel(ctx)
	t := &openAttempt{key: by, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		defer cancel()
		t.b, t.err = p.openFunc(ctx, &c, name, p.log.Logger)
	}()
	return t
}

// within is what the attempt brings until that context is done. patient: what is away by
// then, or still being opened, is awaited.
func (t *openAttempt) wait(until context.Context, c *config.Config, name string, patient bool) (backends.Backend, error) {
	_, isFile := c.Engine(name)
	patient = patient && !isFile
	select {
	case <-t.done:
	case <-until.Done():
		if patient {
			return newPending(c, name, backends.Unavailable(context.Cause(until)), t), nil
		}
		<-t.done
	}
	if patient && backends.IsUnreachable(t.err) {
		return newPending(c, name, t.err, nil), nil
	}
	return t.b, t.err
}

const (
	retryDelayMin = 200 * time.Millisecond
	retryDelayMax = 2 * time.Second // it is there again for workers as soon as that
)

// await looks for databases that were not reached at the start, each by itself, until all
// are there or ctx is done.
func (p *Daemon) retryPending(ctx context.Context) {
	select {
	case <-p.bridge.Ready():
	case <-ctx.Done():
		return
	}
	p.mu.Lock()
	open := maps.Clone(p.open)
	p.mu.Unlock()
	var all sync.WaitGroup
	for _, place := range open {
		if a, waits := place.Backend.(*pendingDatabase); waits {
			all.Go(func() { p.retryOne(ctx, place, a) })
		}
	}
	all.Wait()
}

// awaitOne looks for the database that a stands for in that place.
func (p *Daemon) retryOne(ctx context.Context, place *openDB, a *pendingDatabase) {
	if t := a.first.Load(); t != nil {
		select {
		case <-t.done:
		case <-ctx.Done():
			return // whoever closes a ends it
		}
		if !a.first.CompareAndSwap(t, nil) || p.finishOpen(place, a, t) {
			return
		}
	}
	for pause := retryDelayMin; ; pause = min(2*pause, retryDelayMax) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		name, c := p.nameAndConfig(place)
		if name == "" {
			return
		}
		t := &openAttempt{}
		if t.key, t.err = c.OpenKey(name); t.err == nil {
			t = p.startOpen(ctx, c, name, t.key)
			<-t.done
		}
		if p.finishOpen(place, a, t) {
			return
		}
	}
}

// stands is the name of the database in that place, by the config that runs; empty: a reload
// took it out.
func (p *Daemon) nameAndConfig(place *openDB) (string, config.Config) {
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
func (p *Daemon) finishOpen(place *openDB, a *pendingDatabase, t *openAttempt) bool {
	err := t.err
	if err == nil {
		err = p.replace(place, &openDB{Backend: t.b, key: t.key})
	}
	if err != nil {
		name, _ := p.nameAndConfig(place)
		p.recordOpenError(name, a, err)
	}
	return err == nil
}

// put has the sidecar use a database that was awaited. One that a reload replaced
// meanwhile is closed again.
func (p *Daemon) replace(place, next *openDB) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := nameIn(p.open, place)
	if name == "" {
		return next.Close()
	}
	open := maps.Clone(p.open)
	open[name] = next
	inheritClaims(open, p.open)
	if err := p.bridge.Reload(p.options(&p.config, open)); err != nil {
		return errors.Join(err, next.Close())
	}
	p.open = open
	info := next.Info()
	p.log.Info("the database was reached", "database", name, "engine", info.Engine, "place", info.Address)
	_, failed, _ := p.Config()
	p.reportStatus(failed)
	return nil
}

// stillAway remembers why, for whoever asks, and logs what is new of it.
func (p *Daemon) recordOpenError(name string, a *pendingDatabase, err error) {
	last := *a.lastErr.Swap(&err)
	if !backends.IsUnreachable(err) && fmt.Sprint(last) != fmt.Sprint(err) {
		p.log.Error("the database is there, and cannot be used; trying again", "database", name, "error", err)
	}
}
