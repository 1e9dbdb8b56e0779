package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

var _ backends.Adopter = (*Store)(nil)

// shortLockTimeout is how long a commit waits for what another program has locked. Writes
// whose own rows are locked wait so long alone; see backends.Batch.WaitForLocks.
const shortLockTimeout = "SELECT pg_catalog.set_config('lock_timeout', '500', true)"

// CommitWith implements backends.Adopter.
func (s *Store) CommitWith(ctx context.Context, b backends.Batch, hooks backends.TxHooks) (backends.Results, error) {
	res, err := s.Store.CommitWith(ctx, b, hooks)
	return res, lockedOut(err)
}

// lockedOut gives the error of a transaction that waited for somebody's row its kind.
func lockedOut(err error) error {
	if said := (*pgconn.PgError)(nil); errors.As(err, &said) && said.Code == "55P03" {
		return &backends.LockedError{Err: errors.New(words(said))}
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
	t.add(st.Text, func(rows pgx.Rows) error {
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

// Ask implements backends.Adopter.
func (s *Store) Query(ctx context.Context, statements ...*backends.Statement) error {
	return s.read(ctx, func(_ context.Context, t *tx) error {
		for _, st := range statements {
			t.queue(st)
		}
		return nil
	})
}

// baseJoin is the type that the column of a is made of, as base, and its row of pg_type, as b.
// A domain can be one of a domain. An explicit cast to it cuts a value as a cast to its base does.
// The elements of an array need no such care: a text is cast to it by its input function, which
// refuses what is too long.
const baseJoin = `
CROSS JOIN LATERAL (WITH RECURSIVE down AS (
  SELECT a.atttypid AS oid, a.atttypmod AS typmod, 0 AS n
  UNION ALL
  SELECT t.typbasetype, t.typtypmod, n + 1 FROM down JOIN pg_catalog.pg_type t ON t.oid = down.oid AND t.typtype = 'd'
) SELECT oid, typmod FROM down ORDER BY n DESC LIMIT 1) base
JOIN pg_catalog.pg_type b ON b.oid = base.oid`

// describeSQL reads the catalogue. A name without a schema is looked for as the
// server would.
const describeSQL = `
SELECT n.nspname::text, c.relname::text, c.relkind::text, a.attname::text,
  format_type(base.oid, base.typmod), b.typname::text, b.typcategory::text,
  a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a',
  CASE b.typname WHEN 'name' THEN 63 WHEN 'char' THEN 1 WHEN 'varchar' THEN greatest(base.typmod, 4) - 4 WHEN 'bpchar' THEN greatest(base.typmod, 4) - 4 ELSE 0 END
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
` + baseJoin + `
WHERE c.relname = $2 AND (n.nspname = $1 OR $1 = '' AND pg_catalog.pg_table_is_visible(c.oid)) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
ORDER BY a.attnum`

const uniqueSQL = `
SELECT ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, n)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.n <= i.indnkeyatts ORDER BY k.n)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) AND NOT a.attnotnull)
ORDER BY i.indisprimary DESC, i.indexrelid`

const similarSQL = `
SELECT CASE WHEN pg_catalog.pg_table_is_visible(c.oid) THEN c.relname::text ELSE n.nspname || '.' || c.relname END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND lower(c.relname) = lower($1) ORDER BY 1 LIMIT 5`

var columnKinds = map[string]backends.ColumnKind{
	"int2": backends.NumberColumn, "int4": backends.NumberColumn, "int8": backends.NumberColumn, "numeric": backends.NumberColumn,
	"bool": backends.BoolColumn, "timestamp": backends.TimeColumn, "timestamptz": backends.TimeColumn, "bytea": backends.BytesColumn,
	"json": backends.JSONColumn, "jsonb": backends.JSONColumn, "uuid": backends.UUIDColumn,
}

// Describe implements backends.Adopter.
func (s *Store) Describe(ctx context.Context, schema, name string) (info backends.TableInfo, err error) {
	err = s.read(ctx, func(ctx context.Context, t *tx) error {
		info = backends.TableInfo{Schema: schema, Name: name}
		t.each(describeSQL, func(rows pgx.Rows) error {
			var c backends.Column
			var kind, typ, category string
			var never bool
			if err := rows.Scan(&info.Schema, &info.Name, &kind, &c.Name, &c.Type, &typ, &category, &never, &c.Default, &c.Generated, &c.Chars); err != nil {
				return err
			}
			info.Kind = map[string]string{"r": "table", "p": "table", "v": "view", "m": "materialized view", "f": "foreign table"}[kind]
			c.Nullable, c.Kind = !never, columnKinds[typ]
			if c.Kind == backends.OtherColumn && (category == "S" || category == "E") {
				c.Kind = backends.TextColumn
			}
			info.Columns = append(info.Columns, c)
			return nil
		}, schema, name)
		if err := t.send(ctx); err != nil {
			return err
		}
		if len(info.Columns) == 0 {
			t.each(similarSQL, func(rows pgx.Rows) error {
				var other string
				err := rows.Scan(&other)
				info.Similar = append(info.Similar, other)
				return err
			}, name)
			return nil
		}
		t.each(uniqueSQL, func(rows pgx.Rows) error {
			var key []string
			err := rows.Scan(&key)
			info.Unique = append(info.Unique, key)
			return err
		}, info.Schema, info.Name)
		t.describeMore(&info)
		return nil
	})
	if err != nil {
		return backends.TableInfo{}, fmt.Errorf("reading what the table %s is like: %w", name, err)
	}
	return info, nil
}

// Queues implements backends.Locator.
func (s *Store) Queues(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return core.QueuesOfJobs(ctx, s, "bigint", leases)
}
