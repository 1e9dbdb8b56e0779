package diagnose

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/plan"
)

// Explain implements backends.Advisor.
func (x *Engine) Explain(ctx context.Context, st *backends.Statement, table backends.TableInfo) (backends.Plan, error) {
	var root *plan.Node
	if err := x.Query(ctx, &backends.Statement{Text: "EXPLAIN (FORMAT JSON, COSTS OFF) " + st.Text, Args: st.Args, Row: func(cells [][]byte) (err error) {
		root, err = plan.Parse(cells[0])
		return err
	}}); err != nil {
		return backends.Plan{}, err
	}
	if root == nil {
		return backends.Plan{}, errors.New("EXPLAIN gave no plan")
	}
	p := backends.Plan{Lines: lines(root, "")}
	findTable(root, table.Name, false, &p)
	return p, nil
}

// findTable finds the node that reads the adopted table for the claim itself. sorted is true
// if a node above it sorts its rows.
func findTable(p *plan.Node, table string, sorted bool, to *backends.Plan) {
	if p.Parent == "SubPlan" || p.Parent == "InitPlan" {
		return
	}
	if p.Relation == table {
		to.Index, to.Sorts = p.Index, sorted
		to.Whole = p.Cond == "" && p.TID == "" && p.Type != "Bitmap Heap Scan"
	}
	for _, child := range p.Plans {
		findTable(child, table, sorted || strings.HasSuffix(p.Type, "Sort"), to)
	}
}

// lines formats the plan like the text format of EXPLAIN.
func lines(p *plan.Node, indent string) (all []string) {
	line := indent + p.Type
	if p.Index != "" {
		line += " using " + p.Index
	}
	if p.Relation != "" {
		line += " on " + p.Relation
	}
	for _, more := range []struct{ what, condition string }{{"cond", p.Cond}, {"filter", p.Filter}, {"key", strings.Join(p.SortKey, ", ")}} {
		if more.condition != "" {
			line += fmt.Sprintf(" [%s: %s]", more.what, more.condition)
		}
	}
	all = append(all, line)
	for _, child := range p.Plans {
		all = append(all, lines(child, indent+"  ")...)
	}
	return all
}

// CreateIndex implements backends.Advisor. It returns the SQL of a partial index of those rows.
func (x *Engine) CreateIndex(_ string, table backends.TableInfo, equal []backends.Condition, order []backends.IndexColumn) string {
	g := x.Dialect()
	return "CREATE INDEX CONCURRENTLY ON " + g.Table(table.Schema, table.Name) + " " + checks.WaitingIndex(g.Name, equal, order, true)
}

// RowOrdering implements backends.Advisor. In an index, rows with NULL in a column are sorted by
// the next column. The planner makes no use of that.
func (x *Engine) RowOrdering() backends.RowOrdering {
	return backends.RowOrdering{NullsLast: true, RowValues: true}
}
