// Package query has what all queries of adopted tables have in common: the names of their
// output columns, and how their numbers are read.
package query

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Columns is a select list of the expressions. Each gets a name of its own, so that an ORDER BY
// means the table's columns and not their texts.
func Columns(expressions ...string) string {
	named := make([]string, len(expressions))
	for i, e := range expressions {
		named[i] = fmt.Sprintf("%s AS qsidecar_%d", e, i+1)
	}
	return strings.Join(named, ", ")
}

// And joins conditions.
func And(conditions ...string) string { return strings.Join(conditions, " AND ") }

// Int reads a whole number. NULL is 0.
func Int(cell []byte, to *int64) (err error) {
	*to = 0
	if cell != nil {
		*to, err = strconv.ParseInt(string(cell), 10, 64)
	}
	return err
}

// AnyNumber reads a number from a column that can hold other things than whole numbers. It cuts
// fractions, and reads a value that isn't a number (NaN; on SQLite, anything) as 0: one odd row must not
// prevent claims of the others.
func AnyNumber(cell []byte) (n int64) {
	if Int(cell, &n) == nil {
		return n
	}
	f, err := strconv.ParseFloat(string(cell), 64)
	if math.IsNaN(f) || err != nil && !errors.Is(err, strconv.ErrRange) {
		f = 0
	}
	return int64(max(-1<<53, min(f, 1<<53)))
}
