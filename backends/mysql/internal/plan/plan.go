// Package plan finds what makes the cost of a claim grow with the tables, in the rows that EXPLAIN
// FORMAT=TRADITIONAL of MySQL and MariaDB returns. Package diagnose and the tests of package mysql use it.
// It contains the name of the sidecar's index, and uses no other package of this module.
package plan

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
)

// minKeyLength is how many bytes of the index a claim must use at least: those of the columns `segment` and
// urgency.
const minKeyLength = 129 + 2 + 1 + 4 + 1

// fewRows reports whether the table is so small that any plan is acceptable to MySQL. It is false for 0
// rows, because MySQL scans an empty table. key is the column of the index in EXPLAIN's row. The number of
// rows is the third column after it.
func fewRows(row []string, key int) bool {
	rows := 0
	if key+3 < len(row) {
		if _, err := fmt.Sscan(row[key+3], &rows); err != nil {
			return false
		}
	}
	return rows > 0 && rows < 100
}

// Faults returns the problems of a claim's plan. Both products have the same columns, except `partitions`
// and `filtered`. If lifo is true, the claim reads the queue newest first.
func Faults(plan [][]sql.NullString, lifo bool) (faults []string) {
	for _, cells := range plan {
		row := make([]string, len(cells))
		for i, c := range cells {
			row[i] = c.String
		}
		line := strings.Join(row, " | ")
		key := slices.Index(row, "qsidecar_segments")
		for i := key + 1; key >= 0 && i < len(row); i++ {
			if row[i] == "qsidecar_segments" {
				key = i // skip possible_keys
			}
		}
		if key < 0 {
			return []string{"no use of the index qsidecar_segments (" + line + ")"}
		}
		length := 0
		if _, err := fmt.Sscan(row[key+1], &length); err != nil || length < minKeyLength {
			faults = append(faults, fmt.Sprintf("only %s bytes of the index in use", row[key+1]))
		}
		if !slices.Contains(row, "range") && !(lifo && slices.Contains(row, "ref")) && !fewRows(row, key) {
			faults = append(faults, "a walk through the index ("+line+")")
		}
		for _, bad := range []string{"filesort", "temporary"} {
			if strings.Contains(line, bad) {
				faults = append(faults, "Using "+bad)
			}
		}
	}
	return faults
}
