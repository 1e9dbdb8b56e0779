package diagnose

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql"
)

// These queries read the catalogue. A name without a schema is in the database of the URL.
const (
	describeTableSQL = `SELECT t.table_schema, t.table_name, t.table_type, t.engine, COALESCE(e.transactions, '') AS transactions
FROM information_schema.tables t LEFT JOIN information_schema.engines e ON e.engine = t.engine
WHERE t.table_schema = IF(? = '', DATABASE(), ?) AND t.table_name = ?`

	describeColumnsSQL = `SELECT column_name, data_type, column_type, is_nullable, column_default, extra, character_maximum_length, character_octet_length,
  character_set_name, collation_name, numeric_scale, privileges, generation_expression
FROM information_schema.columns WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position`

	describeIndexesSQL = `SELECT index_name, non_unique, column_name, sub_part, nullable, collation, index_type, %s
FROM information_schema.statistics WHERE table_schema = ? AND table_name = ? %s ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index`

	describeTriggersSQL = `SELECT trigger_name FROM information_schema.triggers WHERE event_object_schema = ? AND event_object_table = ? ORDER BY 1`

	describeTablesSQL = `SELECT IF(table_schema = DATABASE(), table_name, CONCAT(table_schema, '.', table_name)) FROM information_schema.tables
WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('mysql', 'sys', 'performance_schema', 'information_schema') ORDER BY table_schema <> DATABASE(), 1 LIMIT 1000`

	// MariaDB's JSON is a LONGTEXT with such a check.
	describeChecksSQL = `SELECT constraint_name, check_clause FROM information_schema.check_constraints WHERE constraint_schema = ? AND table_name = ?`

	describeChecksMySQL = `SELECT c.constraint_name, c.check_clause FROM information_schema.check_constraints c
JOIN information_schema.table_constraints t ON t.constraint_schema = c.constraint_schema AND t.constraint_name = c.constraint_name
WHERE t.table_schema = ? AND t.table_name = ? AND t.enforced = 'YES' ORDER BY c.constraint_name`

	describeKeysSQL = `SELECT k.constraint_name, k.column_name, k.referenced_table_schema, k.referenced_table_name, k.referenced_column_name
FROM information_schema.key_column_usage k
WHERE k.table_schema = ? AND k.table_name = ? AND k.referenced_table_name IS NOT NULL ORDER BY k.constraint_name, k.ordinal_position`

	// Only tables of the same schema: a server can have to open all tables that it searches.
	describeReferencesSQL = `SELECT k.constraint_name, k.referenced_column_name, k.table_schema, k.table_name, k.column_name, r.delete_rule
FROM information_schema.key_column_usage k
JOIN information_schema.referential_constraints r ON r.constraint_schema = k.constraint_schema AND r.constraint_name = k.constraint_name AND r.table_name = k.table_name
WHERE k.table_schema = ? AND k.referenced_table_schema = k.table_schema AND k.referenced_table_name = ? ORDER BY k.table_name, k.constraint_name, k.ordinal_position`
)

// describing is one call of Describe.
type describing struct {
	engine  *Engine
	session mysql.Session
	maria   bool
	version int
	info    backends.TableInfo
}

// Describe implements backends.Advisor.
func (x *Engine) Describe(ctx context.Context, schema, name string) (info backends.TableInfo, err error) {
	err = x.Read(ctx, func(ctx context.Context, s mysql.Session) error {
		d := &describing{engine: x, session: s, maria: x.Setup().MariaDB, version: x.Setup().VersionNumber, info: backends.TableInfo{Schema: schema, Name: name}}
		err := d.describe(ctx)
		info = d.info
		return err
	})
	if err != nil {
		return backends.TableInfo{}, fmt.Errorf("reading what the table %s is like: %w", name, err)
	}
	return info, nil
}

func (d *describing) describe(ctx context.Context) error {
	info := &d.info
	found, err := d.session.Rows(ctx, describeTableSQL, info.Schema, info.Schema, info.Name)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		info.Tables, err = d.names(ctx, describeTablesSQL)
		return err
	}
	d.describeKind(found[0])
	if err := d.describeChecks(ctx); err != nil {
		return err
	}
	var json []string
	if d.maria {
		json = jsonColumns(info.Checks)
	}
	columns, err := d.session.Rows(ctx, describeColumnsSQL, info.Schema, info.Name)
	if err != nil {
		return err
	}
	privileges := map[string]string{}
	for _, r := range columns {
		c := describeColumn(r, json)
		if c.Generated {
			c.Computed = d.expression(r[12].String)
		}
		info.Columns = append(info.Columns, c)
		privileges[r[0].String] = r[11].String
	}
	if err := d.describeIndexes(ctx); err != nil {
		return err
	}
	if err := d.describeKeys(ctx); err != nil {
		return err
	}
	if info.Triggers, err = d.names(ctx, describeTriggersSQL, info.Schema, info.Name); err != nil || info.Kind != "table" {
		return err
	}
	return d.describeRights(ctx, privileges)
}

func (d *describing) describeKind(r []sql.NullString) {
	d.info.Schema, d.info.Name, d.info.Kind = r[0].String, r[1].String, strings.ToLower(r[2].String)
	if d.info.Kind == "base table" || d.info.Kind == "system versioned" {
		d.info.Kind = "table"
	}
	if d.info.Kind == "table" && r[4].String != "YES" {
		d.info.Unsafe = fmt.Sprintf("its storage engine %s has no transactions: ALTER TABLE %s ENGINE = InnoDB", r[3].String, d.table())
	}
}

// table is the quoted name of the table.
func (d *describing) table() string { return d.engine.Dialect().Table(d.info.Schema, d.info.Name) }

// names runs a query for names.
func (d *describing) names(ctx context.Context, query string, args ...any) (names []string, err error) {
	rows, err := d.session.Rows(ctx, query, args...)
	for _, r := range rows {
		names = append(names, r[0].String)
	}
	return names, err
}

// describeChecks reads the CHECK conditions. Some servers do not show them.
func (d *describing) describeChecks(ctx context.Context) (err error) {
	query := describeChecksSQL
	if !d.maria {
		query = describeChecksMySQL
	}
	rows, err := d.session.Rows(ctx, query, d.info.Schema, d.info.Name)
	for _, r := range rows {
		text := r[1].String
		d.info.Checks = append(d.info.Checks, text)
		d.info.Constraints = append(d.info.Constraints, backends.Constraint{Kind: backends.CheckConstraint, Name: r[0].String, Text: d.expression(text)})
	}
	if isCode(err, 1054, 1109) {
		return nil
	}
	return err
}

// escapes are what MySQL escapes in an expression of the catalogue.
var escapes = strings.NewReplacer(`\\`, `\`, `\'`, `'`, `\n`, "\n", `\r`, "\r", `\0`, "\x00")

// expression is an expression of the catalogue as a statement has it.
func (d *describing) expression(text string) string {
	if d.maria {
		return text
	}
	return escapes.Replace(text)
}

// describeKeys reads the foreign keys of the table, and those of others to it.
func (d *describing) describeKeys(ctx context.Context) error {
	name := d.engine.Dialect().Name
	add := func(kind backends.ConstraintKind, r []sql.NullString, cascades bool) {
		all := d.info.Constraints
		other := d.engine.Dialect().Table(r[2].String, r[3].String)
		if n := len(all) - 1; n < 0 || all[n].Kind != kind || all[n].Name != r[0].String || all[n].Table != other {
			d.info.Constraints = append(d.info.Constraints, backends.Constraint{Kind: kind, Name: r[0].String, Table: other, Cascades: cascades})
		}
		k := &d.info.Constraints[len(d.info.Constraints)-1]
		k.Columns, k.Others = append(k.Columns, name(r[1].String)), append(k.Others, name(r[4].String))
	}
	rows, err := d.session.Rows(ctx, describeKeysSQL, d.info.Schema, d.info.Name)
	if err != nil {
		return err
	}
	for _, r := range rows {
		add(backends.ForeignKey, r, false)
	}
	rows, err = d.session.Rows(ctx, describeReferencesSQL, d.info.Schema, d.info.Name)
	for _, r := range rows {
		add(backends.ReferencedBy, r, r[5].String == "CASCADE" || r[5].String == "SET NULL")
	}
	return err
}

// jsonColumns returns MariaDB's JSON columns.
func jsonColumns(checks []string) (names []string) {
	for _, check := range checks {
		if m := jsonCheck.FindStringSubmatch(check); m != nil {
			names = append(names, strings.ReplaceAll(m[1], "``", "`"))
		}
	}
	return names
}

var jsonCheck = regexp.MustCompile("^json_valid\\(`(.*)`\\)$")

var columnKinds = map[string]backends.ColumnKind{
	"tinyint": backends.NumberColumn, "smallint": backends.NumberColumn, "mediumint": backends.NumberColumn, "int": backends.NumberColumn, "bigint": backends.NumberColumn,
	"datetime": backends.TimeColumn, "timestamp": backends.TimeColumn, "json": backends.JSONColumn, "uuid": backends.UUIDColumn,
	"char": backends.TextColumn, "varchar": backends.TextColumn, "tinytext": backends.TextColumn, "text": backends.TextColumn,
	"mediumtext": backends.TextColumn, "longtext": backends.TextColumn, "enum": backends.TextColumn,
	"binary": backends.BytesColumn, "varbinary": backends.BytesColumn, "tinyblob": backends.BytesColumn, "blob": backends.BytesColumn,
	"mediumblob": backends.BytesColumn, "longblob": backends.BytesColumn,
}

func describeColumn(r []sql.NullString, json []string) backends.Column {
	c := backends.Column{Name: r[0].String, Type: r[2].String, Nullable: r[3].String == "YES", Kind: columnKinds[r[1].String]}
	extra, given := strings.ToLower(r[5].String), r[4].String
	switch {
	case slices.Contains(json, c.Name):
		c.Kind, c.Type = backends.JSONColumn, "json"
	case strings.HasPrefix(c.Type, "tinyint(1)"), c.Type == "bit(1)":
		c.Kind = backends.BoolColumn
	case r[1].String == "decimal" && number(r[10]) == 0:
		c.Kind = backends.NumberColumn
	}
	if r[1].String == "datetime" { // a timestamp has a zone, a datetime has none
		c.Stamped = strings.HasPrefix(strings.ToLower(given), "current_timestamp")
		c.Touched = strings.Contains(extra, "on update")
	}
	c.Least, c.Most = limitsOf(r[1].String, strings.Contains(c.Type, "unsigned"))
	c.Generated = strings.Contains(extra, "virtual") || strings.Contains(extra, "stored") || strings.Contains(extra, "persistent")
	expression := strings.Contains(given, "(") && (strings.Contains(extra, "default_generated") || !strings.HasPrefix(given, "'"))
	switch {
	case strings.Contains(extra, "auto_increment"):
		c.Default, c.Type = true, c.Type+" AUTO_INCREMENT"
	case given == "NULL" && c.Kind != backends.TextColumn: // MariaDB writes it for a column without a default
	case r[4].Valid && !c.Generated:
		c.Default, c.Given = true, given
		if expression && c.Kind != backends.TimeColumn {
			c.Type += " DEFAULT (" + given + ")"
		}
	}
	if r[1].String == "enum" {
		c.Values = listed(c.Type)
	} else if c.Kind == backends.TextColumn {
		c.Chars = letters(r[1].String, number(r[6]), number(r[7]), r[8].String)
	}
	if charset := r[8].String; charset != "" && c.Kind == backends.TextColumn {
		switch charset {
		case "ascii", "latin1", "utf8mb3":
			c.Charset = charset
		case "utf8":
			c.Charset = "utf8mb3"
		}
		c.Type += " CHARACTER SET " + charset + " COLLATE " + r[9].String
	}
	return c
}

// number is a whole number; 0 for NULL.
func number(v sql.NullString) int64 {
	n, _ := strconv.ParseInt(v.String, 10, 64)
	return n
}

// limitsOf returns the range of an integer type. 0 and 0 mean the range of an int64, or more.
func limitsOf(kind string, unsigned bool) (least, most int64) {
	bits := map[string]int{"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32}[kind]
	switch {
	case bits == 0:
		return 0, 0
	case unsigned:
		return 0, 1<<bits - 1
	}
	return -1 << (bits - 1), 1<<(bits-1) - 1
}

// letters returns the largest length of a text in characters; 0 means unlimited. TEXT types count bytes.
func letters(kind string, chars, bytes int64, charset string) int {
	switch kind {
	case "longtext":
		return 0
	case "char", "varchar":
		return int(chars)
	}
	each := int64(4)
	switch charset {
	case "latin1", "ascii":
		each = 1
	case "utf8", "utf8mb3":
		each = 3
	}
	return int(bytes / each)
}

// listed returns the values of an enum's type.
func listed(enum string) (values []string) {
	rest := strings.TrimPrefix(enum, "enum(")
	for strings.HasPrefix(rest, "'") {
		var value strings.Builder
		i := 1
		for ; i < len(rest); i++ {
			if rest[i] == '\'' {
				if i++; i >= len(rest) || rest[i] != '\'' {
					break
				}
			}
			value.WriteByte(rest[i])
		}
		values = append(values, value.String())
		rest = strings.TrimPrefix(rest[min(i, len(rest)):], ",")
	}
	return values
}

// describeIndexes reads the indexes that can serve a claim, and the unique keys. It leaves out the columns
// of an index after the first column that is not indexed as a whole.
func (d *describing) describeIndexes(ctx context.Context) error {
	info := &d.info
	visible, expression := "AND is_visible = 'YES'", "expression"
	if d.maria {
		expression = "NULL"
		visible = ""
		if d.version >= 100600 {
			visible = "AND ignored = 'NO'"
		}
	}
	rows, err := d.session.Rows(ctx, fmt.Sprintf(describeIndexesSQL, expression, visible), info.Schema, info.Name)
	if err != nil {
		return err
	}
	cut := map[string]bool{}
	last, open, unique := "", false, map[string]int{} // unique: index in info.Unique; < 0: not unique
	for _, r := range rows {
		d.addUniqueKey(r)
	}
	for _, r := range rows {
		name, column := r[0].String, r[2].String
		whole := column != "" && !r[3].Valid && r[6].String == "BTREE"
		if name != last {
			last, open = name, true
			if unique[name] = -1; r[1].String == "0" {
				info.Unique = append(info.Unique, nil)
				unique[name] = len(info.Unique) - 1
			}
			if whole {
				info.Indexes = append(info.Indexes, backends.Index{Name: name})
			}
		}
		if at := unique[name]; at >= 0 {
			if whole && r[4].String != "YES" {
				info.Unique[at] = append(info.Unique[at], column)
			} else {
				info.Unique[at], unique[name] = nil, -1
			}
		}
		if open = open && whole; open {
			x := &info.Indexes[len(info.Indexes)-1]
			x.Columns = append(x.Columns, backends.IndexColumn{Name: column, Descending: r[5].String == "D"})
		}
		if !whole {
			cut[name] = true
		}
	}
	endInKey(info, cut)
	info.Unique = slices.DeleteFunc(info.Unique, func(key []string) bool { return len(key) == 0 })
	return nil
}

// addUniqueKey adds a row of describeIndexesSQL to the constraints.
func (d *describing) addUniqueKey(r []sql.NullString) {
	name, all := r[0].String, d.info.Constraints
	if r[1].String != "0" || name == "PRIMARY" {
		return
	}
	if n := len(all) - 1; n < 0 || all[n].Kind != backends.UniqueKey || all[n].Name != name {
		d.info.Constraints = append(d.info.Constraints, backends.Constraint{Kind: backends.UniqueKey, Name: name})
	}
	part := d.engine.Dialect().Name(r[2].String)
	switch {
	case r[2].String == "":
		part = "(" + d.expression(r[7].String) + ")"
	case r[3].Valid:
		part = "LEFT(" + part + ", " + r[3].String + ")"
	}
	k := &d.info.Constraints[len(d.info.Constraints)-1]
	k.Columns = append(k.Columns, part)
}

// endInKey appends to each index what InnoDB appends: the columns of the primary key that the index lacks.
// cut holds the indexes with a column that is not indexed as a whole.
func endInKey(info *backends.TableInfo, cut map[string]bool) {
	at := slices.IndexFunc(info.Indexes, func(x backends.Index) bool { return x.Name == "PRIMARY" })
	if at < 0 || cut["PRIMARY"] {
		return
	}
	for i, x := range info.Indexes {
		for _, k := range info.Indexes[at].Columns {
			if !cut[x.Name] && !slices.ContainsFunc(x.Columns, func(c backends.IndexColumn) bool { return c.Name == k.Name }) {
				info.Indexes[i].Columns = append(info.Indexes[i].Columns, k)
			}
		}
	}
}
