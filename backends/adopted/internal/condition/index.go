package condition

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// QueueColumns are the columns that have one value in all rows of the queue.
func (t *Table) QueueColumns() (all []backends.Condition) {
	for _, column := range slices.Sorted(maps.Keys(t.Where)) {
		v := t.Where[column]
		all = append(all, backends.Condition{Column: column, SQL: t.Equal(column, v), Null: v.Null})
	}
	return all
}

// WaitingColumns are the columns that have one value in all rows that wait.
func (t *Table) WaitingColumns() []backends.Condition {
	all := t.QueueColumns()
	if c, has := t.Column(mapping.State); has {
		ready := t.States[backends.StateReady]
		all = append(all, backends.Condition{Column: c.Name, SQL: t.Equal(c.Name, ready), State: true, Null: ready.Null})
	}
	for _, marker := range []func() (backends.Column, bool){t.ClaimMarker, t.DeadMarker} {
		if c, has := marker(); has {
			all = append(all, backends.Condition{Column: c.Name, SQL: t.Equal(c.Name, mapping.Value{Null: true}), State: true, Null: true})
		}
	}
	return all
}

// Names are the columns of the conditions.
func Names(conditions []backends.Condition) (names []string) {
	for _, c := range conditions {
		names = append(names, c.Column)
	}
	return names
}

// IndexOrder is the order of claims without the columns that have one value in all rows that
// wait. If all are descending it is their ascending order, since an index is read either way.
func (t *Table) IndexOrder() (all []backends.IndexColumn) {
	all = t.waitingOrder()
	if !slices.ContainsFunc(all, func(c backends.IndexColumn) bool { return !c.Descending }) {
		for i := range all {
			all[i].Descending = false
		}
	}
	return all
}

// waitingOrder is the order of claims without the columns that have one value in all rows that wait.
func (t *Table) waitingOrder() (all []backends.IndexColumn) {
	fixed := Names(t.WaitingColumns())
	for _, o := range t.claimOrder() {
		if !slices.Contains(fixed, o.Column) && !slices.ContainsFunc(all, func(c backends.IndexColumn) bool { return c.Name == o.Column }) {
			all = append(all, backends.IndexColumn{Name: o.Column, Descending: o.Descending})
		}
	}
	return all
}

// ClaimIndex is the index by which claims find their rows in order; empty: there is none.
// sought: they find them at a value of its first column.
func (t *Table) ClaimIndex(o backends.RowOrdering) (index string, sought bool) {
	for _, x := range t.Info.Indexes {
		if t.Serves(x, o) {
			fixed, _ := t.fixedByPartialIndex(x.Only)
			first := x.Columns[0].Name
			return x.Name, slices.Contains(Names(t.WaitingColumns()), first) && !slices.Contains(fixed, first)
		}
	}
	return "", false
}

// Serves reports whether the index has exactly the rows that wait, or begins with the columns
// that find them, and then has them in the order of claims.
func (t *Table) Serves(x backends.Index, o backends.RowOrdering) bool {
	fixed, understood := t.fixedByPartialIndex(x.Only)
	if x.Only != "" && !understood {
		return false
	}
	leading := map[string]bool{}  // columns that have to come first
	constant := map[string]bool{} // columns whose one value leaves the rows in the order of the next columns
	for _, c := range t.WaitingColumns() {
		leading[c.Column] = !slices.Contains(fixed, c.Column)
		constant[c.Column] = o.NullFixed || !c.Null
	}
	columns := x.Columns
	for ; len(columns) > 0 && leading[columns[0].Name]; columns = columns[1:] {
		if leading[columns[0].Name] = false; !constant[columns[0].Name] {
			return false
		}
	}
	for _, missing := range leading {
		if missing {
			return false
		}
	}
	columns = slices.DeleteFunc(slices.Clone(columns), func(c backends.IndexColumn) bool { return constant[c.Name] })
	order := t.IndexOrder()
	if len(columns) < len(order) {
		return false
	}
	forward, backward := true, true
	for i, o := range order {
		forward = forward && columns[i] == o
		backward = backward && columns[i].Name == o.Name && columns[i].Descending != o.Descending
	}
	return forward || backward
}

// typeCast matches the cast that an engine shows behind a constant or a column of a condition.
var typeCast = regexp.MustCompile(`::"?[a-z][a-z0-9_".]*( varying| precision| with(out)? time zone)?(\([0-9,]+\))?`)

// unquoter removes from a condition what engines add for display.
var unquoter = strings.NewReplacer("(", "", ")", "", "[", "", "]", "", "`", "", `"`, "", " ", "", "''", "'")

// fixedByPartialIndex are the columns that the condition of a partial index fixes at the value
// of rows that wait. understood is true if the condition contains nothing else.
func (t *Table) fixedByPartialIndex(only string) (columns []string, understood bool) {
	forms := map[string]string{}
	for _, c := range t.WaitingColumns() {
		v, fixed := t.Where[c.Column]
		if !fixed {
			v = t.States[backends.StateReady]
		}
		info, _ := t.Info.Column(c.Column)
		truth := mapping.Truth(v.Text)
		all := []string{c.Column + "=" + v.Text, c.Column + "='" + v.Text + "'", c.Column + "=" + truth, c.Column + "='" + truth + "'"}
		switch {
		case c.Null:
			all = []string{c.Column + "ISNULL"}
		case info.Kind == backends.BoolColumn && truth == "true":
			all = append(all, c.Column, c.Column+"=1")
		case info.Kind == backends.BoolColumn:
			all = append(all, "NOT"+c.Column, c.Column+"=0")
		}
		for _, form := range all {
			forms[unquoter.Replace(form)] = c.Column
		}
	}
	for part := range strings.SplitSeq(only, " AND ") {
		column, ok := forms[unquoter.Replace(strings.ReplaceAll(typeCast.ReplaceAllString(part, ""), "=N'", "='"))]
		if !ok {
			return nil, false
		}
		columns = append(columns, column)
	}
	return columns, true
}
