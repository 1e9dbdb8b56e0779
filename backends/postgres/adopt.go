package postgres

import (
	"context"
	"errors"
	"regexp"
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

// lockTimeout returns the statement that limits how long a transaction waits for locks of other
// programs, or "" if there is no limit. Claims of adopted rows wait for no lock.
func lockTimeout(o core.TxOptions) string {
	switch {
	case !o.AdoptedWrites && !o.Keyed && !o.Settles:
		return ""
	case o.WaitForLocks:
		return "SELECT pg_catalog.set_config('lock_timeout', '5000', true)"
	case o.Keyed:
		// An application that waits for one key, while this transaction waits for another one of its keys, looks for a
		// deadlock after deadlock_timeout, a second. Three waits in a row end before that.
		return "SELECT pg_catalog.set_config('lock_timeout', '250', true)"
	}
	return "SELECT pg_catalog.set_config('lock_timeout', '500', true)"
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
	for _, st := range statements {
		t.queue(st)
	}
	return t.send(ctx)
}

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
	return s.read(ctx, func(_ context.Context, t *tx) error {
		for _, st := range statements {
			t.queue(st)
		}
		return nil
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
	case change == nil || strings.HasPrefix(sql[len(change[0]):], t.s.leases):
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
