package mysql

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

var _ backends.Advisor = (*Store)(nil)

// Explain implements backends.Advisor.
func (s *Store) Explain(ctx context.Context, st *backends.Statement, table backends.TableInfo) (said backends.Plan, err error) {
	err = s.read(ctx, func(_ context.Context, t *tx) error {
		said = backends.Plan{}
		t.add("EXPLAIN FORMAT=TRADITIONAL ")
		if err := t.put(st.Text, st.Args); err != nil {
			return err
		}
		t.reads = append(t.reads, func(r *result) error {
			for {
				ok, err := r.next()
				if err != nil || !ok {
					return err
				}
				step, err := readStep(r)
				if err != nil {
					return err
				}
				step.tell(table.Name, &said)
			}
		})
		return nil
	})
	return said, err
}

// step is a row of EXPLAIN's table.
type step struct{ id, table, how, index, rows, extra string }

// readStep: the columns are the same ones in both products, but for `partitions` and
// `filtered`, which MariaDB does not have here.
func readStep(r *result) (step, error) {
	text := func(i int) string {
		if r.null(i) {
			return ""
		}
		return r.text(i)
	}
	switch len(r.row) {
	case 10:
		return step{text(0), text(2), text(3), text(5), text(8), text(9)}, nil
	case 12:
		return step{text(0), text(2), text(4), text(6), text(9), text(11)}, nil
	}
	return step{}, fmt.Errorf("EXPLAIN answered with %d columns, and 10 or 12 are known", len(r.row))
}

// tell adds the step to a plan; its first one says how the adopted table is read.
func (p step) tell(table string, said *backends.Plan) {
	line := p.how + " on " + p.table
	if p.index != "" {
		line += " using " + p.index
	}
	if p.rows != "" {
		line += ", about " + p.rows + " rows"
	}
	if p.extra != "" {
		line += " [" + p.extra + "]"
	}
	first := len(said.Lines) == 0
	said.Lines = append(said.Lines, line)
	if first && p.table == table {
		said.Index = p.index
		said.Whole = p.how == "ALL" || p.how == "index"
		said.Sorts = strings.Contains(p.extra, "filesort")
	}
}

// CreateIndex implements backends.Advisor. A text without a limit can be in an index
// with its beginning alone.
func (s *Store) CreateIndex(of string, table backends.TableInfo, equal []backends.Condition, order []backends.IndexColumn) string {
	g := grammar{}
	var columns []string
	add := func(name string, descending bool) {
		text := g.Name(name)
		if c, _ := table.Column(name); slices.Contains([]string{"tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob"}, firstWord(c.Type)) {
			text += "(64)"
		}
		if descending {
			text += " DESC"
		}
		columns = append(columns, text)
	}
	for _, c := range equal {
		add(c.Column, false)
	}
	for _, c := range order {
		add(c.Name, c.Descending)
	}
	return fmt.Sprintf("CREATE INDEX %s ON %s (%s) ALGORITHM=INPLACE LOCK=NONE", g.Name(cut(of+"_"+table.Name, 64)), g.Table(table.Schema, table.Name), strings.Join(columns, ", "))
}

func firstWord(text string) string {
	return strings.FieldsFunc(text+" ", func(r rune) bool { return r == ' ' || r == '(' })[0]
}

// cut is a text's beginning of so many letters.
func cut(text string, letters int) string {
	if all := []rune(text); len(all) > letters {
		return string(all[:letters])
	}
	return text
}

// Habits implements backends.Advisor.
func (s *Store) RowOrdering() backends.RowOrdering { return backends.RowOrdering{NullFixed: true} }
