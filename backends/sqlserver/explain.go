package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

var _ backends.Advisor = (*Store)(nil)

// Explain implements backends.Advisor. The statement's arguments are variables here.
func (s *Store) Explain(ctx context.Context, st *backends.Statement, table backends.TableInfo) (backends.Plan, error) {
	q, err := say(1, st)
	if err != nil {
		return backends.Plan{}, err
	}
	var b strings.Builder
	b.WriteString("DECLARE @now datetime2(6) = SYSUTCDATETIME();\n") // our own tables may not be there
	for _, p := range q.params {
		fmt.Fprintf(&b, "DECLARE @%s %s;\n", p.name, p.kind)
	}
	for _, c := range s.sql.knowing([]call{q.call}) {
		b.WriteString(c.text + "\n")
	}
	ctx, done := s.bound(ctx)
	defer done()
	c, err := s.db.Conn(ctx)
	if err != nil {
		return backends.Plan{}, s.outcome(ctx, err)
	}
	// Nobody gets this session after it: its setting is one that no reset is sure to undo.
	defer discard(c)
	shown, err := s.showplanOf(ctx, c, b.String())
	if slices.Contains(numbers(err), 262) {
		return backends.Plan{}, fmt.Errorf("%w: GRANT SHOWPLAN to see it", backends.ErrNoPlan)
	}
	if err != nil {
		return backends.Plan{}, s.outcome(ctx, err)
	}
	all, err := readShowplan(shown)
	if err != nil {
		return backends.Plan{}, fmt.Errorf("the plan cannot be read: %w", err)
	}
	for _, p := range all {
		if strings.HasPrefix(strings.TrimSpace(p.text), "SELECT ") && len(p.operators) > 0 {
			return adoptedPlan(p, table), nil
		}
	}
	return backends.Plan{}, errors.New("SHOWPLAN_XML shows no plan of a SELECT")
}

// showplanOf asks for the plans of a batch. Nothing is carried out.
func (s *Store) showplanOf(ctx context.Context, c *sql.Conn, text string) (xml string, err error) {
	if _, err := c.ExecContext(ctx, "SET SHOWPLAN_XML ON;"); err != nil {
		return "", err
	}
	err = s.plain(ctx, c, text, func(rows *sql.Rows) error {
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

// adoptedPlan says how a plan reads the adopted table: its first step that does.
func adoptedPlan(p planned, table backends.TableInfo) (said backends.Plan) {
	sorted, found := false, false
	for i, o := range p.operators {
		line := strings.Repeat("  ", o.depth) + o.what
		if o.table != "" {
			line += " of " + o.table
			if o.index != "" {
				line += " by " + o.index
			}
		}
		said.Lines = append(said.Lines, line)
		sorted = sorted || !found && p.sortsBeforeTop(i)
		if !found && o.table == table.Name {
			found = true
			said.Index, said.Sorts = o.index, sorted
			said.Whole = strings.HasSuffix(o.what, "Scan")
		}
	}
	return said
}

// CreateIndex implements backends.Advisor: an index of those rows alone.
// A filtered one is of use only to sessions with the standard settings, which who
// writes to the table must have: it is not advised to others' tables.
func (s *Store) CreateIndex(of string, table backends.TableInfo, equal []backends.Condition, order []backends.IndexColumn) string {
	g := grammar{}
	var columns []string
	for _, c := range equal {
		columns = append(columns, g.Name(c.Column))
	}
	for _, c := range order {
		name := g.Name(c.Name)
		if c.Descending {
			name += " DESC"
		}
		columns = append(columns, name)
	}
	return fmt.Sprintf("CREATE INDEX %s ON %s (%s)", g.Name("qsidecar_"+of), g.Table(table.Schema, table.Name), strings.Join(columns, ", "))
}

// Habits implements backends.Advisor: NULL comes first, and an index that is found by
// it goes on in its order.
func (s *Store) RowOrdering() backends.RowOrdering { return backends.RowOrdering{NullFixed: true} }
