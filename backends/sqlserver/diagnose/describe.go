package diagnose

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlserver"
	"github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
)

// Describe implements backends.Advisor.
func (x *Engine) Describe(ctx context.Context, schema, name string) (backends.TableInfo, error) {
	var d *describing
	err := x.ReadCatalog(ctx, schema, name,
		func(rows *sql.Rows) error {
			d = &describing{dialect: x.Dialect(), babelfish: x.Setup().Babelfish, info: backends.TableInfo{Schema: schema, Name: name}, denied: map[string]bool{}}
			return each(rows, d.object)
		},
		func(rows *sql.Rows) error { return each(rows, d.column) },
		func(rows *sql.Rows) error { return each(rows, d.index) },
		func(rows *sql.Rows) error { return each(rows, d.trigger) },
		func(rows *sql.Rows) error { return each(rows, d.right) },
		func(rows *sql.Rows) error { return each(rows, d.other) },
		func(rows *sql.Rows) error { return each(rows, d.check) },
		func(rows *sql.Rows) error { return each(rows, d.foreignKey) },
	)
	if err != nil {
		return backends.TableInfo{}, fmt.Errorf("reading what the table %s is like: %w", name, err)
	}
	d.conclude()
	return d.info, nil
}

// each calls f for each row.
func each(rows *sql.Rows, f func(rows *sql.Rows) error) error {
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return nil
}

// describing is one call of Describe.
type describing struct {
	dialect   backends.Dialect
	babelfish bool
	info      backends.TableInfo
	user      string   // the login's user in the database
	last      string   // the index whose columns are being read
	listed    bool     // it is in info.Indexes
	key       []string // its columns
	unique    bool     // it is a key, as far as it was read
	hidden    []string // what has a definition that the login can't see
	denied    map[string]bool
}

// table is the quoted name of the table.
func (d *describing) table() string { return d.dialect.Table(d.info.Schema, d.info.Name) }

func (d *describing) other(rows *sql.Rows) error {
	var name string
	err := rows.Scan(&name)
	d.info.Tables = append(d.info.Tables, name)
	return err
}

func (d *describing) check(rows *sql.Rows) error {
	var name, condition string
	if err := rows.Scan(&name, &condition); err != nil {
		return err
	}
	if condition == "" {
		d.hidden = append(d.hidden, "CHECK "+name)
		return nil
	}
	d.info.Checks = append(d.info.Checks, withLists(condition))
	d.info.Constraints = append(d.info.Constraints, backends.Constraint{Kind: backends.CheckConstraint, Name: name, Text: condition})
	return nil
}

// foreignKey reads a column of a foreign key of the table, or of another table's to it.
func (d *describing) foreignKey(rows *sql.Rows) error {
	var outside, cascades bool
	var number, place int64
	var name, home, other, here, there string
	if err := rows.Scan(&outside, &name, &number, &home, &other, &here, &there, &cascades, &place); err != nil {
		return err
	}
	kind := backends.ForeignKey
	if outside {
		kind = backends.ReferencedBy
	}
	if place == 1 {
		d.info.Constraints = append(d.info.Constraints, backends.Constraint{Kind: kind, Name: name, Table: d.dialect.Table(home, other), Cascades: cascades})
	}
	k := &d.info.Constraints[len(d.info.Constraints)-1]
	k.Columns, k.Others = append(k.Columns, d.dialect.Name(here)), append(k.Others, d.dialect.Name(there))
	return nil
}

var objectKinds = map[string]string{"U": "table", "V": "view", "SN": "synonym", "IF": "function", "TF": "function", "ET": "external table"}

func (d *describing) object(rows *sql.Rows) error {
	var kind, noRowLocks string
	var memory, columnstore bool
	if err := rows.Scan(&d.info.Schema, &d.info.Name, &kind, &memory, &d.info.FoldsCase, &d.user, &columnstore, &noRowLocks); err != nil {
		return err
	}
	if d.info.Kind = objectKinds[kind]; d.info.Kind == "" {
		d.info.Kind = "thing of the kind " + kind
	}
	switch {
	case memory:
		d.info.Unsafe = "it is memory-optimized, and its rows cannot be locked"
	case columnstore:
		d.info.Unsafe = "it is a columnstore, which doesn't lock single rows (error 651)"
	case noRowLocks != allLockRows:
		d.info.Unsafe = "row locks are off for one of its indexes (error 651): " + d.lockRows(noRowLocks)
	case d.babelfish:
		d.info.Unsafe = "Babelfish ignores the hints that lock a row"
	}
	return nil
}

// allLockRows is in place of the name of an index that doesn't lock rows. A heap's name is empty.
const allLockRows = "-"

// lockRows is the statement that permits row locks of an index, or of the table.
func (d *describing) lockRows(index string) string {
	if index == "" {
		return "EXEC sp_indexoption " + migrate.QuoteText(d.table()) + ", 'AllowRowLocks', 1"
	}
	return "ALTER INDEX " + d.dialect.Name(index) + " ON " + d.table() + " SET (ALLOW_ROW_LOCKS = ON)"
}

var columnKinds = map[string]backends.ColumnKind{
	"tinyint": backends.NumberColumn, "smallint": backends.NumberColumn, "int": backends.NumberColumn, "bigint": backends.NumberColumn, "bit": backends.BoolColumn,
	"datetime": backends.TimeColumn, "smalldatetime": backends.TimeColumn, "datetime2": backends.TimeColumn, "datetimeoffset": backends.TimeColumn,
	"char": backends.TextColumn, "varchar": backends.TextColumn, "text": backends.TextColumn,
	"nchar": backends.TextColumn, "nvarchar": backends.TextColumn, "ntext": backends.TextColumn,
	"binary": backends.BytesColumn, "varbinary": backends.BytesColumn, "image": backends.BytesColumn, "timestamp": backends.BytesColumn,
	"uniqueidentifier": backends.UUIDColumn, "json": backends.JSONColumn,
}

// latin1 matches collations whose code page is Windows-1252.
var latin1 = regexp.MustCompile(`^(SQL_)?Latin1_General_(CP1_|1|C|B)`)

// mostOf maps an integer type to its maximum. The minimum is -max-1.
var mostOf = map[string]int64{"smallint": math.MaxInt16, "int": math.MaxInt32}

func (d *describing) column(rows *sql.Rows) error {
	var c backends.Column
	var kind, collation string
	var bytes, digits, scale int
	var json, maySelect, mayUpdate bool
	if err := rows.Scan(&c.Name, &kind, &bytes, &digits, &scale, &collation, &c.Nullable, &c.Generated, &c.Default, &json, &maySelect, &mayUpdate, &c.Given, &c.Computed); err != nil {
		return err
	}
	c.Given = defaultText(c.Given)
	c.Kind, c.Type = columnKinds[kind], kind
	addSize(&c, kind, bytes, digits, scale)
	if collation != "" && c.Kind == backends.TextColumn {
		c.Type += " COLLATE " + collation
		if json {
			c.Kind = backends.JSONColumn
		}
	}
	if sqlserver.IsNarrow(c) {
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

// addSize adds to the column's type its length or digits, and sets the limits that follow.
func addSize(c *backends.Column, kind string, bytes, digits, scale int) {
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
}

func (d *describing) index(rows *sql.Rows) error {
	var name, only, column string
	var unique, filtered, descending, nullable, main bool
	if err := rows.Scan(&name, &unique, &filtered, &only, &column, &descending, &nullable, &main); err != nil {
		return err
	}
	hidden := filtered && only == ""
	if name != d.last {
		d.closeIndex()
		d.last, d.unique, d.listed = name, unique && !filtered, !hidden
		if hidden { // which rows it has is unknown
			d.hidden = append(d.hidden, "filter of the index "+name)
		} else {
			d.info.Indexes = append(d.info.Indexes, backends.Index{Name: name, Only: unwrapped(only)})
		}
	}
	if unique && !main && !hidden {
		d.addKey(name, only, column)
	}
	d.unique = d.unique && !nullable
	d.key = append(d.key, column)
	if d.listed {
		x := &d.info.Indexes[len(d.info.Indexes)-1]
		x.Columns = append(x.Columns, backends.IndexColumn{Name: column, Descending: descending})
	}
	return nil
}

// addKey adds a column of a unique index to the constraints.
func (d *describing) addKey(name, only, column string) {
	all := d.info.Constraints
	if n := len(all) - 1; n < 0 || all[n].Kind != backends.UniqueKey || all[n].Name != name {
		d.info.Constraints = append(d.info.Constraints, backends.Constraint{Kind: backends.UniqueKey, Name: name, Text: unwrapped(only)})
	}
	k := &d.info.Constraints[len(d.info.Constraints)-1]
	k.Columns = append(k.Columns, d.dialect.Name(column))
}

// closeIndex adds the key of the last index that was read.
func (d *describing) closeIndex() {
	if d.unique {
		d.info.Unique = append(d.info.Unique, d.key)
	}
	d.key, d.unique = nil, false
}

// unwrapped returns a filter without the parentheses around it.
func unwrapped(filter string) string {
	return strings.TrimSuffix(strings.TrimPrefix(filter, "("), ")")
}

// defaultText returns a default without the parentheses around it.
func defaultText(given string) string {
	for strings.HasPrefix(given, "(") && strings.HasSuffix(given, ")") {
		given = given[1 : len(given)-1]
	}
	if strings.HasPrefix(given, "N'") {
		return given[1:]
	}
	return given
}

// either matches what the server writes for IN (…): comparisons with OR between them.
var either = regexp.MustCompile(`(\[\w+\])=N?('(?:[^']|'')*'|\(-?[0-9]+\))(?: OR (\[\w+\])=N?('(?:[^']|'')*'|\(-?[0-9]+\)))+`)

var choice = regexp.MustCompile(`(\[\w+\])=N?('(?:[^']|'')*'|\(-?[0-9]+\))`)

// withLists returns a condition with IN (…) in place of such comparisons.
func withLists(check string) string {
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

func (d *describing) trigger(rows *sql.Rows) error {
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

func (d *describing) right(rows *sql.Rows) error {
	var right string
	var has bool
	err := rows.Scan(&right, &has)
	if !has {
		d.denied[right] = true
	}
	return err
}

// conclude compares the rights on the columns: a right that all columns lack is one that the table lacks. Otherwise
// some columns lack it.
func (d *describing) conclude() {
	d.closeIndex()
	if d.user != "" {
		d.info.Grantee = d.dialect.Name(d.user)
	}
	if len(d.hidden) > 0 {
		d.info.Remarks.AddWarning("rights", fmt.Sprintf("the user %s can't see what the table %s requires of its rows: %s. The checks leave that out, and no claim uses such an index", d.user, d.info.Name, strings.Join(d.hidden, ", ")),
			fmt.Sprintf("GRANT VIEW DEFINITION ON OBJECT::%s TO %s", d.table(), d.dialect.Name(d.user)))
	}
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
