package daemon

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
)

// servingText describes what is served. d.mu is held.
func (d *Daemon) servingText() string {
	sockets, addresses := d.addresses()
	return fmt.Sprintf("serving on %s, database %s", strings.Join(sockets, ", "), strings.Join(addresses, ", "))
}

// addresses returns the sockets and the databases. d.mu is held.
func (d *Daemon) addresses() (sockets, databases []string) {
	for _, l := range d.config.Listen {
		sockets = append(sockets, l.Socket)
	}
	for _, name := range slices.Sorted(maps.Keys(d.open)) {
		info := d.open[name].Info()
		databases = append(databases, info.Engine+":"+info.Address)
	}
	return sockets, databases
}

// Serving describes what is served, on one line.
func (d *Daemon) Serving() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.servingText()
}

// Ready logs what is served, and notifies the service manager.
func (d *Daemon) Ready() {
	d.mu.Lock()
	defer d.mu.Unlock()
	sockets, databases := d.addresses()
	log := d.log.Logger
	if at := d.admin.address(); at != "" {
		log = log.With("admin", textfmt.URLOf(at))
	}
	if at := d.admin.pageURL(); at != "" {
		log = log.With("page", at)
	}
	log.Info("serving", "event", "serving", "version", d.version, "sockets", sockets, "databases", databases)
	d.manager.notifyReady(d.servingText())
}

// reportStatus notifies the service manager of the running config, and of why a newer one
// was rejected. d.mu is held.
func (d *Daemon) reportStatus(failed error) {
	generation, _, _ := d.Config()
	status := fmt.Sprintf("%s, config generation %d", d.servingText(), generation)
	if failed != nil {
		status += "; THE NEWEST CONFIG DOES NOT RUN: " + failed.Error()
	}
	d.manager.notifyReady(status)
}

// justReloaded is how long the answer to a reload without changes has those of the reload before, which a changed file possibly began.
const justReloaded = time.Minute

// unchangedReason returns why a reload has nothing to do. d.mu is held.
func (d *Daemon) unchangedReason() string {
	if len(d.sources.Files) == 0 {
		return "the sidecar runs without a config file; its flags and its environment are read at its start alone"
	}
	d.stateMu.Lock()
	defer d.stateMu.Unlock()
	changed := ""
	if n := len(d.history); n > 0 && len(d.history[n-1].Changes) > 0 && time.Since(d.loadedAt) < justReloaded {
		changed = " with these changes:\n" + strings.Join(d.history[n-1].Changes, "\n")
	}
	return fmt.Sprintf("%s: that is what runs already, as config generation %d, since %s%s",
		strings.Join(d.sources.Files, ", "), d.generation, d.loadedAt.Format(time.DateTime), changed)
}

// setReloadError records why the files were rejected. d.mu is held.
func (d *Daemon) setReloadError(err error) {
	d.stateMu.Lock()
	defer d.stateMu.Unlock()
	if d.reloadErr == nil || d.reloadErr.Error() != err.Error() {
		d.remember(nil, err)
		d.log.Error("config not reloaded", "event", "config_reload_failed", "generation", d.generation, "error", err)
	}
	d.reloadErr, d.reloadErrAt = err, time.Now()
}

// clearReloadError records that the files match the running config again. d.mu is held.
func (d *Daemon) clearReloadError() {
	d.stateMu.Lock()
	before := d.reloadErr
	if d.reloadErr = nil; before != nil {
		d.remember([]string{"the files match the running config again"}, nil)
	}
	d.stateMu.Unlock()
	if before != nil {
		d.log.Info("config files match the running config again", "event", "config_reverted", "generation", d.generation)
		d.reportStatus(nil)
	}
}
