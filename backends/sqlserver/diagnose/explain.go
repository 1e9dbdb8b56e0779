package diagnose

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/sqlserver"
	"github.com/qsidecar/qsidecar/backends/sqlserver/internal/plan"
)

// Explain implements backends.Advisor.
func (x *Engine) Explain(ctx context.Context, st *backends.Statement, table backends.TableInfo) (backends.Plan, error) {
	batch, err := x.ExplainBatch(st)
	if err != nil {
		return backends.Plan{}, err
	}
	var xml string
	denied := false
	if err := x.Session(ctx, func(ctx context.Context, c *sql.Conn) (err error) {
		if xml, err = x.showplan(ctx, c, batch); slices.Contains(sqlserver.ErrorNumbers(err), 262) {
			denied = true
			return nil
		}
		return err
	}); err != nil {
		return backends.Plan{}, err
	}
	if denied {
		return backends.Plan{}, fmt.Errorf("%w: the login needs GRANT SHOWPLAN", backends.ErrNoPlan)
	}
	all, err := plan.Read(xml)
	if err != nil {
		return backends.Plan{}, fmt.Errorf("%w: SHOWPLAN_XML can't be read: %w", backends.ErrNoPlan, err)
	}
	for _, p := range all {
		if strings.HasPrefix(strings.TrimSpace(p.Text), "SELECT ") && len(p.Operators) > 0 {
			return adoptedPlan(p, table), nil
		}
	}
	return backends.Plan{}, fmt.Errorf("%w: SHOWPLAN_XML shows no plan of a SELECT", backends.ErrNoPlan)
}

// showplan returns the plans of a batch. Nothing is executed.
func (x *Engine) showplan(ctx context.Context, c *sql.Conn, batch string) (xml string, err error) {
	if _, err := c.ExecContext(ctx, "SET SHOWPLAN_XML ON;"); err != nil {
		return "", err
	}
	err = x.Rows(ctx, c, batch, func(rows *sql.Rows) error {
		var part string
		err := rows.Scan(&part)
		xml += part
		return err
	})
	if _, off := c.ExecContext(context.WithoutCancel(ctx), "SET SHOWPLAN_XML OFF;"); err == nil {
		err = off
	}
	return xml, err
}

// adoptedPlan shows how a plan reads the adopted table: by its first step that does.
func adoptedPlan(p plan.Statement, table backends.TableInfo) (to backends.Plan) {
	sorted, found := false, false
	for i, o := range p.Operators {
		line := strings.Repeat("  ", o.Depth) + o.Name
		if o.Table != "" {
			line += " of " + o.Table
			if o.Index != "" {
				line += " by " + o.Index
			}
		}
		to.Lines = append(to.Lines, line)
		sorted = sorted || !found && p.SortsBeforeTop(i)
		if !found && o.Table == table.Name {
			found = true
			to.Index, to.Sorts = o.Index, sorted
			to.Whole = strings.HasSuffix(o.Name, "Scan")
		}
	}
	return to
}

// CreateIndex implements backends.Advisor. It proposes no filtered index: programs without
// the standard settings can't write to a table that has one.
func (x *Engine) CreateIndex(of string, table backends.TableInfo, equal []backends.Condition, order []backends.IndexColumn) string {
	g := x.Dialect()
	return "CREATE INDEX " + g.Name("qsidecar_"+of) + " ON " + g.Table(table.Schema, table.Name) + " " + checks.WaitingIndex(g.Name, equal, order, false)
}

// RowOrdering implements backends.Advisor. NULL comes first, and rows that an index finds
// by it come in the order of its next columns.
func (x *Engine) RowOrdering() backends.RowOrdering { return backends.RowOrdering{NullFixed: true} }
