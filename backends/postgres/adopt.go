package postgres

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/dialect"
)

var _ backends.Adopter = (*Store)(nil)

// Dialect implements backends.Adopter.
func (s *Store) Dialect() backends.Dialect { return dialect.New(s.o.Schema) }

// briefWait limits how long the statements of a transaction wait for locks of other programs.
const briefWait = "SELECT pg_catalog.set_config('lock_timeout', '500', true)"

// lockTimeout returns the statement that limits how long a transaction waits for locks of other
// programs, or "" if there is no limit. Claims of adopted rows wait for no row, but for a table that its owner alters.
func lockTimeout(o core.TxOptions) string {
	switch {
	case !o.LimitsLockWaits():
		return ""
	case o.WaitForLocks:
		return "SELECT pg_catalog.set_config('lock_timeout', '5000', true)"
	case o.Keyed:
		// An application that waits for one key, while this transaction waits for another one of its keys, looks for a
		// deadlock after deadlock_timeout, a second. Three waits in a row end before that.
		return "SELECT pg_catalog.set_config('lock_timeout', '250', true)"
	}
	return briefWait
}

// lockedOut returns a LockedError if err is a lock timeout, and otherwise err.
func lockedOut(err error) error {
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == "55P03" {
		return &backends.LockedError{Err: errors.New(fullMessage(pgErr))}
	}
	return err
}

// Do implements backends.SQL.
func (t *tx) Do(ctx context.Context, statements ...*backends.Statement) error {
	return t.doBriefly(ctx, statements)
}

// doBriefly runs the statements. Their preparation waits for a table that its owner alters, and comes before the batch, so
// the limit of that wait has to be set before. It is needed once for each statement of a connection.
func (t *tx) doBriefly(ctx context.Context, statements []*backends.Statement) error {
	prepared, _ := t.c.PgConn().CustomData()[preparedKey].(map[string]bool)
	if prepared == nil || len(prepared) > maxPrepared {
		prepared = map[string]bool{}
		t.c.PgConn().CustomData()[preparedKey] = prepared
	}
	if t.batch.Len() > 0 && slices.ContainsFunc(statements, func(st *backends.Statement) bool { return !prepared[st.Text] }) {
		if err := t.send(ctx); err != nil {
			return err
		}
	}
	for _, st := range statements {
		t.queue(st)
	}
	err := t.send(ctx)
	for _, st := range statements {
		prepared[st.Text] = err == nil // if the batch fails, pgx prepares its statements again
	}
	return err
}

const (
	preparedKey = "qsidecar prepared"
	maxPrepared = 400 // pgx keeps 512
)

func (t *tx) queue(st *backends.Statement) {
	t.inOwnersPath(st.Text, func(rows pgx.Rows) error {
		for rows.Next() {
			if st.Row == nil {
				continue
			}
			if err := st.Row(rows.RawValues()); err != nil {
				return err
			}
		}
		rows.Close()
		st.Matched = rows.CommandTag().RowsAffected()
		return nil
	}, st.Args...)
}

// Query implements backends.Adopter.
func (s *Store) Query(ctx context.Context, statements ...*backends.Statement) error {
	return s.Again(ctx, func(ctx context.Context) error {
		return lockedOut(s.readOnce(ctx, func(ctx context.Context, t *tx) error {
			t.add(briefWait, nil)
			return t.doBriefly(ctx, statements)
		}))
	})
}

// Queues implements backends.Locator.
func (s *Store) Queues(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return core.QueuesOfJobs(ctx, s, "bigint", leases)
}

// inOwnersPath queues a statement. If it changes rows of an adopted table, the table's triggers and defaults run with the search path
// of the role. The names in the statement itself are looked up before that: the path changes when the search for rows begins. An INSERT
// of values has only names that mean the same with either path (see package dialect), and its defaults can be planned with the role's.
func (t *tx) inOwnersPath(sql string, read func(rows pgx.Rows) error, args ...any) {
	change := rowChange.FindStringSubmatch(sql)
	switch {
	case change == nil || slices.ContainsFunc(t.s.tables, func(table string) bool { return strings.HasPrefix(sql[len(change[0]):], table) }):
		t.add(sql, read, args...)
		return
	case valuesForm.MatchString(sql):
		t.setPath(true)
	default:
		t.setPath(false)
		sql += " AND (SELECT pg_catalog.set_config('search_path', " + text(t.s.searchPath(t.c)) + ", true)) IS NOT NULL"
	}
	t.queueText(sql, read, args...)
	t.fired, t.owners = true, true
}

var (
	rowChange  = regexp.MustCompile(`^(INSERT INTO|UPDATE|DELETE FROM) `)
	valuesForm = regexp.MustCompile(`^INSERT INTO ("([^"]|"")*"\.)?"([^"]|"")*" (\(("([^"]|"")*"(, )?)+\) VALUES|DEFAULT VALUES)`)
)
