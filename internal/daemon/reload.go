package daemon

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/config"
)

// pendingReload is a reload that opens databases, which can take minutes. It doesn't block
// the use of databases that become reachable. A reload of newer files cancels it.
type pendingReload struct {
	found  config.Snapshot // contents of the files
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the fields below are set

	changes []string
	why     string
	err     error
}

var errNewerConfig = errors.New("the files changed while their databases were being opened; the newer ones are loaded instead")

// Reload reads the files again and applies them as a whole or not at all. changes describes
// the differences. If there are none, why is the reason. If ctx ends, or the sidecar
// stops, the config is neither applied nor rejected.
//
// It also finds out whether the databases accept now what they refused, such as jobs for a table without a right.
func (d *Daemon) Reload(ctx context.Context) (changes []string, why string, err error) {
	if changes, why, err = d.reloadFiles(ctx); err == nil {
		d.recheck(ctx)
	}
	return changes, why, err
}

// recheck calls backends.Rechecker of the databases, at the same time.
func (d *Daemon) recheck(ctx context.Context) {
	d.mu.Lock()
	var all []backends.Rechecker
	for _, o := range d.open {
		if r, ok := o.Backend.(backends.Rechecker); ok {
			all = append(all, r)
		}
	}
	d.mu.Unlock()
	var checks sync.WaitGroup
	for _, r := range all {
		checks.Go(func() { r.Recheck(ctx) })
	}
	checks.Wait()
}

func (d *Daemon) reloadFiles(ctx context.Context) (changes []string, why string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found, err := config.ReadSnapshot(d.input.File, &d.config)
	ended := d.loading != nil
	for d.loading != nil {
		u := d.loading
		same := err == nil && found.Same(u.found)
		if !same {
			u.cancel(errNewerConfig)
		}
		if e := d.awaitReload(ctx, u); e != nil {
			return nil, "", e
		}
		if same {
			return u.changes, u.why, u.err
		}
		found, err = config.ReadSnapshot(d.input.File, &d.config)
	}
	if err == nil && found.Same(d.sources) {
		d.clearReloadError()
		if ended {
			d.reportStatus(nil)
		}
		return nil, d.unchangedReason(), nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	u := &pendingReload{found: found, cancel: cancel, done: make(chan struct{})}
	d.loading = u
	u.changes, u.why, u.err = d.reload(ctx, found)
	d.loading = nil
	close(u.done)
	cancel(nil)
	return u.changes, u.why, u.err
}

// awaitReload waits for a reload of another caller. d.mu is held, but not while it waits.
func (d *Daemon) awaitReload(ctx context.Context, u *pendingReload) error {
	d.mu.Unlock()
	defer d.mu.Lock()
	select {
	case <-u.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reload is Reload for files that differ from the running ones. d.mu is held, but not while
// databases open.
func (d *Daemon) reload(ctx context.Context, found config.Snapshot) (changes []string, why string, err error) {
	_, failed, _ := d.Config()
	if failed == nil { // a repeated attempt is not news
		d.manager.notifyReloading()
	}
	c, src, err := d.loadNonEmpty()
	if err == nil {
		changes, err = d.apply(ctx, c, src)
	}
	if err != nil && (errors.Is(ctx.Err(), context.Canceled) || errors.Is(err, bridge.ErrNotRunning)) {
		return nil, "", err // the result no longer matters
	}
	defer func() { d.reportStatus(err) }()
	if err != nil {
		d.rejected = found
		d.setReloadError(err)
		return nil, "", err
	}
	d.stateMu.Lock()
	defer d.stateMu.Unlock()
	d.generation++
	d.reloadErr, d.loadedAt = nil, time.Now()
	d.remember(changes, nil)
	d.log.Info("config reloaded", "event", "config_reloaded", "generation", d.generation, "changes", strings.Join(changes, "; "))
	if len(changes) == 0 {
		why = "config files changed; settings are unchanged"
	}
	return changes, why, nil
}

// apply runs the sidecar by c. Every setting can change. Config.OpenKey decides which databases are opened again; checkNewTables and
// Bridge.Reload can refuse the whole, and then nothing changes. d.mu is held, but not while databases open.
func (d *Daemon) apply(ctx context.Context, c config.Config, src config.Snapshot) ([]string, error) {
	for _, l := range c.Listen {
		if err := d.input.MakeSocketDir(l.Socket); err != nil {
			return nil, err
		}
	}
	open, err := d.openUnlocked(ctx, &c)
	if err != nil {
		return nil, err
	}
	if err := checkNewTables(open, d.open); err != nil {
		return nil, errors.Join(err, closeUnused(open, d.open))
	}
	undo, err := d.admin.change(&c)
	if err != nil {
		return nil, errors.Join(err, closeUnused(open, d.open))
	}
	if err := d.traces.Configure(c.Traces.Endpoint); err != nil {
		return nil, errors.Join(err, undo(), closeUnused(open, d.open))
	}
	inheritClaims(open, d.open)
	if err := d.bridge.Reload(d.options(&c, open)); err != nil {
		return nil, errors.Join(err, undo(), d.traces.Configure(d.config.Traces.Endpoint), closeUnused(open, d.open))
	}
	setMaxTransactions(open, &c)
	changes := config.Changes(d.config, c)
	if src.Secrets != d.sources.Secrets {
		changes = append(changes, "a secret")
	}
	d.log.Set(c.Log.Level.SlogLevel(), c.Log.JSON())
	d.config, d.sources, d.open = c, src, open
	d.stopTimeout.Store(int64(stopTimeout(&c)))
	return changes, nil
}

// openUnlocked is openMissing without d.mu. It uses a pending database in its newest state.
func (d *Daemon) openUnlocked(ctx context.Context, c *config.Config) (map[string]*openDB, error) {
	have := d.open
	d.mu.Unlock()
	open, err := d.openMissing(ctx, c, have, 0)
	d.mu.Lock()
	for name, o := range open {
		if oldName := nameIn(have, o); oldName != "" {
			open[name] = d.open[oldName] // during a reload only replace changes d.open, and it keeps the names
		}
	}
	return open, err
}
