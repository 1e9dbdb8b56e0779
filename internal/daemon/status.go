package daemon

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
)

// servingText describes what is served. p.mu is held.
func (p *Daemon) servingText() string {
	sockets, addresses := p.addresses()
	return fmt.Sprintf("serving on %s, database %s", strings.Join(sockets, ", "), strings.Join(addresses, ", "))
}

// addresses returns the sockets and the databases. p.mu is held.
func (p *Daemon) addresses() (sockets, databases []string) {
	for _, l := range p.config.Listen {
		sockets = append(sockets, l.Socket)
	}
	for _, name := range slices.Sorted(maps.Keys(p.open)) {
		info := p.open[name].Info()
		databases = append(databases, info.Engine+":"+info.Address)
	}
	return sockets, databases
}

// Serving describes what is served, on one line.
func (p *Daemon) Serving() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.servingText()
}

// Ready logs what is served, and notifies the service manager.
func (p *Daemon) Ready() {
	p.mu.Lock()
	defer p.mu.Unlock()
	sockets, databases := p.addresses()
	log := p.log.Logger
	if at := p.admin.address(); at != "" {
		log = log.With("admin", textfmt.URLOf(at))
	}
	if at := p.admin.pageURL(); at != "" {
		log = log.With("page", at)
	}
	log.Info("serving", "event", "serving", "version", p.version, "sockets", sockets, "databases", databases)
	p.manager.notifyReady(p.servingText())
}

// reportStatus notifies the service manager of the running config, and of why a newer one
// was rejected. p.mu is held.
func (p *Daemon) reportStatus(failed error) {
	generation, _, _ := p.Config()
	status := fmt.Sprintf("%s, config generation %d", p.servingText(), generation)
	if failed != nil {
		status += "; THE NEWEST CONFIG DOES NOT RUN: " + failed.Error()
	}
	p.manager.notifyReady(status)
}

// unchangedReason returns why a reload has nothing to do. p.mu is held.
func (p *Daemon) unchangedReason() string {
	if len(p.sources.Files) == 0 {
		return "the sidecar runs without a config file; its flags and its environment are read at its start alone"
	}
	p.stateMu.Lock()
	defer p.stateMu.Unlock()
	return fmt.Sprintf("%s: that is what runs already, as config generation %d, since %s",
		strings.Join(p.sources.Files, ", "), p.generation, p.loadedAt.Format(time.DateTime))
}

// setReloadError records why the files were rejected. p.mu is held.
func (p *Daemon) setReloadError(err error) {
	p.stateMu.Lock()
	defer p.stateMu.Unlock()
	if p.reloadErr == nil || p.reloadErr.Error() != err.Error() {
		p.remember(nil, err)
		p.log.Error("config not reloaded", "event", "config_reload_failed", "generation", p.generation, "error", err)
	}
	p.reloadErr, p.reloadErrAt = err, time.Now()
}

// clearReloadError records that the files match the running config again. p.mu is held.
func (p *Daemon) clearReloadError() {
	p.stateMu.Lock()
	before := p.reloadErr
	if p.reloadErr = nil; before != nil {
		p.remember([]string{"the files match the running config again"}, nil)
	}
	p.stateMu.Unlock()
	if before != nil {
		p.log.Info("config files match the running config again", "event", "config_reverted", "generation", p.generation)
		p.reportStatus(nil)
	}
}
