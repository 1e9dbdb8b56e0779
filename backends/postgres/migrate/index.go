package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// build builds an index, unless a complete one exists.
func (m *migrator) build(ctx context.Context, x Index) error {
	exists, complete, err := m.find(ctx, x)
	if err != nil || complete {
		return err
	}
	if exists {
		if complete, err = m.awaitBuild(ctx, x); err != nil || complete {
			return err
		}
		m.Log.Info("interrupted index build restarted", "event", "index_build_restarted", "address", m.Place, "index", x.Name)
		if err := m.do(ctx, m.work, In(m.Schema, x.dropped())); err != nil {
			return err
		}
	}
	err = m.do(ctx, m.work, In(m.Schema, x.created()))
	if pgErr := (*pgconn.PgError)(nil); m.Pooled && errors.As(err, &pgErr) && pgErr.Code == "57014" {
		return fmt.Errorf("the server's statement_timeout ended the building of the index %s, and through a pooler it cannot be set: run `qsidecar migrate` with the server's own address: %w", x.Name, err)
	}
	return err
}

// awaitBuild distinguishes an interrupted build from a build that the server still runs for
// a sidecar that is gone. A running build holds a lock on the table until just before its
// commit. awaitBuild waits first for that lock, then for the transactions of the processes
// that held it. It polls and never waits inside the server: a statement that waits for a
// lock has a snapshot of the catalog. The build waits for that snapshot, so the server would
// detect a deadlock and cancel one of the two.
func (m *migrator) awaitBuild(ctx context.Context, x Index) (complete bool, err error) {
	table, _, _ := strings.Cut(x.On, " ")
	table = In(m.Schema, table)
	var builders, left []string
	for now := []string{""}; len(now) > 0; {
		if err := m.work.QueryRow(ctx, buildersSQL, table).Scan(&now); err != nil {
			return false, err
		}
		builders = append(builders, now...)
		if len(now) > 0 && !core.Pause(ctx, lockRetry) {
			return false, core.Interrupted(ctx, "waiting for the index "+x.Name+", which the server still builds in "+m.Place)
		}
	}
	slices.Sort(builders)
	builders = slices.Compact(builders)
	if err := m.work.QueryRow(ctx, transactionsSQL, builders).Scan(&left); err != nil {
		return false, err
	}
	// At least ten tries: a build can release the lock before the first one.
	for try := 0; try < 10 || len(left) > 0; try++ {
		var still []string
		if err := m.work.QueryRow(ctx, transactionsSQL, builders).Scan(&still); err != nil {
			return false, err
		}
		left = slices.DeleteFunc(left, func(x string) bool { return !slices.Contains(still, x) })
		if _, complete, err = m.find(ctx, x); err != nil || complete || !core.Pause(ctx, lockRetry) {
			break
		}
	}
	return complete, err
}

const (
	// buildersSQL finds the processes that build an index of a table concurrently.
	buildersSQL = `SELECT coalesce(array_agg(pid::text), '{}') FROM pg_catalog.pg_locks
		WHERE relation = $1::regclass AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
			AND mode = 'ShareUpdateExclusiveLock' AND granted`
	// transactionsSQL finds the open transactions of some processes.
	transactionsSQL = `SELECT coalesce(array_agg(virtualtransaction), '{}') FROM pg_catalog.pg_locks
		WHERE locktype = 'virtualxid' AND granted AND pid::text = ANY($1::text[]) AND virtualxid = virtualtransaction`
)

// find reports whether the index exists, and whether its build is complete.
func (m *migrator) find(ctx context.Context, x Index) (exists, complete bool, err error) {
	err = m.work.QueryRow(ctx, `SELECT i.indisvalid FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2`, m.Schema, x.Name).Scan(&complete)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, false, nil
	}
	return err == nil, complete, err
}
