package daemon

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/protocol"
)

// Limits of the history: what it keeps in memory, and what one reply has.
const (
	maxHistory        = 50
	maxHistoryChanges = 100
	maxHistoryText    = 4 << 10 // bytes of one text
)

// remember adds a reload, or a rejected one, to the history. d.stateMu is held.
func (d *Daemon) remember(changes []string, failed error) {
	r := protocol.Reload{At: time.Now().UnixMilli(), Generation: d.generation, Changes: []string{}}
	for _, c := range changes[:min(len(changes), maxHistoryChanges)] {
		r.Changes = append(r.Changes, shorten(c))
	}
	if len(changes) > maxHistoryChanges {
		r.Changes = append(r.Changes, "and more (the log has all of them)")
	}
	if failed != nil {
		r.Error = shorten(failed.Error())
	}
	d.history = append(d.history[max(0, len(d.history)-maxHistory+1):], r)
}

func shorten(text string) string {
	if len(text) <= maxHistoryText {
		return text
	}
	return strings.ToValidUTF8(text[:maxHistoryText], "") + "…"
}

// Report implements bridge.Control.
func (d *Daemon) Report(ctx context.Context, op protocol.Op) (*protocol.Reply, error) {
	d.mu.Lock()
	c := d.config
	d.mu.Unlock()
	if op == protocol.OpCheck {
		return d.check(ctx, &c)
	}
	d.stateMu.Lock()
	reloads := slices.Clone(d.history)
	d.stateMu.Unlock()
	slices.Reverse(reloads)
	return &protocol.Reply{Config: &protocol.Config{Settings: config.Settings(&c), Reloads: reloads}}, nil
}

// check examines the running config. One check runs at a time, because each opens connections.
func (d *Daemon) check(ctx context.Context, c *config.Config) (*protocol.Reply, error) {
	if d.checkFunc == nil {
		return nil, protocol.Errorf(protocol.CodeUnsupported, "this sidecar can't check itself: run `qsidecar check`")
	}
	if !d.checking.TryLock() {
		return nil, &protocol.Error{Code: protocol.CodeBusy, RetryMS: protocol.Some[int64](1000), Message: "another check runs: wait until it is done"}
	}
	defer d.checking.Unlock()
	found := d.checkFunc(ctx, c, d.log.Logger)
	for _, s := range d.bridge.Health().Lost {
		found = append(found, protocol.Finding{Severity: "error", Topic: "socket", Text: s.Path + ": " + s.Err.Error(), Fix: "see the log's event socket_not_bound"})
	}
	return &protocol.Reply{Findings: found}, nil
}
