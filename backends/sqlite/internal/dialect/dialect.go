// Package dialect writes the SQL that package backends/adopted asks for.
//
// Start reading at New. Package backends describes the methods of a Dialect.
package dialect

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// dialect implements backends.Dialect. A value that is compared with a column, or stored
// in it, takes the column's affinity.
type dialect struct{}

// New returns the SQL of adopted queues.
func New() backends.Dialect { return dialect{} }

// Name quotes with backticks: SQLite takes a name in double quotes that it doesn't know for a text.
func (dialect) Name(identifier string) string {
	return "`" + strings.ReplaceAll(identifier, "`", "``") + "`"
}

func (d dialect) Table(schema, name string) string {
	if schema == "" {
		return d.Name(name)
	}
	return d.Name(schema) + "." + d.Name(name)
}

func (d dialect) SidecarTable(table string) string { return "main." + d.Name(table) }

func (dialect) Text(literal string) string {
	return "'" + strings.ReplaceAll(literal, "'", "''") + "'"
}

// Constant returns a number for a column without a declared type, because such a column stores numbers as numbers.
func (d dialect) Constant(literal string, c backends.Column) string {
	if c.Kind == backends.BoolColumn {
		switch strings.ToLower(literal) {
		case "true", "t", "yes", "y", "on":
			return "1"
		case "false", "f", "no", "n", "off":
			return "0"
		}
	}
	if _, err := strconv.ParseInt(literal, 10, 64); err == nil && c.Kind != backends.TextColumn {
		return literal
	}
	return d.Text(literal)
}

func (dialect) Arg(n int, c backends.Column) string {
	if c.Kind == backends.NumberColumn {
		return fmt.Sprintf("CAST(?%d AS INTEGER)", n)
	}
	return fmt.Sprintf("?%d", n)
}

// ExactArg lets the column's affinity convert the text. A cast would turn any text
// into a number, from the digits at its beginning.
func (dialect) ExactArg(n int, _ backends.Column) string { return fmt.Sprintf("?%d", n) }

func (dialect) IntArg(n int) string  { return fmt.Sprintf("?%d", n) }
func (dialect) TextArg(n int) string { return fmt.Sprintf("?%d", n) }

// Equals compares twice, in case the column's collation isn't BINARY. The first comparison can use
// the index.
func (d dialect) Equals(n int, c backends.Column) string {
	is := d.Name(c.Name) + " = " + d.ExactArg(n, c)
	if c.Kind == backends.TextColumn {
		is = "(" + is + " AND " + d.AsText(c) + " = " + d.ExactArg(n, c) + ")"
	}
	return is
}

func (d dialect) AnyOf(n int, c backends.Column) string {
	list := fmt.Sprintf(" IN (SELECT value FROM json_each(?%d))", n)
	among := d.Name(c.Name) + list
	if c.Kind == backends.TextColumn {
		among = "(" + among + " AND " + d.AsText(c) + list + ")"
	}
	return among
}

// AnyRow compares twice, as Equals does. The server would read the whole table for several conditions with OR.
func (d dialect) AnyRow(key []backends.Column, n, rows int) string {
	names, exact, values := make([]string, len(key)), make([]string, len(key)), make([]string, rows)
	for i, c := range key {
		names[i], exact[i] = d.Name(c.Name), d.Name(c.Name)
		if c.Kind == backends.TextColumn {
			exact[i] = d.AsText(c)
		}
	}
	for row := range values {
		texts := make([]string, len(key))
		for i, c := range key {
			texts[i] = d.ExactArg(n+row*len(key)+i, c)
		}
		values[row] = "(" + strings.Join(texts, ", ") + ")"
	}
	list := ") IN (VALUES " + strings.Join(values, ", ") + ")"
	return "((" + strings.Join(names, ", ") + list + " AND (" + strings.Join(exact, ", ") + list + ")"
}

// IsExact implements backends.UntypedDialect. A BLOB isn't equal to its text, nor is a number in a column without a type.
func (d dialect) IsExact(c backends.Column) string {
	return fmt.Sprintf("%s = +CAST(%[1]s AS TEXT)", d.Name(c.Name)) // the + removes the affinity, which an argument doesn't have
}

func (d dialect) RowKey(key []backends.Column) string {
	if len(key) == 1 {
		return d.AsText(key[0])
	}
	all := make([]string, len(key))
	for i, c := range key {
		all[i] = `replace(replace(CAST(` + d.Name(c.Name) + ` AS TEXT), '\', '\\'), ',', '\,')`
	}
	return "((" + strings.Join(all, " || ',' || ") + ") COLLATE BINARY)"
}

func (dialect) ToText(expression string) string { return "CAST(" + expression + " AS TEXT)" }

func (d dialect) AsText(c backends.Column) string {
	return "(CAST(" + d.Name(c.Name) + " AS TEXT) COLLATE BINARY)"
}

func (d dialect) AsBytes(c backends.Column) string    { return "CAST(" + d.Name(c.Name) + " AS BLOB)" }
func (d dialect) TextLength(text string) string       { return "length(CAST(" + text + " AS BLOB))" }
func (d dialect) ByteLength(c backends.Column) string { return "length(" + d.AsBytes(c) + ")" }

// second is the format of SQLite's own CURRENT_TIMESTAMP: in UTC, whatever the config
// sets for the clock of the table's owner.
const second = "'%Y-%m-%d %H:%M:%S'"

func (dialect) Now(backends.Column, bool) string { return "strftime(" + second + ", 'now')" }

// NowPlus rounds a later time up to the next second. Times are truncated to a second when
// they are written, and again when they are compared.
func (dialect) NowPlus(_ backends.Column, _ bool, n int) string {
	return fmt.Sprintf("strftime(%s, 'now', ((?%d + iif(?%[2]d > 0, 999, 0)) / 1000.0) || ' seconds')", second, n)
}

// NowMinus is the second before, because the compared time is truncated too. All times are in UTC, which repeats no hour.
func (dialect) NowMinus(_ backends.Column, _ bool, n int) string {
	return fmt.Sprintf("strftime(%s, 'now', ((-?%d - 999) / 1000.0) || ' seconds')", second, n)
}

// FromMillis returns at most the last second of the year 9999: strftime returns NULL for later times.
func (dialect) FromMillis(_ backends.Column, _ bool, n int) string {
	return fmt.Sprintf("strftime(%s, min((?%d + 999) / 1000, 253402300799), 'unixepoch')", second, n)
}

func (d dialect) ToMillis(c backends.Column, _ bool) string {
	return "CAST(round((julianday(" + d.Name(c.Name) + ") - 2440587.5) * 86400000) AS INTEGER)"
}

func (dialect) Integer(number string) string { return "CAST(" + number + " AS INTEGER)" }

func (dialect) NowMillis() string { return "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)" }

func (dialect) SelectFirst(columns, from, where, order, limit string) string {
	sql := "SELECT " + columns + " FROM " + from + " WHERE " + where
	if order != "" {
		sql += " ORDER BY " + order
	}
	return sql + " LIMIT " + limit
}

// SelectLocked locks no rows: the only writer already locks the whole database.
func (d dialect) SelectLocked(columns, from, where, order string, n int, _ bool) string {
	limit := "-1"
	if n > 0 {
		limit = d.IntArg(n)
	}
	return d.SelectFirst(columns, from, where, order, limit)
}

// SelectByKey needs no hint: no row can be locked alone.
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
	return sql + " RETURNING " + d.ToText(d.Name(id.Name))
}

// Fence returns the clock's microseconds.
func (dialect) Fence() string { return "CAST(unixepoch('subsec') * 1000000 AS INTEGER)" }

func (d dialect) Paused(queue string) string {
	return "EXISTS (SELECT 1 FROM " + d.SidecarTable("qsidecar_queues") + " p WHERE p.queue = " + queue + " AND p.paused)"
}

func (d dialect) IsAlive(sidecar string) string {
	return "EXISTS (SELECT 1 FROM " + d.SidecarTable("qsidecar_sidecars") + " h WHERE h.sidecar = " + sidecar + " AND NOT h.dead)"
}
