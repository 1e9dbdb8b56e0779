package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/internal/core"
)

const (
	// schemaLock is the key of the advisory lock that prevents two sidecars from creating
	// the tables at once. No other program is likely to use this number.
	schemaLock = 0x7173_6964_6563_6172
	lockRetry  = 100 * time.Millisecond // the pause before a sidecar retries the lock
	lockPing   = time.Second            // how often the owner of the lock pings the server
	lockIdle   = 5 * time.Second        // after this silence the server releases the lock

	// lockTimeout limits how long a migration waits for a lock on a table. Every later
	// statement on that table waits behind it, including heartbeats. So a migration waits
	// briefly, and repeatedly.
	lockTimeout = 200 * time.Millisecond
	lockPause   = 500 * time.Millisecond
	// logEvery is how often the log mentions that the migration still waits.
	logEvery = time.Minute

	maxTries   = 8
	retryPause = 2 * time.Millisecond // doubles with each try
	closeFor   = 2 * time.Second
)

// Target is the database whose tables are migrated.
type Target struct {
	Schema string
	Place  string          // the address without secrets, for messages
	Pool   Querier         // reads the version
	Config *pgx.ConnConfig // of the two connections that a migration opens
	Pooled bool            // a pooler assigns a session to each transaction

	Settings func(local bool) string // the statement with the settings of a session, or of a transaction

	Log *slog.Logger

	Transient func(err error) bool // reports whether the same work can succeed if it is repeated at once
	Message   func(err *pgconn.PgError) string

	Later []Migration                         // migrations that follow Latest; set by tests
	Idle  time.Duration                       // replaces lockIdle if it isn't 0; set by tests
	Hook  func(c *pgx.Conn, sql string) error // runs before each statement; set by tests to make migrations fail
}

// Run creates the tables, or updates them to the latest version, and returns the row that describes
// them. Any number of sidecars can call Run at once, and others can work at the same
// time. If it is interrupted at any point, the next Run completes it.
func Run(ctx context.Context, t Target) (Meta, error) {
	meta, err := t.read(ctx, t.Pool)
	// Which version the tables are of is certain only as long as there is one.
	if errors.Is(err, errEmpty) && t.latest() == Base {
		version := 0
		if e := t.Pool.QueryRow(ctx, In(t.Schema, insertMeta()+" ON CONFLICT (singleton) DO UPDATE SET singleton = 1 RETURNING version")).Scan(&version); e != nil {
			return meta, fmt.Errorf("%w (%s)", err, e.Error()) // the first error decides the kind
		}
		t.Log.Warn("description of the tables restored", "event", "meta_restored", "address", t.Place)
		meta, err = t.read(ctx, t.Pool)
	}
	for try := 1; err == nil && meta.Version < t.latest(); {
		meta, err = t.complete(ctx)
		if err != nil && try < maxTries && t.transient(err) && core.Pause(ctx, retryPause<<try) {
			try, err = try+1, nil
		}
	}
	return meta, err
}

// latest returns the version that the migrations lead to.
func (t *Target) latest() int { return Latest + len(t.Later) }

func (t *Target) read(ctx context.Context, q Querier) (Meta, error) {
	return Read(ctx, q, t.Place, t.Schema)
}

// lockLostError means that the session with the lock ended before the migration did.
type lockLostError struct{ err error }

func (e *lockLostError) Error() string { return "the lock on the migration was lost: " + e.err.Error() }
func (e *lockLostError) Unwrap() error { return e.err }

func (t *Target) transient(err error) bool {
	var lost *lockLostError
	return errors.As(err, &lost) || t.Transient(err)
}

// needsOwner explains a missing right: it names the command for the owner of the tables.
// It doesn't wrap the server's error, so that no caller explains it a second time.
func (t *Target) needsOwner(version int, err error) error {
	pgErr := (*pgconn.PgError)(nil)
	if !errors.As(err, &pgErr) || pgErr.Code != "42501" {
		return err
	}
	from, state := "", "are missing"
	if version > 0 {
		from, state = fmt.Sprintf(" --from %d", version), fmt.Sprintf("are of version %d", version)
	}
	return fmt.Errorf("the tables in the schema %s %s, this program needs version %d, and its role may not create them: "+
		"have their owner run what `qsidecar migrate --print%s` shows, with the option --role and the role of this sidecar (%s)", t.Schema, state, t.latest(), from, t.Message(pgErr))
}

// migrator has two connections of its own, without the settings of the pool: a
// migration takes as long as it needs.
type migrator struct {
	*Target
	work   *pgx.Conn // builds indexes, outside transactions
	lock   *pgx.Conn // has an open transaction that holds schemaLock
	logged time.Time // when the log last mentioned a wait
}

// patience returns the statement that switches off the timeouts that would end a
// migration early. It keeps one: if the sidecar vanishes, the server soon frees its locks.
func (m *migrator) patience() string {
	return fmt.Sprintf(`
SELECT pg_catalog.set_config(name, CASE name WHEN 'idle_in_transaction_session_timeout' THEN '%d' ELSE '0' END, $1)
FROM pg_catalog.pg_settings WHERE name IN
  ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout')`,
		cmp.Or(m.Idle, lockIdle).Milliseconds())
}

// complete runs the missing migrations one after another, unless another sidecar does.
// It returns the row that describes the tables now.
func (t *Target) complete(ctx context.Context) (meta Meta, err error) {
	m := &migrator{Target: t}
	defer func() { err = errors.Join(err, m.close(ctx)) }()
	if err := m.open(ctx); err != nil {
		return Meta{}, err
	}
	ours, err := m.begin(ctx)
	if err != nil {
		return Meta{}, err
	}
	if !ours && !core.Pause(ctx, lockRetry) {
		return Meta{}, core.Interrupted(ctx, "waiting for another sidecar that creates the tables in "+t.Place)
	}
	if !ours {
		return m.present(ctx)
	}
	held, stop := m.holdLock(ctx)
	defer stop()
	meta, err = m.advance(held)
	if lost := (*lockLostError)(nil); err != nil && errors.As(context.Cause(held), &lost) {
		return meta, lost
	}
	return meta, err
}

// present reads the version. Behind a pooler, a statement of its own has the settings only if the pool sends it.
func (m *migrator) present(ctx context.Context) (Meta, error) {
	if m.Pooled {
		return m.read(ctx, m.Pool)
	}
	return m.read(ctx, m.work)
}

// advance runs one migration after another until the version is the latest.
func (m *migrator) advance(ctx context.Context) (meta Meta, err error) {
	for meta, err = m.present(ctx); err == nil && meta.Version < m.latest(); meta, err = m.present(ctx) {
		if meta.Version == 0 {
			err = m.create(ctx)
		} else {
			err = m.step(ctx, meta.Version)
		}
		if err != nil {
			return meta, m.needsOwner(meta.Version, err)
		}
	}
	return meta, err
}

func (m *migrator) open(ctx context.Context) (err error) {
	config := m.Config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	if m.lock, err = pgx.ConnectConfig(ctx, config); err != nil {
		return err
	}
	if m.work, err = pgx.ConnectConfig(ctx, config); err != nil || m.Pooled {
		return err
	}
	for _, c := range []*pgx.Conn{m.lock, m.work} {
		if err := m.do(ctx, c, m.Settings(false)); err != nil {
			return err
		}
	}
	return m.do(ctx, m.work, m.patience(), false)
}

// begun begins a transaction. Behind a pooler it has the settings.
func (m *migrator) begun(ctx context.Context, c *pgx.Conn, begin string) error {
	if m.Pooled {
		begin += "; " + m.Settings(true)
	}
	return m.do(ctx, c, begin)
}

// begin takes the lock, or returns false if another sidecar has it. It doesn't wait for the
// lock, because the build of an index waits for every statement that began before it. The
// lock's transaction stays open without a snapshot, so it blocks nothing.
func (m *migrator) begin(ctx context.Context) (ours bool, err error) {
	if err := m.begun(ctx, m.lock, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		return false, err
	}
	if err := m.do(ctx, m.lock, m.patience(), true); err != nil {
		return false, err
	}
	err = m.lock.QueryRow(ctx, "SELECT pg_catalog.pg_try_advisory_xact_lock($1)", int64(schemaLock)).Scan(&ours)
	return ours, err
}

// hold keeps the lock until stop is called. The returned context ends if the lock is lost.
// hold pings the server with a message without a statement. A statement would have a
// snapshot, and the build of an index would wait for its transaction.
func (m *migrator) holdLock(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(lockPing)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			ping, done := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(m.Idle, lockIdle))
			err := m.lock.Ping(ping)
			done()
			if err != nil {
				cancel(&lockLostError{err})
			}
		}
	}()
	return ctx, func() { cancel(nil); <-over }
}

// create creates the schema and all tables in one transaction. If the schema exists, create
// omits CREATE SCHEMA, which needs a right on the database even then.
func (m *migrator) create(ctx context.Context) error {
	sql := In(m.Schema, Fresh(m.latest(), m.Later...))
	var exists bool
	if err := m.work.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)", m.Schema).Scan(&exists); err != nil {
		return err
	}
	if exists {
		sql = strings.Replace(sql, In(m.Schema, "CREATE SCHEMA IF NOT EXISTS {s};"), "", 1)
	}
	return m.transaction(ctx, func() error { return m.do(ctx, m.work, sql) })
}

// grantsSQL grants new tables to the roles that sidecars run under, which are the roles
// with the right to delete jobs.
const grantsSQL = `
DO $$
DECLARE r record;
BEGIN
  FOR r IN
    SELECT DISTINCT t.relname, a.grantee::regrole AS role
    FROM pg_class j CROSS JOIN LATERAL aclexplode(j.relacl) a
    JOIN pg_class t ON t.relnamespace = j.relnamespace AND t.relowner = j.relowner AND t.relkind = 'r' AND t.relname LIKE 'qsidecar\_%'
    WHERE j.oid = '{s}.qsidecar_jobs'::regclass AND a.privilege_type = 'DELETE' AND a.grantee NOT IN (0, j.relowner)
      AND NOT has_table_privilege(a.grantee, t.oid, 'DELETE')
  LOOP
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.%I TO %s', r.relname, r.role);
  END LOOP;
END $$`

// step migrates the tables from version to the next one.
func (m *migrator) step(ctx context.Context, version int) error {
	next := slices.Concat(migrations, m.Later)[version-Base]
	for _, x := range next.Indexes {
		if err := m.build(ctx, x); err != nil {
			return err
		}
	}
	for {
		err := m.transaction(ctx, func() error {
			if err := m.do(ctx, m.work, fmt.Sprintf("SET LOCAL lock_timeout = %d", lockTimeout.Milliseconds())); err != nil {
				return err
			}
			if err := m.do(ctx, m.work, In(m.Schema, next.SQL)); err != nil {
				return err
			}
			if err := m.do(ctx, m.work, In(m.Schema, grantsSQL)); err != nil {
				return err
			}
			return m.do(ctx, m.work, In(m.Schema, reached(version+1)))
		})
		if pgErr := (*pgconn.PgError)(nil); !errors.As(err, &pgErr) || pgErr.Code != "55P03" {
			return err
		}
		m.logWait()
		if !core.Pause(ctx, lockPause) {
			return core.Interrupted(ctx, "waiting for a lock on the tables of "+m.Place)
		}
	}
}

// logWait logs that the migration waits, at most once in logEvery.
func (m *migrator) logWait() {
	if m.logged.IsZero() || time.Since(m.logged) > logEvery {
		m.logged = time.Now()
		m.Log.Warn("migration waits for another transaction", "event", "migration_waiting",
			"address", m.Place, "schema", m.Schema)
	}
}

// transaction runs f in a transaction without timeouts, except the one for locks.
func (m *migrator) transaction(ctx context.Context, f func() error) error {
	if err := m.begun(ctx, m.work, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"); err != nil {
		return err
	}
	err := m.do(ctx, m.work, m.patience(), true)
	if err == nil {
		err = f()
	}
	if err == nil {
		return m.do(ctx, m.work, "COMMIT")
	}
	if m.work.IsClosed() {
		return err
	}
	return errors.Join(err, m.do(ctx, m.work, "ROLLBACK"))
}

// do runs a statement, or several statements in one transaction.
func (m *migrator) do(ctx context.Context, c *pgx.Conn, sql string, args ...any) error {
	if hook := m.Hook; hook != nil {
		if err := hook(c, sql); err != nil {
			return err
		}
	}
	_, err := c.Exec(ctx, sql, args...)
	return err
}

// close closes both connections, which also releases the lock.
func (m *migrator) close(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeFor)
	defer cancel()
	for _, c := range []*pgx.Conn{m.work, m.lock} {
		if c != nil && !c.IsClosed() {
			err = errors.Join(err, c.Close(ctx))
		}
	}
	return err
}
