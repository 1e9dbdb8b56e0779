package sqlite

import "context"

// This file is what package diagnose uses of a Store, beside the exported methods that
// package backends names.

// Conn is a connection for queries.
type Conn struct{ c *conn }

// Connect opens a connection to the file. parameters are those of an SQLite URI, and each
// of the pragmas must be accepted.
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

// Row is a row of a result. It is valid during the call that gets it.
type Row struct{ r row }

// Text returns the text in column i; "" for NULL.
func (r Row) Text(i int) string { return r.r.text(i) }

// Int returns the number in column i; 0 for NULL.
func (r Row) Int(i int) int64 { return r.r.int(i) }

// Explained returns err with its kind and what to do.
func (s *Store) Explained(err error) error { return s.withKind(err) }

// ClaimStatements returns the statements that find the next job of a queue. lifo: also
// those for a queue that is read newest first.
func (s *Store) ClaimStatements(lifo bool) []string {
	if lifo {
		return []string{s.sql.readyFIFO, s.sql.nextPrio, s.sql.readyLIFO}
	}
	return []string{s.sql.readyFIFO}
}

// ErrorCode returns SQLite's primary code of an error; 0: it is not SQLite's.
func ErrorCode(err error) int { return code(err) }

// EndedError is the error of a call whose ctx is over.
func EndedError(ctx context.Context, doing string) error { return ended(ctx, doing) }
