package postgres

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
)

// This file is what package diagnose uses of a Store, beside the exported methods that
// package backends names.

// Setup is how a Store uses its database.
type Setup struct {
	Schema         string
	MaxConnections int
	Pooled         bool     // a pooler hands out sessions per transaction
	Settings       []string // the names of the settings that its sessions change
	SetLocal       string   // the statement that changes them for a transaction
}

// Setup returns how the Store uses its database.
func (s *Store) Setup() Setup {
	return Setup{Schema: s.o.Schema, MaxConnections: s.o.MaxConnections, Pooled: s.pooled,
		Settings: slices.Collect(maps.Keys(s.o.settings())), SetLocal: s.o.setting(true)}
}

// Session runs f with a connection outside of the pool. It has the settings of the
// pool's connections, and prepares no statements by itself. Errors have the kinds that
// package backends names.
func (s *Store) Session(ctx context.Context, f func(ctx context.Context, c *pgx.Conn) error) (err error) {
	ctx, done := s.bound(ctx)
	defer done()
	c, err := connectPlain(ctx, s.beater.config)
	if err != nil {
		return s.outcome(ctx, err)
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	if err = s.prepareSession(ctx, c); err == nil {
		err = f(ctx, c)
	}
	return s.outcome(ctx, err)
}

// ClaimStatements returns the statements with which one job of the queue is claimed,
// with arguments: the fast path first, then the full one.
func (s *Store) ClaimStatements(queue backends.Policy) (all []*pgx.QueuedQuery) {
	for _, careful := range []bool{false, true} {
		c := &claiming{cursors: &cursors{}, host: 1, left: 1 << 20, seen: map[string]*learned{}, careful: careful, Claim: backends.Claim{
			Queues: []backends.Policy{queue}, Slots: []backends.Slot{{Token: backends.Token{Host: 1, Number: 1}}}, MaxPayload: 1 << 20}}
		t := &pgx.Batch{}
		c.next()
		c.ask(&tx{s: s, batch: t})
		all = append(all, t.QueuedQueries[0])
	}
	return all
}

// Message returns the text of a server's error with its detail, hint and SQLSTATE.
func Message(e *pgconn.PgError) string { return words(e) }
