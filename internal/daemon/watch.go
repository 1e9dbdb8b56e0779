package daemon

import (
	"context"
	"io"
	"os"

	"github.com/qsidecar/qsidecar/internal/config"
)

// Watch reloads the sidecar when its files change, and on each of hangUps, until ctx ends.
func (p *Daemon) Watch(ctx context.Context, hangUps <-chan os.Signal, o config.WatchOptions) {
	config.Watch(ctx, watched{p}, hangUps, o, p.log.Logger)
}

// ServeStream serves one session on in and out.
func (p *Daemon) ServeStream(ctx context.Context, in io.Reader, out io.Writer) error {
	return p.bridge.ServeStream(ctx, in, out)
}

// watched is a Daemon as a config.Reloader.
type watched struct{ *Daemon }

// Reload implements config.Reloader. The log and the status report its errors.
func (p watched) Reload(ctx context.Context) { _, _, _ = p.Daemon.Reload(ctx) }

// Changed implements config.Reloader.
func (p watched) Changed() (now config.Snapshot, differ bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, err := config.ReadSnapshot(p.input.File, &p.config)
	_, failed, _ := p.Config()
	return now, err != nil || !now.Same(p.sources) || failed != nil || p.loading != nil && !now.Same(p.loading.found)
}

// WasRejected implements config.Reloader.
func (p watched) WasRejected(now config.Snapshot) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, failed, _ := p.Config()
	return failed != nil && now.Same(p.rejected)
}

// IsLoading implements config.Reloader.
func (p watched) IsLoading(now config.Snapshot) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loading != nil && now.Same(p.loading.found)
}

// Files implements config.Reloader.
func (p watched) Files() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sources.Files
}
