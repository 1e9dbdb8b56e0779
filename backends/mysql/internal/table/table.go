// Package table has the names and conditions with which statements reach the rows of qsidecar_jobs: see
// ../../migrate/schema.sql.
package table

import (
	"fmt"
	"strings"

	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// Jobs is the table with its index forced.
const Jobs = `qsidecar_jobs FORCE INDEX (qsidecar_segments)`

// ByID is the table with its primary key forced, for statements that lock rows by a list of ids. Without
// it the server scans a table that is small compared with the list, and waits for rows that other programs
// have inserted and not committed.
const (
	ByID       = `qsidecar_jobs FORCE INDEX (PRIMARY)`
	DeleteByID = `DELETE FROM j USING qsidecar_jobs AS j FORCE INDEX (PRIMARY)`
)

// Uncovered is a condition that each row meets. `state` isn't in the index, so the index doesn't have all columns of a statement with
// this condition. Otherwise MySQL prefers a walk over the whole index to a range of it if its statistics count hardly any rows.
// While another session keeps a snapshot open, that walk is over each entry that can't be purged yet.
const Uncovered = `state <> ''`

// NoPushdown follows SELECT in statements that read ranges of the index. With index condition pushdown InnoDB notices the end of
// a range only at an entry that is not dead (seen with MySQL 9.7). While another session keeps a snapshot open, that can be after all
// entries of the jobs that are gone, also of other queues. For MariaDB it is a comment, and MariaDB does that either way.
const NoPushdown = "/*+ NO_ICP(qsidecar_jobs) */ "

// SegmentRange is the condition that a row is in one `segment`, for statements that begin in the midst of it.
// The `segment` is its argument twice. With `segment = ?` the server could choose to begin there, or to find the
// start of the `segment` and walk all of it, over each entry that can't be purged yet. While another session
// keeps a snapshot open, MariaDB's statistics make it choose the walk. SegmentOrder is the order of the index.
const (
	SegmentRange = `segment >= ? AND segment <= ? AND ` + Uncovered
	SegmentOrder = `segment, urgency, sort_key, id`
)

// Bytes is how many bytes of a row count against the limits: the payload, and headers that are larger
// than those that a sidecar stores.
const Bytes = "LENGTH(payload) + IF(LENGTH(headers) > 65536, LENGTH(headers), 0)"

// OwnerSegment returns the `segment` of the jobs that a sidecar has claimed.
func OwnerSegment(host int64) string { return fmt.Sprintf("c%016X", uint64(host)) }

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
func Among(ids, values []int64) string {
	if len(ids) == 1 {
		return session.List(values)
	}
	return "ELT(INTERVAL(id, " + session.List(ids) + "), " + session.List(values) + ")"
}
