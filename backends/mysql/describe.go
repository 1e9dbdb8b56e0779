package mysql

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// The catalogue. A name without a schema is one of the database that the URL names.
const (
	describeTableSQL = `SELECT t.table_schema, t.table_name, t.table_type, t.engine, COALESCE(e.transactions, '') AS transactions
FROM information_schema.tables t LEFT JOIN information_schema.engines e ON e.engine = t.engine
WHERE t.table_schema = IF(? = '', DATABASE(), ?) AND t.table_name = ?`

	describeColumnsSQL = `SELECT column_name, data_type, column_type, is_nullable, column_default, extra, character_maximum_length, character_octet_length,
  character_set_name, collation_name, numeric_scale, privileges
FROM information_schema.columns WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position`

	describeIndexesSQL = `SELECT index_name, non_unique, column_name, sub_part, nullable, collation, index_type
FROM information_schema.statistics WHERE table_schema = ? AND table_name = ? %s ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index`

	describeTriggersSQL = `SELECT trigger_name FROM information_schema.triggers WHERE event_object_schema = ? AND event_object_table = ? ORDER BY 1`

	describeSimilarSQL = `SELECT IF(table_schema = DATABASE(), table_name, CONCAT(table_schema, '.', table_name)) FROM information_schema.tables
WHERE LOWER(table_name) = LOWER(?) AND table_type = 'BASE TABLE' ORDER BY 1 LIMIT 5`

	// MariaDB's JSON is a LONGTEXT with such a check.
	describeChecksSQL = `SELECT check_clause FROM information_schema.check_constraints WHERE constraint_schema = ? AND table_name = ?`

	describeChecksMySQL = `SELECT c.check_clause FROM information_schema.check_constraints c
JOIN information_schema.table_constraints t ON t.constraint_schema = c.constraint_schema AND t.constraint_name = c.constraint_name
WHERE t.table_schema = ? AND t.table_name = ? ORDER BY c.constraint_name`
)

// Describe implements backends.Adopter.
func (s *Store) Describe(ctx context.Context, schema, name string) (info backends.TableInfo, err error) {
	err = s.read(ctx, func(ctx context.Context, t *tx) error {
		info = backends.TableInfo{Schema: schema, Name: name}
		return t.describe(ctx, &info)
	})
	if err != nil {
		return backends.TableInfo{}, fmt.Errorf("reading what the table %s is like: %w", name, err)
	}
	return info, nil
}

func (t *tx) describe(ctx context.Context, info *backends.TableInfo) error {
	t.each(func(r *result) error {
		info.Schema, info.Name = r.text(0), r.text(1)
		kind := strings.ToLower(r.text(2))
		if kind == "base table" || kind == "system versioned" {
			kind = "table"
		}
		if info.Kind = kind; kind == "table" && r.text(4) != "YES" {
			info.Unsafe = fmt.Sprintf("its storage engine %s has no transactions: ALTER TABLE %s ENGINE = InnoDB", r.text(3), grammar{}.Table(info.Schema, info.Name))
		}
		return nil
	}, describeTableSQL, info.Schema, info.Schema, info.Name)
	if err := t.send(ctx); err != nil {
		return err
	}
	if info.Kind == "" {
		t.names(&info.Similar, describeSimilarSQL, info.Name)
		return t.send(ctx)
	}
	if err := t.describeChecks(ctx, info); err != nil {
		return err
	}
	var json []string
	if t.s.server.maria {
		json = jsonColumns(info.Checks)
	}
	privileges := map[string]string{}
	t.each(func(r *result) error {
		info.Columns = append(info.Columns, describeColumn(r, json))
		privileges[r.text(0)] = r.text(11)
		return nil
	}, describeColumnsSQL, info.Schema, info.Name)
	end := t.describeIndexes(info)
	t.names(&info.Triggers, describeTriggersSQL, info.Schema, info.Name)
	if err := t.send(ctx); err != nil || info.Kind != "table" {
		return err
	}
	end()
	info.Unique = slices.DeleteFunc(info.Unique, func(key []string) bool { return len(key) == 0 })
	return t.describeRights(ctx, info, privileges)
}

// names queues a query for names.
func (t *tx) names(to *[]string, sql string, args ...any) {
	t.each(func(r *result) error {
		*to = append(*to, r.text(0))
		return nil
	}, sql, args...)
}

// describeChecks asks for the CHECK conditions, which not every server tells.
func (t *tx) describeChecks(ctx context.Context, info *backends.TableInfo) error {
	sql := describeChecksSQL
	if !t.s.server.maria {
		sql = describeChecksMySQL
	}
	t.names(&info.Checks, sql, info.Schema, info.Name)
	if err := t.send(ctx); err != nil && !isCode(err, 1054, 1109) {
		return err
	}
	return nil
}

// jsonColumns finds MariaDB's.
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

func describeColumn(r *result, json []string) backends.Column {
	c := backends.Column{Name: r.text(0), Type: r.text(2), Nullable: r.text(3) == "YES", Kind: columnKinds[r.text(1)]}
	extra, given := strings.ToLower(r.text(5)), r.text(4)
	switch {
	case slices.Contains(json, c.Name):
		c.Kind, c.Type = backends.JSONColumn, "json"
	case strings.HasPrefix(c.Type, "tinyint(1)"), c.Type == "bit(1)":
		c.Kind = backends.BoolColumn
	case r.text(1) == "decimal" && r.int(10) == 0:
		c.Kind = backends.NumberColumn
	}
	if r.text(1) == "datetime" { // a timestamp knows its zone
		c.Stamped = strings.HasPrefix(strings.ToLower(given), "current_timestamp")
		c.Touched = strings.Contains(extra, "on update")
	}
	c.Least, c.Most = limitsOf(r.text(1), strings.Contains(c.Type, "unsigned"))
	c.Generated = strings.Contains(extra, "virtual") || strings.Contains(extra, "stored") || strings.Contains(extra, "persistent")
	expression := strings.Contains(given, "(") && (strings.Contains(extra, "default_generated") || !strings.HasPrefix(given, "'"))
	switch {
	case strings.Contains(extra, "auto_increment"):
		c.Default, c.Type = true, c.Type+counted
	case given == "NULL" && c.Kind != backends.TextColumn: // MariaDB writes it for a column without a default
	case !r.null(4) && !c.Generated:
		c.Default, c.Given = true, given
		if expression && c.Kind != backends.TimeColumn {
			c.Type += " DEFAULT (" + given + ")"
		}
	}
	if r.text(1) == "enum" {
		c.Values = listed(c.Type)
	} else if c.Kind == backends.TextColumn {
		c.Chars = letters(r.text(1), r.int(6), r.int(7), r.text(8))
	}
	if charset := r.text(8); charset != "" && c.Kind == backends.TextColumn {
		switch charset {
		case "ascii", "latin1", "utf8mb3":
			c.Charset = charset
		case "utf8":
			c.Charset = "utf8mb3"
		}
		c.Type += " CHARACTER SET " + charset + " COLLATE " + r.text(9)
	}
	return c
}

// limitsOf are the least and the most that a type of whole numbers holds; 0 and 0: an
// int64, or more.
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

// letters is how long a text may be. TEXT counts bytes.
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

// listed are the values of an enum's type.
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

// describeIndexes queues the question for what a claim could be served by, and for
// the keys; end is called with the answer. What follows a column that is not whole in
// an index is of no use here.
func (t *tx) describeIndexes(info *backends.TableInfo) (end func()) {
	visible := "AND is_visible = 'YES'"
	if t.s.server.maria {
		visible = ""
		if t.s.server.version >= 100600 {
			visible = "AND ignored = 'NO'"
		}
	}
	cut := map[string]bool{}
	last, open, unique := "", false, map[string]int{} // unique: where it stands; < 0: it is none
	t.each(func(r *result) error {
		name, column := r.text(0), r.text(2)
		whole := column != "" && r.null(3) && r.text(6) == "BTREE"
		if name != last {
			last, open = name, true
			if unique[name] = -1; r.int(1) == 0 {
				info.Unique = append(info.Unique, nil)
				unique[name] = len(info.Unique) - 1
			}
			if whole {
				info.Indexes = append(info.Indexes, backends.Index{Name: name})
			}
		}
		if at := unique[name]; at >= 0 {
			if whole && r.text(4) != "YES" {
				info.Unique[at] = append(info.Unique[at], column)
			} else {
				info.Unique[at], unique[name] = nil, -1
			}
		}
		if open = open && whole; open {
			x := &info.Indexes[len(info.Indexes)-1]
			x.Columns = append(x.Columns, backends.IndexColumn{Name: column, Descending: r.text(5) == "D"})
		}
		if !whole {
			cut[name] = true
		}
		return nil
	}, fmt.Sprintf(describeIndexesSQL, visible), info.Schema, info.Name)
	return func() { endInKey(info, cut) }
}

// endInKey adds to each index what InnoDB does: behind its own columns come those of
// the primary key that are not among them. cut are indexes that hold less than whole
// columns.
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
