package diagnose

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/mysql"
)

// Explain implements backends.Advisor.
func (x *Engine) Explain(ctx context.Context, st *backends.Statement, table backends.TableInfo) (p backends.Plan, err error) {
	err = x.Read(ctx, func(ctx context.Context, s mysql.Session) error {
		p = backends.Plan{}
		rows, err := s.Explain(ctx, st)
		for _, r := range rows {
			step, err := readStep(r)
			if err != nil {
				return err
			}
			step.add(table.Name, &p)
		}
		return err
	})
	return p, err
}

// step is a row of EXPLAIN's table.
type step struct{ table, how, index, rows, extra string }

// readStep parses a row. Both products have the same columns, except `partitions` and `filtered`, which
// MariaDB doesn't return here.
func readStep(r []sql.NullString) (step, error) {
	switch len(r) {
	case 10:
		return step{r[2].String, r[3].String, r[5].String, r[8].String, r[9].String}, nil
	case 12:
		return step{r[2].String, r[4].String, r[6].String, r[9].String, r[11].String}, nil
	}
	return step{}, fmt.Errorf("EXPLAIN answered with %d columns, and 10 or 12 are known", len(r))
}

// add adds the step to a plan. The first step shows how the adopted table is read.
func (s step) add(table string, to *backends.Plan) {
	line := s.how + " on " + s.table
	if s.index != "" {
		line += " using " + s.index
	}
	if s.rows != "" {
		line += ", about " + s.rows + " rows"
	}
	if s.extra != "" {
		line += " [" + s.extra + "]"
	}
	first := len(to.Lines) == 0
	to.Lines = append(to.Lines, line)
	if first && s.table == table {
		to.Index = s.index
		to.Whole = s.how == "ALL" || s.how == "index"
		to.Sorts = strings.Contains(s.extra, "filesort")
	}
}

// CreateIndex implements backends.Advisor. For a text type without a length, the index holds only the
// first 64 characters.
func (x *Engine) CreateIndex(of string, table backends.TableInfo, equal []backends.Condition, order []backends.IndexColumn) string {
	g := x.Dialect()
	name := func(column string) string {
		c, _ := table.Column(column)
		if slices.Contains([]string{"tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob"}, firstWord(c.Type)) {
			return g.Name(column) + "(64)"
		}
		return g.Name(column)
	}
	return fmt.Sprintf("CREATE INDEX %s ON %s %s ALGORITHM=INPLACE LOCK=NONE", g.Name(cut(of+"_"+table.Name, 64)), g.Table(table.Schema, table.Name),
		checks.WaitingIndex(name, equal, order, false))
}

func firstWord(text string) string {
	return strings.FieldsFunc(text+" ", func(r rune) bool { return r == ' ' || r == '(' })[0]
}

// cut returns the first characters of a text.
func cut(text string, letters int) string {
	if all := []rune(text); len(all) > letters {
		return string(all[:letters])
	}
	return text
}

// RowOrdering implements backends.Advisor.
func (x *Engine) RowOrdering() backends.RowOrdering { return backends.RowOrdering{NullFixed: true} }
