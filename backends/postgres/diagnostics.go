package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/hosts"
)

// This file holds what package diagnose uses of a Store, in addition to the exported methods
// that implement interfaces of package backends.

// Setup is how a Store uses its database.
type Setup struct {
	Schema         string
	MaxConnections int
	Pooled         bool              // a pooler assigns a session to each transaction
	SetLocal       string            // the statement that changes them for a transaction
	Hosts          []*pgx.ConnConfig // of an address with several hosts: one for each
}

// Setup returns how the Store uses its database.
func (s *Store) Setup() Setup {
	var all []*pgx.ConnConfig
	if hosts.Several(s.heartbeat.config) {
		all = hosts.Each(s.heartbeat.config)
	}
	return Setup{Hosts: all, Schema: s.o.Schema, MaxConnections: s.o.MaxConnections, Pooled: s.pooled,
		SetLocal: s.txSQL}
}

// Session runs f with a connection outside the pool. The connection has the settings of the
// pool's connections, but doesn't prepare statements on its own. Session returns the errors
// that package backends defines.
func (s *Store) Session(ctx context.Context, f func(ctx context.Context, c *pgx.Conn) error) (err error) {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := connectPlain(ctx, s.heartbeat.config)
	if err != nil {
		return s.Outcome(ctx, err)
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	if err = s.prepareSession(ctx, c); err == nil {
		err = f(ctx, c)
	}
	return s.Outcome(ctx, err)
}

// SearchPath returns the schemas in which the role looks up names.
func (s *Store) SearchPath(ctx context.Context) (schemas []string, err error) {
	err = s.read(ctx, func(_ context.Context, t *tx) error {
		t.setPath(true)
		t.queueText("SELECT pg_catalog.current_schemas(true)::pg_catalog.text[]", func(rows pgx.Rows) error {
			for rows.Next() {
				if err := rows.Scan(&schemas); err != nil {
					return err
				}
			}
			return nil
		})
		return nil
	})
	return schemas, s.Outcome(ctx, err)
}

// leftoversSQL finds what differs in a session from its beginning. pg_settings doesn't show the role. A pooler itself sets the names of
// its clients and their formats.
const leftoversSQL = `SELECT x.text FROM (
	SELECT name || ' = ' || setting AS text FROM pg_settings WHERE source = 'session' AND setting <> reset_val
		AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'IntervalStyle', 'standard_conforming_strings', 'search_path',
			'transaction_read_only', 'transaction_isolation', 'transaction_deferrable')
	UNION ALL SELECT 'search_path = ' || $1::text WHERE $1 <> (SELECT reset_val FROM pg_settings WHERE name = 'search_path')
	UNION ALL SELECT 'role = ' || current_setting('role') WHERE current_setting('role') <> $2
	UNION ALL SELECT 'session_authorization = ' || SESSION_USER WHERE SESSION_USER::text <> $3) AS x ORDER BY 1`

// Leftovers returns the settings that another client of a pooler left in a session.
func (s *Store) Leftovers(ctx context.Context) (left []string, err error) {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, s.Outcome(ctx, err)
	}
	defer c.Release() // it closes the connection, which is still in the transaction
	was := ""
	_, err = c.Exec(ctx, "BEGIN READ ONLY")
	if err == nil {
		err = c.QueryRow(ctx, "SELECT pg_catalog.current_setting('search_path')", pgx.QueryExecModeExec).Scan(&was)
	}
	if err == nil {
		_, err = c.Exec(ctx, "SELECT pg_catalog.set_config('search_path', '"+path+"', true)")
	}
	if err != nil {
		return nil, s.Outcome(ctx, err)
	}
	rows, err := c.Query(ctx, leftoversSQL, pgx.QueryExecModeExec, was, s.own.role, s.own.login)
	if err == nil {
		left, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	return left, s.Outcome(ctx, err)
}

// ClaimStatements returns the statements that claim one job of the queue, with their
// arguments: first the lean statement, then the full one.
func (s *Store) ClaimStatements(queue backends.Policy) []*pgx.QueuedQuery {
	return []*pgx.QueuedQuery{s.claimStatement(queue, 1, true), s.claimStatement(queue, 1, false)}
}

// Message returns the text of a server's error with its detail, hint and SQLSTATE.
func Message(e *pgconn.PgError) string { return fullMessage(e) }
