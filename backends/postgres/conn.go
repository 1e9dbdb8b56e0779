package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	connectTimeout = 10 * time.Second
	// closePatience is how long a Close waits for connections that do not end.
	closePatience = 2 * time.Second
	// idleInTransaction ends a transaction whose sidecar vanished without a word
	// (a cut cable): its row locks would hold others up for hours.
	idleInTransaction = 15 * time.Second
)

// settings hold for every statement of this package. Each of them drives a loop
// over its arrays into one index; with the other ways switched off, neither
// stale statistics nor an unlucky estimate can turn it into a walk through the
// table. Compiling them (jit) takes longer than they do.
func (o *Options) settings() map[string]string {
	m := map[string]string{
		"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
		"jit": "off", "idle_in_transaction_session_timeout": millis(cmp.Or(o.idle, idleInTransaction)),
	}
	if o.StatementTimeout > 0 {
		m["statement_timeout"] = millis(o.StatementTimeout)
	}
	return m
}

func millis(d time.Duration) string { return strconv.FormatInt(ms(d), 10) }

// setting is the statement that sets them, for the transaction or for the session.
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

// configure reads the address. The pool's mode is settled once the server was seen.
func configure(o *Options) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, fmt.Errorf("the address of the PostgreSQL database: %w", err) // pgx leaves the password out
	}
	c := config.ConnConfig
	if o.Password != "" {
		c.Password = o.Password
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = o.ApplicationName
	}
	if c.ConnectTimeout == 0 || c.ConnectTimeout > connectTimeout {
		c.ConnectTimeout = connectTimeout
	}
	c.ValidateConnect = onlyPrimary(c.ValidateConnect)
	return config, nil
}

var errStandby = errors.New("it is a standby, which can't be written to")

// onlyPrimary is a check of new connections, after the one of target_session_attrs: of several
// hosts, the one that is the primary now is used, and an address that moves is waited for.
func onlyPrimary(also pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, c *pgconn.PgConn) error {
		if also != nil {
			if err := also(ctx, c); err != nil {
				return err
			}
		}
		r := c.ExecParams(ctx, "SELECT pg_is_in_recovery()", nil, nil, nil, nil).Read()
		if r.Err == nil && string(r.Rows[0][0]) == "t" {
			return errStandby
		}
		return r.Err
	}
}

// greet asks the server who it is, and whether it is it that answers.
func (s *Store) greet(ctx context.Context, config *pgx.ConnConfig) (err error) {
	c, err := connectPlain(ctx, config)
	if s.o.Look && errors.Is(err, errStandby) { // there is no primary: it looks at the standby
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
	if err := c.QueryRow(ctx, `SELECT pg_backend_pid(), current_setting('server_version'),
		current_setting('server_version_num')::int, current_setting('server_encoding')`).Scan(&pid, &s.version, &number, &encoding); err != nil {
		return err
	}
	switch {
	case number < 130000:
		return fmt.Errorf("%s is PostgreSQL %s: 13 or newer is needed", s.place, s.version)
	case encoding != "UTF8":
		return fmt.Errorf("%s keeps texts as %s: make a database with ENCODING 'UTF8'", s.place, encoding)
	}
	// A pooler gives its clients process ids of its own making.
	s.pooled = pid != c.PgConn().PID()
	return nil
}

// connectPlain connects without preparing anything.
func connectPlain(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	return pgx.ConnectConfig(ctx, config)
}

// settle decides how statements are sent. With sessions of its own the Store
// has each prepared once for each connection; otherwise a transaction brings its
// settings along and prepares nothing that has a name.
func (s *Store) settle(config *pgxpool.Config) {
	c := config.ConnConfig
	own := 1 // the beat's
	if s.o.Notify && !s.pooled {
		own++
	}
	config.MaxConns = int32(s.o.MaxConnections - own)
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConnIdleTime = 5 * time.Minute
	// A connection that broke while it was idle is found out by its first use:
	// every call here tries again.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	if s.pooled {
		c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		return
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	config.AfterConnect = s.prepareSession
}

// prepareSession makes a connection of the Store's own ready. The plans of the
// statements do not depend on their arguments: they are made once. The isolation and
// the access mode are for statements that are their own transactions.
func (s *Store) prepareSession(ctx context.Context, c *pgx.Conn) error {
	if s.pooled {
		return nil
	}
	rows, err := c.Query(ctx, s.o.setting(false)+`, pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', false),
		pg_catalog.set_config('default_transaction_isolation', 'read committed', false),
		pg_catalog.set_config('default_transaction_read_only', 'off', false),
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
	if !s.o.Look { // who looks commits nothing, and begins none
		epoch, err = s.readEpoch(ctx, c)
		s.enter(epoch)
	}
	c.PgConn().CustomData()[sessionKey] = session{pid: c.PgConn().PID(), began: began, epoch: epoch}
	return err
}

// session names one of the server's processes, also after another has its number.
type session struct {
	pid   uint32
	began time.Time // zero: nobody said it
	epoch string    // see epoch.go
}

const sessionKey = "qsidecar session"

func sessionOf(c *pgx.Conn) session {
	session, _ := c.PgConn().CustomData()[sessionKey].(session)
	return session
}

// orphans are sessions whose connections broke in the midst of a transaction. The
// server may not know it yet, as after a cut cable, and keep their row locks.
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

// end has the server end them, by a connection that works.
func (o *orphans) end(ctx context.Context, c *pgx.Conn) error {
	o.mu.Lock()
	all := o.all
	o.all = nil
	o.mu.Unlock()
	for _, x := range all {
		if _, err := c.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2`,
			int32(x.pid), x.began); err != nil {
			return err // the server's own timeout for idle transactions remains
		}
	}
	return nil
}
