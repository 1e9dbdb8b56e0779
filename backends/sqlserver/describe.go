package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
)

// Describe implements backends.Adopter.
func (s *Store) Describe(ctx context.Context, schema, name string) (backends.TableInfo, error) {
	var info backends.TableInfo
	table := &described{s: s, info: &info}
	err := s.read(ctx, call{s.sql.describe, []any{mssql.NVarCharMax(schema), mssql.NVarCharMax(name)}, []reader{
		func(rows *sql.Rows) error {
			*table = described{s: s, info: &info, denied: map[string]bool{}}
			info = backends.TableInfo{Schema: schema, Name: name}
			return each(table.object)(rows)
		},
		each(table.column), each(table.index), each(table.trigger), each(table.right),
		each(func(rows *sql.Rows) error {
			var other string
			err := rows.Scan(&other)
			info.Similar = append(info.Similar, other)
			return err
		}),
		each(func(rows *sql.Rows) error {
			var check string
			err := rows.Scan(&check)
			info.Checks = append(info.Checks, listing(check))
			return err
		}),
	}})
	if err != nil {
		return backends.TableInfo{}, fmt.Errorf("reading what the table %s is like: %w", name, err)
	}
	table.conclude()
	return info, nil
}

// described is a description under way.
type described struct {
	s      *Store
	info   *backends.TableInfo
	last   string // the index whose columns come
	key    []string
	unique bool // it is a key, as far as it was seen
	denied map[string]bool
}

var objectKinds = map[string]string{"U": "table", "V": "view", "SN": "synonym", "IF": "function", "TF": "function", "ET": "external table"}

func (d *described) object(rows *sql.Rows) error {
	var kind string
	var memory bool
	if err := rows.Scan(&d.info.Schema, &d.info.Name, &kind, &memory, &d.info.FoldsCase); err != nil {
		return err
	}
	if d.info.Kind = objectKinds[kind]; d.info.Kind == "" {
		d.info.Kind = "thing of the kind " + kind
	}
	switch {
	case memory:
		d.info.Unsafe = "it is memory-optimized, and its rows cannot be locked"
	case d.s.server.babelfish:
		d.info.Unsafe = "Babelfish passes over the words that lock a row"
	}
	return nil
}

var columnKinds = map[string]backends.ColumnKind{
	"tinyint": backends.NumberColumn, "smallint": backends.NumberColumn, "int": backends.NumberColumn, "bigint": backends.NumberColumn, "bit": backends.BoolColumn,
	"datetime": backends.TimeColumn, "smalldatetime": backends.TimeColumn, "datetime2": backends.TimeColumn, "datetimeoffset": backends.TimeColumn,
	"char": backends.TextColumn, "varchar": backends.TextColumn, "text": backends.TextColumn,
	"nchar": backends.TextColumn, "nvarchar": backends.TextColumn, "ntext": backends.TextColumn,
	"binary": backends.BytesColumn, "varbinary": backends.BytesColumn, "image": backends.BytesColumn, "timestamp": backends.BytesColumn,
	"uniqueidentifier": backends.UUIDColumn, "json": backends.JSONColumn,
}

// latin1 finds collations whose code page is Windows-1252.
var latin1 = regexp.MustCompile(`^(SQL_)?Latin1_General_(CP1_|1|C|B)`)

// mostOf is what a type of whole numbers holds; the least is one less, below zero.
var mostOf = map[string]int64{"smallint": math.MaxInt16, "int": math.MaxInt32}

func (d *described) column(rows *sql.Rows) error {
	var c backends.Column
	var kind, collation string
	var bytes, digits, scale int
	var json, maySelect, mayUpdate bool
	if err := rows.Scan(&c.Name, &kind, &bytes, &digits, &scale, &collation, &c.Nullable, &c.Generated, &c.Default, &json, &maySelect, &mayUpdate, &c.Given); err != nil {
		return err
	}
	c.Given = plainly(c.Given)
	c.Kind, c.Type = columnKinds[kind], kind
	size := bytes
	if kind == "nchar" || kind == "nvarchar" {
		size = bytes / 2
	}
	switch kind {
	case "char", "varchar", "nchar", "nvarchar", "binary", "varbinary":
		if bytes < 0 {
			c.Type += "(max)"
			break
		}
		c.Type += fmt.Sprintf("(%d)", size)
		if c.Kind == backends.TextColumn {
			c.Chars = size
		}
	case "datetime2", "datetimeoffset", "time":
		c.Type += fmt.Sprintf("(%d)", scale)
	case "decimal", "numeric":
		c.Type += fmt.Sprintf("(%d,%d)", digits, scale)
		if scale == 0 {
			c.Kind = backends.NumberColumn
			if digits <= 18 {
				c.Most = int64(math.Pow10(digits)) - 1
				c.Least = -c.Most
			}
		}
	case "tinyint":
		c.Most = 255
	case "smallint", "int":
		c.Most = mostOf[kind]
		c.Least = -c.Most - 1
	}
	if collation != "" && c.Kind == backends.TextColumn {
		c.Type += " COLLATE " + collation
		if json {
			c.Kind = backends.JSONColumn
		}
	}
	if narrow(c) {
		c.Charset = "unknown"
		if latin1.MatchString(collation) {
			c.Charset = "latin1"
		}
	}
	c.Default = c.Default || c.Generated
	for right, may := range map[string]bool{"SELECT": maySelect, "UPDATE": mayUpdate} {
		if !may {
			c.Denied = append(c.Denied, right)
		}
	}
	slices.Sort(c.Denied)
	d.info.Columns = append(d.info.Columns, c)
	return nil
}

func (d *described) index(rows *sql.Rows) error {
	var name, only, column string
	var unique, descending, nullable bool
	if err := rows.Scan(&name, &unique, &only, &column, &descending, &nullable); err != nil {
		return err
	}
	if name != d.last {
		d.closeIndex()
		d.last, d.unique = name, unique && only == ""
		d.info.Indexes = append(d.info.Indexes, backends.Index{Name: name, Only: unwrapped(only)})
	}
	d.unique = d.unique && !nullable
	d.key = append(d.key, column)
	x := &d.info.Indexes[len(d.info.Indexes)-1]
	x.Columns = append(x.Columns, backends.IndexColumn{Name: column, Descending: descending})
	return nil
}

// closeIndex notes the key that the last index is.
func (d *described) closeIndex() {
	if d.unique {
		d.info.Unique = append(d.info.Unique, d.key)
	}
	d.key, d.unique = nil, false
}

// unwrapped is a filter without the parentheses around all of it.
func unwrapped(filter string) string {
	return strings.TrimSuffix(strings.TrimPrefix(filter, "("), ")")
}

// plainly is a default without the parentheses around all of it.
func plainly(given string) string {
	for strings.HasPrefix(given, "(") && strings.HasSuffix(given, ")") {
		given = given[1 : len(given)-1]
	}
	if strings.HasPrefix(given, "N'") {
		return given[1:]
	}
	return given
}

// either finds a choice in a condition: the server writes IN (…) so.
var either = regexp.MustCompile(`(\[\w+\])=N?('(?:[^']|'')*'|\(-?[0-9]+\))(?: OR (\[\w+\])=N?('(?:[^']|'')*'|\(-?[0-9]+\)))+`)

var choice = regexp.MustCompile(`(\[\w+\])=N?('(?:[^']|'')*'|\(-?[0-9]+\))`)

// listing is a condition with its choices as people write them.
func listing(check string) string {
	return either.ReplaceAllStringFunc(check, func(all string) string {
		var values []string
		column := ""
		for _, m := range choice.FindAllStringSubmatch(all, -1) {
			if column != "" && m[1] != column {
				return all
			}
			column = m[1]
			values = append(values, strings.Trim(m[2], "()"))
		}
		return column + " IN (" + strings.Join(values, ", ") + ")"
	})
}

func (d *described) trigger(rows *sql.Rows) error {
	var name string
	var instead bool
	if err := rows.Scan(&name, &instead); err != nil {
		return err
	}
	d.info.Triggers = append(d.info.Triggers, name)
	if instead {
		d.info.Remarks.AddWarning("triggers", fmt.Sprintf("the trigger %s of the table %s is INSTEAD OF a change: what the sidecar writes is what it makes of it", name, d.info.Name),
			"see that it lets rows be claimed and settled")
	}
	return nil
}

func (d *described) right(rows *sql.Rows) error {
	var right string
	var has bool
	err := rows.Scan(&right, &has)
	if !has {
		d.denied[right] = true
	}
	return err
}

// conclude says what only the whole shows: a right that no column grants is the
// table's to grant, and one that some grant is lacking on the others.
func (d *described) conclude() {
	d.closeIndex()
	for _, right := range []string{"SELECT", "UPDATE"} {
		if len(d.info.Columns) > 0 && !slices.ContainsFunc(d.info.Columns, func(c backends.Column) bool { return !slices.Contains(c.Denied, right) }) {
			d.denied[right] = true
			for i := range d.info.Columns {
				c := &d.info.Columns[i]
				c.Denied = slices.DeleteFunc(c.Denied, func(r string) bool { return r == right })
			}
		}
	}
	for _, right := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
		if d.denied[right] && len(d.info.Columns) > 0 {
			d.info.Denied = append(d.info.Denied, right)
		}
	}
}
