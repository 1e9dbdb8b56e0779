package session

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Conn is a connection with the settings of this package.
type Conn struct {
	Raw     driver.Conn
	Wire    net.Conn
	Name    string // of a user lock that the session holds; other sessions find and end the session by it
	Counter *Counter
	Bad     bool          // it must not be used again
	Wait    time.Duration // the session's innodb_lock_wait_timeout
	Server  string        // identifies the server that the connection leads to
	Since   time.Time     // when Open had opened the connection
	Host    string        // the address that was dialed
	Packet  int64         // the session's max_allowed_packet, which it keeps as long as it lives
	Old     bool          // the server's max_allowed_packet has changed since the session began

	packets int64 // the server's max_allowed_packet when the session began

	used, opened time.Time
}

// Close ends the session, and waits at most a second for the server to accept that.
func (c *Conn) Close() {
	c.Bad = true
	_ = c.Wire.SetDeadline(time.Now().Add(time.Second)) // fails if the socket is closed already
	_ = c.Raw.Close()                                   // fails in the same case; it also releases the driver's resources
}

// open reports whether an idle connection is still open and the server sent nothing. It finds a connection
// that the server closed, for example at a restart. Otherwise a COMMIT would find that, and its outcome
// would be unknown.
func (c *Conn) open() bool {
	wire, ok := c.Wire.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := wire.SyscallConn()
	if err != nil {
		return false
	}
	good := false
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		good = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
		return true
	})
	return err == nil && good
}

// valid reports whether the driver still has the connection open and has read all that
// the server sent. A context that ends right after the last row closes the connection,
// and the query still succeeds.
func (c *Conn) valid() bool {
	v, ok := c.Raw.(driver.Validator)
	return !ok || v.IsValid()
}

// Exec sends statements that return no rows.
func (c *Conn) Exec(ctx context.Context, sql string, args ...any) error {
	if _, err := c.Raw.(driver.ExecerContext).ExecContext(ctx, sql, named(args)); err != nil {
		return c.failed(ctx, err)
	}
	return nil
}

// Each runs a query and calls f for each row.
func (c *Conn) Each(ctx context.Context, f func(r *Result), sql string, args ...any) error {
	var p Script
	p.Each(f, sql, args...)
	return c.Run(ctx, &p)
}

// Run sends the statements of a script and reads the rows that they return.
func (c *Conn) Run(ctx context.Context, p *Script) error {
	sql, args := p.plain()
	rows, err := c.Raw.(driver.QueryerContext).QueryContext(ctx, sql, named(args))
	if err != nil {
		return c.failed(ctx, err)
	}
	wrong, err := readAll(rows, p.reads)
	// Close also after an error. Otherwise the driver goes on watching ctx, and closes the
	// connection when ctx ends or at the next statement.
	if closed := rows.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return c.failed(ctx, err)
	}
	return wrong
}

// readAll reads the rows of every statement. wrong is the first error of reads. It counts only if all rows
// arrived.
func readAll(rows driver.Rows, reads []func(r *Result) error) (wrong, err error) {
	more := rows.(driver.RowsNextResultSet)
	for i, read := range reads {
		if i > 0 {
			if err := more.NextResultSet(); err != nil {
				return nil, fmt.Errorf("an answer is missing: %w", err)
			}
		}
		r := &Result{rows: rows, row: make([]driver.Value, len(rows.Columns()))}
		if err := read(r); err != nil {
			if broken, ok := errors.AsType[*rowError](err); ok {
				return nil, broken.err
			}
			if wrong == nil {
				wrong = err
			}
		}
	}
	// The server can return an error after the last rows.
	for err == nil {
		err = more.NextResultSet()
	}
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return wrong, nil
}

// failed records whether the connection is usable after err. A connection to a read-only server isn't: the
// address can lead to another server by now.
func (c *Conn) failed(ctx context.Context, err error) error {
	if errors.Is(err, driver.ErrSkip) || errors.Is(err, mysql.ErrPktTooLarge) {
		return fmt.Errorf("%w (it is %d)", ErrPacket, c.Packet) // it was not sent
	}
	if !FromServer(err) || EndsSession(err) || readOnly(err) {
		c.Bad = true
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return err
}

func named(args []any) []driver.NamedValue {
	if len(args) == 0 {
		return nil
	}
	n := make([]driver.NamedValue, len(args))
	for i, a := range args {
		n[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	return n
}
