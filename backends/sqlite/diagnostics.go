package sqlite

import "context"

// This file holds what package diagnose uses of a Store, in addition to the exported methods
// that implement interfaces of package backends.

// Conn is a connection for queries.
type Conn struct{ c *conn }

// Connect opens a connection to the file. parameters are those of an SQLite URI. Connect
// fails if a pragma fails.
func (s *Store) Connect(parameters string, pragmas ...string) (*Conn, error) {
	c, err := connectAs(s.path, parameters, pragmas...)
	return &Conn{c}, err
}

// Query runs a query and calls f for each row.
func (c *Conn) Query(ctx context.Context, sql string, f func(r Row), args ...any) error {
	return c.c.query(ctx, sql, func(r row) error { f(Row{r}); return nil }, args...)
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.close() }

// Row is a row of a result. It is valid only during the call of f that gets it.
type Row struct{ r row }

// Text returns the text in column i, or "" for NULL.
func (r Row) Text(i int) string { return r.r.text(i) }

// Int returns the number in column i, or 0 for NULL.
func (r Row) Int(i int) int64 { return r.r.int(i) }

// Explained classifies err, and adds the path and, if it can, a fix.
func (s *Store) Explained(err error) error { return s.withKind(err) }

// ClaimStatements returns the statements that find the next job of a queue. If lifo is true,
// it adds those for a queue in LIFO order.
func (s *Store) ClaimStatements(lifo bool) []string {
	if lifo {
		return []string{s.sql.readyFIFO, s.sql.nextPriority, s.sql.readyLIFO}
	}
	return []string{s.sql.readyFIFO}
}

// ErrorCode returns SQLite's primary code of an error, or 0 if the error isn't from SQLite.
func ErrorCode(err error) int { return code(err) }

// EndedError returns the error of a call whose ctx ended.
func EndedError(ctx context.Context, doing string) error { return ended(ctx, doing) }
