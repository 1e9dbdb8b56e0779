package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A role, a database and, behind a pooler, another client can change what SQL means in a session. So each session that
// the Store owns begins with the settings of this file, and behind a pooler each transaction does.
//
// The search path has only pg_catalog. With another schema in it, a role that may create functions or operators there could make
// a better match for a call of ours, which would then run as the sidecar's role. The path of the role applies only while a row of an
// adopted table changes: the table's triggers and defaults can need it (see tx.inOwnersPath).
//
// The time zone stays that of the role: columns without a zone hold its time.

// path is the search path of the Store's statements. Unless pg_temp is named last, temporary tables and types come first.
const path = "pg_catalog, pg_temp"

// setting is a setting with its value.
type setting struct {
	name, value string
	since       int // the first version of the server that has it; 0: all
}

// planSettings make each statement of this package loop over its arrays and search one index. With the other plans switched off,
// neither stale statistics nor a bad estimate can turn it into a scan of the whole table. JIT compilation (jit) takes longer than the
// statements do. Less work_mem than the payloads of a commit would put them into temporary files.
var planSettings = []setting{
	{"enable_seqscan", "off", 0}, {"enable_bitmapscan", "off", 0}, {"enable_hashjoin", "off", 0}, {"enable_mergejoin", "off", 0},
	{"enable_indexscan", "on", 0}, {"enable_indexonlyscan", "on", 0}, {"enable_nestloop", "on", 0}, {"enable_sort", "on", 0}, {"enable_tidscan", "on", 0},
	{"from_collapse_limit", "8", 0}, {"join_collapse_limit", "8", 0}, {"geqo", "off", 0}, {"max_parallel_workers_per_gather", "0", 0},
	{"jit", "off", 0}, {"work_mem", "64MB", 0},
}

// meaningSettings fix how values are read and written as text, what statements mean, and how long they can take.
var meaningSettings = []setting{
	{"search_path", path, 0},
	{"client_encoding", "UTF8", 0}, {"standard_conforming_strings", "on", 0}, {"array_nulls", "on", 0}, {"transform_null_equals", "off", 0},
	{"IntervalStyle", "postgres", 0}, {"extra_float_digits", "1", 0}, {"bytea_output", "hex", 0}, {"lc_monetary", "C", 0},
	{"xmloption", "content", 0}, {"xmlbinary", "base64", 0}, {"quote_all_identifiers", "off", 0}, {"row_security", "on", 0}, {"exit_on_error", "off", 0},
	{"default_transaction_isolation", "read committed", 0}, {"default_transaction_read_only", "off", 0}, {"default_transaction_deferrable", "off", 0},
	{"lock_timeout", "0", 0}, {"transaction_timeout", "0", 170000}, {"idle_session_timeout", "0", 140000},
}

// ownSettings are what the server, database and role set for the sessions of the Store's login.
type ownSettings struct {
	login, role, searchPath, dateStyle, timeZone, synchronousCommit, statementTimeout string
}

const (
	// beginPath begins a transaction in which names have their usual meaning.
	beginPath = "BEGIN; SELECT pg_catalog.set_config('search_path', '" + path + "', true), pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true)"
	// ownSettingsSQL reads them. pg_settings doesn't show the role: a setting of the role goes before one of the database.
	ownSettingsSQL = `SELECT a.usename::text,
		coalesce((SELECT substr(c, 6) FROM pg_db_role_setting r CROSS JOIN unnest(r.setconfig) AS c
			WHERE c LIKE 'role=%' AND r.setrole IN (0, a.usesysid) AND r.setdatabase IN (0, a.datid) ORDER BY r.setrole <> 0 DESC, r.setdatabase <> 0 DESC LIMIT 1), 'none'),
		x.of->>'search_path', x.of->>'DateStyle', x.of->>'TimeZone', x.of->>'synchronous_commit', x.of->>'statement_timeout'
		FROM pg_stat_activity a CROSS JOIN (SELECT jsonb_object_agg(name, reset_val) AS of FROM pg_settings) AS x WHERE a.pid = pg_backend_pid()`
)

func (o *ownSettings) read(ctx context.Context, c *pgx.Conn) error {
	return c.QueryRow(ctx, ownSettingsSQL).Scan(&o.login, &o.role, &o.searchPath, &o.dateStyle, &o.timeZone, &o.synchronousCommit, &o.statementTimeout)
}

// settings returns what every session or transaction of the Store sets.
func (s *Store) settings() []setting {
	all := append([]setting{}, meaningSettings...)
	all = append(all, planSettings...)
	all = append(all, setting{"idle_in_transaction_session_timeout", millis(cmp.Or(s.o.idle, idleInTransaction)), 0})
	_, order, ok := strings.Cut(s.own.dateStyle, ", ") // for triggers that read dates
	if !ok {
		order = "MDY"
	}
	all = append(all, setting{"DateStyle", "ISO, " + order, 0})
	if s.o.StatementTimeout > 0 {
		all = append(all, setting{"statement_timeout", millis(s.o.StatementTimeout), 0})
	}
	if s.pooled { // another client can have changed them in the session
		all = append(all, setting{"TimeZone", s.own.timeZone, 0}, setting{"synchronous_commit", s.own.synchronousCommit, 0})
		if s.o.StatementTimeout <= 0 {
			all = append(all, setting{"statement_timeout", s.own.statementTimeout, 0})
		}
	}
	kept := all[:0]
	for _, x := range all {
		if x.since <= s.number {
			kept = append(kept, x)
		}
	}
	return kept
}

// setting returns the statement that applies the settings: to the transaction if local, else to the session. It doesn't depend on
// the search path. The role comes first, because it decides what can be set. Settings that need a right are set only if they differ.
func (s *Store) setting(local bool) string {
	var all []string
	set := func(name, value string) string {
		return fmt.Sprintf("pg_catalog.set_config('%s', %s, %t)", name, text(value), local)
	}
	unless := func(is, name, value string) {
		all = append(all, fmt.Sprintf("CASE WHEN %s OPERATOR(pg_catalog.<>) %s::pg_catalog.text THEN %s END", is, text(value), set(name, value)))
	}
	if s.pooled {
		unless("SESSION_USER::pg_catalog.text", "session_authorization", s.own.login)
		unless("pg_catalog.current_setting('role')", "role", s.own.role)
	}
	unless("pg_catalog.current_setting('session_replication_role')", "session_replication_role", "origin")
	for _, x := range s.settings() {
		all = append(all, set(x.name, x.value))
	}
	return "SELECT " + strings.Join(all, ", ")
}

// text returns a text constant. It doesn't depend on standard_conforming_strings.
func text(s string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}

// unset explains why a session can't be set up. The role may not change session_replication_role, so it cannot have set it.
func (s *Store) unset(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pgErr.Code != "42501" || !strings.Contains(pgErr.Message, "session_replication_role") {
		return err
	}
	fix := fmt.Sprintf("ALTER ROLE %s RESET session_replication_role, or of the database", quoteName(s.own.login))
	if s.pooled {
		fix = "another client of the pooler left it so (set server_reset_query_always = 1 in PgBouncer), or " + fix
	}
	return fmt.Errorf("%s: session_replication_role is not origin, so that no trigger runs, and this role may not change it: %s: %w", s.place, fix, err)
}

// searchPath returns the search path that the role has in the session of c. pg_catalog comes first, as it does unless a path names it
// later: names of ours that have an exact match there then never mean anything else.
func (s *Store) searchPath(c *pgx.Conn) string {
	all := []string{"pg_catalog"}
	if role := cmp.Or(sessionOf(c).searchPath, s.own.searchPath); role != "" {
		all = append(all, role)
	}
	return strings.Join(append(all, "pg_temp"), ", ") // otherwise another client's temporary tables and types would come first
}

// beginPooled begins a transaction behind a pooler, where each can be in another session.
func (s *Store) beginPooled() string { return s.sql.begin + "; " + s.txSQL }

// single is what runs statements that are their own transactions.
type single interface {
	querier
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// single returns the pool for statements that are their own transactions. Behind a pooler each gets the settings.
func (s *Store) single() single {
	if s.pooled {
		return settled{s, nil}
	}
	return s.pool
}

// settled runs each statement in a transaction with the settings.
type settled struct {
	s *Store
	c *pgx.Conn // nil: one of the pool
}

// do runs f in a transaction with the settings.
func (s settled) do(ctx context.Context, f func(c *pgx.Conn) error) error {
	c := s.c
	if c == nil {
		acquired, err := s.s.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer acquired.Release() // it closes a connection that is still in a transaction
		c = acquired.Conn()
	}
	_, err := c.Exec(ctx, s.s.beginPooled())
	if err = s.s.unset(err); err == nil {
		err = f(c)
	}
	if c.IsClosed() {
		return err
	}
	end := "COMMIT"
	if err != nil {
		end = "ROLLBACK"
	}
	_, ended := c.Exec(ctx, end)
	return cmp.Or(err, ended)
}

func (s settled) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = s.do(ctx, func(c *pgx.Conn) (err error) {
		tag, err = c.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

func (s settled) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return settledRow(func(to ...any) error {
		return s.do(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, sql, args...).Scan(to...) })
	})
}

type settledRow func(to ...any) error

func (s settledRow) Scan(to ...any) error { return s(to...) }
