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
	"github.com/qsidecar/qsidecar/internal/databases"
)

// pendingDatabase replaces a database that is unreachable when the sidecar starts. Requests
// get `unavailable` with the reason until the database was opened. A sidecar that exited
// instead would stop its pod or host from starting during a restart of the database.
type pendingDatabase struct {
	backends.Offline
	lastErr *atomic.Pointer[error]       // of the last attempt to open it
	first   *atomic.Pointer[openAttempt] // the attempt that the start didn't wait for; nil: a goroutine has taken it
}

// openTimeout is how long the start waits for a database. It is longer than a connection can
// take (10 s). Longer work, such as an index build on a large table, continues while the
// sockets are served.
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
func (p *pendingDatabase) Close() error {
	t := p.first.Swap(nil)
	if t == nil {
		return nil
	}
	t.cancel()
	<-t.done
	if t.err != nil {
		return nil // canceled
	}
	return t.b.Close()
}

// openAttempt is a database that is being opened.
type openAttempt struct {
	key     string // of the config that opens it
	cancel  context.CancelFunc
	done    chan struct{} // closed when the fields below are set
	b       backends.Backend
	replica backends.Replica // not connected; nil: none
	err     error
}

// startOpen opens a database in the background, until ctx ends.
func (d *Daemon) startOpen(ctx context.Context, c config.Config, name, key string) *openAttempt {
	ctx, cancel := context.WithCancel(ctx)
	t := &openAttempt{key: key, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		defer cancel()
		t.replica = databases.NewReplica(&c, name, d.log.Logger)
		t.b, t.err = d.openFunc(ctx, &c, name, d.log.Logger)
	}()
	return t
}

// wait returns the result of the attempt. If pending is set and the database is unreachable,
// or not open when until ends, wait returns a pendingDatabase.
func (o *openAttempt) wait(until context.Context, c *config.Config, name string, pending bool) (backends.Backend, error) {
	_, isFile := c.Engine(name)
	pending = pending && !isFile
	select {
	case <-o.done:
	case <-until.Done():
		if pending {
			return newPending(c, name, backends.Unavailable(context.Cause(until)), o), nil
		}
		<-o.done
	}
	if pending && backends.IsUnreachable(o.err) {
		return newPending(c, name, o.err, nil), nil
	}
	return o.b, o.err
}

const (
	firstRetryDelay = 200 * time.Millisecond
	maxRetryDelay   = 2 * time.Second // workers notice a recovered database after at most this long
)

// retryPending opens each pending database in its own goroutine, until all are open or ctx
// ends.
func (d *Daemon) retryPending(ctx context.Context) {
	select {
	case <-d.bridge.Ready():
	case <-ctx.Done():
		return
	}
	d.mu.Lock()
	open := maps.Clone(d.open)
	d.mu.Unlock()
	var all sync.WaitGroup
	for _, slot := range open {
		if a, waits := slot.Backend.(*pendingDatabase); waits {
			all.Go(func() { d.retryOne(ctx, slot, a) })
		}
	}
	all.Wait()
}

// retryOne opens the database that a replaces in slot.
func (d *Daemon) retryOne(ctx context.Context, slot *openDB, a *pendingDatabase) {
	if t := a.first.Load(); t != nil {
		select {
		case <-t.done:
		case <-ctx.Done():
			return // a.Close ends the attempt
		}
		if !a.first.CompareAndSwap(t, nil) || d.finishOpen(slot, a, t) {
			return
		}
	}
	for pause := firstRetryDelay; ; pause = min(2*pause, maxRetryDelay) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		name, c := d.nameAndConfig(slot)
		if name == "" {
			return
		}
		t := &openAttempt{}
		if t.key, t.err = c.OpenKey(name); t.err == nil {
			t = d.startOpen(ctx, c, name, t.key)
			<-t.done
		}
		if d.finishOpen(slot, a, t) {
			return
		}
	}
}

// nameAndConfig returns the name of the database in slot, and the running config. The name
// is empty if a reload removed the database.
func (d *Daemon) nameAndConfig(slot *openDB) (string, config.Config) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return nameIn(d.open, slot), d.config
}

func nameIn(open map[string]*openDB, slot *openDB) string {
	for name, o := range open {
		if o == slot {
			return name
		}
	}
	return ""
}

// finishOpen puts the result of an attempt into slot. It returns false if the attempt
// failed.
func (d *Daemon) finishOpen(slot *openDB, a *pendingDatabase, t *openAttempt) bool {
	err := t.err
	if err == nil {
		err = d.replace(slot, &openDB{Backend: t.b, replica: t.replica, key: t.key})
	}
	if err != nil {
		name, _ := d.nameAndConfig(slot)
		d.recordOpenError(name, a, err)
	}
	return err == nil
}

// replace puts an opened database into slot. It closes the database if a reload has removed
// slot.
func (d *Daemon) replace(slot, next *openDB) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := nameIn(d.open, slot)
	if name == "" {
		return next.Close()
	}
	open := maps.Clone(d.open)
	open[name] = next
	inheritClaims(open, d.open)
	if err := d.bridge.Reload(d.options(&d.config, open)); err != nil {
		return errors.Join(err, next.Close())
	}
	d.open = open
	info := next.Info()
	d.log.Info("database reached", "event", "database_reached", "database", name, "engine", info.Engine, "address", info.Address)
	_, failed, _ := d.Config()
	d.reportStatus(failed)
	return nil
}

// recordOpenError records why a database isn't open, and logs new errors.
func (d *Daemon) recordOpenError(name string, a *pendingDatabase, err error) {
	last := *a.lastErr.Swap(&err)
	if !backends.IsUnreachable(err) && fmt.Sprint(last) != fmt.Sprint(err) {
		d.log.Error("database unusable, retrying", "event", "database_unusable", "database", name, "error", err)
	}
}
