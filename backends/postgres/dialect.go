package postgres

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// grammar implements backends.Grammar.
type grammar struct{ schema string }

// Dialect implements backends.Adopter.
func (s *Store) Dialect() backends.Dialect { return grammar{schema: s.o.Schema} }

func (g grammar) Name(identifier string) string { return quoteName(identifier) }

func (g grammar) Table(schema, name string) string {
	if schema == "" {
		return quoteName(name)
	}
	return quoteName(schema) + "." + quoteName(name)
}

func (g grammar) SidecarTable(table string) string { return g.Table(g.schema, table) }

// Text is a literal without a type: it takes that of its column. The E form means
// the same whatever standard_conforming_strings says.
func (g grammar) Text(literal string) string {
	return ` E'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(literal) + `'`
}

// Constant is the same: the server reads numbers, and the words for true and false.
func (g grammar) Constant(literal string, _ backends.Column) string { return g.Text(literal) }

func (g grammar) Arg(n int, c backends.Column) string {
	if c.Kind == backends.BytesColumn {
		return fmt.Sprintf("$%d::bytea", n)
	}
	return fmt.Sprintf("$%d::text::%s", n, unlimited(c.Type))
}

var (
	typeLimit = regexp.MustCompile(`\([0-9, -]+\)`)
	oneByName = regexp.MustCompile(`^(character|bit)($|\[)`)
)

// unlimited is the type without its limit of length or precision. An explicit cast cuts
// a value to that limit. An assignment refuses the value, and a comparison finds no row.
func unlimited(typ string) string {
	if strings.Contains(typ, `"`) { // a name of the owner's
		return typ
	}
	typ = typeLimit.ReplaceAllString(typ, "")
	if m := oneByName.FindStringSubmatch(typ); m != nil { // without a length these mean a length of 1
		typ = map[string]string{"character": "bpchar", "bit": "bit varying"}[m[1]] + typ[len(m[1]):]
	}
	return typ
}

// Exact is Arg: the server refuses what it cannot store.
func (g grammar) ExactArg(n int, c backends.Column) string { return g.Arg(n, c) }

func (g grammar) IntArg(n int) string  { return fmt.Sprintf("$%d::bigint", n) }
func (g grammar) TextArg(n int) string { return fmt.Sprintf("$%d::text", n) }

func (g grammar) Equals(n int, c backends.Column) string { return g.Name(c.Name) + " = " + g.Arg(n, c) }

func (g grammar) AnyOf(n int, c backends.Column) string {
	return fmt.Sprintf("%s = ANY($%d::text[]::%s[])", g.Name(c.Name), n, unlimited(c.Type))
}

func (g grammar) ToText(expression string) string { return "(" + expression + ")::text" }

func (g grammar) AsText(c backends.Column) string {
	return `(` + g.Name(c.Name) + `::text COLLATE "C")`
}

func (g grammar) RowKey(key []backends.Column) string {
	if len(key) == 1 {
		return g.AsText(key[0])
	}
	all := make([]string, len(key))
	for i, c := range key {
		all[i] = fmt.Sprintf(`replace(replace(%s::text, E'\\', E'\\\\'), ',', E'\\,')`, g.Name(c.Name))
	}
	return `((` + strings.Join(all, " || ',' || ") + `) COLLATE "C")`
}

func (g grammar) AsBytes(c backends.Column) string {
	if c.Kind == backends.BytesColumn {
		return g.Name(c.Name)
	}
	return g.Name(c.Name) + "::text"
}

func (g grammar) TextLength(text string) string { return "octet_length(" + text + ")" }

func (g grammar) ByteLength(c backends.Column) string {
	return "octet_length(" + g.AsBytes(c) + ")"
}

// Clock cuts the present time to what the column holds, so that what is written is
// what is read.
func (g grammar) Now(c backends.Column, utc bool) string {
	return g.at(c, utc, g.now())
}

func (g grammar) NowPlus(c backends.Column, utc bool, n int) string {
	return g.at(c, utc, fmt.Sprintf("(%s + $%d::bigint * interval '1 ms')", g.now(), n))
}

func (g grammar) FromMillis(c backends.Column, utc bool, n int) string {
	return g.at(c, utc, fmt.Sprintf("(timestamptz 'epoch' + $%d::bigint * interval '1 ms')", n))
}

func (g grammar) at(c backends.Column, utc bool, instant string) string {
	if utc && !strings.HasSuffix(c.Type, "with time zone") {
		instant = "(" + instant + " AT TIME ZONE 'UTC')"
	}
	return instant + "::" + c.Type
}

// Millis of a time without end is NULL; what lies outside the years 1 to 9999 counts as
// the first or the last moment of them.
func (g grammar) ToMillis(c backends.Column, utc bool) string {
	value := g.Name(c.Name)
	switch {
	case strings.HasSuffix(c.Type, "with time zone"):
	case utc:
		value = "(" + value + " AT TIME ZONE 'UTC')"
	default:
		value += "::timestamptz"
	}
	return "CASE WHEN isfinite(" + value + ") THEN least(greatest(floor(extract(epoch FROM " + value + ") * 1000), -62135596800000), 253402300799999)::bigint END"
}

func (g grammar) Integer(number string) string { return "(" + number + ")::bigint" }

func (g grammar) now() string { return g.SidecarTable("qsidecar_now") + "()" }
func (g grammar) NowMillis() string {
	return "floor(extract(epoch FROM " + g.now() + ") * 1000)::bigint"
}

func (g grammar) SelectFirst(columns, from, where, order, limit string) string {
	sql := "SELECT " + columns + " FROM " + from + " WHERE " + where
	if order != "" {
		sql += " ORDER BY " + order
	}
	return sql + " LIMIT " + limit
}

func (g grammar) SelectLocked(columns, from, where, order string, n int, skip bool) string {
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

func (grammar) SelectUnlocked(columns, from, where string) string {
	return "SELECT " + columns + " FROM " + from + " WHERE " + where
}

func (g grammar) Insert(table string, names, values []string, id backends.Column) string {
	sql := "INSERT INTO " + table
	if len(names) == 0 {
		sql += " DEFAULT VALUES"
	} else {
		sql += " (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(values, ", ") + ")"
	}
	return sql + " RETURNING " + g.ToText(g.Name(id.Name))
}

// Fence is no number of qsidecar_line: the transaction of a held job would count among those
// that may own a position, for as long as it is open.
func (grammar) Fence() string {
	return "(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint"
}

func (g grammar) Paused(queue string) string {
	return "EXISTS (SELECT FROM " + g.SidecarTable("qsidecar_queues") + " p WHERE p.queue = " + queue + " AND p.paused)"
}

func (g grammar) IsAlive(host string) string {
	return "EXISTS (SELECT FROM " + g.SidecarTable("qsidecar_hosts") + " h WHERE h.host = " + host + " AND NOT h.dead)"
}
