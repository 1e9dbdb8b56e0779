package sqlserver

import (
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

var _ backends.HintDialect = grammar{}

// locking are the hints of a query that locks rows, passing over those that others have locked.
const locking = "UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK"

// hints reports whether statements name indexes and how to reach their rows.
func (g grammar) hints() bool { return g.hintless == nil || !g.hintless.Load() }

// SelectClaim implements backends.HintDialect. Without hints the server can scan, sort or hash
// a small table, and lock every ready row. Without OPTIMIZE FOR it plans a variable TOP for a
// hundred rows, and can lock more rows than it returns.
func (g grammar) SelectClaim(columns, from, where, order string, n int, index string, sought bool) string {
	hints, option := locking, "OPTIMIZE FOR ("+g.IntArg(n)+" = 1)"
	if g.hints() {
		option = "LOOP JOIN, " + option
		if sought {
			hints = "FORCESEEK, " + hints
		}
		if index != "" {
			hints = "INDEX (" + g.Name(index) + "), " + hints
		}
	}
	return selecting(columns, from, hints, where, order, g.IntArg(n)) + "\nOPTION (" + option + ")"
}

// SelectByKey implements backends.HintDialect.
func (g grammar) SelectByKey(columns, from, where, order string, skip bool) string {
	hints := "UPDLOCK, ROWLOCK"
	if skip {
		hints = locking
	}
	if g.hints() {
		hints = "FORCESEEK, " + hints
	}
	return selecting(columns, from, hints, where, order, "")
}

// UnlockedTable implements backends.HintDialect.
func (g grammar) UnlockedTable(table string) string { return table + " WITH (READUNCOMMITTED)" }

// refusedHints are the errors for hints that the server cannot follow: the index does not
// exist, or no plan satisfies them.
var refusedHints = []int32{307, 308, 315, 8622}

// withoutHints turns hints off in the statements of adopted tables, if the server refused
// one. A reload describes the tables again and turns hints on.
func (s *Store) withoutHints(said sayings, err error) error {
	hinted := slices.ContainsFunc(said, func(q *saying) bool {
		return strings.Contains(q.text, "FORCESEEK") || strings.Contains(q.text, "WITH (INDEX ")
	})
	if !hinted || !slices.ContainsFunc(numbers(err), func(n int32) bool { return slices.Contains(refusedHints, n) }) {
		return err
	}
	if !s.hintless.Swap(true) {
		s.log.Warn("an index of an adopted table is gone", "place", s.place, "error", err)
	}
	return &againError{err.Error()}
}
