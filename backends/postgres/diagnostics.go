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

// ClaimStatements returns the statements that claim one job of the queue, with their
// arguments: first the lean statement, then the full one.
func (s *Store) ClaimStatements(queue backends.Policy) []*pgx.QueuedQuery {
	return []*pgx.QueuedQuery{s.claimStatement(queue, 1, true), s.claimStatement(queue, 1, false)}
}

// Message returns the text of a server's error with its detail, hint and SQLSTATE.
func Message(e *pgconn.PgError) string { return fullMessage(e) }
