package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	connectTimeout = 10 * time.Second
	lockWait       = 5 * time.Second  // for a row; then the transaction is retried
	schemaWait     = 10 * time.Second // for a table that another session alters
	// idleEnds is how long the server keeps a session that sends nothing, or that doesn't read the
	// server's answers. If a host vanishes without closing its connections, its sessions keep their locks
	// until then. idleEnds is shorter than the default host_lease, after which other sidecars reap the
	// host's jobs.
	idleEnds = 20 * time.Second
	// idleKept is how long an unused connection counts as usable.
	idleKept   = 14 * time.Second
	packetRoom = 64 << 10 // the part of a packet that is not payload
)

// configure parses the address.
func configure(o *Options) (*mysql.Config, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, errors.New("the address of the MySQL database is no URL: write mysql://USER@HOST/DATABASE") // the error of url contains the password
	}
	c := mysql.NewConfig()
	c.User, c.DBName = u.User.Username(), strings.TrimPrefix(u.Path, "/")
	c.Passwd, _ = u.User.Password()
	if o.Password != "" {
		c.Passwd = o.Password
	}
	if u.Scheme != "mysql" || c.User == "" || c.DBName == "" || strings.Contains(c.DBName, "/") {
		return nil, errors.New("the address of a MySQL database is written mysql://USER@HOST/DATABASE")
	}
	c.Net, c.Addr = "tcp", net.JoinHostPort(orElse(u.Hostname(), "127.0.0.1"), orElse(u.Port(), "3306"))
	q := u.Query()
	if s := q.Get("socket"); s != "" {
		c.Net, c.Addr = "unix", s
	}
	if err := secure(c, q.Get("tls"), q.Get("ca"), u.Hostname()); err != nil {
		return nil, err
	}
	for key := range q {
		if key != "socket" && key != "tls" && key != "ca" {
			return nil, fmt.Errorf("the address of the MySQL database has the parameter %q: there are socket, tls and ca", key)
		}
	}
	c.Timeout = connectTimeout
	c.Logger = quiet{o.Log}
	c.ConnectionAttributes = "program_name:qsidecar"
	c.MultiStatements, c.InterpolateParams, c.ClientFoundRows = true, true, true
	c.CheckConnLiveness = false // each call retries
	c.MaxAllowedPacket = 1 << 30
	return c, nil
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func secure(c *mysql.Config, mode, ca, host string) error {
	ip := net.ParseIP(host)
	near := c.Net == "unix" || host == "" || host == "localhost" || ip != nil && ip.IsLoopback()
	switch mode {
	case "true", "skip-verify", "preferred", "false":
		c.TLSConfig = mode
	case "":
		c.TLSConfig = map[bool]string{true: "false", false: "preferred"}[near]
	default:
		return fmt.Errorf("the address of the MySQL database has tls=%s: write preferred, true, skip-verify or false", mode)
	}
	if ca == "" {
		return nil
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return fmt.Errorf("the certificates to trust, ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no certificate", ca)
	}
	c.TLS = &tls.Config{RootCAs: pool, ServerName: host, MinVersion: tls.VersionTLS12}
	return nil
}

// quiet is the driver's logger.
type quiet struct{ log *slog.Logger }

func (q quiet) Print(v ...any) { q.log.Debug("the MySQL driver says", "text", fmt.Sprint(v...)) }

// placeOf returns the address without secrets.
func placeOf(c *mysql.Config) string {
	if c.Net == "unix" {
		return fmt.Sprintf("mysql://%s@localhost/%s?socket=%s", c.User, c.DBName, c.Addr)
	}
	return fmt.Sprintf("mysql://%s@%s/%s", c.User, c.Addr, c.DBName)
}

// conn is a connection, and the line whose commits it numbers.
type conn struct {
	raw    driver.Conn
	wire   net.Conn
	name   string // of a user lock that the session holds; other sessions find and end the session by it
	used   time.Time
	opened time.Time
	line   *line
	bad    bool
	wait   time.Duration // the session's innodb_lock_wait_timeout

	server string // identifies the server that the connection leads to

	joined time.Time // when the line's row in qsidecar_commits was last written; zero: never
}

// line numbers the commits of one slot of the pool, for each connection that the slot has over time. The
// row of the line in qsidecar_commits has the number of the last commit that succeeded.
type line struct {
	handle int64
	number uint64
	stray  string // the name of a session that can still be at work for the line; empty: none
}

func newLine() *line { return &line{handle: rand.Int64()} }

// pool is a bounded number of slots for connections.
type pool struct {
	free chan struct{}
	mu   sync.Mutex
	idle []*conn
	left time.Time // connections that were opened before are not used again
	line []*line   // those of the slots without a connection
	over bool
}

func (p *pool) fill(n int) {
	p.free = make(chan struct{}, n)
	for range n {
		p.free <- struct{}{}
		p.line = append(p.line, newLine())
	}
}

// get takes a slot. If its connection is nil, the caller opens one for the line.
func (p *pool) get(ctx context.Context, m *backends.Meter) (*conn, *line, error) {
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	select {
	case <-p.free:
	default:
		began := time.Now()
		select {
		case <-p.free:
			m.Wait(began)
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) > 0 {
		c := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if c.opened.After(p.left) && time.Since(c.used) < idleKept && c.good() {
			return c, c.line, nil
		}
		c.close()
		p.line = append(p.line, c.line)
	}
	l := p.line[len(p.line)-1]
	p.line = p.line[:len(p.line)-1]
	return nil, l, nil
}

// leave retires the connections that are open now, because their server became read-only.
func (p *pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = time.Now()
}

// put returns a slot. c is its connection, or nil.
func (p *pool) put(c *conn, l *line) {
	p.mu.Lock()
	if c != nil && (c.bad || p.over || !c.valid()) {
		c.close()
		c = nil
	}
	if c != nil {
		c.used = time.Now()
		p.idle = append(p.idle, c)
	} else {
		p.line = append(p.line, l)
	}
	p.mu.Unlock()
	p.free <- struct{}{}
}

// close waits for calls in progress. They end at once because the Store is closed.
func (p *pool) close() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	for range cap(p.free) {
		<-p.free
	}
	for _, c := range p.idle {
		c.close()
	}
	p.idle = nil
}

// dial opens a connection with the settings of this package. It does not kill the line's stray session:
// see open.
func (s *Store) dial(ctx context.Context, l *line) (*conn, error) {
	now := time.Now()
	c := &conn{line: l, name: "qsidecar-" + strconv.FormatUint(rand.Uint64(), 36), opened: now, used: now, wait: lockWait}
	config := s.config.Clone()
	config.DialFunc = func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
		d := net.Dialer{Timeout: connectTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
		c.wire, err = d.DialContext(ctx, network, addr)
		if err == nil && s.o.wrap != nil {
			c.wire = s.o.wrap(c.wire)
		}
		return c.wire, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	// The driver's own timeout covers dialing only. Without this limit, a server that accepts the
	// connection and sends nothing would block until ctx ends.
	within, cancel := context.WithTimeoutCause(ctx, s.o.connect, fmt.Errorf("no answer to the login within %v", s.o.connect))
	defer cancel()
	if c.raw, err = connector.Connect(within); err != nil {
		if ctx.Err() == nil && within.Err() != nil {
			err = context.Cause(within)
		}
		return nil, &connectError{err}
	}
	if err := s.writable(ctx, c); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// close ends the session, and waits at most a second for the server to accept that.
func (c *conn) close() {
	c.bad = true
	_ = c.wire.SetDeadline(time.Now().Add(time.Second)) // fails if the socket is closed already
	_ = c.raw.Close()                                   // fails in the same case; it also releases the driver's resources
}

// good reports whether an idle connection is still open and the server sent nothing. It finds a connection
// that the server closed, for example at a restart. Otherwise a COMMIT would find that, and its outcome
// would be unknown.
func (c *conn) good() bool {
	wire, ok := c.wire.(syscall.Conn)
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
func (c *conn) valid() bool {
	v, ok := c.raw.(driver.Validator)
	return !ok || v.IsValid()
}

// result holds the rows of one statement. The values are in the driver's buffer, and valid until the next
// row.
type result struct {
	rows driver.Rows
	row  []driver.Value
}

// exec sends statements that return no rows.
func (c *conn) exec(ctx context.Context, sql string, args ...any) error {
	if _, err := c.raw.(driver.ExecerContext).ExecContext(ctx, sql, named(args)); err != nil {
		return c.failed(ctx, err)
	}
	return nil
}

// query sends statements. It calls one of reads, in their order, for each statement that returns rows.
func (c *conn) query(ctx context.Context, sql string, args []any, reads []func(r *result) error) error {
	rows, err := c.raw.(driver.QueryerContext).QueryContext(ctx, sql, named(args))
	if err != nil {
		return c.failed(ctx, err)
	}
	wrong, err := readAll(rows, reads)
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
func readAll(rows driver.Rows, reads []func(r *result) error) (wrong, err error) {
	more := rows.(driver.RowsNextResultSet)
	for i, read := range reads {
		if i > 0 {
			if err := more.NextResultSet(); err != nil {
				return nil, fmt.Errorf("an answer is missing: %w", err)
			}
		}
		r := &result{rows: rows, row: make([]driver.Value, len(rows.Columns()))}
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
func (c *conn) failed(ctx context.Context, err error) error {
	if errors.Is(err, driver.ErrSkip) || errors.Is(err, mysql.ErrPktTooLarge) {
		return errPacket // it was not sent
	}
	if !fromServer(err) || endsSession(err) || readOnly(err) {
		c.bad = true
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
