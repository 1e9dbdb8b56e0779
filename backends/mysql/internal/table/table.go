// Package table has the conditions with which statements reach the rows of qsidecar_jobs, as far as they depend on values.
// The other ones are in ../../sql/table.sql.
package table

import (
	"fmt"
	"strings"

	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// Within returns the condition that rows of a `segment` are in one of the pieces of its order, which are in
// ascending order. The server turns it into as many ranges of the index.
func Within(pieces []cursor.Segment) string {
	var ors []string
	for _, s := range pieces {
		ors = append(ors, between(s.From, s.To)...)
	}
	if len(ors) == 0 {
		return "FALSE"
	}
	return "(" + strings.Join(ors, " OR ") + ")"
}

// between returns the conditions for the ranges after from, up to and including to.
func between(from, to cursor.Spot) (ors []string) {
	if from.Urgency == to.Urgency {
		if from.Position < to.Position {
			ors = append(ors, fmt.Sprintf("urgency = %d AND sort_key > %d AND sort_key <= %d", from.Urgency, from.Position, to.Position))
		}
		return ors
	}
	first := from.Urgency // the first urgency whose whole range belongs to the result
	if from.Position > 0 {
		ors = append(ors, fmt.Sprintf("urgency = %d AND sort_key > %d", from.Urgency, from.Position))
		first++
	}
	last := to.Urgency
	if to.Position < cursor.End.Position {
		last--
	}
	if first <= last {
		ors = append(ors, fmt.Sprintf("urgency >= %d AND urgency <= %d", first, last))
	}
	if to.Position < cursor.End.Position && to.Position > 0 {
		ors = append(ors, fmt.Sprintf("urgency = %d AND sort_key <= %d", to.Urgency, to.Position))
	}
	return ors
}

// Among returns the expression for the value that belongs to a row's id. ids are in ascending order.
func Among(ids, values []int64) session.Part {
	if len(ids) == 1 {
		return session.Part{SQL: session.List(values)}
	}
	return session.Part{SQL: "ELT(INTERVAL(id, " + session.List(ids) + "), " + session.List(values) + ")"}
}
