package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
)

var _ backends.Examiner = (*Store)(nil)

// examination is one Examine. Each look is a READ ONLY transaction, so that the
// server itself sees to it that nothing changes.
type examination struct {
	*Store
	backends.Findings
	conn   *pgx.Conn
	queues []backends.Policy
	thresholds

	role    string
	version int // of the tables; 0: there are none, or none that can be read
}

// thresholds are from where on something is worth advice.
type thresholds struct {
	now         func() time.Time // this host's clock
	clock       time.Duration
	transaction time.Duration
	dead        int64         // dead rows of a table, besides a tenth of the live ones
	timeout     time.Duration // of statements and transactions
	lock        time.Duration // that a lock is held which claims must wait for
}

func usual() thresholds {
	return thresholds{now: time.Now, clock: 2 * time.Second, transaction: 10 * time.Minute, dead: 25_000, timeout: 5 * time.Second, lock: 2 * time.Second}
}

// Examine implements backends.Examiner.
func (s *Store) Examine(ctx context.Context, queues []backends.Policy) ([]backends.Finding, error) {
	return s.examine(ctx, queues, usual())
}

func (s *Store) examine(ctx context.Context, queues []backends.Policy, t thresholds) (_ []backends.Finding, err error) {
	ctx, done := s.Bound(ctx)
	defer done()
	config := s.beater.config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // nothing is prepared but what planOf prepares
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, s.Outcome(ctx, err)
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	if err := s.prepareSession(ctx, c); err != nil {
		return nil, s.Outcome(ctx, err)
	}
	e := &examination{Store: s, conn: c, queues: queues, thresholds: t}
	for _, l := range []look{
		{"server", (*examination).lookServer, false},
		{"locks", (*examination).lookLocks, false},
		{"schema", (*examination).lookSchema, false},
		{"rights", (*examination).lookRights, true},
		{"security", (*examination).lookRowSecurity, true},
		{"triggers", (*examination).lookTriggers, true},
		{"indexes", (*examination).lookIndexes, true},
		{"claim", (*examination).lookClaim, true},
		{"isolation", (*examination).lookIsolation, false},
		{"durability", (*examination).lookDurability, false},
		{"disk", (*examination).lookDisk, false},
		{"timeouts", (*examination).lookTimeouts, false},
		{"transactions", (*examination).lookTransactions, false},
		{"vacuum", (*examination).lookVacuum, true},
		{"connections", (*examination).lookConnections, false},
		{"clock", (*examination).lookClock, false},
	} {
		if err := e.look(ctx, l); err != nil {
			return nil, s.Outcome(ctx, err)
		}
	}
	return e.Findings, nil
}

// look is one topic.
type look struct {
	topic  string
	f      func(e *examination, ctx context.Context, tx pgx.Tx) error
	tables bool // it is about the tables: left out where there are none
}

// patienceSQL bounds a look: it waits for no one's locks for long, nor for itself.
const patienceSQL = `SELECT set_config('lock_timeout', '2000', true), set_config('statement_timeout', '20000', true)`

// look takes one look. What the server refuses to show is a finding.
func (e *examination) look(ctx context.Context, l look) error {
	if l.tables && e.version == 0 {
		return nil
	}
	before := len(e.Findings)
	err := pgx.BeginTxFunc(ctx, e.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, patienceSQL); err != nil {
			return err
		}
		if e.pooled {
			if _, err := tx.Exec(ctx, e.o.setting(true)); err != nil {
				return err
			}
		}
		return l.f(e, ctx, tx)
	})
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return nil // the look was refused something, and told what that means
	}
	var said *pgconn.PgError
	if !errors.As(err, &said) || ctx.Err() != nil || e.conn.IsClosed() {
		return err
	}
	e.Findings = e.Findings[:before]
	switch {
	case said.Code == "42501" && l.tables:
		// lookRights names the right, if it is one of those that a sidecar needs.
		e.AddInfo(l.topic, "this could not be looked at: "+words(said))
	case said.Code == "42501":
		e.Findings = append(e.Findings, backends.Finding{Severity: backends.SeverityInfo, Topic: l.topic,
			Text: "this could not be looked at: " + words(said), Fix: "run the check as a role that may, if you want to know"})
	case said.Code == "55P03":
		e.AddInfo(l.topic, "this could not be looked at: another transaction holds a lock on the tables")
	default:
		e.AddWarning(l.topic, "this could not be looked at: "+words(said), "see what the server's log says about it")
	}
	return nil
}

// lookServer: which server, and what stands between.
func (e *examination) lookServer(ctx context.Context, tx pgx.Tx) error {
	var standby bool
	var readOnly string
	if err := tx.QueryRow(ctx, `SELECT current_user, pg_is_in_recovery(),
		(SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only')`).
		Scan(&e.role, &standby, &readOnly); err != nil {
		return err
	}
	e.AddInfo("server", fmt.Sprintf("PostgreSQL %s at %s, as role %s", e.Store.version, e.place, e.role))
	if standby {
		e.AddError("server", "this server is a standby, which takes no writes",
			"name the primary in the url, or all of the servers: the sidecar then finds the primary")
	}
	if readOnly == "on" {
		e.AddWarning("server", "default_transaction_read_only is on: a sidecar writes all the same, but the plain INSERTs of programs are refused",
			"set it off for this role and database; if you did not set it, ask your provider (some do where a disk is nearly full)")
	}
	if e.pooled {
		e.AddInfo("pooler", "a pooler stands between (the sessions change from transaction to transaction): "+
			"statements are not prepared, and other hosts' jobs are found by polling instead of NOTIFY")
	}
	return nil
}

// lookSchema: are the tables there, and of this version?
func (e *examination) lookSchema(ctx context.Context, tx pgx.Tx) error {
	schema := quoteName(e.o.Schema)
	var there, use, create, own bool
	if err := tx.QueryRow(ctx, `SELECT n.oid IS NOT NULL, coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
		coalesce(has_schema_privilege(n.oid, 'CREATE'), has_database_privilege(current_database(), 'CREATE')),
		coalesce((SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'qsidecar_meta'), false)
		FROM (SELECT) AS one LEFT JOIN pg_namespace n ON n.nspname = $1`, e.o.Schema).Scan(&there, &use, &create, &own); err != nil {
		return err
	}
	if there && !use {
		e.AddError("rights", fmt.Sprintf("role %s may not use the schema %s", e.role, schema),
			fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s (`qsidecar migrate --print` ends with all that it needs)", schema, quoteName(e.role)))
		return nil
	}
	version, err := e.meta(ctx, tx)
	var said *pgconn.PgError
	switch {
	case errors.As(err, &said) && said.Code == "42501":
		e.AddError("rights", fmt.Sprintf("role %s may not read %s.qsidecar_meta", e.role, schema),
			fmt.Sprintf("GRANT SELECT ON %s.qsidecar_meta TO %s (`qsidecar migrate --print` ends with all that it needs)", schema, quoteName(e.role)))
		return nil
	case errors.As(err, &said) || err != nil && e.conn.IsClosed():
		return err
	case err != nil:
		e.AddError("schema", err.Error(), "see the end of that sentence")
	case version == 0 && create:
		e.AddInfo("schema", fmt.Sprintf("the tables are missing in schema %s: serve or `qsidecar migrate` will make them, and this role may", schema))
	case version == 0:
		e.AddError("schema", fmt.Sprintf("the tables are missing in schema %s, and role %s may not make them", schema, e.role),
			"have somebody with the right run what `qsidecar migrate --print` prints")
	case version < len(migrations) && own:
		e.AddInfo("schema", fmt.Sprintf("the tables in schema %s are of version %d: serve or `qsidecar migrate` will bring them to %d, and this role may",
			schema, version, len(migrations)))
	case version < len(migrations):
		e.AddError("schema", fmt.Sprintf("the tables in schema %s are of version %d, version %d is needed, and role %s does not own them",
			schema, version, len(migrations), e.role), fmt.Sprintf("have their owner run what `qsidecar migrate --print --from %d` prints", version))
	case version > len(migrations):
		e.AddInfo("schema", fmt.Sprintf("the tables in schema %s are of version %d, which is newer than this program's (%d) and fit for it", schema, version, len(migrations)))
	default:
		e.AddInfo("schema", fmt.Sprintf("the tables in schema %s are there, of version %d", schema, version))
	}
	e.version = version
	return nil
}

// ours are the names of all of one kind that the migrations up to the tables'
// version make.
func (e *examination) ours(kind string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^CREATE `+kind+` (?:IF NOT EXISTS )?(?:\{s\}\.)?(\w+)`).
		FindAllStringSubmatch(e.migrations(), -1) {
		names = append(names, m[1])
	}
	return names
}

func (e *examination) migrations() string {
	return strings.Join(migrations[:min(e.version, len(migrations))], "\n")
}
