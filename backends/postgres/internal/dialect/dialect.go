// Package dialect writes the SQL that package backends/adopted asks for.
//
// Start reading at New. Package backends describes the methods of a Dialect.
package dialect

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
)

// dialect implements backends.Dialect.
type dialect struct{ schema string }

// New returns the SQL of adopted queues. The sidecar's own tables are in the schema.
func New(schema string) backends.Dialect { return dialect{schema} }

func (d dialect) Name(identifier string) string { return migrate.QuoteName(identifier) }

func (d dialect) Table(schema, name string) string {
	if schema == "" {
		return migrate.QuoteName(name)
	}
	return migrate.QuoteName(schema) + "." + migrate.QuoteName(name)
}

func (d dialect) SidecarTable(table string) string { return d.Table(d.schema, table) }

// Text returns a literal without a type, which gets the type of its column. The E form doesn't
// depend on standard_conforming_strings.
func (d dialect) Text(literal string) string {
	return ` E'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(literal) + `'`
}

// Constant returns Text(literal): the server converts the text to a number or a boolean.
func (d dialect) Constant(literal string, _ backends.Column) string { return d.Text(literal) }

func (d dialect) Arg(n int, c backends.Column) string {
	if c.Kind == backends.BytesColumn {
		return fmt.Sprintf("$%d::bytea", n)
	}
	return fmt.Sprintf("$%d::text::%s", n, unlimited(c.Type))
}

var (
	typeLimit = regexp.MustCompile(`\([0-9, -]+\)`)
	oneByName = regexp.MustCompile(`^(character|bit)($|\[)`)
)

// unlimited returns the type without its limit of length or precision. An explicit cast truncates
// a value to that limit. Without the limit, an assignment fails and a comparison finds no row.
func unlimited(typ string) string {
	if strings.Contains(typ, `"`) { // a type name of the table's owner
		return typ
	}
	typ = typeLimit.ReplaceAllString(typ, "")
	if m := oneByName.FindStringSubmatch(typ); m != nil { // without a length they mean a length of 1
		typ = map[string]string{"character": "bpchar", "bit": "bit varying"}[m[1]] + typ[len(m[1]):]
	}
	return typ
}

// ExactArg returns Arg(n, c): the server rejects values that it can't store.
func (d dialect) ExactArg(n int, c backends.Column) string { return d.Arg(n, c) }

func (d dialect) IntArg(n int) string  { return fmt.Sprintf("$%d::bigint", n) }
func (d dialect) TextArg(n int) string { return fmt.Sprintf("$%d::text", n) }

func (d dialect) Equals(n int, c backends.Column) string {
	return d.Name(c.Name) + " = " + d.Arg(n, c)
}

func (d dialect) AnyOf(n int, c backends.Column) string {
	return fmt.Sprintf("%s = ANY($%d::text[]::%s[])", d.Name(c.Name), n, unlimited(c.Type))
}

// AnyRow joins the rows. The server takes out of several conditions with OR what they have in common, and then finds rows by
// that alone.
func (d dialect) AnyRow(key []backends.Column, n, rows int) string {
	names, values := make([]string, len(key)), make([]string, rows)
	for i, c := range key {
		names[i] = d.Name(c.Name)
	}
	for row := range values {
		texts := make([]string, len(key))
		for i, c := range key {
			texts[i] = d.Arg(n+row*len(key)+i, c)
		}
		values[row] = "(" + strings.Join(texts, ", ") + ")"
	}
	return "(" + strings.Join(names, ", ") + ") IN (VALUES " + strings.Join(values, ", ") + ")"
}

func (d dialect) ToText(expression string) string { return "(" + expression + ")::text" }

func (d dialect) AsText(c backends.Column) string {
	return `(` + d.text(c) + ` COLLATE "C")`
}

// text returns the value as text. That of a timestamptz is in UTC, as in a session with that zone: a job's id must not change with
// the time zone of a role. Text of infinity has no digit at its end.
func (d dialect) text(c backends.Column) string {
	if !isInstant(c) {
		return d.Name(c.Name) + "::text"
	}
	return `pg_catalog.regexp_replace((` + d.Name(c.Name) + ` AT TIME ZONE 'UTC')::text, E'([0-9])( BC)?$', E'\\1+00\\2')`
}

// isInstant reports whether the column is a timestamptz.
func isInstant(c backends.Column) bool {
	return strings.HasPrefix(c.Type, "timestamp") && strings.HasSuffix(c.Type, "with time zone")
}

func (d dialect) RowKey(key []backends.Column) string {
	if len(key) == 1 {
		return d.AsText(key[0])
	}
	all := make([]string, len(key))
	for i, c := range key {
		all[i] = fmt.Sprintf(`replace(replace(%s, E'\\', E'\\\\'), ',', E'\\,')`, d.text(c))
	}
	return `((` + strings.Join(all, " || ',' || ") + `) COLLATE "C")`
}

func (d dialect) AsBytes(c backends.Column) string {
	if c.Kind == backends.BytesColumn {
		return d.Name(c.Name)
	}
	return d.text(c)
}

func (d dialect) TextLength(text string) string { return "octet_length(" + text + ")" }

func (d dialect) ByteLength(c backends.Column) string {
	return "octet_length(" + d.AsBytes(c) + ")"
}

// Now returns the present time, truncated to the precision of the column. The value that is
// written is then the value that is read.
func (d dialect) Now(c backends.Column, utc bool) string {
	return d.at(c, utc, d.now())
}

// NowPlus adds what the column's precision cuts off from a future time, so that the result isn't too early.
func (d dialect) NowPlus(c backends.Column, utc bool, n int) string {
	instant := after(d.now(), n)
	if lacks := lacks(c); lacks > 0 {
		instant = op(instant, "+", fmt.Sprintf("CASE WHEN %s THEN interval '%d us' ELSE interval '0' END", op(fmt.Sprintf("$%d::bigint", n), ">", "0"), lacks))
	}
	return d.later(c, utc, instant)
}

func (d dialect) FromMillis(c backends.Column, utc bool, n int) string {
	instant := after("pg_catalog.to_timestamp(0)", n)
	if lacks := lacks(c); lacks > 0 {
		instant = op(instant, "+", fmt.Sprintf("interval '%d us'", lacks))
	}
	return d.later(c, utc, instant)
}

var precision = regexp.MustCompile(`^timestamp\(([0-5])\)`)

// lacks is the largest number of microseconds that truncate cuts off.
func lacks(c backends.Column) int {
	m := precision.FindStringSubmatch(c.Type)
	if m == nil {
		return 0
	}
	return []int{999_999, 99_999, 9_999, 999, 99, 9}[m[1][0]-'0']
}

// truncate is a time as a value of the column. The server alone would round it to the nearest one.
func truncate(c backends.Column, value string) string {
	if lacks := lacks(c); lacks > 0 {
		value = op(value, "-", fmt.Sprintf("interval '%d us'", (lacks+1)/2))
	}
	return value + "::" + c.Type
}

// after returns the instant that is argument n milliseconds later. An INSERT runs in the search path of the role (see package postgres), so
// it names the operators.
func after(instant string, n int) string {
	return op(instant, "+", op(fmt.Sprintf("$%d::bigint", n), "*", "interval '1 ms'"))
}

func op(a, operator, b string) string {
	return "(" + a + " OPERATOR(pg_catalog." + operator + ") " + b + ")"
}

// NowMinus returns the earlier one of the local time at that instant and the local time that much before the present one.
func (d dialect) NowMinus(c backends.Column, utc bool, n int) string {
	age := fmt.Sprintf("($%d::bigint * interval '1 ms' + interval '%d us')", n, lacks(c)) // the compared time is truncated too
	instant := "(" + d.now() + " - " + age + ")"
	if utc || !isLocal(c) {
		return d.at(c, utc, instant)
	}
	return truncate(c, fmt.Sprintf("least(%s::timestamp, %s::timestamp - %s)", instant, d.now(), age))
}

// isLocal reports whether the column stores what a clock shows.
func isLocal(c backends.Column) bool {
	return strings.HasPrefix(c.Type, "timestamp") && !strings.HasSuffix(c.Type, "with time zone")
}

// later returns the local time of an instant. If the clock is set back between now and the instant, and shows that time before
// it is set back, the result is later by what it is set back. No clock has been set back by three hours.
func (d dialect) later(c backends.Column, utc bool, instant string) string {
	if utc || !isLocal(c) {
		return d.at(c, utc, instant)
	}
	const hours = "interval '3 hours'"
	first := op("y.at", "-", "y.back") // if the clock is set back, when it shows the time first
	early := op(first+"::timestamp", ">=", "y.local") + " AND (" + op("y.now", "<", first) + " OR " + op(op("y.now::timestamp", "+", op("y.at", "-", "y.now")), ">", "y.local") + ")"
	back := op(op(op("x.at", "-", hours)+"::timestamp", "+", hours), "-", "x.at::timestamp")
	return truncate(c, "(SELECT CASE WHEN "+op("y.back", ">", "interval '0'")+" AND "+early+" THEN "+op("y.local", "+", "y.back")+" ELSE y.local END"+
		" FROM (SELECT x.now, x.at, x.at::timestamp AS local, "+back+" AS back FROM (SELECT "+d.now()+" AS now, "+instant+" AS at) x) y)")
}

func (d dialect) at(c backends.Column, utc bool, instant string) string {
	if utc && !strings.HasSuffix(c.Type, "with time zone") {
		instant = "(" + instant + " AT TIME ZONE 'UTC')"
	}
	return truncate(c, instant)
}

// ToMillis returns NULL for an infinite time. It clamps other times to the years 1 to 9999.
func (d dialect) ToMillis(c backends.Column, utc bool) string {
	value := d.Name(c.Name)
	switch {
	case strings.HasSuffix(c.Type, "with time zone"):
	case utc:
		value = "(" + value + " AT TIME ZONE 'UTC')"
	default:
		value += "::timestamptz"
	}
	return "CASE WHEN isfinite(" + value + ") THEN least(greatest(floor(extract(epoch FROM " + value + ") * 1000), -62135596800000), 253402300799999)::bigint END"
}

func (d dialect) Integer(number string) string { return "(" + number + ")::bigint" }

func (d dialect) now() string { return d.SidecarTable("qsidecar_now") + "()" }
func (d dialect) NowMillis() string {
	return "floor(extract(epoch FROM " + d.now() + ") * 1000)::bigint"
}

func (d dialect) SelectFirst(columns, from, where, order, limit string) string {
	sql := "SELECT " + columns + " FROM " + from + " WHERE " + where
	if order != "" {
		sql += " ORDER BY " + order
	}
	return sql + " LIMIT " + limit
}

func (d dialect) SelectLocked(columns, from, where, order string, n int, skip bool) string {
	sql := "SELECT " + columns + " FROM " + from + " WHERE " + where
	if order != "" {
		sql += " ORDER BY " + order
	}
	if n > 0 {
		sql += fmt.Sprintf(" LIMIT $%d::bigint", n)
	}
	sql += " FOR UPDATE"
	if skip {
		sql += " SKIP LOCKED"
	}
	return sql
}

// SelectByKey needs no hint: the server locks only rows that meet all conditions.
func (d dialect) SelectByKey(columns, table, _, where, order string, skip bool) string {
	return d.SelectLocked(columns, table, where, order, 0, skip)
}

func (dialect) UpdateByKey(table, _, sets, where string) string {
	return "UPDATE " + table + " SET " + sets + " WHERE " + where
}

func (dialect) DeleteByKey(table, _, where string) string {
	return "DELETE FROM " + table + " WHERE " + where
}

func (dialect) SelectUnlocked(columns, from, where string) string {
	return "SELECT " + columns + " FROM " + from + " WHERE " + where
}

func (d dialect) Insert(table string, names, values []string, id backends.Column) string {
	sql := "INSERT INTO " + table
	if len(names) == 0 {
		sql += " DEFAULT VALUES"
	} else {
		sql += " (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(values, ", ") + ")"
	}
	return sql + " RETURNING " + d.AsText(id)
}

// Fence doesn't use the sequence qsidecar_sequence: an open transaction with a claimed job would count
// among the transactions that can own a position, until it ends.
func (dialect) Fence() string {
	return "(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint"
}

func (d dialect) Paused(queue string) string {
	return "EXISTS (SELECT FROM " + d.SidecarTable("qsidecar_queues") + " p WHERE p.queue = " + queue + " AND p.paused)"
}

func (d dialect) IsAlive(sidecar string) string {
	return "EXISTS (SELECT FROM " + d.SidecarTable("qsidecar_sidecars") + " h WHERE h.sidecar = " + sidecar + " AND NOT h.dead)"
}
