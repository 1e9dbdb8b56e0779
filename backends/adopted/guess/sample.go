package guess

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

const (
	sampleRows = 500             // from each end of the table, by its key
	sampleTime = 5 * time.Second // for all queries
	mostValues = 16              // a column with more values isn't a state
)

// columns are what to sample.
type columns struct {
	info   backends.TableInfo
	values []backends.Column // whose values matter
	set    []backends.Column // of which it matters whether they are NULL
}

// sample is what the sampled rows have.
type sample struct {
	columns
	rows  int
	whole bool                         // they are all rows of the table
	cut   error                        // why the sample ended early
	of    map[string]map[string]*value // column → text → its rows
	null  map[string]int               // column → rows with NULL
}

// value is a value of a column.
type value struct {
	text string
	rows int            // with the value
	set  map[string]int // column → those of the rows that are not NULL there
}

// toSample is what to sample to find the states.
func (g *guesser) toSample() columns {
	a := columns{info: g.Info}
	attempts, _ := g.column(mapping.Attempts)
	for _, c := range []backends.Column{g.state, g.kind, attempts} {
		if c.Name != "" {
			a.values = append(a.values, c)
		}
	}
	if g.token.Name != "" {
		a.set = append(a.set, g.token)
	}
	for _, role := range []mapping.Role{mapping.Worker, mapping.ClaimedAt, mapping.FinishedAt, mapping.Error} {
		if c, has := g.column(role); has {
			a.set = append(a.set, c)
		}
	}
	return a
}

// takeSample reads rows from both ends of the table's key, and the values that an index begins
// with: the cost does not grow with the table. After sampleTime it ends with what it has.
func takeSample(ctx context.Context, engine backends.Adopter, a columns) (*sample, error) {
	s := &sample{columns: a, of: map[string]map[string]*value{}, null: map[string]int{}}
	for _, c := range a.values {
		s.of[c.Name] = map[string]*value{}
	}
	short, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	err := s.readEnds(short, engine)
	if err == nil && !s.whole {
		err = s.readIndexes(short, engine)
	}
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		s.cut, err = err, nil
	}
	return s, err
}

// readEnds reads rows from both ends of the key.
func (s *sample) readEnds(ctx context.Context, engine backends.Adopter) error {
	d := engine.Dialect()
	var key []backends.Column
	for _, name := range s.info.Unique[0] {
		c, _ := s.info.Column(name)
		key = append(key, c)
	}
	output := []string{d.RowKey(key)}
	for _, c := range s.columns.values {
		output = append(output, d.AsText(c))
	}
	for _, c := range s.set {
		output = append(output, d.ToText("CASE WHEN "+d.Name(c.Name)+" IS NULL THEN 0 ELSE 1 END"))
	}
	known := map[string]bool{}
	for _, direction := range []string{"", " DESC"} {
		var order []string
		for _, c := range key {
			order = append(order, d.Name(c.Name)+direction)
		}
		read := 0
		if err := engine.Query(ctx, &backends.Statement{
			Text: d.SelectFirst(query.Columns(output...), d.Table(s.info.Schema, s.info.Name), "1 = 1", strings.Join(order, ", "), fmt.Sprint(sampleRows)),
			Row: func(cells [][]byte) error {
				if read++; !known[string(cells[0])] {
					known[string(cells[0])] = true
					s.count(cells[1:])
				}
				return nil
			},
		}); err != nil {
			return err
		}
		s.whole = read < sampleRows
	}
	return nil
}

// count adds a row.
func (s *sample) count(cells [][]byte) {
	s.rows++
	set := cells[len(s.columns.values):]
	for i, c := range s.columns.values {
		if cells[i] == nil {
			s.null[c.Name]++
			continue
		}
		v := s.value(c.Name, string(cells[i]))
		v.rows++
		for j, other := range s.set {
			if string(set[j]) == "1" {
				v.set[other.Name]++
			}
		}
	}
	for j, other := range s.set {
		if string(set[j]) == "0" {
			s.null[other.Name]++
		}
	}
}

// value finds or adds a value of a column.
func (s *sample) value(column, text string) *value {
	v := s.of[column][text]
	if v == nil {
		v = &value{text: text, set: map[string]int{}}
		s.of[column][text] = v
	}
	return v
}

// readIndexes reads the values of columns that an index begins with, each from where the last one
// ends.
func (s *sample) readIndexes(ctx context.Context, engine backends.Adopter) error {
	d := engine.Dialect()
	for _, c := range s.columns.values {
		if c.Values != nil || !slices.ContainsFunc(s.info.Indexes, func(x backends.Index) bool { return x.Only == "" && x.Columns[0].Name == c.Name }) {
			continue
		}
		name, after, more := d.Name(c.Name), "", true
		for n := 0; more && n < mostValues; n++ {
			more = false // unless there is a row
			st := &backends.Statement{Row: func(cells [][]byte) error {
				after, more = string(cells[0]), true
				s.value(c.Name, after)
				return nil
			}}
			where := name + " IS NOT NULL"
			if n > 0 {
				where = name + " > " + d.Arg(1, c)
				st.Args = []any{after}
			}
			st.Text = d.SelectFirst(query.Columns(d.AsText(c)), d.Table(s.info.Schema, s.info.Name), where, name, "1")
			if err := engine.Query(ctx, st); err != nil {
				return err
			}
		}
	}
	return nil
}

// values are those of a column, those of most rows first.
func (s *sample) values(column string) (all []*value) {
	for _, v := range s.of[column] {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b *value) int { return cmp.Or(b.rows-a.rows, strings.Compare(a.text, b.text)) })
	return all
}

// describe names the rows that were sampled, for people.
func (s *sample) describe() string {
	switch {
	case s.cut != nil:
		return fmt.Sprintf("%d rows (reading more took too long: %v)", s.rows, s.cut)
	case s.rows == 0:
		return "no rows (it is empty)"
	case s.whole:
		return fmt.Sprintf("all its rows (%d)", s.rows)
	}
	return fmt.Sprintf("%d rows (the first and the last ones by its key)", s.rows)
}
