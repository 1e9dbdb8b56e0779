package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// Describe implements backends.Advisor. A file has one schema, main.
func (x *Engine) Describe(ctx context.Context, schema, name string) (backends.TableInfo, error) {
	if schema != "" && schema != "main" {
		return backends.TableInfo{}, fmt.Errorf("there is no schema %s in %s: an SQLite file has but one, main", schema, x.Info().Address)
	}
	info, err := x.describe(ctx, backends.TableInfo{Schema: "main", Name: name})
	if err != nil {
		return backends.TableInfo{}, fmt.Errorf("reading what the table %s is like: %w", name, err)
	}
	return info, nil
}

func (x *Engine) describe(ctx context.Context, info backends.TableInfo) (backends.TableInfo, error) {
	if err := x.Query(ctx, query(`SELECT name, CASE WHEN sql LIKE 'CREATE VIRTUAL%' THEN 'virtual table' ELSE type END, sql FROM main.sqlite_master
		WHERE type IN ('table', 'view') AND name = ?1`, info.Name, func(r []string) {
		info.Name, info.Kind = r[0], r[1]
		info.Checks = []string{r[2]} // the whole statement, including its conditions
		info.Constraints = checksOf(r[2])
	})); err != nil {
		return info, err
	}
	if info.Kind == "" {
		tables := names(`SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name <> ?1 ORDER BY 1 LIMIT 1000`, info.Name, &info.Tables)
		err := x.Query(ctx, tables)
		return info, err
	}
	key := map[string]string{} // the columns of the primary key, by their number in the key
	var indexes []*index
	if err := x.Query(ctx,
		query(`SELECT name, type, "notnull", dflt_value IS NOT NULL, hidden, pk, coalesce(dflt_value, '') FROM pragma_table_xinfo(?1) WHERE hidden <> 1 ORDER BY cid`,
			info.Name, func(r []string) {
				c := backends.Column{Name: r[0], Type: r[1], Kind: kindOf(r[1]), Nullable: r[2] == "0", Default: r[3] == "1", Generated: r[4] > "1", Given: r[6]}
				c.TimeText = c.Kind == backends.TextColumn
				if r[5] != "0" {
					key[r[5]] = c.Name
				}
				info.Columns = append(info.Columns, c)
			}),
		query(`SELECT l.name, l."unique", l.partial, coalesce(m.sql, ''), x.name, x."desc", x.cid FROM pragma_index_list(?1) l JOIN pragma_index_xinfo(l.name) x
			LEFT JOIN main.sqlite_master m ON m.type = 'index' AND m.name = l.name WHERE x."key" ORDER BY l.seq, x.seqno`,
			info.Name, func(r []string) { indexes = addColumn(indexes, r) }),
		query(`SELECT 'fk ' || id, "from", "table", coalesce("to", '') FROM pragma_foreign_key_list(?1) ORDER BY id, seq`, info.Name, func(r []string) {
			x.addKey(&info, backends.ForeignKey, r, false)
		}),
		query(`SELECT 'fk ' || f.id, coalesce(f."to", ''), m.name, f."from", f.on_delete FROM main.sqlite_master m JOIN pragma_foreign_key_list(m.name) f
			WHERE m.type = 'table' AND lower(f."table") = lower(?1) ORDER BY m.name, f.id, f.seq`, info.Name, func(r []string) {
			x.addKey(&info, backends.ReferencedBy, r, r[4] == "CASCADE" || r[4] == "SET NULL" || r[4] == "SET DEFAULT")
		}),
		names(`SELECT name FROM main.sqlite_master WHERE type = 'trigger' AND tbl_name = ?1 ORDER BY 1`, info.Name, &info.Triggers),
	); err != nil {
		return info, err
	}
	for i, c := range info.Columns {
		if c.Generated {
			info.Columns[i].Computed = computedOf(info.Checks[0], c.Name)
		}
	}
	addPrimaryKey(&info, key)
	for _, i := range indexes {
		i.addKey(&info, x.Dialect().Name)
		i.addTo(&info)
	}
	return info, nil
}

// query returns a query about a table. f gets each row.
func query(sql, table string, f func(r []string)) *backends.Statement {
	return &backends.Statement{Text: sql, Args: []any{table}, Row: func(cells [][]byte) error {
		r := make([]string, len(cells))
		for i, c := range cells {
			r[i] = string(c)
		}
		f(r)
		return nil
	}}
}

// names returns a query that appends its first column to *to.
func names(sql, table string, to *[]string) *backends.Statement {
	return query(sql, table, func(r []string) { *to = append(*to, r[0]) })
}

// kindOf returns what a column's declared type usually means. SQLite itself accepts any
// value in any column.
func kindOf(declared string) backends.ColumnKind {
	declared = strings.ToUpper(declared)
	for _, k := range []struct {
		word string
		kind backends.ColumnKind
	}{
		{"BOOL", backends.BoolColumn}, {"INT", backends.NumberColumn}, {"DATE", backends.TimeColumn}, {"TIME", backends.TimeColumn},
		{"JSON", backends.JSONColumn}, {"UUID", backends.TextColumn}, {"CHAR", backends.TextColumn}, {"CLOB", backends.TextColumn},
		{"TEXT", backends.TextColumn}, {"BLOB", backends.BytesColumn}, {"NUMERIC", backends.NumberColumn}, {"DECIMAL", backends.NumberColumn},
	} {
		if strings.Contains(declared, k.word) {
			return k.kind
		}
	}
	return backends.OtherColumn
}

// addPrimaryKey adds the primary key to the unique keys. If its only column is an INTEGER, SQLite assigns the column's value.
func addPrimaryKey(info *backends.TableInfo, key map[string]string) {
	if len(key) == 0 {
		return
	}
	var names []string
	for n := range len(key) {
		names = append(names, key[fmt.Sprint(n+1)])
	}
	info.Unique = append(info.Unique, names)
	at := slices.IndexFunc(info.Columns, func(c backends.Column) bool { return c.Name == names[0] })
	if c := &info.Columns[at]; len(names) == 1 && strings.EqualFold(c.Type, "INTEGER") {
		c.Default, c.Nullable = true, false
		info.Indexes = append(info.Indexes, backends.Index{Name: "rowid", Columns: []backends.IndexColumn{{Name: c.Name}}})
	}
}

// index is an index while its rows are read.
type index struct {
	backends.Index
	unique     bool
	sql        string
	expression bool // whether one of its columns is an expression
}

// addColumn adds a row of the query for indexes: to the last index, or as a new index.
func addColumn(all []*index, r []string) []*index {
	if len(all) == 0 || all[len(all)-1].Name != r[0] {
		x := &index{Index: backends.Index{Name: r[0]}, unique: r[1] == "1", sql: r[3]}
		if r[2] != "0" {
			x.Only = strings.TrimSpace(r[3][strings.LastIndex(strings.ToUpper(r[3]), " WHERE ")+len(" WHERE "):])
		}
		all = append(all, x)
	}
	x := all[len(all)-1]
	x.expression = x.expression || r[6] == "-2"
	x.Columns = append(x.Columns, backends.IndexColumn{Name: r[4], Descending: r[5] == "1"})
	return all
}

// addTo adds the index to the description of its table, unless it has an expression.
func (i *index) addTo(info *backends.TableInfo) {
	if i.expression {
		return
	}
	var names []string
	for _, c := range i.Columns {
		column, _ := info.Column(c.Name)
		names = append(names, c.Name)
		i.unique = i.unique && !column.Nullable
	}
	if i.unique && i.Only == "" {
		info.Unique = append(info.Unique, names)
	}
	if rowid := info.Indexes; len(rowid) > 0 && rowid[0].Name == "rowid" && !slices.Contains(names, rowid[0].Columns[0].Name) {
		i.Columns = append(i.Columns, rowid[0].Columns[0]) // an index ends with the rowid
	}
	info.Indexes = append(info.Indexes, i.Index)
}
