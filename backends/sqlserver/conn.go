package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/qsidecar/qsidecar/backends/internal/dial"
)

const idleTime = 5 * time.Minute

// CheckURL reports the errors in an address. The error does not contain the password.
func CheckURL(url string) error {
	_, err := configure(&Options{URL: url})
	return err
}

// configure reads the address.
func configure(o *Options) (msdsn.Config, error) {
	config, err := msdsn.Parse(o.URL)
	if err != nil {
		return config, fmt.Errorf("the address of the SQL Server database, written sqlserver://USER@HOST:PORT?database=NAME: %w", withoutURL(err))
	}
	if config.Database == "" { // a path is an instance's name, and a login's default database is often master
		return config, errors.New("the address has no database: write sqlserver://USER@HOST:PORT?database=NAME")
	}
	if by := cmp.Or(config.Parameters["fedauth"], config.Parameters["authenticator"]); by != "" && by != "ntlm" {
		return config, fmt.Errorf("the address asks for the authentication %s: this program can log in with a login of SQL Server (USER), or with one of Windows and its password (DOMAIN%%5CUSER, by NTLM)", by)
	}
	if o.Password != "" {
		config.Password = o.Password
	}
	if u, err := url.Parse(o.URL); err == nil && !u.Query().Has("app name") {
		config.AppName = o.ApplicationName
	}
	if config.DialTimeout <= 0 || config.DialTimeout > dial.Timeout {
		config.DialTimeout = dial.Timeout
	}
	// The core retries, because it has the information about which statements are safe to retry.
	config.DisableRetry = true
	return config, nil
}

// withoutURL returns err without the URL, which net/url puts into it with the password.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// placeOf returns the address without secrets.
func placeOf(c msdsn.Config) string {
	u := url.URL{Scheme: "sqlserver", Host: c.Host}
	if c.User != "" {
		u.User = url.User(c.User)
	}
	if c.Port != 0 {
		u.Host += ":" + strconv.FormatUint(c.Port, 10)
	}
	if c.Instance != "" {
		u.Path = "/" + c.Instance
	}
	if c.Database != "" {
		u.RawQuery = url.Values{"database": {c.Database}}.Encode()
	}
	return u.String()
}

// connect creates the pools. It does not connect yet. The driver resets a session (sp_reset_connection) with the
// first batch after it was taken from a pool.
func (s *Store) connect(config msdsn.Config) {
	d := dial.Dialer()
	d.KeepAliveConfig.Idle = config.KeepAlive
	pool := func(most int) *sql.DB {
		c := mssql.NewConnectorConfig(config)
		c.Dialer = s.o.dialer
		if c.Dialer == nil {
			c.Dialer = d
		}
		c.Dialer = recordingDialer{c.Dialer}
		var to driver.Connector = c
		if s.o.driver != nil {
			to = s.o.driver(c)
		}
		db := sql.OpenDB(timedConnector{to, s.o.connect, &s.unverified})
		db.SetMaxOpenConns(most)
		db.SetMaxIdleConns(most)
		db.SetConnMaxIdleTime(idleTime)
		return db
	}
	own := s.o.MaxConnections - 1
	s.db, s.heartbeats = pool(own), pool(1)
	s.slots = make(chan *txSlot, own)
	for range own {
		s.slots <- s.newTxSlot()
	}
}

// timedConnector limits the time of a connect, including the login. The driver waits for a
// silent server without a limit, even after ctx has ended.
type timedConnector struct {
	driver.Connector
	within time.Duration
	isNew  *atomic.Bool // is set for each new connection
}

// Connect implements driver.Connector.
func (t timedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	w := new(pendingConn)
	within, cancel := context.WithTimeoutCause(context.WithValue(ctx, pendingConnKey{}, w), t.within, fmt.Errorf("no answer to the login within %v", t.within))
	defer cancel()
	stop := context.AfterFunc(within, w.cut)
	c, err := t.Connector.Connect(within)
	if stop() {
		t.isNew.Store(true)
		return c, err
	}
	if err == nil {
		err = c.Close() // its network connection was cut
	}
	return nil, errors.Join(context.Cause(within), err)
}

// pendingConn is the network connection of a connect under way.
type pendingConn struct {
	mu   sync.Mutex
	wire net.Conn
	over bool
}

type pendingConnKey struct{}

// cut ends all reads from the network connection, now and later.
func (p *pendingConn) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.wire != nil {
		_ = p.wire.SetDeadline(time.Unix(1, 0)) // fails if it is already closed
	}
}

// recordingDialer records the network connection of each connect.
type recordingDialer struct{ mssql.Dialer }

// DialContext implements mssql.Dialer.
func (r recordingDialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	wire, err := r.Dialer.DialContext(ctx, network, addr)
	if w, ok := ctx.Value(pendingConnKey{}).(*pendingConn); ok && err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.wire = wire; w.over {
			return nil, errors.Join(context.Cause(ctx), wire.Close())
		}
	}
	return wire, err
}

// server holds the server's properties as the server reports them.
type server struct {
	version   string
	major     int
	edition   int // SERVERPROPERTY('EngineEdition')
	level     int // the database's compatibility level
	babelfish bool
	name      string // of the database
	versions  bool   // READ_COMMITTED_SNAPSHOT: the database has row versions for readers
}

// The values of EngineEdition of products that Microsoft keeps up to date. Their versions are not comparable with those of SQL Server:
// https://learn.microsoft.com/sql/t-sql/functions/serverproperty-transact-sql
const (
	editionAzure   = 5  // Azure SQL Database
	editionManaged = 8  // Azure SQL Managed Instance
	editionFabric  = 12 // SQL database in Microsoft Fabric
)

const (
	minMajor = 13
	minLevel = 130 // OPENJSON's
)

// updated reports whether the server is such a product.
func (s *server) updated() bool {
	return s.edition == editionAzure || s.edition == editionManaged || s.edition == editionFabric
}

// checkServer queries the server's version and settings, and returns an error for a server that is not supported.
func (s *Store) checkServer(ctx context.Context) error {
	var v *server
	if err := s.plain(ctx, s.db, s.sql.greet, func(rows *sql.Rows) error {
		v = &server{}
		var edition string
		if err := rows.Scan(&v.version, &edition, &v.edition, &v.level, &v.babelfish, &v.name, &v.versions); err != nil {
			return err
		}
		v.major, _ = strconv.Atoi(strings.SplitN(v.version, ".", 2)[0]) // on failure it is 0, which is rejected below
		v.version += " (" + edition + ")"
		return nil
	}); err != nil {
		return err
	}
	if v == nil {
		return fmt.Errorf("%s does not show its own database: give the login the right VIEW ANY DATABASE, or make it a user of the database", s.place)
	}
	if s.server = *v; v.versions {
		s.sql.readVersions()
	}
	switch {
	case v.babelfish:
		s.server.version += ", Babelfish"
	case !v.updated() && v.major < minMajor:
		return fmt.Errorf("%s is SQL Server %s: 2016 (13.0) or newer is needed", s.place, v.version)
	case v.level < minLevel:
		return fmt.Errorf("the database %s has the compatibility level %d, and %d or more is needed (OPENJSON): ALTER DATABASE [%s] SET COMPATIBILITY_LEVEL = %d",
			s.place, v.level, minLevel, v.name, minLevel)
	case s.server.name == "master" && v.updated():
		return fmt.Errorf("%s is the database master: name one of your own with ?database=NAME", s.place)
	}
	return nil
}

// discard closes a connection that is broken, or that is in the middle of something that
// cannot be ended.
func discard(c *sql.Conn) {
	_ = c.Raw(func(any) error { return driver.ErrBadConn }) // returns that error
}

// flush closes the idle connections of a pool: if one broke, the others probably broke too.
func flush(db *sql.DB, most int) {
	db.SetMaxIdleConns(-1)
	db.SetMaxIdleConns(most)
}

// plain runs a query without parameters and without the head of a batch, because the tables do not always exist yet.
func (s *Store) plain(ctx context.Context, on querier, query string, f func(rows *sql.Rows) error) error {
	rows, err := on.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	wrong := each(f)(rows)
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	return wrong
}
