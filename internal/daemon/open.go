package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/databases"
)

// openDB is an open database, with the key of the config that opened it.
type openDB struct {
	backends.Backend
	replica backends.Replica // nil: none
	key     string
}

// Close closes the database and its replica.
func (o *openDB) Close() error {
	err := o.Backend.Close()
	if o.replica != nil {
		err = errors.Join(err, o.replica.Close())
	}
	return err
}

// openMissing returns the databases of c. It reuses those of have with the same key, and
// opens the others concurrently. If one fails, openMissing closes what it opened. If timeout
// is positive, it replaces a database that is unreachable, or not open by then, by a
// pendingDatabase.
func (d *Daemon) openMissing(ctx context.Context, c *config.Config, have map[string]*openDB, timeout time.Duration) (map[string]*openDB, error) {
	all := make(map[string]*openDB, len(c.Databases))
	opening := make(map[string]*openAttempt)
	var errs error
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) {
		key, err := c.OpenKey(name)
		if err != nil {
			errs = errors.Join(errs, c.ErrorIn(name, err))
		} else if o := findOpen(have, key); o != nil {
			all[name] = o
		} else {
			opening[name] = d.startOpen(ctx, *c, name, key)
		}
	}
	until, cancel := ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		until, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it is not open after %v", timeout))
	}
	defer cancel()
	for _, name := range slices.Sorted(maps.Keys(opening)) {
		b, err := opening[name].wait(until, c, name, timeout > 0)
		if err != nil {
			errs = errors.Join(errs, c.ErrorIn(name, err))
			continue
		}
		o := &openDB{Backend: b, key: opening[name].key}
		if _, waits := b.(*pendingDatabase); !waits {
			o.replica = opening[name].replica
		}
		all[name] = o
	}
	if ctx.Err() != nil {
		errs = errors.Join(errs, context.Cause(ctx))
	}
	if errs != nil {
		return nil, errors.Join(errs, closeUnused(all, have))
	}
	return all, nil
}

// findOpen returns the database that was opened with that key, or nil.
func findOpen(have map[string]*openDB, key string) *openDB {
	for _, o := range have {
		if o.key == key {
			return o
		}
	}
	return nil
}

// closeUnused closes the databases of all that are not in inUse.
func closeUnused(all, inUse map[string]*openDB) (err error) {
	used := slices.Collect(maps.Values(inUse))
	for name, o := range all {
		if slices.Contains(used, o) {
			continue
		}
		if e := o.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("closing the database %s: %w", name, e))
		}
	}
	return err
}

// checkNewTables returns an error if an adopted table of a database doesn't fit that is new, or has a new mapping. A start has
// no such error: it serves the queues that fit.
func checkNewTables(open, before map[string]*openDB) (all error) {
	for _, name := range slices.Sorted(maps.Keys(open)) {
		o := open[name]
		if slices.Contains(slices.Collect(maps.Values(before)), o) {
			continue
		}
		var last backends.Backend
		for _, old := range before {
			if old.Info().Database == o.Info().Database {
				last = old.Backend
			}
		}
		all = errors.Join(all, databases.CheckNewTables(name, o.Backend, last))
	}
	return all
}

// inheritClaims passes the claims on adopted tables from each replaced database to its
// successor, even if the successor adopts no table.
func inheritClaims(open, before map[string]*openDB) {
	for _, o := range open {
		for _, old := range before {
			last, oldAdopts := old.Backend.(*adopted.Store)
			if !oldAdopts || o == old || o.Info().Database != last.Info().Database {
				continue
			}
			next, adopts := o.Backend.(*adopted.Store)
			if engine, can := o.Backend.(backends.Engine); !adopts && can {
				next = adopted.Empty(engine)
				o.Backend = next
			}
			if next != nil {
				next.Succeed(last)
			}
		}
	}
}

// setMaxTransactions sets the limits of jobs claimed in transactions. It runs only after c was accepted, because
// replaced databases share these limits.
func setMaxTransactions(open map[string]*openDB, c *config.Config) {
	for name, o := range open {
		if store, adopts := o.Backend.(*adopted.Store); adopts {
			store.SetMaxTransactions(c.Databases[name].MaxTransactions)
		}
	}
}

// closeReplaced closes a database that a reload replaced.
func (d *Daemon) closeReplaced(name string, o *openDB) {
	if err := o.Close(); err != nil {
		d.log.Warn("can't close a replaced database", "event", "database_close_failed", "database", name, "error", err)
	}
}
