package mysql

import (
	"context"
	"database/sql"
	"log/slog"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// This file contains the methods of a Store that only package diagnose uses, beside those that package
// backends names.

// Setup is how a Store uses its database.
type Setup struct {
	Database       string // the name in the URL
	MaxConnections int
	MaxPayload     int64

	Server        string // the product and its version
	MariaDB       bool
	VersionNumber int   // 80013, 100603
	SkipLocked    bool  // it has FOR UPDATE SKIP LOCKED
	MaxPacket     int64 // its max_allowed_packet
	PacketReserve int64 // what a packet needs in addition to two bytes for each byte of payload
}

// Setup returns how the Store uses its database.
func (s *Store) Setup() Setup {
	return Setup{Database: s.config.DBName, MaxConnections: s.o.MaxConnections, MaxPayload: s.o.MaxPayload,
		Server: s.server.name(), MariaDB: s.server.maria, VersionNumber: s.server.version, SkipLocked: s.server.skips,
		MaxPacket: s.server.packet, PacketReserve: packetRoom}
}

// DatabaseOf returns the name of the database in a URL; qsidecar if it has none.
func DatabaseOf(url string) string {
	c, err := configure(&Options{URL: url, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "qsidecar"
	}
	return c.DBName
}

// Session is a connection for queries. Its errors are those of the driver.
type Session struct {
	s *Store
	c *conn
}

// Session runs f with a connection outside of the pool. f can change its settings. Errors
// have the kinds that package backends names.
func (s *Store) Session(ctx context.Context, f func(ctx context.Context, x Session) error) error {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.dial(ctx, nil)
	if err != nil {
		return s.Outcome(ctx, err)
	}
	defer c.close()
	return s.Outcome(ctx, f(ctx, Session{s: s, c: c}))
}

// Read runs f with a connection of the pool. It retries errors that can be transient. f must not change
// settings.
func (s *Store) Read(ctx context.Context, f func(ctx context.Context, x Session) error) error {
	return s.read(ctx, func(ctx context.Context, t *tx) error { return f(ctx, Session{s: s, c: t.c}) })
}

// Exec runs a statement that returns no rows.
func (x Session) Exec(ctx context.Context, statement string) error { return x.c.exec(ctx, statement) }

// Rows runs a query. It returns all values as texts.
func (x Session) Rows(ctx context.Context, query string, args ...any) (rows [][]sql.NullString, err error) {
	err = x.c.query(ctx, query, args, []func(r *result) error{func(r *result) error {
		for {
			ok, err := r.next()
			if err != nil || !ok {
				return err
			}
			row := make([]sql.NullString, len(r.row))
			for i := range r.row {
				if !r.null(i) {
					row[i] = sql.NullString{String: string(r.cell(i)), Valid: true}
				}
			}
			rows = append(rows, row)
		}
	}})
	return rows, err
}

// Explain returns the rows of a statement's plan without running the statement.
func (x Session) Explain(ctx context.Context, st *backends.Statement) ([][]sql.NullString, error) {
	t := &tx{s: x.s, c: x.c}
	t.add(explain)
	if err := t.put(st.Text, st.Args); err != nil {
		return nil, err
	}
	query, args := t.plain()
	return x.Rows(ctx, query, args...)
}

// ExplainClaim returns the rows of the plan of the statement that claims jobs of the queue, with the
// Store's current cursors.
func (x Session) ExplainClaim(ctx context.Context, p backends.Policy) ([][]sql.NullString, error) {
	c := &claiming{Claim: backends.Claim{Queues: []backends.Policy{p}, Slots: make([]backends.Slot, 10), MaxBytes: 1 << 22, MaxPayload: 1 << 22}, s: x.s, seen: map[string]*cursor.Learned{}}
	where := "urgency = 0"
	if !p.LIFO {
		where = c.where(p)
	}
	query, args := c.statement(p, where)
	return x.Rows(ctx, explain+query, args...)
}

const explain = "EXPLAIN FORMAT=TRADITIONAL "

// Broken reports whether the connection is unusable.
func (x Session) Broken() bool { return x.c.bad }

// ErrorCode returns the server's number of an error, or 0 if the error is not the server's.
func ErrorCode(err error) uint16 { return codeOf(err) }

// EndsSession reports whether the server ended the session with that error.
func EndsSession(err error) bool { return endsSession(err) }

// IsDiskFull reports whether the server lacks space on its disk.
func IsDiskFull(err error) bool { return isCode(err, codesFull...) }
