// Package check finds the problems that `qsidecar check` reports: in the databases of a
// config, in its sockets, and in the options of the bridge. It changes nothing.
//
// It uses config, databases and bridge, and prints nothing. Start reading at Databases.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/databases"
	"github.com/qsidecar/qsidecar/protocol"
)

// timeout limits the examination of one database.
const timeout = time.Minute

// Result is what was found about one database, or about this host.
type Result struct {
	Name      string // of the database
	Info      backends.Info
	Findings  []backends.Finding
	ConfigErr error // why the database was not examined
}

// Count returns the number of findings of a severity.
func (r Result) Count(s backends.Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// Databases examines all databases of a config concurrently. The results are in the order of
// the names.
func Databases(ctx context.Context, c *config.Config, log *slog.Logger) []Result {
	queues := make(map[string][]backends.Policy)
	for name, q := range c.BridgeOptions(nil).Queues {
		queues[q.Database] = append(queues[q.Database], backends.Policy{
			Queue: name, MaxAttempts: q.MaxAttempts, Timeout: q.Timeout, Backoff: q.Backoff, BackoffMax: q.BackoffMax,
			RetainDone: q.RetainDone, RetainDead: q.RetainDead, LIFO: q.LIFO,
		})
	}
	all := make([]Result, 0, len(c.Databases))
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) {
		all = append(all, Result{Name: name})
	}
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { all[i].examine(ctx, c, queues[all[i].Name], log) })
	}
	wg.Wait()
	return all
}

// examine examines one database.
func (r *Result) examine(ctx context.Context, c *config.Config, queues []backends.Policy, log *slog.Logger) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took longer than %v", timeout))
	defer cancel()
	var found backends.Findings
	defer func() { r.Findings = found }()
	b, err := databases.OpenEngine(ctx, c, r.Name, true, log)
	if _, ok := errors.AsType[*config.Error](err); ok {
		r.ConfigErr = fmt.Errorf("databases.%s: %w", r.Name, err)
		return
	}
	if err != nil {
		found.AddError("server", err.Error(), "see that the server runs and lets this host in, and that the url and the password are right")
		return
	}
	b, adopts := databases.ExamineAdopted(ctx, c, r.Name, b)
	if found, err = b.Examine(ctx, queues); err != nil {
		found.AddError("server", fmt.Sprintf("it could not be asked: %v", err), "see that the server can be reached, and try again")
	} else {
		found = append(found, databases.ExamineReplica(ctx, c, r.Name, b, log)...)
	}
	found = append(found, adopts...)
	r.Info = b.Info()
	if err := b.Close(); err != nil {
		found.AddWarning("server", fmt.Sprintf("closing the connection: %v", err), "try again")
	}
}

// closedDatabase stands for a database that was examined and closed.
type closedDatabase struct {
	backends.Backend
	info backends.Info
}

func (c closedDatabase) Info() backends.Info { return c.info }

// Bridge returns an error if the bridge rejects the options of a config.
func Bridge(c *config.Config, all []Result) error {
	open := make(map[string]backends.Backend)
	for _, d := range all {
		info := d.Info
		info.Database = cmp.Or(info.Database, "unknown "+d.Name)
		open[d.Name] = closedDatabase{info: info}
	}
	if _, err := bridge.New(c.BridgeOptions(open), slog.New(slog.DiscardHandler)); err != nil {
		return fmt.Errorf("the configuration does not hold together:\n%w", err)
	}
	return nil
}

// Running examines the config of a running sidecar: its databases and its host.
func Running(ctx context.Context, c *config.Config, log *slog.Logger) []protocol.Finding {
	all := []protocol.Finding{}
	for _, r := range append(Databases(ctx, c, log), Result{Findings: Host(c)}) {
		if r.ConfigErr != nil {
			all = append(all, protocol.Finding{Database: r.Name, Severity: backends.SeverityError.String(), Topic: "config", Text: r.ConfigErr.Error(), Fix: "correct the config"})
		}
		for _, f := range r.Findings {
			all = append(all, protocol.Finding{Database: r.Name, Severity: f.Severity.String(), Topic: f.Topic, Text: f.Text, Fix: f.Fix})
		}
	}
	return all
}
