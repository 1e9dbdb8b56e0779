package diagnose

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

var columnKinds = map[string]backends.ColumnKind{
	"int2": backends.NumberColumn, "int4": backends.NumberColumn, "int8": backends.NumberColumn, "numeric": backends.NumberColumn,
	"bool": backends.BoolColumn, "timestamp": backends.TimeColumn, "timestamptz": backends.TimeColumn, "bytea": backends.BytesColumn,
	"json": backends.JSONColumn, "jsonb": backends.JSONColumn, "uuid": backends.UUIDColumn,
}

// rows returns a query whose result replaces *to. The fields of T have the names of the query's columns.
func rows[T any](to *[]T, sql string, args ...any) *backends.Statement {
	return &backends.Statement{
		Text: "SELECT coalesce(json_agg(x), '[]')::text FROM (" + sql + ") x", Args: args,
		Row: func(cells [][]byte) error {
			*to = nil
			return json.Unmarshal(cells[0], to)
		},
	}
}

// named is a row of a query for names.
type named struct{ Name string }

func names(all []named) (names []string) {
	for _, x := range all {
		names = append(names, x.Name)
	}
	return names
}

// Describe implements backends.Advisor.
func (x *Engine) Describe(ctx context.Context, schema, name string) (backends.TableInfo, error) {
	info, err := x.describe(ctx, backends.TableInfo{Schema: schema, Name: name})
	if err != nil {
		return backends.TableInfo{}, fmt.Errorf("reading what the table %s is like: %w", name, err)
	}
	return info, nil
}

func (x *Engine) describe(ctx context.Context, info backends.TableInfo) (backends.TableInfo, error) {
	var columns []struct {
		backends.Column
		Schema, Table, Relkind, Typname, Category string
	}
	var path []string
	if info.Schema == "" { // the session itself has another path
		var schemas []named
		var err error
		if path, err = x.SearchPath(ctx); err != nil {
			return info, err
		}
		if err := x.Query(ctx, rows(&schemas, schemaSQL, path, info.Name)); err != nil {
			return info, err
		}
		for _, s := range schemas {
			info.Schema = s.Name
		}
	}
	if err := x.Query(ctx, rows(&columns, columnsSQL, info.Schema, info.Name)); err != nil {
		return info, err
	}
	if len(columns) == 0 {
		var tables []named
		err := x.Query(ctx, rows(&tables, tablesSQL, path))
		info.Tables = names(tables)
		return info, err
	}
	info.Schema, info.Name = columns[0].Schema, columns[0].Table
	info.Kind = map[string]string{"r": "table", "p": "table", "v": "view", "m": "materialized view", "f": "foreign table"}[columns[0].Relkind]
	for _, c := range columns {
		c.Kind = columnKinds[c.Typname]
		if c.Kind == backends.OtherColumn && (c.Category == "S" || c.Category == "E") {
			c.Kind = backends.TextColumn
		}
		info.Columns = append(info.Columns, c.Column)
	}
	return x.describeRest(ctx, info)
}

// describeRest reads everything but the columns.
func (x *Engine) describeRest(ctx context.Context, info backends.TableInfo) (backends.TableInfo, error) {
	var unique []struct{ Columns []string }
	var indexes []struct {
		Name, Only string
		Columns    []string
		Descending []bool
	}
	var triggers, notifying, conditions []named
	var rights []struct {
		Denied             []string
		Unlogged, Filtered bool
		Grantee, Lacks     string
	}
	var limits []limit
	if err := x.Query(ctx,
		rows(&unique, uniqueSQL, info.Schema, info.Name), rows(&indexes, indexesSQL, info.Schema, info.Name),
		rows(&triggers, triggersSQL, info.Schema, info.Name), rows(&notifying, notifyingSQL, info.Schema, info.Name),
		rows(&rights, rightsSQL, info.Schema, info.Name), rows(&conditions, checksSQL, info.Schema, info.Name),
		rows(&limits, limitsSQL, info.Schema, info.Name), rows(&info.Constraints, constraintsSQL, info.Schema, info.Name)); err != nil {
		return info, err
	}
	for _, u := range unique {
		info.Unique = append(info.Unique, u.Columns)
	}
	for _, i := range indexes {
		index := backends.Index{Name: i.Name, Only: i.Only}
		for n, column := range i.Columns {
			index.Columns = append(index.Columns, backends.IndexColumn{Name: column, Descending: i.Descending[n]})
		}
		info.Indexes = append(info.Indexes, index)
	}
	info.Triggers, info.Checks = names(triggers), names(conditions)
	for _, text := range notifying {
		for _, name := range channels(text.Name) {
			if !slices.Contains(info.Channels, name) {
				info.Channels = append(info.Channels, name)
			}
		}
	}
	for _, r := range rights { // there is one row
		info.Denied, info.Grantee, info.Lacks = r.Denied, r.Grantee, r.Lacks
		if r.Unlogged {
			info.Remarks.AddWarning("table", fmt.Sprintf("the table %s is UNLOGGED: its jobs are gone after a crash of the server", info.Name),
				fmt.Sprintf("ALTER TABLE %s SET LOGGED, unless you can lose them", x.Dialect().Table(info.Schema, info.Name)))
		}
		if r.Filtered {
			info.Remarks.AddWarning("table", fmt.Sprintf("row level security of the table %s can hide rows from this role: their jobs are never claimed", info.Name),
				"see that its policies show this role every row of the queue, and let it change them")
		}
	}
	for n, l := range limits {
		if n < len(info.Columns) && info.Columns[n].Name == l.Name { // otherwise the table has changed since
			l.add(&info.Columns[n])
			if l.Lacks != "" && !slices.Contains(info.Denied, "INSERT") {
				info.Remarks.AddWarning("table", fmt.Sprintf("this role can't insert into the table %s, so no job can be enqueued: it lacks %s, which gives the column %s its values",
					info.Name, l.Lacks, l.Name), info.Grant(l.Lacks))
			}
		}
	}
	return info, nil
}

// limit is a row of limitsSQL.
type limit struct {
	Name, Typname   string
	Given, Computed string
	Lacks           string
	Digits          int
	Values, Denied  []string
}

func (l limit) add(c *backends.Column) {
	c.Denied, c.Given, c.Computed, c.Lacks = l.Denied, l.Given, l.Computed, l.Lacks
	if len(l.Values) > 0 {
		c.Values = l.Values
	}
	c.Least, c.Most = limitsOf(l.Typname, l.Digits)
}

// notifyCall matches the name of a channel in the text of a function or rule: a constant, or an identifier.
var notifyCall = regexp.MustCompile(`(?i)\bpg_notify\s*\(\s*'((?:[^']|'')+)'\s*(?:::\w+\s*)?,|\bnotify\s+(?:"((?:[^"]|"")+)"|([a-z_][a-z0-9_$]*))`)

// channels returns the channels that a text names, folded as the server folds identifiers.
func channels(text string) (all []string) {
	for _, m := range notifyCall.FindAllStringSubmatch(text, -1) {
		name := strings.ReplaceAll(m[1], "''", "'") + strings.ReplaceAll(m[2], `""`, `"`) + strings.ToLower(m[3])
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// limitsOf returns the range of an integer type. 0 and 0 mean the range of an int64 or a larger
// one. digits counts the digits before the decimal point of a numeric with a precision.
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
