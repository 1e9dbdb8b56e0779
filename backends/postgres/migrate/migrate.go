package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/internal/core"
)

const (
	// schemaLock is the key of the advisory lock that keeps two sidecars from creating
	// the tables at once: a number that no other program is likely to use.
	schemaLock = 0x7173_6964_6563_6172
	lockRetry  = 100 * time.Millisecond // the pause before a sidecar asks for the lock again
	lockPing   = time.Second            // how often the owner of the lock proves that it lives
	lockIdle   = 5 * time.Second        // after such a silence the server frees the lock

	// lockTimeout bounds how long a migration waits for a lock on a table. Every later
	// statement on that table waits with it, heartbeats included. So a migration waits
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
	Pooled bool            // a pooler hands out sessions per transaction
	Log    *slog.Logger

	Transient func(err error) bool // the same work, repeated at once, may succeed
	Message   func(err *pgconn.PgError) string

	Idle time.Duration                       // replaces lockIdle; tests set it
	Hook func(c *pgx.Conn, sql string) error // tests break migrations with it; nil: nothing
}

// Run creates the tables, or updates them to Latest, and returns what describes them.
// Any number of sidecars can do so at once, and others can work meanwhile. If it is
// interrupted at any point, the next Run completes it.
func Run(ctx context.Context, t Target) (Meta, error) {
	meta, err := t.read(ctx, t.Pool)
	for try := 1; err == nil && meta.Version < Latest; {
		meta, err = t.complete(ctx)
		if err != nil && try < maxTries && t.transient(err) && core.Pause(ctx, retryPause<<try) {
			try, err = try+1, nil
		}
	}
	return meta, err
}

func (t *Target) read(ctx context.Context, q Querier) (Meta, error) {
	return Read(ctx, q, t.Place, t.Schema)
}

// lockLostError: the session that held the lock ended before the migration did.
type lockLostError struct{ err error }

func (e *lockLostError) Error() string { return "the lock on the migration was lost: " + e.err.Error() }
func (e *lockLostError) Unwrap() error { return e.err }

func (t *Target) transient(err error) bool {
	var lost *lockLostError
	return errors.As(err, &lost) || t.Transient(err)
}

// needsOwner explains a missing right: it names what the owner of the tables has to run.
// The server's error is in the text alone, so that no caller explains it once more.
func (t *Target) needsOwner(version int, err error) error {
	said := (*pgconn.PgError)(nil)
	if !errors.As(err, &said) || said.Code != "42501" {
		return err
	}
	from, state := "", "are missing"
	if version > 0 {
		from, state = fmt.Sprintf(" --from %d", version), fmt.Sprintf("are of version %d", version)
	}
	return fmt.Errorf("the tables in the schema %s %s, this program needs version %d, and its role may not create them: "+
		"have their owner run what `qsidecar migrate --print%s` shows (%s)", t.Schema, state, Latest, from, t.Message(said))
}

// migrator has two connections of its own, without the settings of the pool: a
// migration takes as long as it needs.
type migrator struct {
	*Target
	work   *pgx.Conn // builds indexes, which is outside of transactions
	lock   *pgx.Conn // has a transaction open that holds schemaLock
	logged time.Time // when the log last mentioned a wait
}

// patience returns the statement that switches off the timeouts that would end a
// migration early. One stays: if the sidecar vanishes, the server frees its locks soon.
func (m *migrator) patience() string {
	return fmt.Sprintf(`
SELECT pg_catalog.set_config(name, CASE name WHEN 'idle_in_transaction_session_timeout' THEN '%d' ELSE '0' END, $1)
FROM pg_catalog.pg_settings WHERE name IN
  ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout')`,
		cmp.Or(m.Idle, lockIdle).Milliseconds())
}

// complete runs the missing migrations one after another, unless another sidecar does.
// It returns what describes the tables now.
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
		return t.read(ctx, m.work)
	}
	held, stop := m.hold(ctx)
	defer stop()
	meta, err = m.advance(held)
	if lost := (*lockLostError)(nil); err != nil && errors.As(context.Cause(held), &lost) {
		return meta, lost
	}
	return meta, err
}

// advance goes from version to version.
func (m *migrator) advance(ctx context.Context) (meta Meta, err error) {
	for meta, err = m.read(ctx, m.work); err == nil && meta.Version < Latest; meta, err = m.read(ctx, m.work) {
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
	if err := m.do(ctx, m.work, m.patience(), false); err != nil {
		return err
	}
	return m.do(ctx, m.work, `SELECT pg_catalog.set_config('default_transaction_read_only', 'off', false)`)
}

// begin takes the lock, or reports that another sidecar has it. It does not wait for the
// lock: a build of an index waits for every statement that began before it. The
// transaction of the lock stays open without a snapshot, and blocks nothing.
func (m *migrator) begin(ctx context.Context) (ours bool, err error) {
	if err := m.do(ctx, m.lock, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		return false, err
	}
	if err := m.do(ctx, m.lock, m.patience(), true); err != nil {
		return false, err
	}
	err = m.lock.QueryRow(ctx, "SELECT pg_catalog.pg_try_advisory_xact_lock($1)", int64(schemaLock)).Scan(&ours)
	return ours, err
}

// hold keeps the lock until stop is called. The context ends if the lock is lost. The
// ping is a message without a statement: a statement would have a snapshot, and a build
// of an index would wait for its transaction.
func (m *migrator) hold(ctx context.Context) (_ context.Context, stop func()) {
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

// create creates everything in one transaction. CREATE SCHEMA needs a right on the
// database even if the schema exists, so it is left out then.
func (m *migrator) create(ctx context.Context) error {
	sql := In(m.Schema, Fresh())
	var exists bool
	if err := m.work.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)", m.Schema).Scan(&exists); err != nil {
		return err
	}
	if exists {
		sql = strings.Replace(sql, In(m.Schema, "CREATE SCHEMA IF NOT EXISTS {s};"), "", 1)
	}
	return m.transaction(ctx, func() error { return m.do(ctx, m.work, sql) })
}

// grantsSQL grants new tables to the roles that sidecars run under: those that may
// delete jobs.
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

// step leads from one version to the next.
func (m *migrator) step(ctx context.Context, version int) error {
	next := versions[version]
	for _, x := range next.indexes {
		if err := m.build(ctx, x); err != nil {
			return err
		}
	}
	for {
		err := m.transaction(ctx, func() error {
			if err := m.do(ctx, m.work, fmt.Sprintf("SET LOCAL lock_timeout = %d", lockTimeout.Milliseconds())); err != nil {
				return err
			}
			if err := m.do(ctx, m.work, In(m.Schema, next.sql)); err != nil {
				return err
			}
			if err := m.do(ctx, m.work, In(m.Schema, grantsSQL)); err != nil {
				return err
			}
			return m.do(ctx, m.work, In(m.Schema, reached(version+1)))
		})
		if said := (*pgconn.PgError)(nil); !errors.As(err, &said) || said.Code != "55P03" {
			return err
		}
		m.logWait()
		if !core.Pause(ctx, lockPause) {
			return core.Interrupted(ctx, "waiting for a lock on the tables of "+m.Place)
		}
	}
}

// logWait writes to the log, at most once in logEvery.
func (m *migrator) logWait() {
	if m.logged.IsZero() || time.Since(m.logged) > logEvery {
		m.logged = time.Now()
		m.Log.Warn("the migration waits for another transaction that uses the tables (a dump? a long report?); pg_stat_activity shows it",
			"place", m.Place, "schema", m.Schema)
	}
}

// transaction runs f in a transaction in which no timeout but that for locks applies.
func (m *migrator) transaction(ctx context.Context, f func() error) error {
	if err := m.do(ctx, m.work, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"); err != nil {
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

// do runs a statement, or several in one transaction.
func (m *migrator) do(ctx context.Context, c *pgx.Conn, sql string, args ...any) error {
	if hook := m.Hook; hook != nil {
		if err := hook(c, sql); err != nil {
			return err
		}
	}
	_, err := c.Exec(ctx, sql, args...)
	return err
}

// close ends both connections, and the lock with them.
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
