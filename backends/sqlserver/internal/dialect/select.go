package dialect

// locking are the hints of a query that locks rows and passes over rows that others have locked.
const locking = "UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK"

// hints reports whether statements name indexes and the way to reach their rows.
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

// SelectByKey implements backends.Dialect.
func (d Dialect) SelectByKey(columns, table, index, where, order string, skip bool) string {
	hints := "UPDLOCK, ROWLOCK"
	if skip {
		hints = locking
	}
	return selecting(columns, table, d.byIndex(index, hints), where, order, "")
}

// byIndex adds the hints for rows that are found by an index to others.
func (d Dialect) byIndex(index, hints string) string {
	switch {
	case !d.hints():
		return hints
	case index == "" || index == "PRIMARY": // MySQL's name of a primary key
		return "FORCESEEK, " + hints
	}
	return "INDEX (" + d.Name(index) + "), FORCESEEK, " + hints
}

// UpdateByKey has the hints in a FROM, where alone the server takes those about indexes.
// https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table
func (d Dialect) UpdateByKey(table, index, sets, where string) string {
	return "UPDATE j SET " + sets + " FROM " + table + " AS j WITH (" + d.byIndex(index, "ROWLOCK") + ") WHERE " + where
}

// DeleteByKey implements backends.Dialect.
func (d Dialect) DeleteByKey(table, index, where string) string {
	return "DELETE j FROM " + table + " AS j WITH (" + d.byIndex(index, "ROWLOCK") + ") WHERE " + where
}

// UnlockedTable implements backends.HintDialect.
func (d Dialect) UnlockedTable(table string) string { return table + " WITH (READUNCOMMITTED)" }

// SelectFirst passes over rows that others have locked.
func (d Dialect) SelectFirst(columns, from, where, order, limit string) string {
	return selecting(columns, from, "READPAST, READCOMMITTEDLOCK", where, order, limit)
}

// SelectLocked implements backends.Dialect.
func (d Dialect) SelectLocked(columns, from, where, order string, n int, skip bool) string {
	hints, limit := "UPDLOCK, ROWLOCK", ""
	if skip {
		hints = locking
	}
	if n > 0 {
		limit = d.IntArg(n)
	}
	return selecting(columns, from, hints, where, order, limit)
}

func selecting(columns, from, hints, where, order, limit string) string {
	sql := "SELECT "
	if limit != "" {
		sql += "TOP (" + limit + ") "
	}
	sql += columns + " FROM " + from + " WITH (" + hints + ") WHERE " + where
	if order != "" {
		sql += " ORDER BY " + order
	}
	return sql
}

// SelectUnlocked implements backends.Dialect.
func (d Dialect) SelectUnlocked(columns, from, where string) string {
	return selecting(columns, from, "READUNCOMMITTED", where, "", "")
}
