package daemon

import (
	"context"
	"io"
	"os"

	"github.com/qsidecar/qsidecar/internal/config"
)

// Watch reloads the sidecar whenever its files change, and at each of hangUps, until ctx is done.
func (p *Daemon) Watch(ctx context.Context, hangUps <-chan os.Signal, o config.WatchOptions) {
	config.Watch(ctx, watched{p}, hangUps, o, p.log.Logger)
}

// ServeStream is the Bridge's.
func (p *Daemon) ServeStream(ctx context.Context, in io.Reader, out io.Writer) error {
	return p.bridge.ServeStream(ctx, in, out)
}

// watched is an instance as its watcher sees it.
type watched struct{ *Daemon }

// Reload implements Reloader. What went wrong is in the log, and status tells it.
func (p watched) Reload(ctx context.Context) { _, _, _ = p.Daemon.Reload(ctx) }

// Differ implements Reloader.
func (p watched) Changed() (now config.Snapshot, differ bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, err := config.ReadSnapshot(p.input.File, &p.config)
	_, failed, _ := p.Config()
	return now, err != nil || !now.Same(p.sources) || failed != nil || p.loading != nil && !now.Same(p.loading.found)
}

// Refuses implements Reloader.
func (p watched) WasRejected(now config.Snapshot) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, failed, _ := p.Config()
	return failed != nil && now.Same(p.rejected)
}

// Loads implements Reloader.
func (p watched) IsLoading(now config.Snapshot) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loading != nil && now.Same(p.loading.found)
}

// Files implements Reloader.
func (p watched) Files() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sources.Files
}
