package daemon

import (
	"context"
	"io"
	"os"

	"github.com/qsidecar/qsidecar/internal/config"
)

// Watch reloads the sidecar when its files change, and on each of hangUps, until ctx ends.
func (d *Daemon) Watch(ctx context.Context, hangUps <-chan os.Signal, o config.WatchOptions) {
	config.Watch(ctx, watched{d}, hangUps, o, d.log.Logger)
}

// ServeStream serves one session on in and out.
func (d *Daemon) ServeStream(ctx context.Context, in io.Reader, out io.Writer) error {
	return d.bridge.ServeStream(ctx, in, out)
}

// watched is a Daemon as a config.Reloader.
type watched struct{ *Daemon }

// Reload implements config.Reloader. The log and the status report its errors.
func (w watched) Reload(ctx context.Context) { _, _, _ = w.Daemon.Reload(ctx) }

// Changed implements config.Reloader.
func (w watched) Changed() (now config.Snapshot, differ bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, err := config.ReadSnapshot(w.input.File, &w.config)
	_, failed, _ := w.Config()
	return now, err != nil || !now.Same(w.sources) || failed != nil || w.loading != nil && !now.Same(w.loading.found)
}

// WasRejected implements config.Reloader.
func (w watched) WasRejected(now config.Snapshot) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, failed, _ := w.Config()
	return failed != nil && now.Same(w.rejected)
}

// IsLoading implements config.Reloader.
func (w watched) IsLoading(now config.Snapshot) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loading != nil && now.Same(w.loading.found)
}

// Files implements config.Reloader.
func (w watched) Files() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sources.Files
}
