package guess

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
)

const (
	sampleRows = 500             // from each end of the table, by its key
	sampleTime = 5 * time.Second // for all that is asked
	mostValues = 16              // a column with more is no state
)

// asking is what to look at.
type asking struct {
	info   backends.TableInfo
	values []backends.Column // whose values matter
	set    []backends.Column // of which it matters whether they are NULL
}

// sample is what was seen.
type sample struct {
	rows  int
	whole bool // they are all that there are
	cut   error
	ask   asking
	of    map[string]map[string]*seen // column → value → its rows
	null  map[string]int              // column → rows that have NULL there
}

// seen is a value of a column.
type seen struct {
	text string
	rows int            // of the sample
	set  map[string]int // column → those of them that have something there
}

// plan is what to look at before the states can be told.
func (g *guessing) plan() asking {
	a := asking{info: g.Info}
	for _, c := range []backends.Column{g.state, g.kind} {
		if c.Name != "" {
			a.values = append(a.values, c)
		}
	}
	if c, has := g.column(adopted.Attempts); has {
		a.values = append(a.values, c)
	}
	if g.token.Name != "" {
		a.set = append(a.set, g.token)
	}
	for _, role := range []adopted.Role{adopted.Worker, adopted.ClaimedAt, adopted.FinishedAt, adopted.Error} {
		if c, has := g.column(role); has {
			a.set = append(a.set, c)
		}
	}
	return a
}

// look reads rows from both ends of the table's key, and the values that an index
// begins with: what takes no longer on a large table than on a small one. Where it
// takes too long all the same, what was seen by then has to do.
func look(ctx context.Context, engine adopted.Adopter, a asking) (*sample, error) {
	s := &sample{ask: a, of: map[string]map[string]*seen{}, null: map[string]int{}}
	for _, c := range a.values {
		s.of[c.Name] = map[string]*seen{}
	}
	short, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	err := s.ends(short, engine)
	if err == nil && !s.whole {
		err = s.leading(short, engine)
	}
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		s.cut, err = err, nil
	}
	return s, err
}

// ends reads rows from both ends.
func (s *sample) ends(ctx context.Context, engine adopted.Adopter) error {
	g := engine.Dialect()
	var key []backends.Column
	for _, name := range s.ask.info.Unique[0] {
		c, _ := s.ask.info.Column(name)
		key = append(key, c)
	}
	columns := []string{g.RowKey(key) + " AS qsidecar_1"}
	for _, c := range s.ask.values {
		columns = append(columns, fmt.Sprintf("%s AS qsidecar_%d", g.AsText(c), len(columns)+1))
	}
	for _, c := range s.ask.set {
		columns = append(columns, fmt.Sprintf("%s AS qsidecar_%d", g.ToText("CASE WHEN "+g.Name(c.Name)+" IS NULL THEN 0 ELSE 1 END"), len(columns)+1))
	}
	known := map[string]bool{}
	for _, direction := range []string{"", " DESC"} {
		var order []string
		for _, c := range key {
			order = append(order, g.Name(c.Name)+direction)
		}
		read := 0
		if err := engine.Query(ctx, &backends.Statement{
			Text: g.SelectFirst(strings.Join(columns, ", "), g.Table(s.ask.info.Schema, s.ask.info.Name), "1 = 1", strings.Join(order, ", "), fmt.Sprint(sampleRows)),
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

func (s *sample) count(cells [][]byte) {
	s.rows++
	set := cells[len(s.ask.values):]
	for i, c := range s.ask.values {
		if cells[i] == nil {
			s.null[c.Name]++
			continue
		}
		v := s.see(c.Name, string(cells[i]))
		v.rows++
		for j, other := range s.ask.set {
			if string(set[j]) == "1" {
				v.set[other.Name]++
			}
		}
	}
	for j, other := range s.ask.set {
		if string(set[j]) == "0" {
			s.null[other.Name]++
		}
	}
}

func (s *sample) see(column, text string) *seen {
	v := s.of[column][text]
	if v == nil {
		v = &seen{text: text, set: map[string]int{}}
		s.of[column][text] = v
	}
	return v
}

// leading asks an index that begins with a column for its values, each from where the
// last one ends.
func (s *sample) leading(ctx context.Context, engine adopted.Adopter) error {
	g := engine.Dialect()
	for _, c := range s.ask.values {
		if c.Values != nil || !slices.ContainsFunc(s.ask.info.Indexes, func(x backends.Index) bool { return x.Only == "" && x.Columns[0].Name == c.Name }) {
			continue
		}
		name, table := g.Name(c.Name), g.Table(s.ask.info.Schema, s.ask.info.Name)
		after, more := "", true
		for n := 0; more && n < mostValues; n++ {
			st := &backends.Statement{Row: func(cells [][]byte) error {
				after, more = string(cells[0]), true
				s.see(c.Name, after)
				return nil
			}}
			where := name + " IS NOT NULL"
			if n > 0 {
				where = name + " > " + g.Arg(1, c)
				st.Args = []any{after}
			}
			st.Text = g.SelectFirst(g.AsText(c)+" AS qsidecar_1", table, where, name, "1")
			more = false // unless there is a row
			if err := engine.Query(ctx, st); err != nil {
				return err
			}
		}
	}
	return nil
}

// values are those of a column, those of most rows first.
func (s *sample) values(column string) (all []*seen) {
	for _, v := range s.of[column] {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b *seen) int {
		if a.rows != b.rows {
			return b.rows - a.rows
		}
		return strings.Compare(a.text, b.text)
	})
	return all
}

func (s *sample) told() string {
	switch {
	case s.cut != nil:
		return fmt.Sprintf("%d rows; it was too slow to look at more (%v)", s.rows, s.cut)
	case s.rows == 0:
		return "no rows: there are none"
	case s.whole:
		return fmt.Sprintf("all rows, %d", s.rows)
	}
	return fmt.Sprintf("%d rows, from both ends of its key", s.rows)
}
