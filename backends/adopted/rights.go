package adopted

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// written are the roles whose columns claims and settles write.
var written = []Role{State, Attempts, RunAt, Worker, Error, Result, ClaimedAt, FinishedAt, FailedAt, token}

// key is the config's for a role.
func (r Role) key() string {
	if r == token {
		return "token.column"
	}
	return "columns." + string(r)
}

// alone: no statement can write a column twice, nor one that tells which row it is.
func (t *table) alone(p *problems) {
	by := map[string]Role{}
	for _, role := range written {
		c, has := t.one[role]
		if !has {
			continue
		}
		other, twice := by[c.Name]
		switch {
		case twice && !(role == FinishedAt && other == ClaimedAt): // the time of the last change
			p.add(role.key(), "the column %s is in the role %s, too: one of them needs another column, or none", c.Name, other)
		case slices.Contains(t.Columns[ID], c.Name):
			p.add(role.key(), "the column %s is the key: it cannot change", c.Name)
		}
		if _, fixed := t.Where[c.Name]; fixed && role != State {
			p.add("where."+c.Name, "the column %s is in the role %s, too, and changes: leave it out here", c.Name, role)
		}
		by[c.Name] = role
	}
}

// rights: what the login may not do, and has to.
func (t *table) rights(p *problems) {
	var lacking []string
	for _, right := range []string{"SELECT", "UPDATE"} {
		if slices.Contains(t.info.Denied, right) {
			lacking = append(lacking, right)
		}
	}
	if t.OnAck != Update && slices.Contains(t.info.Denied, "DELETE") {
		lacking = append(lacking, "DELETE")
	}
	if len(lacking) > 0 {
		all := strings.Join(lacking, ", ")
		p.wrong("table", fmt.Sprintf("GRANT %s ON %s", all, t.name), "this login lacks %s on it", all)
	}
	for _, name := range t.mentioned() {
		c, ok := t.info.Column(name)
		if !ok {
			continue
		}
		need := []string{"SELECT"}
		if slices.ContainsFunc(written, func(r Role) bool { return t.one[r].Name == name }) {
			need = append(need, "UPDATE")
		}
		for _, right := range need {
			if slices.Contains(c.Denied, right) {
				p.wrong("table", fmt.Sprintf("GRANT %s (%s) ON %s", right, t.g.Name(name), t.name), "this login lacks %s on its column %s", right, name)
			}
		}
	}
}

// mentioned are the columns that the mapping names.
func (t *table) mentioned() []string {
	names := map[string]bool{}
	for _, columns := range t.Columns {
		for _, c := range columns {
			names[c] = true
		}
	}
	for column := range t.Where {
		names[column] = true
	}
	for _, o := range t.Order {
		names[o.Column] = true
	}
	if t.Token != nil {
		names[t.Token.Column] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// archives holds the table that rows move to against the one they come from.
func (t *table) archives(p *problems, to backends.TableInfo) {
	const key = "on_ack.archive"
	switch {
	case len(to.Columns) == 0:
		hint := "see that it is spelled as the database has it"
		if len(to.Similar) > 0 {
			hint = "there is " + strings.Join(to.Similar, ", ")
		}
		p.add(key, "there is no table %s to move rows to: %s", t.Archive, hint)
		return
	case slices.Contains(to.Denied, "INSERT"):
		p.wrong(key, fmt.Sprintf("GRANT INSERT ON %s", t.g.Table(to.Schema, to.Name)), "this login lacks INSERT on the table %s", to.Name)
	case to.Unsafe != "":
		p.add(key, "the table %s cannot be changed in a transaction, so that a job could be lost: %s", to.Name, to.Unsafe)
	}
	t.archTo = t.g.Table(to.Schema, to.Name)
	for _, c := range to.Columns {
		from, both := t.info.Column(c.Name)
		switch {
		case both && !c.Generated:
			t.archive = append(t.archive, c.Name)
			t.archived(p, key, from, c, to.Name)
		case len(t.stamped([]backends.Column{c})) > 0:
			t.archStamps = append(t.archStamps, c)
		case !c.Nullable && !c.Default && !c.Generated:
			p.wrong(key, "give it a default there", "the column %s of the table %s needs a value, and the table %s has no such column", c.Name, to.Name, t.info.Name)
		}
	}
	t.agesThere(p, to)
	if len(t.archive) == 0 {
		p.add(key, "the tables %s and %s have no column in common", t.info.Name, to.Name)
	}
}

// archived: does a column of the archive hold what the table's holds?
func (t *table) archived(p *problems, key string, from, to backends.Column, table string) {
	if from.Kind != to.Kind && to.Kind != backends.TextColumn {
		p.add(key, "the column %s is of the type %s in %s, and of %s in %s, which cannot take it", from.Name, declared(from), t.info.Name, declared(to), table)
		return
	}
	if done, has := t.States[backends.StateDone]; has && from.Name == t.one[State].Name {
		if why := unfit(to, done); why != "" {
			p.add(key, "in %s, which rows in the state done move to, %s", table, why)
		}
	}
	if len(slices.DeleteFunc(slices.Clone(to.Denied), func(r string) bool { return r != "INSERT" })) > 0 {
		p.add(key, "this login lacks INSERT on the column %s of %s", to.Name, table)
	}
	switch {
	case from.Nullable && !to.Nullable:
		t.remarks.AddWarning("archive", fmt.Sprintf("queues.%s.%s: the column %s can be NULL in %s and cannot in %s: the ack of such a row is refused", p.queue, key, from.Name, t.info.Name, table),
			"let it be NULL there, too")
	case to.Chars > 0 && (from.Chars == 0 || from.Chars > to.Chars), to.Most > 0 && (from.Most == 0 || from.Most > to.Most):
		t.remarks.AddWarning("archive", fmt.Sprintf("queues.%s.%s: the column %s holds less in %s (%s) than in %s (%s): the ack of a row that has more is refused",
			p.queue, key, from.Name, table, declared(to), t.info.Name, declared(from)), "let it hold as much there")
	}
}
