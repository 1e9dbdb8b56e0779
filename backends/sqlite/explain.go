package sqlite

import (
	"context"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

var _ backends.Advisor = (*Store)(nil)

// Explain implements backends.Advisor.
func (s *Store) Explain(ctx context.Context, st *backends.Statement, table backends.TableInfo) (said backends.Plan, err error) {
	err = s.reading(ctx, func(t *tx) error {
		said = backends.Plan{}
		// A connection sees that another one changed the schema when it reads, which
		// EXPLAIN does not.
		if err := t.query("SELECT 1 FROM main.sqlite_master LIMIT 1", func(row) error { return nil }); err != nil {
			return err
		}
		depth := map[int64]string{}
		found := false
		return t.query("EXPLAIN QUERY PLAN "+st.Text, func(r row) error {
			parent, text := r.int(1), r.text(3)
			indent, below := depth[parent]
			depth[r.int(0)] = indent + "  "
			said.Lines = append(said.Lines, indent+text)
			if below {
				return nil // a subquery's
			}
			said.Sorts = said.Sorts || strings.HasPrefix(text, "USE TEMP B-TREE FOR") && strings.HasSuffix(text, "ORDER BY")
			how, rest, _ := strings.Cut(text, " ")
			if rest, is := strings.CutPrefix(rest, table.Schema+"."+table.Name); is && !found && (rest == "" || rest[0] == ' ') {
				found, said.Whole, said.Index = true, how == "SCAN", indexIn(rest)
			}
			return nil
		}, make([]any, strings.Count(st.Text, "?"))...)
	})
	return said, err
}

// indexIn is the index that a step of a plan reads: … USING INDEX name (column=?).
func indexIn(step string) string {
	for _, word := range []string{" USING COVERING INDEX ", " USING INDEX "} {
		if _, rest, is := strings.Cut(step, word); is {
			name, _, _ := strings.Cut(rest, " (")
			return name
		}
	}
	if strings.Contains(step, " USING INTEGER PRIMARY KEY") {
		return "rowid"
	}
	return ""
}

// CreateIndex implements backends.Advisor: an index of those rows alone.
func (s *Store) CreateIndex(of string, table backends.TableInfo, equal []backends.Condition, order []backends.IndexColumn) string {
	g := grammar{}
	return "CREATE INDEX " + g.Name(of+"_"+table.Name) + " ON " + g.Name(table.Name) + " " + batch.WaitingIndex(g.Name, equal, order)
}

// Habits implements backends.Advisor.
func (s *Store) RowOrdering() backends.RowOrdering { return backends.RowOrdering{NullFixed: true} }
