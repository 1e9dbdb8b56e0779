package postgres

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
)

// indexesSQL are the indexes that a claim could be served by: valid B-trees of whole
// columns, sorted as a plain ORDER BY sorts.
const indexesSQL = `
SELECT c.relname::text, coalesce(pg_catalog.pg_get_expr(i.indpred, i.indrelid), ''),
  ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, n)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.n <= i.indnkeyatts ORDER BY k.n),
  ARRAY(SELECT o & 1 = 1 FROM unnest(i.indoption::int2[]) WITH ORDINALITY AS k (o, n) WHERE k.n <= i.indnkeyatts ORDER BY k.n)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid = c.relam AND m.amname = 'btree'
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = $1 AND t.relname = $2 AND i.indisvalid AND i.indexprs IS NULL
  AND NOT EXISTS (SELECT FROM unnest(i.indoption::int2[]) o WHERE o NOT IN (0, 3))
  AND NOT EXISTS (SELECT FROM unnest(i.indclass::oid[]) x JOIN pg_catalog.pg_opclass p ON p.oid = x WHERE NOT p.opcdefault)
  AND NOT EXISTS (SELECT FROM unnest(i.indkey::int2[], i.indcollation::oid[]) AS k (attnum, coll)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.coll <> 0 AND k.coll <> a.attcollation)
ORDER BY i.indisprimary DESC, c.relname`

// triggersSQL are the triggers and rules that a change of a row sets off.
const triggersSQL = `
SELECT t.tgname::text FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND NOT t.tgisinternal AND t.tgenabled NOT IN ('D', 'R')
UNION ALL
SELECT r.rulename::text FROM pg_catalog.pg_rewrite r
JOIN pg_catalog.pg_class c ON c.oid = r.ev_class JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p') AND r.ev_enabled NOT IN ('D', 'R')
ORDER BY 1`

// soundsSQL are the texts of what a change of a row sets off.
const soundsSQL = `
SELECT p.prosrc FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND NOT t.tgisinternal AND t.tgenabled NOT IN ('D', 'R') AND p.prosrc ILIKE '%notify%'
UNION ALL
SELECT pg_catalog.pg_get_ruledef(r.oid) FROM pg_catalog.pg_rewrite r
JOIN pg_catalog.pg_class c ON c.oid = r.ev_class JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p') AND r.ev_enabled NOT IN ('D', 'R') AND pg_catalog.pg_get_ruledef(r.oid) ILIKE '%notify%'
ORDER BY 1`

// sound finds the name of a channel in such a text: a constant, or a name.
var sound = regexp.MustCompile(`(?i)\bpg_notify\s*\(\s*'((?:[^']|'')+)'\s*(?:::\w+\s*)?,|\bnotify\s+(?:"((?:[^"]|"")+)"|([a-z_][a-z0-9_$]*))`)

// channels are those that a text names, as the server has them.
func channels(text string) (all []string) {
	for _, m := range sound.FindAllStringSubmatch(text, -1) {
		name := strings.ReplaceAll(m[1], "''", "'") + strings.ReplaceAll(m[2], `""`, `"`) + strings.ToLower(m[3])
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// rightsSQL is what the login may not do with the table, what with none of its
// columns; and what a crash of the server and row level security do.
const rightsSQL = `
SELECT ARRAY(SELECT p FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p WHERE NOT CASE p
    WHEN 'DELETE' THEN has_table_privilege(c.oid, p) ELSE has_any_column_privilege(c.oid, p) END),
  c.relpersistence = 'u', row_security_active(c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2`

const checksSQL = `
SELECT pg_catalog.pg_get_constraintdef(k.oid) FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND k.contype = 'c' ORDER BY k.conname`

// limitsSQL is, for each column: the values of an enum, the digits of a number, what
// of the table's rights does not hold for it, and its default.
const limitsSQL = `
SELECT a.attname::text, b.typname::text,
  ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = b.oid ORDER BY e.enumsortorder),
  CASE WHEN b.typname = 'numeric' AND base.typmod >= 4 THEN ((base.typmod - 4) >> 16) - ((base.typmod - 4) & 65535) ELSE 0 END,
  ARRAY(SELECT p FROM unnest('{SELECT,INSERT,UPDATE}'::text[]) p
    WHERE has_any_column_privilege(c.oid, p) AND NOT has_column_privilege(c.oid, a.attnum, p)),
  coalesce(CASE WHEN a.attgenerated = '' THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END, '')
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
` + baseJoin + `
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE n.nspname = $1 AND c.relname = $2
ORDER BY a.attnum`

// describeMore asks for what the catalogue says beyond the columns.
func (t *tx) describeMore(info *backends.TableInfo) {
	t.each(indexesSQL, func(rows pgx.Rows) error {
		var x backends.Index
		var names []string
		var descending []bool
		if err := rows.Scan(&x.Name, &x.Only, &names, &descending); err != nil {
			return err
		}
		for i, name := range names {
			x.Columns = append(x.Columns, backends.IndexColumn{Name: name, Descending: descending[i]})
		}
		info.Indexes = append(info.Indexes, x)
		return nil
	}, info.Schema, info.Name)
	t.each(triggersSQL, func(rows pgx.Rows) error {
		var name string
		err := rows.Scan(&name)
		info.Triggers = append(info.Triggers, name)
		return err
	}, info.Schema, info.Name)
	t.each(soundsSQL, func(rows pgx.Rows) error {
		var text string
		err := rows.Scan(&text)
		for _, name := range channels(text) {
			if !slices.Contains(info.Channels, name) {
				info.Channels = append(info.Channels, name)
			}
		}
		return err
	}, info.Schema, info.Name)
	t.each(rightsSQL, func(rows pgx.Rows) error {
		var unlogged, filtered bool
		if err := rows.Scan(&info.Denied, &unlogged, &filtered); err != nil {
			return err
		}
		if unlogged {
			info.Remarks.AddWarning("table", fmt.Sprintf("the table %s is UNLOGGED: its jobs are gone after a crash of the server", info.Name),
				fmt.Sprintf("ALTER TABLE %s SET LOGGED, unless they may be lost", grammar{}.Table(info.Schema, info.Name)))
		}
		if filtered {
			info.Remarks.AddWarning("table", fmt.Sprintf("row level security of the table %s may hide rows from this role: their jobs are never claimed", info.Name),
				"see that its policies show this role every row of the queue, and let it change them")
		}
		return nil
	}, info.Schema, info.Name)
	t.each(checksSQL, func(rows pgx.Rows) error {
		var check string
		err := rows.Scan(&check)
		info.Checks = append(info.Checks, check)
		return err
	}, info.Schema, info.Name)
	n := 0
	t.each(limitsSQL, func(rows pgx.Rows) error {
		var name, typ, given string
		var digits int
		var values, denied []string
		if err := rows.Scan(&name, &typ, &values, &digits, &denied, &given); err != nil {
			return err
		}
		if n < len(info.Columns) && info.Columns[n].Name == name { // it is one state of the database
			c := &info.Columns[n]
			c.Denied, c.Given = denied, given
			if len(values) > 0 {
				c.Values = values
			}
			c.Least, c.Most = limitsOf(typ, digits)
		}
		n++
		return nil
	}, info.Schema, info.Name)
}

// limitsOf are the least and the most that a type of whole numbers holds; 0 and 0: an
// int64, or more. digits are those before the point of a numeric that says so.
func limitsOf(typ string, digits int) (least, most int64) {
	switch {
	case typ == "int2":
		return math.MinInt16, math.MaxInt16
	case typ == "int4":
		return math.MinInt32, math.MaxInt32
	case typ == "numeric" && digits > 0 && digits <= 18:
		most = 1
		for range digits {
			most *= 10
		}
		return 1 - most, most - 1
	}
	return 0, 0
}
