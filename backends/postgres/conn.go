package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

// settings returns the settings of every statement of this package. Each statement loops
// over its arrays and searches one index. With the other plans switched off, neither stale
// statistics nor a bad estimate can turn it into a scan of the whole table. JIT compilation
// (jit) takes longer than the statements do. Less work_mem than the payloads of a commit would
// put them into temporary files.
func (o *Options) settings() map[string]string {
	m := map[string]string{
		"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
		"jit": "off", "work_mem": "64MB", "idle_in_transaction_session_timeout": millis(cmp.Or(o.idle, idleInTransaction)),
	}
	if o.StatementTimeout > 0 {
		m["statement_timeout"] = millis(o.StatementTimeout)
	}
	return m
}

func millis(d time.Duration) string { return strconv.FormatInt(core.MS(d), 10) }

// setting returns the statement that applies settings: to the transaction if local, else to the session.
func (o *Options) setting(local bool) string {
	sql := "SELECT "
	for name, value := range o.settings() {
		if sql != "SELECT " {
			sql += ", "
		}
		sql += fmt.Sprintf("pg_catalog.set_config('%s', '%s', %t)", name, value, local)
	}
	return sql
}

// configure parses the address. settle chooses the pool's mode later, when the server is known.
func configure(o *Options, p *primaries) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, fmt.Errorf("the address of the PostgreSQL database: %w", err) // pgx omits the password
	}
	c := config.ConnConfig
	if o.Password != "" {
		c.Password = o.Password
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = o.ApplicationName
	}
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
	var number int
	var encoding string
	if err := checkProduct(ctx, c.PgConn()); err != nil {
		return fmt.Errorf("%s: %w", s.place, err)
	}
	if err := c.QueryRow(ctx, `SELECT pg_backend_pid(), current_setting('server_version'),
		current_setting('server_version_num')::int, current_setting('server_encoding')`).Scan(&pid, &s.version, &number, &encoding); err != nil {
		return err
	}
	switch {
	case number < 130000:
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
	config.AfterConnect = s.prepareSession
}

// prepareSession sets up a session that the Store owns. The plans of the statements do not
// depend on their arguments, so the server plans each statement once. The isolation level and
// the access mode are for statements that are their own transactions. LZ4 compresses a payload
// in a fifth of the time of the server's default, to nearly the same size; a server can be built
// without it, and an administrator can have chosen another method.
func (s *Store) prepareSession(ctx context.Context, c *pgx.Conn) error {
	if s.pooled {
		return nil
	}
	encodeInt8Arrays(c)
	rows, err := c.Query(ctx, s.o.setting(false)+`, pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', false),
		pg_catalog.set_config('default_transaction_isolation', 'read committed', false),
		pg_catalog.set_config('default_transaction_read_only', 'off', false),
		(SELECT pg_catalog.set_config(name, 'lz4', false) FROM pg_catalog.pg_settings
			WHERE name = 'default_toast_compression' AND source = 'default' AND 'lz4' = ANY(enumvals)),
		(SELECT backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_backend_pid())`, pgx.QueryExecModeExec)
	if err != nil {
		return err
	}
	defer rows.Close()
	var began time.Time
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return err
		}
		began, _ = values[len(values)-1].(time.Time)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	epoch := ""
	if !s.o.ReadOnly { // an examination commits nothing and starts no epoch
		epoch, err = s.readEpoch(ctx, c)
		s.enter(epoch)
	}
	c.PgConn().CustomData()[sessionKey] = session{pid: c.PgConn().PID(), began: began, epoch: epoch}
	return err
}

// session identifies one server process, even after another process has its number.
type session struct {
	pid   uint32
	began time.Time // zero if it is unknown
	epoch string    // see epoch.go
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
