package adopted

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// bulk are changes that differ in their rows alone: one statement makes them all.
type bulk struct {
	t      *table
	change string // an UPDATE or a DELETE up to its conditions
	fixed  []any  // its arguments
	ends   []*ending
}

// errNotAll says that not all rows of a bulk showed their claims: nobody knows which.
// Nothing was written, and the changes are made one by one.
var errNotAll = backends.Refused(errors.New("not all rows show the claims that are settled"))

// bulks are those among what was collected.
func (x *settling) bulks() (all []*bulk) {
	open := map[string]*bulk{}
	for _, e := range x.ends {
		if x.single || e.change == "" {
			continue
		}
		key := fmt.Sprintf("%s\x00%s\x00%q", e.t.queue, e.change, e.fixed)
		b := open[key]
		if b == nil || len(b.ends) == min(together, e.t.most()) {
			b = &bulk{t: e.t, change: e.change, fixed: e.fixed}
			open[key], all = b, append(all, b)
		}
		b.ends = append(b.ends, e)
	}
	all = slices.DeleteFunc(all, func(b *bulk) bool { return len(b.ends) == 1 })
	for _, b := range all {
		for _, e := range b.ends {
			e.together = true
		}
	}
	return all
}

// statement changes the rows that show their claims.
func (b *bulk) statement() *backends.Statement {
	w := &writing{t: b.t, args: slices.Clone(b.fixed)}
	items := make([]string, len(b.ends))
	for i, e := range b.ends {
		items[i] = e.l.item
	}
	all := append([]string{w.among(items)}, append(b.t.inQueue(), b.t.taken()...)...)
	for _, role := range b.t.showing() {
		all = append(all, b.shows(w, role)...)
	}
	return &backends.Statement{Text: b.change + " WHERE " + strings.Join(all, " AND "), Args: w.args}
}

// shows is the condition that each row shows in the role what its claim wrote there.
func (b *bulk) shows(w *writing, role Role) []string {
	c := b.t.one[role]
	var texts []string
	items := map[string][]string{}
	for _, e := range b.ends {
		text, shown := e.shown[role]
		if !shown { // the mapping had no such role when it was claimed
			continue
		}
		if items[text] == nil {
			texts = append(texts, text)
		}
		items[text] = append(items[text], e.l.item)
	}
	switch {
	case len(texts) == 0:
		return nil
	case len(texts) == 1 && len(items[texts[0]]) == len(b.ends):
		return []string{w.equals(c, texts[0])}
	}
	cases := ""
	for i := range powerOfTwo(len(texts)) { // the last comes again and again: the texts of statements are few
		text := texts[min(i, len(texts)-1)]
		cases += " WHEN " + w.among(items[text])
		cases += " THEN CASE WHEN " + w.equals(c, text) + " THEN 1 ELSE 0 END"
	}
	return []string{"CASE" + cases + " ELSE 1 END = 1"}
}

// done notes that the changes were made, now that st was carried out.
func (b *bulk) done(st *backends.Statement) error {
	if st.Matched != int64(len(b.ends)) {
		return errNotAll
	}
	for _, e := range b.ends {
		e.statement.Matched = 1
	}
	return nil
}
