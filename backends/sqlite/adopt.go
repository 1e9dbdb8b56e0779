package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

var _ backends.Adopter = (*Store)(nil)

// CommitWith implements backends.Adopter.
func (s *Store) CommitWith(ctx context.Context, b backends.Batch, also backends.TxHooks) (backends.Results, error) {
	var res backends.Results
	err := s.write(ctx, &s.writer, s.openWriter, func(t *tx) error {
		b := b
		b.Writes = slices.Clone(b.Writes) // Before may add some
		if also.Before != nil {
			if err := also.Before(ctx, t, &b); err != nil {
				return err
			}
		}
		if err := t.commit(b, also.Claims, &res); err != nil {
			return err
		}
		if also.After == nil {
			return nil
		}
		return also.After(ctx, t, &res)
	})
	if err != nil {
		return backends.Results{}, err // res may still be written to
	}
	return res, nil
}

// Ask implements backends.Adopter.
func (s *Store) Query(ctx context.Context, statements ...*backends.Statement) error {
	return s.reading(ctx, func(t *tx) error { return t.Do(ctx, statements...) })
}

// Do implements backends.SQL.
func (t *tx) Do(_ context.Context, statements ...*backends.Statement) error {
	for _, st := range statements {
		if err := t.say(st); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) say(st *backends.Statement) (err error) {
	args := slices.Clone(st.Args)
	for i, a := range args {
		if list, ok := a.([]string); ok {
			text, err := json.Marshal(list)
			if err != nil {
				return err
			}
			args[i] = string(text)
		}
	}
	st.Matched = 0
	if st.Row == nil && !strings.HasPrefix(st.Text, "SELECT") {
		st.Matched, err = t.exec(st.Text, args...)
		return err
	}
	return t.query(st.Text, func(r row) error {
		st.Matched++
		if st.Row == nil {
			return nil
		}
		cells := make([][]byte, len(r))
		for i, v := range r {
			if n, ok := v.(int64); ok {
				cells[i] = strconv.AppendInt(nil, n, 10)
			} else {
				cells[i] = r.bytes(i)
			}
		}
		return st.Row(cells)
	}, args...)
}

// Describe implements backends.Adopter. A file has one schema, main.
func (s *Store) Describe(ctx context.Context, schema, name string) (info backends.TableInfo, err error) {
	if schema != "" && schema != "main" {
		return backends.TableInfo{}, fmt.Errorf("there is no schema %s in %s: an SQLite file has but one, main", schema, s.path)
	}
	err = s.reading(ctx, func(t *tx) error {
		info = backends.TableInfo{Schema: "main", Name: name}
		if err := t.query(`SELECT name, CASE WHEN sql LIKE 'CREATE VIRTUAL%' THEN 'virtual table' ELSE type END, sql FROM main.sqlite_master
			WHERE type IN ('table', 'view') AND name = ?1`, func(r row) error {
			info.Name, info.Kind = r.text(0), r.text(1)
			info.Checks = []string{r.text(2)} // they are in it
			return nil
		}, name); err != nil {
			return err
		}
		if info.Kind == "" {
			return t.texts(&info.Similar, `SELECT name FROM main.sqlite_master WHERE type IN ('table', 'view') AND lower(name) = lower(?1) ORDER BY 1 LIMIT 5`, name)
		}
		if err := t.describeColumns(&info); err != nil {
			return err
		}
		if err := t.describeIndexes(&info); err != nil {
			return err
		}
		return t.texts(&info.Triggers, `SELECT name FROM main.sqlite_master WHERE type = 'trigger' AND tbl_name = ?1 ORDER BY 1`, info.Name)
	})
	if err != nil {
		return backends.TableInfo{}, fmt.Errorf("reading what the table %s is like: %w", name, err)
	}
	return info, nil
}

// texts collects a query's first column.
func (t *tx) texts(to *[]string, sql string, args ...any) error {
	return t.query(sql, func(r row) error { *to = append(*to, r.text(0)); return nil }, args...)
}

// kindOf tells what people mean by a column's declared type: SQLite itself takes
// all for everything.
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

// describeColumns also finds the primary key. Of its columns only an INTEGER one
// gets a value by itself.
func (t *tx) describeColumns(info *backends.TableInfo) error {
	key := map[int64]string{}
	if err := t.query(`SELECT name, type, "notnull", dflt_value IS NOT NULL, hidden, pk, coalesce(dflt_value, '') FROM pragma_table_xinfo(?1) WHERE hidden <> 1 ORDER BY cid`, func(r row) error {
		c := backends.Column{Name: r.text(0), Type: r.text(1), Kind: kindOf(r.text(1)), Nullable: r.int(2) == 0, Default: r.int(3) != 0, Generated: r.int(4) > 1, Given: r.text(6)}
		c.TimeText = c.Kind == backends.TextColumn
		if n := r.int(5); n > 0 {
			key[n] = c.Name
		}
		info.Columns = append(info.Columns, c)
		return nil
	}, info.Name); err != nil || len(key) == 0 {
		return err
	}
	var names []string
	for n := range int64(len(key)) {
		names = append(names, key[n+1])
	}
	info.Unique = append(info.Unique, names)
	at := slices.IndexFunc(info.Columns, func(c backends.Column) bool { return c.Name == names[0] })
	if c := &info.Columns[at]; len(names) == 1 && strings.EqualFold(c.Type, "INTEGER") {
		c.Default, c.Nullable = true, false
		info.Indexes = append(info.Indexes, backends.Index{Name: "rowid", Columns: []backends.IndexColumn{{Name: c.Name}}})
	}
	return nil
}

// describeIndexes leaves out those of expressions.
func (t *tx) describeIndexes(info *backends.TableInfo) error {
	type found struct {
		index  backends.Index
		unique bool
		odd    bool
	}
	var all []*found
	if err := t.query(`SELECT l.name, l."unique", l.partial, coalesce(m.sql, '') FROM pragma_index_list(?1) l
		LEFT JOIN main.sqlite_master m ON m.type = 'index' AND m.name = l.name ORDER BY l.seq`, func(r row) error {
		f := &found{index: backends.Index{Name: r.text(0)}, unique: r.int(1) != 0}
		if r.int(2) != 0 {
			sql := r.text(3)
			f.index.Only = strings.TrimSpace(sql[strings.LastIndex(strings.ToUpper(sql), " WHERE ")+len(" WHERE "):])
		}
		all = append(all, f)
		return nil
	}, info.Name); err != nil {
		return err
	}
	for _, f := range all {
		if err := t.query(`SELECT name, "desc", cid FROM pragma_index_xinfo(?1) WHERE key ORDER BY seqno`, func(r row) error {
			f.odd = f.odd || r.int(2) == -2
			f.index.Columns = append(f.index.Columns, backends.IndexColumn{Name: r.text(0), Descending: r.int(1) != 0})
			return nil
		}, f.index.Name); err != nil {
			return err
		}
		if f.odd {
			continue
		}
		var names []string
		for _, c := range f.index.Columns {
			column, _ := info.Column(c.Name)
			if names = append(names, c.Name); column.Nullable {
				f.unique = false
			}
		}
		if f.unique && f.index.Only == "" {
			info.Unique = append(info.Unique, names)
		}
		if rowid := info.Indexes; len(rowid) > 0 && rowid[0].Name == "rowid" && !slices.Contains(names, rowid[0].Columns[0].Name) {
			f.index.Columns = append(f.index.Columns, rowid[0].Columns[0]) // behind its own columns an index has the row's number
		}
		info.Indexes = append(info.Indexes, f.index)
	}
	return nil
}

// Queues implements backends.Locator.
func (s *Store) Queues(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return batch.QueuesOfJobs(ctx, s, "INTEGER", leases)
}
