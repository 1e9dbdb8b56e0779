package checks

import (
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// WaitingIndex returns what follows the table's name in the CREATE INDEX that Advisor
// proposes: the columns and, if partial, the WHERE clause that leaves other rows out. name
// returns a column as the statement names it.
func WaitingIndex(name func(column string) string, equal []backends.Condition, order []backends.IndexColumn, partial bool) string {
	var columns, only []string
	for _, c := range equal {
		if partial && (c.State || c.Null) {
			only = append(only, c.SQL)
		} else {
			columns = append(columns, name(c.Column))
		}
	}
	for _, c := range order {
		column := name(c.Name)
		if c.Descending {
			column += " DESC"
		}
		columns = append(columns, column)
	}
	sql := "(" + strings.Join(columns, ", ") + ")"
	if len(only) > 0 {
		sql += " WHERE " + strings.Join(only, " AND ")
	}
	return sql
}
