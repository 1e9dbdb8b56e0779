package daemon

import (
	"context"
	"errors"
	"strings"
	"time"

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
func (p *Daemon) Reload(ctx context.Context) (changes []string, why string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, err := config.ReadSnapshot(p.input.File, &p.config)
	ended := p.loading != nil
	for p.loading != nil {
		u := p.loading
		same := err == nil && found.Same(u.found)
		if !same {
			u.cancel(errNewerConfig)
		}
		if e := p.awaitReload(ctx, u); e != nil {
			return nil, "", e
		}
		if same {
			return u.changes, u.why, u.err
		}
		found, err = config.ReadSnapshot(p.input.File, &p.config)
	}
	if err == nil && found.Same(p.sources) {
		p.clearReloadError()
		if ended {
			p.reportStatus(nil)
		}
		return nil, p.unchangedReason(), nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	u := &pendingReload{found: found, cancel: cancel, done: make(chan struct{})}
	p.loading = u
	u.changes, u.why, u.err = p.reload(ctx, found)
	p.loading = nil
	close(u.done)
	cancel(nil)
	return u.changes, u.why, u.err
}

// awaitReload waits for a reload of another caller. p.mu is held, but not while it waits.
func (p *Daemon) awaitReload(ctx context.Context, u *pendingReload) error {
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-u.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reload is Reload for files that differ from the running ones. p.mu is held, but not while
// databases open.
func (p *Daemon) reload(ctx context.Context, found config.Snapshot) (changes []string, why string, err error) {
	_, failed, _ := p.Config()
	if failed == nil { // a repeated attempt is not news
		p.manager.notifyReloading()
	}
	c, src, err := p.loadNonEmpty()
	if err == nil {
		changes, err = p.apply(ctx, c, src)
	}
	if err != nil && (errors.Is(ctx.Err(), context.Canceled) || errors.Is(err, bridge.ErrNotRunning)) {
		return nil, "", err // the result no longer matters
	}
	defer func() { p.reportStatus(err) }()
	if err != nil {
		p.rejected = found
		p.setReloadError(err)
		return nil, "", err
	}
	p.stateMu.Lock()
	defer p.stateMu.Unlock()
	p.generation++
	p.reloadErr, p.loadedAt = nil, time.Now()
	p.remember(changes, nil)
	p.log.Info("config reloaded", "event", "config_reloaded", "generation", p.generation, "changes", strings.Join(changes, "; "))
	if len(changes) == 0 {
		why = "config files changed; settings are unchanged"
	}
	return changes, why, nil
}

// apply runs the sidecar by c. p.mu is held, but not while databases open.
func (p *Daemon) apply(ctx context.Context, c config.Config, src config.Snapshot) ([]string, error) {
	for _, l := range c.Listen {
		if err := p.input.MakeSocketDir(l.Socket); err != nil {
			return nil, err
		}
	}
	open, err := p.openUnlocked(ctx, &c)
	if err != nil {
		return nil, err
	}
	if err := checkNewTables(open, p.open); err != nil {
		return nil, errors.Join(err, closeUnused(open, p.open))
	}
	undo, err := p.admin.change(&c)
	if err != nil {
		return nil, errors.Join(err, closeUnused(open, p.open))
	}
	if err := p.traces.Configure(c.Traces.Endpoint); err != nil {
		return nil, errors.Join(err, undo(), closeUnused(open, p.open))
	}
	inheritClaims(open, p.open)
	if err := p.bridge.Reload(p.options(&c, open)); err != nil {
		return nil, errors.Join(err, undo(), p.traces.Configure(p.config.Traces.Endpoint), closeUnused(open, p.open))
	}
	setMaxTransactions(open, &c)
	changes := config.Changes(p.config, c)
	if src.Secrets != p.sources.Secrets {
		changes = append(changes, "a secret")
	}
	p.log.Set(c.Log.Level.SlogLevel(), c.Log.JSON())
	p.config, p.sources, p.open = c, src, open
	p.stopTimeout.Store(int64(stopTimeout(&c)))
	return changes, nil
}

// openUnlocked is openMissing without p.mu. It uses a pending database in its newest state.
func (p *Daemon) openUnlocked(ctx context.Context, c *config.Config) (map[string]*openDB, error) {
	have := p.open
	p.mu.Unlock()
	open, err := p.openMissing(ctx, c, have, 0)
	p.mu.Lock()
	for name, o := range open {
		if oldName := nameIn(have, o); oldName != "" {
			open[name] = p.open[oldName] // during a reload only replace changes p.open, and it keeps the names
		}
	}
	return open, err
}
