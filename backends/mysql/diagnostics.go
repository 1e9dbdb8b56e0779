package mysql

import (
	"context"
	"database/sql"
	"log/slog"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/dialect"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
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
	return Setup{Database: s.dialer.Config.DBName, MaxConnections: s.o.MaxConnections, MaxPayload: s.o.MaxPayload,
		Server: s.dialer.Server.Name(), MariaDB: s.dialer.Server.Maria, VersionNumber: s.dialer.Server.Version, SkipLocked: s.dialer.Server.SkipLocked,
		MaxPacket: s.packet.Load(), PacketReserve: session.PacketReserve}
}

// DatabaseOf returns the name of the database in a URL; qsidecar if it has none.
func DatabaseOf(url string) string {
	c, err := session.Configure(url, "", slog.New(slog.DiscardHandler))
	if err != nil {
		return "qsidecar"
	}
	return c.DBName
}

// Session is a connection for queries. Its errors are those of the driver.
type Session struct {
	s *Store
	c *session.Conn
}

// Session runs f with a connection outside of the pool. f can change its settings. Errors
// have the kinds that package backends names.
func (s *Store) Session(ctx context.Context, f func(ctx context.Context, x Session) error) error {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.dialer.Dial(ctx, nil)
	if err != nil {
		return s.Outcome(ctx, err)
	}
	defer c.Close()
	return s.Outcome(ctx, f(ctx, Session{s: s, c: c}))
}

// EachHost calls f for each host of an address with several: with a connection to it, or with the reason why there is none.
func (s *Store) EachHost(ctx context.Context, f func(ctx context.Context, host string, x Session, err error)) {
	if !s.dialer.Several() {
		return
	}
	ctx, done := s.Bound(ctx)
	defer done()
	s.dialer.Each(ctx, func(host string, c *session.Conn, err error) { f(ctx, host, Session{s: s, c: c}, err) })
}

// Read runs f with a connection of the pool. It retries errors that can be transient. f must not change
// settings.
func (s *Store) Read(ctx context.Context, f func(ctx context.Context, x Session) error) error {
	return s.read(ctx, func(ctx context.Context, t *tx) error { return f(ctx, Session{s: s, c: t.c}) })
}

// Exec runs a statement that returns no rows.
func (s Session) Exec(ctx context.Context, statement string) error { return s.c.Exec(ctx, statement) }

// Rows runs a query. It returns all values as texts.
func (s Session) Rows(ctx context.Context, query string, args ...any) (rows [][]sql.NullString, err error) {
	err = s.c.Each(ctx, func(r *session.Result) { rows = append(rows, texts(r)) }, query, args...)
	return rows, err
}

// texts returns the values of a row as texts.
func texts(r *session.Result) []sql.NullString {
	row := make([]sql.NullString, r.Width())
	for i := range row {
		if !r.Null(i) {
			row[i] = sql.NullString{String: string(r.Cell(i)), Valid: true}
		}
	}
	return row
}

// Explain returns the rows of a statement's plan without running the statement.
func (s Session) Explain(ctx context.Context, st *backends.Statement) (rows [][]sql.NullString, err error) {
	var p session.Script
	p.Each(func(r *session.Result) { rows = append(rows, texts(r)) }, explain)
	if err := dialect.Append(&p, st.Text, st.Args); err != nil {
		return nil, err
	}
	err = s.c.Run(ctx, &p)
	return rows, err
}

// ExplainClaim returns the rows of the plans of the statements that find jobs of the queue, with the Store's
// current cursors.
func (s Session) ExplainClaim(ctx context.Context, p backends.Policy) (rows [][]sql.NullString, err error) {
	err = s.s.finder.Explain(p, func(sql string, args []any) error {
		more, err := s.Rows(ctx, explain+sql, args...)
		rows = append(rows, more...)
		return err
	})
	return rows, err
}

const explain = "EXPLAIN FORMAT=TRADITIONAL "

// Broken reports whether the connection is unusable.
func (s Session) Broken() bool { return s.c.Bad }

// ErrorCode returns the server's number of an error, or 0 if the error is not the server's.
func ErrorCode(err error) uint16 { return session.CodeOf(err) }

// EndsSession reports whether the server ended the session with that error.
func EndsSession(err error) bool { return session.EndsSession(err) }

// IsDiskFull reports whether the server lacks space on its disk.
func IsDiskFull(err error) bool { return session.IsCode(err, codesFull...) }
