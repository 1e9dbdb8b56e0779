// Package plan finds what makes the cost of a claim grow with the tables, in the rows that
// EXPLAIN FORMAT=TRADITIONAL of MySQL and MariaDB answers with. Package diagnose and the
// tests of package mysql use it. It contains the name of the sidecar's index, and uses no other package of this module.
package plan

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
)

// minKeyLength is how many bytes of the index a claim must use at least: lane and urgency.
const minKeyLength = 129 + 2 + 1 + 4 + 1

// fewRows reports whether the table is so small that MySQL reads it in any way. An empty
// one it scans. key is the column of the index in EXPLAIN's row. The number of rows is the
// third column behind it.
func fewRows(row []string, key int) bool {
	rows := 0
	if key+3 < len(row) {
		if _, err := fmt.Sscan(row[key+3], &rows); err != nil {
			return false
		}
	}
	return rows > 0 && rows < 100
}

// Faults returns what is wrong with the plan of a claim. Both products have the same
// columns, except `partitions` and `filtered`. lifo: the queue is read newest first.
func Faults(plan [][]sql.NullString, lifo bool) (faults []string) {
	for _, cells := range plan {
		row := make([]string, len(cells))
		for i, c := range cells {
			row[i] = c.String
		}
		line := strings.Join(row, " | ")
		key := slices.Index(row, "qsidecar_lanes")
		for i := key + 1; key >= 0 && i < len(row); i++ {
			if row[i] == "qsidecar_lanes" {
				key = i // after possible_keys
			}
		}
		if key < 0 {
			return []string{"no use of the index qsidecar_lanes (" + line + ")"}
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
