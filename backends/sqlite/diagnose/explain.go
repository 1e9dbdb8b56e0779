package diagnose

import (
	"context"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
)

// Explain implements backends.Advisor.
func (x *Engine) Explain(ctx context.Context, st *backends.Statement, table backends.TableInfo) (p backends.Plan, err error) {
	depth := map[string]string{} // the indent of each step, by its id
	found := false
	err = x.Query(ctx,
		// A connection notices a changed schema when it reads, and EXPLAIN reads nothing.
		&backends.Statement{Text: "SELECT 1 FROM main.sqlite_master LIMIT 1"},
		&backends.Statement{Text: "EXPLAIN QUERY PLAN " + st.Text, Args: make([]any, strings.Count(st.Text, "?")), Row: func(cells [][]byte) error {
			text := string(cells[3])
			indent, below := depth[string(cells[1])]
			depth[string(cells[0])] = indent + "  "
			p.Lines = append(p.Lines, indent+text)
			if below {
				return nil // a step of a subquery
			}
			p.Sorts = p.Sorts || strings.HasPrefix(text, "USE TEMP B-TREE FOR") && strings.HasSuffix(text, "ORDER BY")
			how, rest, _ := strings.Cut(text, " ")
			if rest, is := strings.CutPrefix(rest, table.Schema+"."+table.Name); is && !found && (rest == "" || rest[0] == ' ') {
				found, p.Whole, p.Index = true, how == "SCAN", indexIn(rest)
			}
			return nil
		}})
	return p, err
}

// indexIn returns the index that a step of a plan reads, as in "… USING INDEX name (column=?)".
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

// CreateIndex implements backends.Advisor. It returns the SQL of a partial index of those rows.
func (x *Engine) CreateIndex(of string, table backends.TableInfo, equal []backends.Condition, order []backends.IndexColumn) string {
	g := x.Dialect()
	return "CREATE INDEX " + g.Name(of+"_"+table.Name) + " ON " + g.Name(table.Name) + " " + checks.WaitingIndex(g.Name, equal, order, true)
}

// RowOrdering implements backends.Advisor.
func (x *Engine) RowOrdering() backends.RowOrdering {
	return backends.RowOrdering{NullFixed: true, RowValues: true}
}
