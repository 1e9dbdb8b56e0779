package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

var _ backends.Advisor = (*Store)(nil)

// Explain implements backends.Advisor.
func (s *Store) Explain(ctx context.Context, st *backends.Statement, table backends.TableInfo) (backends.Plan, error) {
	var p *plan
	err := s.read(ctx, func(ctx context.Context, t *tx) error {
		t.add("EXPLAIN (FORMAT JSON) "+st.Text, func(rows pgx.Rows) (err error) {
			for rows.Next() {
				if p, err = readPlan(rows); err != nil {
					return err
				}
			}
			return nil
		}, st.Args...)
		return nil
	})
	if err != nil {
		return backends.Plan{}, err
	}
	if p == nil {
		return backends.Plan{}, errors.New("EXPLAIN gave no plan")
	}
	said := backends.Plan{Lines: p.lines("")}
	p.adopted(table.Name, false, &said)
	return said, nil
}

// adopted looks for the node that reads the adopted table for the claim itself.
// sorted: what it reads is sorted above.
func (p *plan) adopted(table string, sorted bool, said *backends.Plan) {
	if p.Parent == "SubPlan" || p.Parent == "InitPlan" {
		return
	}
	if p.Relation == table {
		said.Index, said.Sorts = p.Index, sorted
		said.Whole = p.Cond == "" && p.TID == "" && p.Type != "Bitmap Heap Scan"
	}
	for _, child := range p.Plans {
		child.adopted(table, sorted || strings.HasSuffix(p.Type, "Sort"), said)
	}
}

// lines shows the plan as EXPLAIN's text does.
func (p *plan) lines(indent string) (all []string) {
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
		all = append(all, child.lines(indent+"  ")...)
	}
	return all
}

// CreateIndex implements backends.Advisor: an index of those rows alone.
func (s *Store) CreateIndex(_ string, table backends.TableInfo, equal []backends.Condition, order []backends.IndexColumn) string {
	g := grammar{}
	return "CREATE INDEX CONCURRENTLY ON " + g.Table(table.Schema, table.Name) + " " + core.WaitingIndex(g.Name, equal, order)
}

// Habits implements backends.Advisor. The planner does not see that rows of an index
// with NULL in a column are sorted by the next one.
func (s *Store) RowOrdering() backends.RowOrdering { return backends.RowOrdering{NullsLast: true} }
