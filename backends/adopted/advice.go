package adopted

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// Advice is what could be better about the adopted tables, as far as the catalogue
// says it.
func (s *Store) Advice() (found backends.Findings) {
	for _, q := range s.queues() {
		s.tables[q].advise(&found, s.Adopter, backends.Plan{})
	}
	return found
}

// advise collects advice. plan is that of the claim, where it was asked for.
func (t *table) advise(found *backends.Findings, a backends.Advisor, plan backends.Plan) {
	*found = append(*found, t.info.Remarks...)
	*found = append(*found, t.remarks...)
	if len(t.info.Triggers) > 0 {
		found.AddWarning("triggers", fmt.Sprintf("queues.%s.table: the table %s has the triggers or rules %s: they run in the sidecar's transactions as in its own consumers', "+
			"and where one raises an error or passes a row over, that change is refused", t.queue, t.name, strings.Join(t.info.Triggers, ", ")),
			"see that they let rows be claimed and settled, and are short")
	}
	if len(t.showing()) == 0 && !t.Hold { // nobody else can change a row that is locked
		found.AddWarning("table", fmt.Sprintf("queues.%s.columns: nothing in a row tells a claim of the sidecar from one of the table's own consumers: "+
			"should a cleaner of theirs reset a row that a worker still has, and another consumer take it, the worker's ack would end that one's job", t.queue),
			"name a column in the role worker or claimed_at, or a token, where the table has one")
	}
	if !t.served(a.RowOrdering(), plan) {
		equal, order := t.equals(), t.orderings()
		found.AddWarning("index", fmt.Sprintf("queues.%s.order: no index of %s has first what is equal for all jobs that wait (%s), and then their order (%s): each claim costs more the more rows there are",
			t.queue, t.name, strings.Join(columnsOf(equal), ", "), t.order()), a.CreateIndex("waiting", t.info, equal, order))
	}
	for _, old := range t.aged {
		old.advise(found, a)
	}
}

// columnsOf are the names of the columns that a claim finds at one value.
func columnsOf(equal []backends.Condition) (names []string) {
	for _, c := range equal {
		names = append(names, c.Column)
	}
	return names
}

// equals are the columns that have one value in every row that waits.
func (t *table) equals() (all []backends.Condition) {
	for _, column := range slices.Sorted(maps.Keys(t.Where)) {
		all = append(all, backends.Condition{Column: column, SQL: t.is(column, t.Where[column]), Null: t.Where[column].Null})
	}
	c, has := t.one[State]
	ready := t.States[backends.StateReady]
	if has {
		all = append(all, backends.Condition{Column: c.Name, SQL: t.is(c.Name, ready), State: true, Null: ready.Null})
	}
	for _, tells := range []func() (backends.Column, bool){t.marker, t.tomb} {
		if c, has := tells(); has {
			all = append(all, backends.Condition{Column: c.Name, SQL: t.is(c.Name, Value{Null: true}), State: true, Null: true})
		}
	}
	return all
}

// orderings is what claims go by, without the columns that are equal in all rows and
// without what comes after a unique key.
func (t *table) orderings() (all []backends.IndexColumn) {
	fixed := columnsOf(t.equals())
	add := func(name string, descending bool) {
		if !slices.Contains(fixed, name) && !slices.ContainsFunc(all, func(c backends.IndexColumn) bool { return c.Name == name }) {
			all = append(all, backends.IndexColumn{Name: name, Descending: descending})
		}
	}
	for _, o := range t.by() {
		add(o.Column, o.Descending)
	}
	if !slices.ContainsFunc(all, func(c backends.IndexColumn) bool { return !c.Descending }) {
		for i := range all {
			all[i].Descending = false // an index is read either way
		}
	}
	return all
}

// served: an index gives the rows that wait, and them alone, in the order of claims.
func (t *table) served(h backends.RowOrdering, plan backends.Plan) bool {
	for _, x := range t.info.Indexes {
		if t.serves(x, h) || x.Only != "" && x.Name == plan.Index && !plan.Sorts {
			return true // what a partial index's condition comes to, the server knows best
		}
	}
	return false
}

// serving is the index by which claims find their rows; sought: at a value of its first column.
func (t *table) serving(h backends.RowOrdering) (index string, sought bool) {
	for _, x := range t.info.Indexes {
		if t.serves(x, h) {
			fixed, _ := t.covered(x.Only)
			first := x.Columns[0].Name
			return x.Name, slices.Contains(columnsOf(t.equals()), first) && !slices.Contains(fixed, first)
		}
	}
	return "", false
}

func (t *table) serves(x backends.Index, h backends.RowOrdering) bool {
	covered, all := t.covered(x.Only)
	if x.Only != "" && !all {
		return false
	}
	rest := map[string]bool{} // columns that have to come first
	passed := map[string]bool{}
	for _, c := range t.equals() {
		rest[c.Column] = !slices.Contains(covered, c.Column)
		passed[c.Column] = h.NullFixed || !c.Null
	}
	columns := x.Columns
	for ; len(columns) > 0 && rest[columns[0].Name]; columns = columns[1:] {
		if rest[columns[0].Name] = false; !passed[columns[0].Name] {
			return false
		}
	}
	for _, missing := range rest {
		if missing {
			return false
		}
	}
	// A column that has one value is in no order's way.
	columns = slices.DeleteFunc(slices.Clone(columns), func(c backends.IndexColumn) bool { return passed[c.Name] })
	order := t.orderings()
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

// cast is what stands behind a constant or a column where an engine shows a condition.
var cast = regexp.MustCompile(`::"?[a-z][a-z0-9_".]*( varying| precision| with(out)? time zone)?(\([0-9,]+\))?`)

// bare takes from a condition what engines add to it for show.
var bare = strings.NewReplacer("(", "", ")", "", "[", "", "]", "", "`", "", `"`, "", " ", "", "''", "'")

// covered are the columns that the condition of a partial index fixes at the value
// that they have in rows that wait. all: it says nothing else.
func (t *table) covered(only string) (columns []string, all bool) {
	forms := map[string]string{}
	for _, c := range t.equals() {
		v, fixed := t.Where[c.Column]
		if !fixed {
			v = t.States[backends.StateReady]
		}
		v.Null = c.Null
		info, _ := t.info.Column(c.Column)
		truth := truths[strings.ToLower(v.Text)]
		switch {
		case v.Null:
			forms[bare.Replace(c.Column+"ISNULL")] = c.Column
		case info.Kind == backends.BoolColumn && truth == "true":
			forms[bare.Replace(c.Column)], forms[bare.Replace(c.Column+"=1")] = c.Column, c.Column
		case info.Kind == backends.BoolColumn:
			forms[bare.Replace("NOT"+c.Column)], forms[bare.Replace(c.Column+"=0")] = c.Column, c.Column
		}
		if !v.Null {
			for _, value := range []string{v.Text, truth} {
				forms[bare.Replace(c.Column+"="+value)] = c.Column
				forms[bare.Replace(c.Column+"='"+value+"'")] = c.Column
			}
		}
	}
	for part := range strings.SplitSeq(only, " AND ") {
		column, ok := forms[bare.Replace(strings.ReplaceAll(cast.ReplaceAllString(part, ""), "=N'", "='"))]
		if !ok {
			return nil, false
		}
		columns = append(columns, column)
	}
	return columns, true
}
