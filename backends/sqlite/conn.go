package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"
	"time"

	"modernc.org/sqlite"

	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// connector opens connections without database/sql: its pool would choose the
// connection, but here each connection has its own purpose.
var connector = sync.OnceValue(func() driver.Driver { return &sqlite.Driver{} })

// conn is one connection with its prepared statements. Only one goroutine can use it at a time.
type conn struct {
	driver.Conn
	prepared map[string]statement
	values   []driver.NamedValue
}

type statement interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// connect opens path and runs the pragmas. It fails if a pragma fails.
func connect(path string, pragmas ...string) (*conn, error) {
	// prepare has created the file. If it is gone now, it must not be created again.
	return connectAs(path, "mode=rw", pragmas...)
}

// connectAs is connect with the given URI parameters of SQLite.
func connectAs(path, parameters string, pragmas ...string) (*conn, error) {
	// In an escaped URI, no character of the path has a special meaning.
	dc, err := connector().Open("file://" + (&url.URL{Path: path}).EscapedPath() + "?" + parameters)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: dc, prepared: map[string]statement{}}
	for _, p := range pragmas {
		if err := c.once("PRAGMA " + p); err != nil {
			return nil, errors.Join(fmt.Errorf("PRAGMA %s: %w", p, err), c.close())
		}
	}
	return c, nil
}

func (c *conn) close() error {
	var err error
	for _, s := range c.prepared {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, c.Conn.Close())
}

// once runs a script without keeping its statements prepared.
func (c *conn) once(script string) error {
	_, err := c.Conn.(driver.ExecerContext).ExecContext(context.Background(), script, nil)
	return err
}

func (c *conn) prepare(sql string) (statement, error) {
	if s, ok := c.prepared[sql]; ok {
		return s, nil
	}
	ds, err := c.Conn.Prepare(sql)
	if err != nil {
		return nil, fmt.Errorf("%w (in %q)", err, sql)
	}
	s := ds.(statement)
	c.prepared[sql] = s
	return s, nil
}

// named numbers the arguments. The result is valid until the next call.
func (c *conn) named(args []any) ([]driver.NamedValue, error) {
	c.values = c.values[:0]
	for i, a := range args {
		v, err := driver.DefaultParameterConverter.ConvertValue(a)
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i+1, err)
		}
		c.values = append(c.values, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return c.values, nil
}

// exec runs a statement and returns how many rows it changed.
func (c *conn) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	s, err := c.prepare(sql)
	if err != nil {
		return 0, err
	}
	values, err := c.named(args)
	if err != nil {
		return 0, err
	}
	r, err := s.ExecContext(ctx, values)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// errStop ends a query early, without an error.
var errStop = errors.New("enough rows")

// query calls f with each row. If f returns errStop, query ends without an error. The row is valid
// only during the call.
func (c *conn) query(ctx context.Context, sql string, f func(r row) error, args ...any) (err error) {
	s, err := c.prepare(sql)
	if err != nil {
		return err
	}
	values, err := c.named(args)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(ctx, values)
	if err != nil {
		return err
	}
	defer func() {
		if e := rows.Close(); err == nil { // otherwise it repeats the error of Next
			err = e
		}
	}()
	r := make(row, len(rows.Columns()))
	for {
		switch err := rows.Next(r); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		switch err := f(r); {
		case errors.Is(err, errStop):
			return nil
		case err != nil:
			return err
		}
	}
}

// row is one row of a result. Its methods take the index of a column.
type row []driver.Value

func (r row) null(i int) bool { return r[i] == nil }

// int returns the integer in column i. It returns 0 for NULL and for a value of another type,
// which another program can have stored.
func (r row) int(i int) int64 {
	v, _ := r[i].(int64)
	return v
}

// text returns the text or blob in column i as a string. NULL is "".
func (r row) text(i int) string {
	switch v := r[i].(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return ""
}

// bytes returns the blob or text in column i. Only NULL is nil.
func (r row) bytes(i int) []byte {
	switch v := r[i].(type) {
	case []byte:
		if v == nil {
			return []byte{}
		}
		return v
	case string:
		return []byte(v)
	}
	return nil
}

// duration returns the number of milliseconds in column i as a duration. NULL is 0.
func (r row) duration(i int) time.Duration { return core.FromMS(r.int(i)) }

// time returns the instant in column i. NULL is the zero time.
func (r row) time(i int) time.Time {
	if r.null(i) {
		return time.Time{}
	}
	return time.UnixMilli(r.int(i)).UTC()
}
