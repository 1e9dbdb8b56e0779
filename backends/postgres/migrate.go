package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// schemaLock keeps two sidecars from making the tables at once: any number that
	// nobody else is likely to have chosen.
	schemaLock = 0x7173_6964_6563_6172
	lockAgain  = 100 * time.Millisecond // before it is asked for again
	lockPing   = time.Second            // how often whoever has it says that it lives
	lockIdle   = 5 * time.Second        // without a word: then the server takes it back

	// lockTimeout is how long a migration waits for a lock on a table. Whoever comes
	// after it waits with it, beats too: so it waits briefly, and often.
	lockTimeout = 200 * time.Millisecond
	lockPause   = 500 * time.Millisecond
	// repeatEvery is how often the log is told that it still waits.
	repeatEvery = time.Minute
)

// migrate makes or completes the tables, where they need it. Any number of
// sidecars may do so at once, others may work on meanwhile, and whatever ends it
// at any point, the next one completes it.
func (s *Store) migrate(ctx context.Context) error {
	version, err := s.meta(ctx, s.pool)
	for try := 1; err == nil && version < latest; {
		version, err = s.complete(ctx)
		if err != nil && try < maxTries && transient(err) && pause(ctx, retryPause<<try) {
			try, err = try+1, nil
		}
	}
	return err
}

// needsOwner says what somebody has to do who may. The server's refusal is told
// in its words alone: to explain it is done here.
func (s *Store) needsOwner(version int, err error) error {
	said := (*pgconn.PgError)(nil)
	if !errors.As(err, &said) || said.Code != "42501" {
		return err
	}
	from, state := "", "are missing"
	if version > 0 {
		from, state = fmt.Sprintf(" --from %d", version), fmt.Sprintf("are of version %d", version)
	}
	return fmt.Errorf("the tables in the schema %s %s, this program needs version %d, and its role may not make them: "+
		"have their owner run what `qsidecar migrate --print%s` shows (%s)", s.o.Schema, state, latest, from, words(said))
}

// migrator has two connections of its own. None of the pool's settings hold for
// them: a migration takes what time it takes.
type migrator struct {
	s    *Store
	work *pgx.Conn // where indexes are built: outside of transactions
	lock *pgx.Conn // in a transaction that holds schemaLock
	told time.Time // when the log was last told of a wait
}

// patience is the statement for the settings that would end a migration before it is done. But one
// whose sidecar vanished without a word keeps its locks for a moment only.
func (m *migrator) patience() string {
	return fmt.Sprintf(`
SELECT pg_catalog.set_config(name, CASE name WHEN 'idle_in_transaction_session_timeout' THEN '%d' ELSE '0' END, $1)
FROM pg_catalog.pg_settings WHERE name IN
  ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout')`,
		cmp.Or(m.s.o.idle, lockIdle).Milliseconds())
}

// complete does the migrations that are missing, one after another, unless
// somebody else is at it. It returns the version that the tables have now.
func (s *Store) complete(ctx context.Context) (version int, err error) {
	m := &migrator{s: s}
	defer func() { err = errors.Join(err, m.close(ctx)) }()
	if err := m.open(ctx); err != nil {
		return 0, err
	}
	ours, err := m.begin(ctx)
	if err != nil {
		return 0, err
	}
	if !ours && !pause(ctx, lockAgain) {
		return 0, ended(ctx, "waiting for another sidecar that makes the tables in "+s.place)
	}
	if !ours {
		return s.meta(ctx, m.work)
	}
	held, stop := m.hold(ctx)
	defer stop()
	version, err = m.advance(held)
	if lost := (*lostError)(nil); err != nil && errors.As(context.Cause(held), &lost) {
		return version, lost
	}
	return version, err
}

// advance goes from version to version.
func (m *migrator) advance(ctx context.Context) (version int, err error) {
	for version, err = m.s.meta(ctx, m.work); err == nil && version < latest; version, err = m.s.meta(ctx, m.work) {
		if version == 0 {
			err = m.make(ctx)
		} else {
			err = m.step(ctx, version)
		}
		if err != nil {
			return version, m.s.needsOwner(version, err)
		}
	}
	return version, err
}

func (m *migrator) open(ctx context.Context) (err error) {
	config := m.s.beater.config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	if m.lock, err = pgx.ConnectConfig(ctx, config); err != nil {
		return err
	}
	if m.work, err = pgx.ConnectConfig(ctx, config); err != nil || m.s.pooled {
		return err
	}
	if err := m.do(ctx, m.work, m.patience(), false); err != nil {
		return err
	}
	return m.do(ctx, m.work, `SELECT pg_catalog.set_config('default_transaction_read_only', 'off', false)`)
}

// begin takes the lock, or reports that another has it. It is asked for and not
// waited for: whoever builds an index waits for every statement that began before.
// The lock's transaction stays open, without a snapshot, and hinders nobody.
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

// hold keeps the lock until stop is called; the context ends where it is lost. A
// word without a statement: one would look at the rows, and an index's builder
// would wait for its transaction.
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
			ping, done := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(m.s.o.idle, lockIdle))
			err := m.lock.Ping(ping)
			done()
			if err != nil {
				cancel(&lostError{fmt.Errorf("the lock on the migration was lost: %w", err)})
			}
		}
	}()
	return ctx, func() { cancel(nil); <-over }
}

// make makes everything where there is nothing. CREATE SCHEMA asks for a right on
// the database even where the schema is there.
func (m *migrator) make(ctx context.Context) error {
	sql := in(m.s.o.Schema, fresh())
	var there bool
	if err := m.work.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)", m.s.o.Schema).Scan(&there); err != nil {
		return err
	}
	if there {
		sql = strings.Replace(sql, in(m.s.o.Schema, "CREATE SCHEMA IF NOT EXISTS {s};"), "", 1)
	}
	return m.transaction(ctx, func() error { return m.do(ctx, m.work, sql) })
}

// grantsSQL gives the roles that sidecars run under what they need of new tables:
// those that may delete jobs.
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
			if err := m.do(ctx, m.work, in(m.s.o.Schema, next.sql)); err != nil {
				return err
			}
			if err := m.do(ctx, m.work, in(m.s.o.Schema, grantsSQL)); err != nil {
				return err
			}
			return m.do(ctx, m.work, in(m.s.o.Schema, reached(version+1)))
		})
		if said := (*pgconn.PgError)(nil); !errors.As(err, &said) || said.Code != "55P03" {
			return err
		}
		m.waits()
		if !pause(ctx, lockPause) {
			return ended(ctx, "waiting for a lock on the tables of "+m.s.place)
		}
	}
}

// waits tells the log, now and then.
func (m *migrator) waits() {
	if m.told.IsZero() || time.Since(m.told) > repeatEvery {
		m.told = time.Now()
		m.s.log.Warn("the migration waits for another transaction that uses the tables (a dump? a long report?); pg_stat_activity shows it",
			"place", m.s.place, "schema", m.s.o.Schema)
	}
}

// build builds an index, unless it is there and whole.
func (m *migrator) build(ctx context.Context, x index) error {
	there, whole, err := m.look(ctx, x)
	if err != nil || whole {
		return err
	}
	if there {
		if whole, err = m.awaitBuild(ctx, x); err != nil || whole {
			return err
		}
		m.s.log.Info("an index whose build was interrupted is built again", "place", m.s.place, "index", x.name)
		if err := m.do(ctx, m.work, in(m.s.o.Schema, x.dropped())); err != nil {
			return err
		}
	}
	err = m.do(ctx, m.work, in(m.s.o.Schema, x.made()))
	if said := (*pgconn.PgError)(nil); m.s.pooled && errors.As(err, &said) && said.Code == "57014" {
		return fmt.Errorf("the server's statement_timeout ended the building of the index %s, and through a pooler it cannot be set: run `qsidecar migrate` with the server's own address: %w", x.name, err)
	}
	return err
}

// awaitBuild tells a build that was interrupted from one whose sidecar is gone and
// that the server is still at. That build holds such a lock until a moment before its
// commit, so awaitBuild then waits for the transactions of those who had the lock. It asks
// again and again and never waits inside the server: a statement that waits for a lock has
// a snapshot of the catalog, which the build waits for, and one of the two would be ended
// by a deadlock.
func (m *migrator) awaitBuild(ctx context.Context, x index) (whole bool, err error) {
	table, _, _ := strings.Cut(x.on, " ")
	table = in(m.s.o.Schema, table)
	var builders, left []string
	for now := []string{""}; len(now) > 0; {
		if err := m.work.QueryRow(ctx, buildersSQL, table).Scan(&now); err != nil {
			return false, err
		}
		builders = append(builders, now...)
		if len(now) > 0 && !pause(ctx, lockAgain) {
			return false, ended(ctx, "waiting for the index "+x.name+", which the server still builds in "+m.s.place)
		}
	}
	slices.Sort(builders)
	builders = slices.Compact(builders)
	if err := m.work.QueryRow(ctx, transactionsSQL, builders).Scan(&left); err != nil {
		return false, err
	}
	// At least ten looks: a build may have let the lock go before anybody looked.
	for try := 0; try < 10 || len(left) > 0; try++ {
		var still []string
		if err := m.work.QueryRow(ctx, transactionsSQL, builders).Scan(&still); err != nil {
			return false, err
		}
		left = slices.DeleteFunc(left, func(x string) bool { return !slices.Contains(still, x) })
		if _, whole, err = m.look(ctx, x); err != nil || whole || !pause(ctx, lockAgain) {
			break
		}
	}
	return whole, err
}

const (
	// buildersSQL are the processes that build an index of a table beside its writers.
	buildersSQL = `SELECT coalesce(array_agg(pid::text), '{}') FROM pg_catalog.pg_locks
		WHERE relation = $1::regclass AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
			AND mode = 'ShareUpdateExclusiveLock' AND granted`
	// transactionsSQL are the transactions that some processes have open.
	transactionsSQL = `SELECT coalesce(array_agg(virtualtransaction), '{}') FROM pg_catalog.pg_locks
		WHERE locktype = 'virtualxid' AND granted AND pid::text = ANY($1::text[]) AND virtualxid = virtualtransaction`
)

func (m *migrator) look(ctx context.Context, x index) (there, whole bool, err error) {
	err = m.work.QueryRow(ctx, `SELECT i.indisvalid FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2`, m.s.o.Schema, x.name).Scan(&whole)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, false, nil
	}
	return err == nil, whole, err
}

// transaction runs f in one, where nothing but a lock ends it before its time.
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
	if hook := m.s.o.migrating; hook != nil {
		if err := hook(c, sql); err != nil {
			return err
		}
	}
	_, err := c.Exec(ctx, sql, args...)
	return err
}

// close ends both connections, and with them the lock.
func (m *migrator) close(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	for _, c := range []*pgx.Conn{m.work, m.lock} {
		if c != nil && !c.IsClosed() {
			err = errors.Join(err, c.Close(ctx))
		}
	}
	return err
}
