package adopted

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// writing is an UPDATE that is put together.
type writing struct {
	t    *table
	args []any
	sets []string
}

// value is a text as a value of the column.
func (w *writing) value(c backends.Column, text string) string {
	w.takes(c, text)
	return w.t.g.Arg(len(w.args), c)
}

// exactly is the same, where nothing of the text may be lost.
func (w *writing) exactly(c backends.Column, text string) string {
	w.takes(c, text)
	return w.t.g.ExactArg(len(w.args), c)
}

func (w *writing) takes(c backends.Column, text string) {
	var arg any = text
	if c.Kind == backends.BytesColumn {
		arg = []byte(text)
	}
	w.args = append(w.args, arg)
}

// equals is the condition that the column has this text.
func (w *writing) equals(c backends.Column, text string) string {
	w.value(c, text)
	return w.t.g.Equals(len(w.args), c)
}

func (w *writing) set(c backends.Column, expression string) {
	w.sets = append(w.sets, w.t.g.Name(c.Name)+" = "+expression)
}

// state has the row show the state; false: it has nothing for it.
func (w *writing) state(s backends.State) bool {
	v, ok := w.t.States[s]
	c, has := w.t.one[State]
	if ok && has {
		w.sets = append(w.sets, w.t.becomes(c.Name, v))
	}
	return ok && has
}

// text writes a text for people, cut to what the column holds.
func (w *writing) text(role Role, text string) error {
	c, has := w.t.one[role]
	if !has {
		return nil
	}
	if c.Kind == backends.JSONColumn {
		quoted, err := json.Marshal(text)
		if err != nil {
			return err
		}
		text = string(quoted)
	} else {
		text = heldBy(c, text)
	}
	w.set(c, w.value(c, text))
	return nil
}

// row is the condition for one row: its id, and more.
func (w *writing) row(item string, more []string) string {
	return strings.Join(append([]string{w.rowIs(item)}, more...), " AND ")
}

// ours are the conditions under which a row shows the claim.
func (w *writing) ours(l *lease) []string {
	if l.held {
		return w.t.waits()
	}
	all := append(w.t.inQueue(), w.t.taken()...)
	for _, role := range []Role{Worker, ClaimedAt, token} {
		if text, shown := l.shown[role]; shown {
			if c, has := w.t.one[role]; has {
				all = append(all, w.equals(c, text))
			}
		}
	}
	return all
}

// update changes a row.
func (w *writing) update(where string) *backends.Statement {
	if len(w.sets) == 0 {
		return &backends.Statement{Text: "SELECT " + w.t.g.ToText("1") + " FROM " + w.t.name + " WHERE " + where, Args: w.args}
	}
	return &backends.Statement{Text: w.change() + " WHERE " + where, Args: w.args}
}

// change is an UPDATE up to its conditions; empty: nothing changes. Columns that an
// UPDATE touches get the owner's time: by themselves they would have that of the
// sidecar's session.
func (w *writing) change() string {
	if len(w.sets) == 0 {
		return ""
	}
	for _, c := range w.t.info.Columns {
		is := w.t.g.Name(c.Name) + " = "
		if c.Touched && !slices.Contains(c.Denied, "UPDATE") && !slices.ContainsFunc(w.sets, func(set string) bool { return strings.HasPrefix(set, is) }) {
			w.set(c, w.t.clock(c))
		}
	}
	return "UPDATE " + w.t.name + " SET " + strings.Join(w.sets, ", ")
}

// each is what each claim shows in the role: one value for all, or each row's own.
func (w *writing) each(role Role, leases []*lease) string {
	c := w.t.one[role]
	items := map[string][]string{}
	var texts []string
	for _, l := range leases {
		text := l.shown[role]
		if items[text] == nil {
			texts = append(texts, text)
		}
		items[text] = append(items[text], l.item)
	}
	if len(texts) == 1 {
		return w.value(c, texts[0])
	}
	var cases strings.Builder
	for i := range powerOfTwo(len(texts)) { // the last comes again and again: the texts of statements are few
		text := texts[min(i, len(texts)-1)]
		cases.WriteString(" WHEN " + w.among(items[text]))
		cases.WriteString(" THEN " + w.value(c, text))
	}
	return "CASE" + cases.String() + " END"
}

// unclaimed takes from the row what a claim wrote there.
func (w *writing) unclaimed() {
	for _, role := range []Role{Worker, ClaimedAt, token} {
		if c, has := w.t.one[role]; has && c.Nullable {
			w.set(c, "NULL")
		}
	}
}
