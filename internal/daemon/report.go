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

// remember adds a reload, or a rejected one, to the history. p.stateMu is held.
func (p *Daemon) remember(changes []string, failed error) {
	r := protocol.Reload{At: time.Now().UnixMilli(), Generation: p.generation, Changes: []string{}}
	for _, c := range changes[:min(len(changes), maxHistoryChanges)] {
		r.Changes = append(r.Changes, shorten(c))
	}
	if len(changes) > maxHistoryChanges {
		r.Changes = append(r.Changes, "and more (the log has all of them)")
	}
	if failed != nil {
		r.Error = shorten(failed.Error())
	}
	p.history = append(p.history[max(0, len(p.history)-maxHistory+1):], r)
}

func shorten(text string) string {
	if len(text) <= maxHistoryText {
		return text
	}
	return strings.ToValidUTF8(text[:maxHistoryText], "") + "…"
}

// Report implements bridge.Control.
func (p *Daemon) Report(ctx context.Context, op protocol.Op) (*protocol.Reply, error) {
	p.mu.Lock()
	c := p.config
	p.mu.Unlock()
	if op == protocol.OpCheck {
		return p.check(ctx, &c)
	}
	p.stateMu.Lock()
	reloads := slices.Clone(p.history)
	p.stateMu.Unlock()
	slices.Reverse(reloads)
	return &protocol.Reply{Config: &protocol.Config{Settings: config.Settings(&c), Reloads: reloads}}, nil
}

// check examines the running config. One check runs at a time, because each opens connections.
func (p *Daemon) check(ctx context.Context, c *config.Config) (*protocol.Reply, error) {
	if p.checkFunc == nil {
		return nil, protocol.Errorf(protocol.CodeUnsupported, "this sidecar can't check itself: run `qsidecar check`")
	}
	if !p.checking.TryLock() {
		return nil, &protocol.Error{Code: protocol.CodeBusy, RetryMS: protocol.Some[int64](1000), Message: "another check runs: wait until it is done"}
	}
	defer p.checking.Unlock()
	found := p.checkFunc(ctx, c, p.log.Logger)
	for _, s := range p.bridge.Health().Lost {
		found = append(found, protocol.Finding{Severity: "error", Topic: "socket", Text: s.Path + ": " + s.Err.Error(), Fix: "see the log's event socket_not_bound"})
	}
	return &protocol.Reply{Findings: found}, nil
}
