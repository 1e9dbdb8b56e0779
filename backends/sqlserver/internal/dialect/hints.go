package dialect

// locking are the hints of a query that locks rows, passing over those that others have locked.
const locking = "UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK"

// hints reports whether statements name indexes and how to reach their rows.
func (d Dialect) hints() bool { return d.Hintless == nil || !d.Hintless.Load() }

// SelectClaim implements backends.HintDialect. Without hints the server can scan, sort or hash
// a small table, and lock every ready row. Without OPTIMIZE FOR it plans a variable TOP for a
// hundred rows, and can lock more rows than it returns.
func (d Dialect) SelectClaim(columns, from, where, order string, n int, index string, sought bool) string {
	hints, option := locking, "OPTIMIZE FOR ("+d.IntArg(n)+" = 1)"
	if d.hints() {
		option = "LOOP JOIN, " + option
		if sought {
			hints = "FORCESEEK, " + hints
		}
		if index != "" {
			hints = "INDEX (" + d.Name(index) + "), " + hints
		}
	}
	return selecting(columns, from, hints, where, order, d.IntArg(n)) + "\nOPTION (" + option + ")"
}

// SelectByKey implements backends.HintDialect.
func (d Dialect) SelectByKey(columns, from, where, order string, skip bool) string {
	hints := "UPDLOCK, ROWLOCK"
	if skip {
		hints = locking
	}
	if d.hints() {
		hints = "FORCESEEK, " + hints
	}
	return selecting(columns, from, hints, where, order, "")
}

// UnlockedTable implements backends.HintDialect.
func (d Dialect) UnlockedTable(table string) string { return table + " WITH (READUNCOMMITTED)" }
