// Package dialect writes the SQL that package backends/adopted asks for. The SQL contains marks in place of
// arguments. Append replaces them.
//
// Start reading at New. Package backends describes the methods of a Dialect.
package dialect

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
)

// dialect implements backends.Dialect.
type dialect struct {
	clock      string // the present instant, in UTC
	skipLocked bool
	hintless   *atomic.Bool // true: no statement names an index, because the server refused one
}

// New returns the dialect of a server. clock is the SQL expression for the present time in UTC. skipLocked: the
// server has SKIP LOCKED. Statements name indexes while hintless is false.
func New(clock string, skipLocked bool, hintless *atomic.Bool) backends.Dialect {
	return dialect{clock, skipLocked, hintless}
}

func (d dialect) Name(identifier string) string {
	return migrate.QuoteName(strings.ReplaceAll(identifier, "\x00", "")) // no name contains NUL
}

func (d dialect) Table(schema, name string) string {
	if schema == "" {
		return d.Name(name)
	}
	return d.Name(schema) + "." + d.Name(name)
}

func (d dialect) SidecarTable(table string) string { return d.Name(table) }

// Text writes a literal with a NUL in hex, because marks contain NULs.
func (d dialect) Text(literal string) string {
	if strings.Contains(literal, "\x00") {
		return fmt.Sprintf("CONVERT(x'%x' USING utf8mb4)", literal)
	}
	return migrate.QuoteText(literal)
}

var digits = regexp.MustCompile(`^-?[0-9]{1,65}$`) // 65 is the most that a DECIMAL has

// Constant writes a number without quotes, because BIT reads a quoted text as bytes.
func (d dialect) Constant(literal string, c backends.Column) string {
	if c.Kind == backends.BoolColumn {
		switch strings.ToLower(literal) {
		case "true", "t", "yes", "y", "on":
			return "1"
		case "false", "f", "no", "n", "off":
			return "0"
		}
	}
	if digits.MatchString(literal) && numeric(c) {
		return literal
	}
	return d.Text(literal)
}

func numeric(c backends.Column) bool {
	return c.Kind == backends.NumberColumn || c.Kind == backends.BoolColumn
}

func (d dialect) Arg(n int, c backends.Column) string {
	if numeric(c) {
		return mark(markNumber, n)
	}
	return mark(markValue, n)
}

// ExactArg equals Arg: the server rejects what it can't store.
func (d dialect) ExactArg(n int, c backends.Column) string { return d.Arg(n, c) }

func (d dialect) IntArg(n int) string  { return mark(markValue, n) }
func (d dialect) TextArg(n int) string { return mark(markValue, n) }

// charsetForm matches what Describe appends to a column's type.
var charsetForm = regexp.MustCompile(` CHARACTER SET ([a-z0-9_]+) COLLATE ([A-Za-z0-9_]+)$`)

// charsetOf returns the column's character set and collation, both empty if it has none.
func charsetOf(c backends.Column) (charset, collation string) {
	if m := charsetForm.FindStringSubmatch(c.Type); m != nil {
		return m[1], m[2]
	}
	return "", ""
}

// likeColumn returns the SQL before and after a text that converts it to the column's character set and
// collation, so that the server can use the column's index. A character that this set lacks becomes a
// question mark. The additional comparison by bytes distinguishes it from a real question mark.
func likeColumn(c backends.Column) (before, after string) {
	charset, collation := charsetOf(c)
	if charset == "" || charset == "utf8mb4" {
		return "", ""
	}
	return "CONVERT(", " USING " + charset + ") COLLATE " + collation
}

func (d dialect) Equals(n int, c backends.Column) string {
	if c.Kind != backends.TextColumn || charset(c) == "" {
		return d.Name(c.Name) + " = " + d.Arg(n, c)
	}
	before, after := likeColumn(c)
	return "(" + d.Name(c.Name) + " = " + before + mark(markValue, n) + after + " AND " + d.AsText(c) + " = " + mark(markValue, n) + ")"
}

func charset(c backends.Column) string {
	charset, _ := charsetOf(c)
	return charset
}

func (d dialect) AnyOf(n int, c backends.Column) string {
	switch {
	case numeric(c):
		return d.Name(c.Name) + " IN (" + mark(markNumbers, n) + ")"
	case c.Kind != backends.TextColumn || charset(c) == "":
		return d.Name(c.Name) + " IN (" + mark(markList, n) + ")"
	}
	before, after := likeColumn(c)
	return "(" + d.Name(c.Name) + " IN (" + mark(markList, n, before, after) + ") AND " + d.AsText(c) + " IN (" + mark(markList, n) + "))"
}

func (d dialect) ToText(expression string) string { return "CAST(" + expression + " AS CHAR)" }

// characters is the expression for the column's value as a text in the connection's character set.
func (d dialect) characters(c backends.Column) string {
	switch charset(c) {
	case "utf8mb4":
		return d.Name(c.Name)
	case "":
		if strings.HasPrefix(c.Type, "bit") {
			return "CAST(" + d.Name(c.Name) + " + 0 AS CHAR)"
		}
		return "CAST(" + d.Name(c.Name) + " AS CHAR)"
	}
	return "CONVERT(" + d.Name(c.Name) + " USING utf8mb4)"
}

func (d dialect) AsText(c backends.Column) string {
	return "CAST(" + d.characters(c) + " AS BINARY)"
}

func (d dialect) RowKey(key []backends.Column) string {
	if len(key) == 1 {
		return d.AsText(key[0])
	}
	all := make([]string, len(key))
	for i, c := range key {
		all[i] = `REPLACE(REPLACE(` + d.characters(c) + `, '\\', '\\\\'), ',', '\\,')`
	}
	return "CAST(CONCAT(" + strings.Join(all, ", ',', ") + ") AS BINARY)"
}

func (d dialect) AsBytes(c backends.Column) string {
	if c.Kind == backends.BytesColumn {
		return d.Name(c.Name)
	}
	return d.characters(c)
}

func (d dialect) TextLength(text string) string { return "LENGTH(" + text + ")" }

func (d dialect) ByteLength(c backends.Column) string { return "LENGTH(" + d.AsBytes(c) + ")" }

var fraction = regexp.MustCompile(`^(?:datetime|timestamp)\(([0-6])\)`)

// decimals returns how many decimals of a second a time column has.
func decimals(c backends.Column) int {
	if m := fraction.FindStringSubmatch(c.Type); m != nil {
		return int(m[1][0] - '0')
	}
	return 0
}

// at converts an instant in UTC to a value of the column, truncated to the column's precision. The server
// would round it, to a time that can be ahead of the clock.
func (d dialect) at(c backends.Column, utc bool, instant string) string {
	if lacks := d.lacks(c); lacks > 0 {
		instant = fmt.Sprintf("(%s - INTERVAL (MICROSECOND(%[1]s) %% %d) MICROSECOND)", instant, lacks+1)
	}
	if !utc && !zoned(c) {
		instant = "CONVERT_TZ(" + instant + ", '+00:00', @@global.time_zone)"
	}
	return fmt.Sprintf("CAST(%s AS DATETIME(%d))", instant, decimals(c))
}

// zoned reports whether the column stores instants, which each session sees in its own time zone. The
// sidecar's sessions use UTC.
func zoned(c backends.Column) bool { return strings.HasPrefix(c.Type, "timestamp") }

func (d dialect) Now(c backends.Column, utc bool) string { return d.at(c, utc, d.clock) }

// NowPlus adds what at truncates from a future time, so that the result isn't too early.
func (d dialect) NowPlus(c backends.Column, utc bool, n int) string {
	ms := mark(markValue, n)
	return d.later(c, utc, fmt.Sprintf("(%s + INTERVAL (%s * 1000 + IF(%[2]s > 0, %d, 0)) MICROSECOND)", d.clock, ms, d.lacks(c)))
}

func (d dialect) FromMillis(c backends.Column, utc bool, n int) string {
	return d.later(c, utc, fmt.Sprintf("(TIMESTAMP'1970-01-01 00:00:00' + INTERVAL (%s * 1000 + %d) MICROSECOND)", mark(markValue, n), d.lacks(c)))
}

// NowMinus returns the earlier one of the local time at that instant and the local time that much before the present one.
func (d dialect) NowMinus(c backends.Column, utc bool, n int) string {
	age := fmt.Sprintf(" - INTERVAL (%s * 1000 + %d) MICROSECOND", mark(markValue, n), d.lacks(c)) // the compared time is truncated too
	exact := d.at(c, utc, "("+d.clock+age+")")
	if utc || zoned(c) {
		return exact
	}
	return "LEAST(" + exact + ", " + d.at(c, false, d.clock) + age + ")"
}

// later returns the local time of an instant. If the clock is set back between now and the instant, and shows that time before
// it is set back, the result is later by what it is set back. No clock has been set back by three hours.
func (d dialect) later(c backends.Column, utc bool, instant string) string {
	if utc || zoned(c) {
		return d.at(c, utc, instant)
	}
	local := func(at string) string { return "CONVERT_TZ(" + at + ", '+00:00', @@global.time_zone)" }
	seconds := func(from, to string) string { return "TIMESTAMPDIFF(SECOND, " + from + ", " + to + ")" }
	return "(SELECT " + d.at(c, true, `IF(y.back > 0 AND `+local("y.at - INTERVAL y.back SECOND")+` >= y.local_at
			AND (y.now < y.at - INTERVAL y.back SECOND OR `+seconds("y.now", local("y.now"))+` > `+seconds("y.at", "y.local_at")+`),
			y.local_at + INTERVAL y.back SECOND, y.local_at)`) + `
		FROM (SELECT x.now, x.at, ` + local("x.at") + ` AS local_at, ` + seconds("x.at - INTERVAL 3 HOUR", local("x.at - INTERVAL 3 HOUR")) + ` - ` + seconds("x.at", local("x.at")) + ` AS back
		FROM (SELECT ` + d.clock + ` AS now, ` + instant + ` AS at) AS x) AS y)`
}

// lacks is the largest number of microseconds that at truncates.
func (d dialect) lacks(c backends.Column) int {
	return []int{999_999, 99_999, 9_999, 999, 99, 9, 0}[decimals(c)]
}

func (d dialect) ToMillis(c backends.Column, utc bool) string {
	value := d.Name(c.Name)
	if !utc && !zoned(c) {
		value = "CONVERT_TZ(" + value + ", @@global.time_zone, '+00:00')"
	}
	return sinceEpoch(value)
}

func sinceEpoch(instant string) string {
	return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + instant + ") DIV 1000)"
}

func (d dialect) Integer(number string) string { return "CAST(FLOOR(" + number + ") AS SIGNED)" }

func (d dialect) NowMillis() string { return sinceEpoch(d.clock) }

func (d dialect) SelectFirst(columns, from, where, order, limit string) string {
	return selectSQL(columns, from, where, order) + " LIMIT " + limit
}

func selectSQL(columns, from, where, order string) string {
	sql := "SELECT " + columns + " FROM " + from + " WHERE " + where
	if order != "" {
		sql += " ORDER BY " + order
	}
	return sql
}

// SelectLocked waits for locked rows if the server has no SKIP LOCKED.
func (d dialect) SelectLocked(columns, from, where, order string, n int, skip bool) string {
	sql := selectSQL(columns, from, where, order)
	if n > 0 {
		sql += " LIMIT " + d.IntArg(n)
	}
	sql += " FOR UPDATE"
	if skip && d.skipLocked {
		sql += " SKIP LOCKED"
	}
	return sql
}

// byIndex is the table with a hint. Without it the server can read an index of another column, or the whole table.
func (d dialect) byIndex(table, index string) string {
	if index == "" || d.hintless.Load() {
		return table
	}
	return table + " FORCE INDEX (" + d.Name(index) + ")"
}

func (d dialect) SelectByKey(columns, table, index, where, order string, skip bool) string {
	return d.SelectLocked(columns, d.byIndex(table, index), where, order, 0, skip)
}

func (d dialect) UpdateByKey(table, index, sets, where string) string {
	return "UPDATE " + d.byIndex(table, index) + " SET " + sets + " WHERE " + where
}

// DeleteByKey has a USING: a DELETE of one table takes no hints.
func (d dialect) DeleteByKey(table, index, where string) string {
	return "DELETE FROM " + table + " USING " + d.byIndex(table, index) + " WHERE " + where
}

// counted is part of the type of an AUTO_INCREMENT column. defaultForm matches the expression in the type
// that gives a column its default.
const counted = " AUTO_INCREMENT"

var defaultForm = regexp.MustCompile(` DEFAULT \((.*)\)(?: CHARACTER SET .*)?$`)

func (dialect) SelectUnlocked(columns, from, where string) string {
	return selectSQL(columns, from, where, "")
}

// Insert returns the id as the row has it, because the server can store another text than the given one.
// It evaluates a default expression first and inserts the result, because only MariaDB can return it.
func (d dialect) Insert(table string, names, values []string, id backends.Column) string {
	name := d.Name(id.Name)
	first, is := "", "DEFAULT("+name+")"
	if at := slices.Index(names, name); at >= 0 {
		is = values[at]
	} else if strings.Contains(id.Type, counted) {
		is = "LAST_INSERT_ID()"
	} else if m := defaultForm.FindStringSubmatch(id.Type); m != nil {
		first, is = "SET @qsidecar_id = "+m[1]+";\n", "@qsidecar_id"
		names, values = append(slices.Clone(names), name), append(slices.Clone(values), is)
	}
	insert := first + "INSERT INTO " + table + " (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(values, ", ") + ")" + answerMark
	if first != "" {
		return insert + d.ToText(is)
	}
	return insert + "(SELECT " + d.ToText(name) + " FROM " + table + " WHERE " + name + " = " + is + " LIMIT 1)"
}

// Fence returns the expression for the server's clock in microseconds when it reads that row.
func (d dialect) Fence() string { return migrate.Position }

func (d dialect) Paused(queue string) string {
	return "EXISTS (SELECT 1 FROM qsidecar_queues p WHERE p.queue = " + queue + " AND p.paused)"
}

func (d dialect) IsAlive(sidecar string) string {
	return "EXISTS (SELECT 1 FROM qsidecar_sidecars h WHERE h.sidecar = " + sidecar + " AND NOT h.dead)"
}
