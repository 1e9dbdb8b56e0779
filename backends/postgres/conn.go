package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/dial"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/hosts"
)

const (
	// closePatience is how long Close waits for connections that don't end.
	closePatience = 2 * time.Second
	// idleInTransaction ends a transaction whose sidecar vanished without closing the connection
	// (a cut cable). Otherwise its row locks could block others for hours.
	idleInTransaction = 15 * time.Second
)

func millis(d time.Duration) string { return strconv.FormatInt(core.MS(d), 10) }

// CheckURL reports an address that can't be one of a PostgreSQL database. Its errors contain no password.
func CheckURL(address string) error {
	config, err := parse(address)
	if err == nil && config.ConnConfig.Database == "" {
		return errors.New("the address has no database: write postgres://USER@HOST/DATABASE")
	}
	return err
}

// sslmodes are the values of the parameter sslmode.
var sslmodes = []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}

// otherParameters are parameters that other programs have in their addresses, and what to do. The server would reject them.
var otherParameters = map[string]string{
	"schema":           "name it in the config (databases.NAME.schema)",
	"pgbouncer":        "leave it out, because the sidecar detects a pooler",
	"connection_limit": "set databases.NAME.max_connections in the config",
}

// parse reads an address, with pgx's reason for a wrong one.
func parse(address string) (*pgxpool.Config, error) {
	if u, err := url.Parse(address); err == nil {
		if mode := u.Query().Get("sslmode"); mode != "" && !slices.Contains(sslmodes, mode) {
			return nil, fmt.Errorf("the address of the PostgreSQL database has sslmode=%s: write disable, allow, prefer, require, verify-ca or verify-full", mode)
		}
	}
	config, err := pgxpool.ParseConfig(address)
	if err == nil {
		for name, fix := range otherParameters {
			if _, set := config.ConnConfig.RuntimeParams[name]; set {
				return nil, fmt.Errorf("the address of the PostgreSQL database has the parameter %q: %s", name, fix)
			}
		}
		return config, nil
	}
	_, reason, ok := strings.Cut(err.Error(), "`: ") // after the address, from which pgx omits the password
	if !ok {
		reason = err.Error()
	}
	return nil, fmt.Errorf("the address of the PostgreSQL database: %s", reason)
}

// configure parses the address. settle chooses the pool's mode later, when the server is known.
func configure(o *Options, p *primaries) (*pgxpool.Config, error) {
	config, err := parse(o.URL)
	if err != nil {
		return nil, err
	}
	c := config.ConnConfig
	if o.Password != "" {
		c.Password = o.Password
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = o.ApplicationName
	}
	c.RuntimeParams["client_encoding"] = "UTF8" // as libpq does; a role can have another one
	limit := dial.Timeout
	if hosts.Several(c) {
		limit = dial.HostTimeout
	}
	if c.ConnectTimeout == 0 || c.ConnectTimeout > limit {
		c.ConnectTimeout = limit
	}
	c.ValidateConnect = p.only(c.ValidateConnect)
	c.DialFunc = dial.Dialer().DialContext
	p.hosts.Watch(&c.Config)
	if watched := c.DialFunc; o.wrap != nil {
		c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := watched(ctx, network, addr)
			if err == nil {
				c = o.wrap(c)
			}
			return c, err
		}
	}
	return config, nil
}

// checkServer reads the server's version and encoding, and detects a pooler in between.
func (s *Store) checkServer(ctx context.Context, config *pgx.ConnConfig) (err error) {
	c, err := connectPlain(ctx, config)
	if s.o.ReadOnly && errors.Is(err, errStandby) { // there is no primary: examine the standby
		config.ValidateConnect = nil
		c, err = connectPlain(ctx, config)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	var pid uint32
	var encoding string
	if err := checkProduct(ctx, c.PgConn()); err != nil {
		return fmt.Errorf("%s: %w", s.place, err)
	}
	if _, err := c.Exec(ctx, beginPath); err != nil {
		return err
	}
	if err := c.QueryRow(ctx, `SELECT pg_backend_pid(), current_setting('server_version'),
		current_setting('server_version_num')::int, current_setting('server_encoding')`).Scan(&pid, &s.version, &s.number, &encoding); err != nil {
		return err
	}
	if err := s.own.read(ctx, c); err != nil {
		return err
	}
	if _, err := c.Exec(ctx, "COMMIT"); err != nil {
		return err
	}
	switch {
	case s.number < 130000:
		return fmt.Errorf("%s is PostgreSQL %s: 13 or newer is needed", s.place, s.version)
	case encoding != "UTF8":
		return fmt.Errorf("%s stores texts as %s: create a database with ENCODING 'UTF8'", s.place, encoding)
	}
	// A pooler sends its clients process ids that it invents.
	s.pooled = pid != c.PgConn().PID()
	return nil
}

// connectPlain connects in a mode that prepares no statements.
func connectPlain(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	return pgx.ConnectConfig(ctx, config)
}

// settle chooses how statements are sent. If the Store owns its sessions, it prepares each
// statement once per connection. Behind a pooler, each transaction begins with its settings
// and uses no named prepared statements.
func (s *Store) settle(config *pgxpool.Config) {
	c := config.ConnConfig
	own := 1 // for heartbeats
	if s.o.Notify && !s.pooled {
		own++
	}
	config.MaxConns = int32(s.o.MaxConnections - own)
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConnIdleTime = 5 * time.Minute
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { s.primaries.hosts.Order(c); return nil }
	// The first use of a connection detects that it broke while it was idle.
	// Every call in this package retries.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	if s.pooled {
		c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		return
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		err := s.prepareSession(ctx, c)
		if err == nil && !s.o.ReadOnly {
			s.checkSequence(ctx, c)
		}
		return err
	}
}

// prepareSession sets up a session that the Store owns. The plans of the statements do not
// depend on their arguments, so the server plans each statement once. LZ4 compresses a payload
// in a fifth of the time of the server's default, to nearly the same size; a server can be built
// without it, and an administrator can have chosen another method.
func (s *Store) prepareSession(ctx context.Context, c *pgx.Conn) error {
	if s.pooled {
		return nil
	}
	encodeInt8Arrays(c)
	results, err := c.PgConn().Exec(ctx, s.setting(false)+"; "+sessionSQL).ReadAll()
	if err != nil {
		return s.unset(err)
	}
	last := results[len(results)-1].Rows[0]
	if string(last[2]) != strconv.FormatUint(uint64(c.PgConn().PID()), 10) { // settings and prepared statements would not hold
		return backends.Unavailable(fmt.Errorf("%s: the address leads to a pooler now, and led to the server when this program opened the database: restart this program", s.place))
	}
	x := session{pid: c.PgConn().PID(), searchPath: string(last[1])}
	x.began, _ = time.Parse("2006-01-02 15:04:05.999999", string(last[0])) // it is empty if it is unknown
	if !s.o.ReadOnly {                                                     // an examination commits nothing and starts no epoch
		x.epoch, err = s.readEpoch(ctx, c)
		s.enter(x.epoch)
	}
	c.PgConn().CustomData()[sessionKey] = x
	return err
}

// sessionSQL follows the settings of a session that the Store owns.
const sessionSQL = `SELECT (SELECT backend_start AT TIME ZONE 'UTC' FROM pg_stat_activity WHERE pid = pg_backend_pid()),
	(SELECT reset_val FROM pg_settings WHERE name = 'search_path'), pg_backend_pid(), set_config('plan_cache_mode', 'force_generic_plan', false),
	(SELECT set_config(name, 'lz4', false) FROM pg_settings WHERE name = 'default_toast_compression' AND source = 'default' AND 'lz4' = ANY(enumvals))`

// session identifies one server process, even after another process has its number.
type session struct {
	pid   uint32
	began time.Time // zero if it is unknown
	epoch string    // see epoch.go

	searchPath string // of the role; see session.go
}

const sessionKey = "qsidecar session"

func sessionOf(c *pgx.Conn) session {
	session, _ := c.PgConn().CustomData()[sessionKey].(session)
	return session
}

// orphans are sessions whose connections broke during a transaction. The server might not have
// noticed it yet, as after a cut cable, and might still keep their row locks.
type orphans struct {
	mu  sync.Mutex
	all []session
}

func (o *orphans) add(c *pgx.Conn) {
	if session := sessionOf(c); !session.began.IsZero() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.all = append(o.all, session)
	}
}

// end makes the server terminate the orphans. It uses c, a working connection.
func (o *orphans) end(ctx context.Context, c *pgx.Conn) error {
	o.mu.Lock()
	all := o.all
	o.all = nil
	o.mu.Unlock()
	for _, x := range all {
		if _, err := c.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2`,
			int32(x.pid), x.began); err != nil {
			return err // the server's timeout for idle transactions still ends them
		}
	}
	return nil
}
