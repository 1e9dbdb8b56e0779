package databases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/engines"
	"github.com/qsidecar/qsidecar/protocol"
)

// hiddenJobsTimeout limits the search for jobs that an adopted table hides.
const hiddenJobsTimeout = 5 * time.Second

// OpenEngine opens one database of the config without its adopted tables. If look is set it
// changes nothing in the database.
func OpenEngine(ctx context.Context, c *config.Config, name string, look bool, log *slog.Logger) (backends.Engine, error) {
	d := c.Databases[name]
	u, err := engines.ParseURL(d.URL)
	if err != nil {
		return nil, &config.Error{Err: err}
	}
	if u.File && !look {
		if err := config.MakeDir(filepath.Dir(u.At), 0o700, "the database's directory",
			"name another path with --database sqlite:PATH or QSIDECAR_DATABASE"); err != nil {
			return nil, err
		}
	}
	password, err := d.ReadPassword()
	if err != nil {
		return nil, err
	}
	if u.NoSchemas && d.Schema != config.DefaultSchema {
		return nil, config.Errorf("the database's schema: MySQL and MariaDB have none, the tables go into the database that the url names: leave it out")
	}
	return u.Open(ctx, engines.Options{
		Password: password, Schema: d.Schema, MaxConnections: d.MaxConnections, Notify: bool(d.Notify),
		MaxPayload: maxPayload(c), ReadOnly: look, Log: log,
	})
}

// OpenAll opens every database of a config. If one fails it closes the others.
func OpenAll(ctx context.Context, c *config.Config, log *slog.Logger) (map[string]backends.Backend, error) {
	open := make(map[string]backends.Backend)
	var errs error
	for name := range c.Databases {
		b, err := Open(ctx, c, name, log)
		if err != nil {
			errs = errors.Join(errs, c.ErrorIn(name, err))
			continue
		}
		open[name] = b
	}
	if errs != nil {
		return nil, errors.Join(errs, CloseAll(open))
	}
	return open, nil
}

func maxPayload(c *config.Config) int64 { return int64(protocol.NewLimits(int(c.MaxFrame)).MaxPayload) }

// Opener is the type of Open. Tests replace it.
type Opener func(ctx context.Context, c *config.Config, name string, log *slog.Logger) (backends.Backend, error)

// Open opens one database of the config with the adopted tables of its queues.
func Open(ctx context.Context, c *config.Config, name string, log *slog.Logger) (backends.Backend, error) {
	b, err := OpenEngine(ctx, c, name, false, log)
	if err != nil {
		return nil, err
	}
	if r, ok := b.(backends.Rechecker); ok {
		r.Recheck(ctx) // finds missing rights before the first job is handed out
	}
	with, err := adopt(ctx, c, name, b, log)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return with, nil
}

// CloseAll closes all databases, and returns all errors.
func CloseAll(open map[string]backends.Backend) (err error) {
	for name, b := range open {
		if e := b.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("closing the database %s: %w", name, e))
		}
	}
	return err
}

// adopt returns the database with its adopted tables. A queue whose mapping doesn't fit its table isn't available, and
// the others are.
func adopt(ctx context.Context, c *config.Config, database string, engine backends.Engine, log *slog.Logger) (backends.Backend, error) {
	tables := c.AdoptedTables(database)
	if len(tables) == 0 {
		return engine, nil
	}
	store, err := adopted.Open(ctx, engine, tables)
	if err != nil {
		return nil, err
	}
	store.SetMaxTransactions(c.Databases[database].MaxTransactions)
	for _, f := range append(store.Advice(), hiddenJobs(ctx, store, database, log)...) {
		log.Warn("advice on an adopted table", "event", "adopted_table_advice", "database", database, "topic", f.Topic, "text", f.Text, "fix", f.Fix)
	}
	return store, nil
}

// hiddenJobs is what Store.HiddenJobs finds. The queues can work while it can't be asked, for example because qsidecar_jobs
// is locked, so that must not keep the database closed.
func hiddenJobs(ctx context.Context, store *adopted.Store, database string, log *slog.Logger) backends.Findings {
	ctx, cancel := context.WithTimeoutCause(ctx, hiddenJobsTimeout, fmt.Errorf("the database gave no answer within %v", hiddenJobsTimeout))
	defer cancel()
	found, err := store.HiddenJobs(ctx)
	if err != nil {
		log.Warn("jobs hidden by adopted tables not searched", "event", "hidden_jobs_unknown", "database", database, "error", err)
	}
	return found
}

// CheckNewTables returns an error if a reload would add or change an adopted table that doesn't fit. A table that the
// sidecar already serves with the same mapping can be out of order at this moment: that is its owner's doing.
func CheckNewTables(database string, next, last backends.Backend) error {
	store, adopts := next.(*adopted.Store)
	if !adopts {
		return nil
	}
	before, _ := last.(*adopted.Store)
	var all error
	for _, queue := range slices.Sorted(maps.Keys(store.Misfits())) {
		t, _ := store.Table(queue)
		if before != nil {
			if had, ok := before.Table(queue); ok && reflect.DeepEqual(had, t) {
				continue
			}
		}
		for _, m := range store.Misfits()[queue] {
			all = errors.Join(all, m)
		}
	}
	if all != nil {
		return &config.Error{Err: fmt.Errorf("the configuration does not fit the database %s:\n%w", database, all)}
	}
	return nil
}

// ExamineAdopted is adopt for `qsidecar check`: it returns mappings that don't fit as
// findings, and the database with the others.
func ExamineAdopted(ctx context.Context, c *config.Config, database string, engine backends.Engine) (backends.Engine, []backends.Finding) {
	var found backends.Findings
	tables := c.AdoptedTables(database)
	if len(tables) == 0 {
		return engine, nil
	}
	store, wrong, err := adopted.Check(ctx, engine, tables)
	if err != nil {
		found.AddError("table", err.Error(), "see that the server can be reached, and that this login can read its catalogue")
		return engine, found
	}
	store.MaxPayload = maxPayload(c)
	for _, m := range wrong {
		found.AddError("table", m.Key+": "+m.Text, cmp.Or(m.Fix, "correct the queue's mapping in the config; deploy/qsidecar.example.yaml has every key"))
	}
	return store, found
}

// Describe returns the engine, its version and the address of a database.
func Describe(i backends.Info) string {
	return fmt.Sprintf("%s %s at %s", i.Engine, i.Version, i.Address)
}
