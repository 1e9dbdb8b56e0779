package diagnose

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/postgres"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
)

// checkIsolation reports the server's default, which doesn't affect a sidecar. It reads
// reset_val, because this session has its own setting.
func (e *examination) checkIsolation(ctx context.Context, tx pgx.Tx) error {
	var isolation string
	if err := tx.QueryRow(ctx, `SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation'`).Scan(&isolation); err != nil {
		return err
	}
	e.AddInfo("isolation", fmt.Sprintf("the default is %s; the sidecar begins each transaction that writes with READ COMMITTED", isolation))
	return nil
}

// checkDurability checks what a commit guarantees on this server: a sidecar replies when
// the server has committed.
func (e *examination) checkDurability(ctx context.Context, tx pgx.Tx) error {
	var fsync, pages, commit, standbys string
	if err := tx.QueryRow(ctx, `SELECT current_setting('fsync'), current_setting('full_page_writes'),
		current_setting('synchronous_commit'), current_setting('synchronous_standby_names')`).Scan(&fsync, &pages, &commit, &standbys); err != nil {
		return err
	}
	before := len(e.Findings)
	if fsync == "off" {
		e.AddWarning("durability", "fsync is off: a crash of the server's machine loses committed jobs, or the whole database", "set fsync = on in postgresql.conf")
	}
	if pages == "off" {
		e.AddWarning("durability", "full_page_writes is off: a crash of the server's machine can leave torn pages", "set full_page_writes = on in postgresql.conf")
	}
	switch {
	case commit == "off":
		e.AddWarning("durability", "synchronous_commit is off: a crash of the server loses the jobs and acks of its last moments, though the sidecar has answered them",
			fmt.Sprintf("ALTER ROLE %s SET synchronous_commit = on", migrate.QuoteName(e.role)))
	case standbys != "" && (commit == "local" || commit == "remote_write"):
		e.AddWarning("durability", fmt.Sprintf("synchronous_commit is %s: a failover to a synchronous standby can lose jobs that the sidecar has answered", commit),
			fmt.Sprintf("ALTER ROLE %s SET synchronous_commit = on", migrate.QuoteName(e.role)))
	}
	if len(e.Findings) == before {
		e.AddInfo("durability", fmt.Sprintf("fsync and full_page_writes are on, synchronous_commit is %s: what is answered is on disk", commit))
	}
	if e.Version == 0 {
		return nil
	}
	unlogged, err := list[string](ctx, tx, `SELECT oid::regclass::text FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relname = ANY($2)
		AND relpersistence <> 'p' ORDER BY 1`, migrate.QuoteName(e.Schema), e.names("TABLE"))
	for _, table := range unlogged {
		e.AddError("durability", fmt.Sprintf("%s is an unlogged table: a crash of the server empties it", table), fmt.Sprintf("ALTER TABLE %s SET LOGGED", table))
	}
	return err
}

// checkTimeouts checks the server's timeouts that end a sidecar's transactions.
func (e *examination) checkTimeouts(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `SELECT name, reset_val::bigint FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout') AND reset_val::bigint > 0 ORDER BY name`)
	if err != nil {
		return err
	}
	var name string
	var after int64
	_, err = pgx.ForEachRow(rows, []any{&name, &after}, func() error {
		if d := time.Duration(after) * time.Millisecond; d < e.Timeout {
			e.AddWarning("timeouts", fmt.Sprintf("%s is %v: under load, large commits of the sidecar are ended and tried again", name, d),
				fmt.Sprintf("ALTER ROLE %s SET %s = '%ds', or more", migrate.QuoteName(e.role), name, int(e.Timeout.Seconds())))
		}
		return nil
	})
	return err
}

// checkTransactions finds old transactions: vacuum can't remove rows that died after them.
func (e *examination) checkTransactions(ctx context.Context, tx pgx.Tx) error {
	var all bool
	var pid int32
	var who, state string
	var seconds float64
	err := tx.QueryRow(ctx, `SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), coalesce(a.pid, 0), coalesce(a.who, ''), coalesce(a.state, ''), coalesce(a.seconds, 0)
		FROM (SELECT) AS one LEFT JOIN (
			SELECT pid, coalesce(usename, '') || CASE WHEN application_name <> '' THEN ' (' || application_name || ')' ELSE '' END AS who, state,
				extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
			FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
			ORDER BY xact_start LIMIT 1) AS a ON true`).Scan(&all, &pid, &who, &state, &seconds)
	if err != nil {
		return err
	}
	age := time.Duration(seconds * float64(time.Second)).Round(time.Second)
	switch {
	case pid != 0 && age >= e.Transaction:
		e.AddWarning("transactions", fmt.Sprintf("process %d of %s has a transaction open for %v (%s): no job that was settled since can be cleared away, and the table grows",
			pid, who, age, state), fmt.Sprintf("end it, with SELECT pg_terminate_backend(%d) if need be; idle_in_transaction_session_timeout ends such ones by itself", pid))
	case pid != 0:
		e.AddInfo("transactions", fmt.Sprintf("the oldest transaction is %v old", age))
	default:
		e.AddInfo("transactions", "no other transaction is open")
	}
	if !all {
		e.Findings[len(e.Findings)-1].Text += ", of those that can be seen"
		e.AddInfo("transactions", fmt.Sprintf("role %s does not see the transactions of other roles: for this check it would need GRANT pg_read_all_stats TO %s", e.role, migrate.QuoteName(e.role)))
	}
	prepared, err := list[string](ctx, tx, `SELECT gid FROM pg_prepared_xacts
		WHERE database = current_database() AND clock_timestamp() - prepared >= $1::bigint * interval '1 ms' ORDER BY prepared`, e.Transaction.Milliseconds())
	for _, gid := range prepared {
		e.AddWarning("transactions", fmt.Sprintf("the prepared transaction %q is open for longer than %v: nothing that was deleted since can be cleared away", gid, e.Transaction),
			fmt.Sprintf("COMMIT PREPARED or ROLLBACK PREPARED '%s'", strings.ReplaceAll(gid, "'", "''")))
	}
	return err
}

// checkLocks finds locks on whole tables, which block every sidecar.
func (e *examination) checkLocks(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `SELECT l.pid, c.relname::text, l.mode, coalesce(a.usename, '') || CASE WHEN a.application_name <> '' THEN ' (' || a.application_name || ')' ELSE '' END
		FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND c.relnamespace = to_regnamespace($1) AND c.relname LIKE 'qsidecar\_%' AND c.relkind = 'r'
			AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
			AND clock_timestamp() - coalesce(a.xact_start, a.backend_start, 'epoch') >= $2::bigint * interval '1 ms'
		ORDER BY l.pid, c.relname`, migrate.QuoteName(e.Schema), e.Lock.Milliseconds())
	if err != nil {
		return err
	}
	var pid int32
	var table, mode, who string
	_, err = pgx.ForEachRow(rows, []any{&pid, &table, &mode, &who}, func() error {
		e.AddError("locks", fmt.Sprintf("process %d of %s locks the table %s (%s): until its transaction ends, no sidecar can enqueue, claim or settle", pid, who, table, mode),
			fmt.Sprintf("end that transaction, with SELECT pg_terminate_backend(%d) if need be", pid))
		return nil
	})
	return err
}

// checkVacuum checks for dead rows, and that autovacuum is on.
func (e *examination) checkVacuum(ctx context.Context, tx pgx.Tx) error {
	var live, dead int64
	var last *time.Time
	var server, off bool
	if err := tx.QueryRow(ctx, `SELECT s.n_live_tup, s.n_dead_tup, greatest(s.last_autovacuum, s.last_vacuum),
		current_setting('autovacuum') = 'on' AND current_setting('track_counts') = 'on',
		coalesce((SELECT NOT o.option_value::boolean FROM pg_options_to_table(c.reloptions) o WHERE o.option_name = 'autovacuum_enabled'), false)
		FROM pg_class c JOIN pg_stat_all_tables s ON s.relid = c.oid
		WHERE c.relnamespace = to_regnamespace($1) AND c.relname = 'qsidecar_jobs'`, migrate.QuoteName(e.Schema)).Scan(&live, &dead, &last, &server, &off); err != nil {
		return err
	}
	table := migrate.QuoteName(e.Schema) + ".qsidecar_jobs"
	vacuumed := "never vacuumed so far"
	if last != nil {
		vacuumed = "last vacuumed at " + last.UTC().Format(time.DateTime) + " UTC"
	}
	text := fmt.Sprintf("%s has about %d rows and %d dead ones, %s", table, live, dead, vacuumed)
	if dead > e.DeadRows+live/10 {
		e.AddWarning("vacuum", text, fmt.Sprintf("look for what holds autovacuum up (an old transaction, above; autovacuum_max_workers), and VACUUM %s", table))
	} else {
		e.AddInfo("vacuum", text)
	}
	if !server {
		e.AddWarning("vacuum", "autovacuum or track_counts is off on this server: dead rows are never cleared away", "set both on in postgresql.conf")
	}
	if off {
		e.AddWarning("vacuum", "autovacuum is switched off for "+table, fmt.Sprintf("ALTER TABLE %s RESET (autovacuum_enabled)", table))
	}
	return nil
}

// checkConnections checks that the server has enough free connections for a pool.
func (e *examination) checkConnections(ctx context.Context, tx pgx.Tx) error {
	if e.Pooled {
		return nil // the limits are the pooler's and unknown here
	}
	var left, sidecars int
	var limit string
	// Only max_connections limits a superuser's connections.
	if err := tx.QueryRow(ctx, `SELECT x.room, x.name, (SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND usename = current_user AND application_name = current_setting('application_name') AND pid <> pg_backend_pid())
		FROM pg_roles r JOIN pg_database d ON d.datname = current_database()
		CROSS JOIN LATERAL (VALUES
			(current_setting('max_connections')::int
				- CASE WHEN r.rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0) END
				- (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()), 'max_connections'),
			(CASE WHEN r.rolconnlimit >= 0 AND NOT r.rolsuper THEN r.rolconnlimit
				- (SELECT count(*)::int FROM pg_stat_activity WHERE usename = current_user AND pid <> pg_backend_pid()) END, 'the role''s CONNECTION LIMIT'),
			(CASE WHEN d.datconnlimit >= 0 AND NOT r.rolsuper THEN d.datconnlimit
				- (SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()) END, 'the database''s CONNECTION LIMIT')
		) AS x (room, name)
		WHERE r.rolname = current_user AND x.room IS NOT NULL ORDER BY x.room LIMIT 1`).Scan(&left, &limit, &sidecars); err != nil {
		return err
	}
	text := fmt.Sprintf("%s leaves %d more connections; a sidecar opens up to max_connections: %d", limit, max(left, 0), e.MaxConnections)
	if sidecars > 0 {
		text += fmt.Sprintf(" (open under its name by now: %d)", sidecars)
	}
	if left < e.MaxConnections-sidecars {
		e.AddWarning("connections", text, "raise the limit, or lower the sidecars' max_connections: each host's counts")
	} else {
		e.AddInfo("connections", text)
	}
	return nil
}

// checkClock compares the server's clock with this host's. It uses the fastest of three
// measurements, which is the most precise.
func (e *examination) checkClock(ctx context.Context, tx pgx.Tx) error {
	var best, off time.Duration
	for range 3 {
		var server time.Time
		before := e.Now()
		if err := tx.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&server); err != nil {
			return err
		}
		trip := e.Now().Sub(before)
		if best == 0 || trip < best {
			best, off = max(trip, 1), server.Sub(before.Add(trip/2))
		}
	}
	e.CompareClocks(off, best/2, e.Thresholds.Clock)
	return nil
}

// checkDisk makes the server write and remove a temporary file of more than a megabyte
// next to the database. Nothing else shows that the disk is full.
func (e *examination) checkDisk(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `SELECT set_config('work_mem', '64kB', true), set_config('temp_tablespaces', '', true)`); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "SELECT count(*) FROM generate_series(1, 50000)")
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && pgErr.Code == diskFull:
		e.AddError("disk", "the disk of the database is full: "+postgres.Message(pgErr), "free space on the server: it rejects writes that do not fit, and soon all writes")
	case ok && pgErr.Code == "53400": // temp_file_limit is smaller than the file
	case err != nil:
		return err
	}
	return nil
}
