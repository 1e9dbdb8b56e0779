package diagnose

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/postgres"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
)

// examination is one call of Examine. Each check is a READ ONLY transaction, so the
// server rejects any change.
type examination struct {
	checks.Examination
	postgres.Setup
	Thresholds
	engine *Engine
	info   backends.Info
	conn   *pgx.Conn
	queues []backends.Policy
	role   string
}

// Thresholds are the values from which a finding is a warning.
type Thresholds struct {
	Clock       time.Duration    // between the server's clock and this host's clock
	HostClocks  time.Duration    // between the clocks of the hosts of an address
	Transaction time.Duration    // the age of a transaction
	DeadRows    int64            // dead rows of a table, beyond a tenth of its live rows
	Timeout     time.Duration    // the shortest timeout of statements and transactions without a warning
	Lock        time.Duration    // how long a lock that blocks claims is held
	Now         func() time.Time // this host's clock
}

// DefaultThresholds returns the thresholds that New sets.
func DefaultThresholds() Thresholds {
	return Thresholds{Clock: checks.ClockOffset, HostClocks: checks.HostClocks, Transaction: checks.OldTransaction, DeadRows: 25_000,
		Timeout: 5 * time.Second, Lock: 2 * time.Second, Now: time.Now}
}

// Examine implements backends.Examiner.
func (x *Engine) Examine(ctx context.Context, queues []backends.Policy) (found []backends.Finding, err error) {
	err = x.Session(ctx, func(ctx context.Context, c *pgx.Conn) error {
		e := &examination{engine: x, Setup: x.Setup(), Thresholds: x.Thresholds, info: x.Info(), conn: c, queues: queues}
		err := e.run(ctx)
		found = e.Findings
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

func (e *examination) run(ctx context.Context) error {
	var all []checks.Check
	add := func(topic string, needsTables bool, f func(ctx context.Context, tx pgx.Tx) error) {
		all = append(all, checks.Check{Topic: topic, NeedsTables: needsTables, Run: func(ctx context.Context) error { return e.transaction(ctx, f) }})
	}
	add("server", false, e.checkServer)
	add("cluster", false, e.checkCluster)
	all = append(all, checks.Check{Topic: "cluster", Run: e.checkHosts})
	if e.Pooled {
		all = append(all, checks.Check{Topic: "pooler", Run: e.checkLeftovers})
	}
	add("locks", false, e.checkLocks)
	add("schema", false, e.checkSchema)
	add("rights", true, e.checkRights)
	add("security", true, e.checkRowSecurity)
	all = append(all, checks.Check{Topic: "security", Run: e.checkSearchPath})
	add("triggers", true, e.checkTriggers)
	add("sequence", true, e.checkSequence)
	add("indexes", true, e.checkIndexes)
	add("claim", true, e.checkClaim)
	add("maintenance", true, e.checkOverdue)
	add("isolation", false, e.checkIsolation)
	add("durability", false, e.checkDurability)
	add("disk", false, e.checkDisk)
	add("timeouts", false, e.checkTimeouts)
	add("transactions", false, e.checkTransactions)
	add("vacuum", true, e.checkVacuum)
	add("connections", false, e.checkConnections)
	add("clock", false, e.checkClock)
	return e.Run(ctx, all, e.unseen)
}

// timeoutsSQL limits how long a check waits for locks and how long it runs.
const timeoutsSQL = `SELECT set_config('lock_timeout', '2000', true), set_config('statement_timeout', '20000', true)`

// transaction runs one check.
func (e *examination) transaction(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	err := pgx.BeginTxFunc(ctx, e.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, timeoutsSQL); err != nil {
			return err
		}
		if e.Pooled {
			if _, err := tx.Exec(ctx, e.SetLocal); err != nil {
				return err
			}
		}
		return f(ctx, tx)
	})
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return nil // the check handled the server's error itself
	}
	return err
}

// unseen returns the finding for a check that the server rejected, or nil if the connection failed.
func (e *examination) unseen(c checks.Check, err error) *backends.Finding {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || e.conn.IsClosed() {
		return nil
	}
	f := &backends.Finding{Text: postgres.Message(pgErr)}
	switch {
	case pgErr.Code == insufficientPrivilege && c.NeedsTables: // checkRights names the right if a sidecar needs it
	case pgErr.Code == insufficientPrivilege:
		f.Fix = "run the check as a role that may, if you want to know"
	case pgErr.Code == "55P03":
		f.Text = "another transaction holds a lock on the tables"
	default:
		f.Severity, f.Fix = backends.SeverityWarning, "see the server's log"
	}
	return f
}

// The SQLSTATEs that the checks handle.
const (
	insufficientPrivilege = "42501"
	diskFull              = "53100"
)

// checkServer reports the server's version, address and role, and a standby, a read-only default or a pooler.
func (e *examination) checkServer(ctx context.Context, tx pgx.Tx) error {
	var standby bool
	var readOnly string
	if err := tx.QueryRow(ctx, `SELECT current_user, pg_is_in_recovery(),
		(SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only')`).
		Scan(&e.role, &standby, &readOnly); err != nil {
		return err
	}
	e.AddInfo("server", fmt.Sprintf("PostgreSQL %s at %s, as role %s", e.info.Version, e.info.Address, e.role))
	if standby {
		e.AddError("server", "this server is a standby, which takes no writes",
			"name the primary in the url, or all of the servers: the sidecar then finds the primary")
	}
	if readOnly == "on" {
		e.AddWarning("server", "default_transaction_read_only is on: a sidecar still writes, but the server rejects the plain INSERTs of programs",
			"set it to off for this role and database; if you did not set it, ask your provider (some set it if a disk is nearly full)")
	}
	if e.Pooled {
		e.AddInfo("pooler", "a pooler stands between (each transaction can have another session): "+
			"the sidecar prepares no statements, and finds other hosts' jobs by polling instead of NOTIFY")
	}
	return nil
}

// checkLeftovers reports what other clients of the pooler left in a session.
func (e *examination) checkLeftovers(ctx context.Context) error {
	left, err := e.engine.Leftovers(ctx)
	if len(left) > 0 {
		e.AddWarning("pooler", "another client of the pooler left this in a session: "+strings.Join(left, ", ")+". The sidecar sets what it depends on in each transaction, but other programs get such sessions too",
			"set server_reset_query_always = 1 in PgBouncer, or let the programs use SET LOCAL")
	}
	return err
}

// checkSchema checks that the tables exist and are of this version.
func (e *examination) checkSchema(ctx context.Context, tx pgx.Tx) error {
	schema := migrate.QuoteName(e.Schema)
	var exists, use, create, own bool
	if err := tx.QueryRow(ctx, `SELECT n.oid IS NOT NULL, coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
		coalesce(has_schema_privilege(n.oid, 'CREATE'), has_database_privilege(current_database(), 'CREATE')),
		coalesce((SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'qsidecar_meta'), false)
		FROM (SELECT) AS one LEFT JOIN pg_namespace n ON n.nspname = $1`, e.Schema).Scan(&exists, &use, &create, &own); err != nil {
		return err
	}
	if exists && !use {
		e.AddError("rights", fmt.Sprintf("role %s has no right to use the schema %s", e.role, schema),
			fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s (`qsidecar migrate --print` ends with all that it needs)", schema, migrate.QuoteName(e.role)))
		return nil
	}
	meta, err := migrate.Read(ctx, tx, e.info.Address, e.Schema)
	version := meta.Version
	e.engine.database = meta.Database
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == insufficientPrivilege:
		e.AddError("rights", fmt.Sprintf("role %s has no right to read %s.qsidecar_meta", e.role, schema),
			fmt.Sprintf("GRANT SELECT ON %s.qsidecar_meta TO %s (`qsidecar migrate --print` ends with all that it needs)", schema, migrate.QuoteName(e.role)))
		return nil
	case errors.As(err, &pgErr) || err != nil && e.conn.IsClosed():
		return err
	case err != nil:
		e.AddError("schema", err.Error(), "follow the advice at the end of that sentence")
	case version == 0 && create:
		e.AddInfo("schema", fmt.Sprintf("the tables are missing in schema %s: serve or `qsidecar migrate` will create them, and this role may", schema))
	case version == 0:
		e.AddError("schema", fmt.Sprintf("the tables are missing in schema %s, and role %s has no right to create them", schema, e.role), checks.OwnerMigrates)
	case version < migrate.Latest && !own:
		e.AddError("schema", fmt.Sprintf("the tables in schema %s are of version %d, version %d is needed, and role %s does not own them",
			schema, version, migrate.Latest, e.role), fmt.Sprintf("have their owner run what `qsidecar migrate --print --from %d` prints", version))
	default:
		e.TablesFound(version, migrate.Latest, " in schema "+schema, ", and this role may")
	}
	if version >= migrate.Base {
		e.Version = version
	}
	return nil
}

// names returns the names of all objects of one kind that tables of this version need.
func (e *examination) names(kind string) []string {
	return migrate.Names(kind, e.Version)
}
