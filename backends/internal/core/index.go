package core

import (
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// WaitingIndex is what stands in a CREATE INDEX of the rows that wait alone: its columns, and
// behind them the WHERE clause of a partial index, or nothing.
func WaitingIndex(name func(string) string, equal []backends.Condition, order []backends.IndexColumn) string {
	var columns, only []string
	for _, c := range equal {
		if c.State || c.Null {
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
