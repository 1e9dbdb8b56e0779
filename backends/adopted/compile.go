package adopted

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// table is a Table that was held against the database.
type table struct {
	Table
	queue   string
	g       backends.Grammar
	info    backends.TableInfo
	name    string            // quoted
	key     []backends.Column // in the role id
	one     map[Role]backends.Column
	payload []backends.Column
	headers []backends.Column
	archive []string // quoted names of the columns that both tables have
	archTo  string   // quoted
}

// problems collects what is wrong with a mapping.
type problems struct {
	queue string
	all   []error
}

func (p *problems) add(key, format string, args ...any) {
	p.all = append(p.all, fmt.Errorf("queues.%s.%s: %s", p.queue, key, fmt.Sprintf(format, args...)))
}

// compile holds a mapping against the table as it is. The error has all that is wrong.
func compile(queue string, m Table, info backends.TableInfo, g backends.Grammar) (*table, error) {
	p := &problems{queue: queue}
	t := &table{Table: m, queue: queue, g: g, info: info, one: map[Role]backends.Column{}}
	full := m.Name
	if m.Schema != "" {
		full = m.Schema + "." + m.Name
	}
	if len(info.Columns) == 0 {
		hint := "see that it is spelled as the database has it, and that this login may look at it"
		if len(info.Similar) > 0 {
			hint = "there is " + strings.Join(info.Similar, ", ")
		}
		p.add("table", "there is no table %s: %s", full, hint)
		return nil, errors.Join(p.all...)
	}
	if info.Kind != "table" {
		p.add("table", "%s is a %s: only a table's rows can be locked", full, info.Kind)
	}
	t.name = g.Table(info.Schema, info.Name)
	t.roles(p)
	t.keyed(p)
	t.states(p)
	t.times(p)
	for _, column := range slices.Sorted(maps.Keys(m.Where)) {
		t.column(p, "where", column)
	}
	for _, o := range m.Order {
		t.column(p, "order", o.Column)
	}
	if len(p.all) > 0 {
		return nil, errors.Join(p.all...)
	}
	return t, nil
}

// column finds a column, or tells what is there.
func (t *table) column(p *problems, key, name string) (backends.Column, bool) {
	c, ok := t.info.Column(name)
	if ok {
		return c, true
	}
	var names []string
	for _, c := range t.info.Columns {
		if strings.EqualFold(c.Name, name) {
			p.add(key, "the table has no column %s: it is called %s there", name, c.Name)
			return c, false
		}
		names = append(names, c.Name)
	}
	p.add(key, "the table has no column %s: it has %s", name, strings.Join(names, ", "))
	return c, false
}

func (t *table) roles(p *problems) {
	for _, role := range Roles {
		names := t.Columns[role]
		if len(names) == 0 {
			continue
		}
		var found []backends.Column
		for _, name := range names {
			if c, ok := t.column(p, "columns."+string(role), name); ok {
				found = append(found, c)
			}
		}
		if len(found) < len(names) {
			continue
		}
		switch {
		case role == ID:
			t.key = found
		case role == Payload:
			t.payload = found
		case role == Headers:
			t.headers = found
		case len(found) > 1:
			p.add("columns."+string(role), "one column, and there are %d", len(found))
		default:
			t.one[role] = found[0]
			t.fits(p, role, found[0])
		}
	}
	for role := range t.Columns {
		if !slices.Contains(Roles, role) {
			p.add("columns", "there is no role %q", role)
		}
	}
	if t.Token != nil {
		if c, ok := t.column(p, "token.column", t.Token.Column); ok {
			t.one[token] = c
		}
	}
}

// fits holds a column's type and rules against its role.
func (t *table) fits(p *problems, role Role, c backends.Column) {
	key := "columns." + string(role)
	kinds := map[Role][]backends.ColumnKind{
		Attempts: {backends.NumberColumn}, Priority: {backends.NumberColumn},
		RunAt: {backends.TimeColumn}, CreatedAt: {backends.TimeColumn}, ClaimedAt: {backends.TimeColumn}, FinishedAt: {backends.TimeColumn},
		Worker: {backends.TextColumn}, Error: {backends.TextColumn, backends.JSONColumn},
		Result: {backends.TextColumn, backends.JSONColumn, backends.BytesColumn},
	}[role]
	if kinds != nil && !slices.Contains(kinds, c.Kind) {
		p.add(key, "the column %s is of the type %s, which cannot be it", c.Name, c.Type)
	}
	if c.Generated && role != CreatedAt {
		p.add(key, "the column %s is generated: nobody can write it", c.Name)
	}
}

func (t *table) states(p *problems) {
	_, state := t.one[State]
	_, claimed := t.States[backends.StateClaimed]
	_, done := t.States[backends.StateDone]
	token, tokens := t.one[token]
	if _, ready := t.States[backends.StateReady]; state && !ready {
		p.add("states.ready", "it is missing: what does the column %s say of a job that waits?", t.one[State].Name)
	}
	if !state && len(t.States) > 0 {
		p.add("states", "columns.state is missing: which column says it?")
	}
	if !(state && claimed) && !tokens {
		p.add("states.claimed", "nothing in a row would say that it is being worked on: name its state, or a token")
	}
	if !state && tokens && !token.Nullable {
		p.add("token.column", "the column %s cannot be NULL, so nothing says which rows wait: name columns.state", token.Name)
	}
	if t.OnAck == Update && !(state && done) {
		p.add("on_ack", "update needs states.done; say delete or archive, or name it")
	}
	for s, v := range t.States {
		if state && v.Null && !t.one[State].Nullable {
			p.add("states."+string(s), "the column %s cannot be NULL", t.one[State].Name)
		}
	}
}

func (t *table) times(p *problems) {
	if _, ok := t.one[ClaimedAt]; t.StuckAfter > 0 && !ok {
		p.add("stuck_after", "columns.claimed_at is missing: nothing says since when a row is claimed")
	}
	if _, ok := t.States[backends.StateClaimed]; t.StuckAfter > 0 && !ok {
		p.add("stuck_after", "states.claimed is missing: nothing says which rows are claimed")
	}
}

// is compares a column with a constant.
func (t *table) is(c string, v Value) string {
	if v.Null {
		return t.g.Name(c) + " IS NULL"
	}
	return t.g.Name(c) + " = " + t.constant(c, v)
}

// constant is a value of the config as the column has it.
func (t *table) constant(c string, v Value) string {
	if v.Null {
		return "NULL"
	}
	column, _ := t.info.Column(c) // it is there: compile looked
	return t.g.Constant(v.Text, column)
}

// becomes assigns a constant to a column.
func (t *table) becomes(c string, v Value) string {
	return t.g.Name(c) + " = " + t.constant(c, v)
}

// inQueue are the conditions that every row of the queue meets.
func (t *table) inQueue() (all []string) {
	for _, column := range slices.Sorted(maps.Keys(t.Where)) {
		all = append(all, t.is(column, t.Where[column]))
	}
	return all
}

// shows is the condition that a row shows the state, as far as the table has it.
func (t *table) shows(s backends.State) []string {
	v, ok := t.States[s]
	if c, has := t.one[State]; has && ok {
		return []string{t.is(c.Name, v)}
	}
	return nil
}

// waits are the conditions of a row that waits, as its own consumers see it.
func (t *table) waits() []string {
	all := append(t.inQueue(), t.shows(backends.StateReady)...)
	if c, has := t.one[token]; has && t.one[State].Name == "" {
		all = append(all, t.is(c.Name, Value{Null: true}))
	}
	return all
}

// claimable are the conditions of a row that a claim takes now; limit is its
// policy's limit of attempts.
func (t *table) claimable(limit int) string {
	all := t.waits()
	if c, has := t.one[Attempts]; has {
		all = append(all, fmt.Sprintf("coalesce(%s, 0) < %d", t.g.Name(c.Name), limit))
	}
	if c, has := t.one[RunAt]; has {
		all = append(all, fmt.Sprintf("(%s IS NULL OR %[1]s <= %s)", t.g.Name(c.Name), t.g.Clock(c, t.UTC)))
	}
	if short := t.short(); short != "" {
		all = append(all, short)
	}
	all = append(all, "NOT "+t.remembered("l.not_before > "+t.g.NowMillis()))
	return strings.Join(all, " AND ")
}

// remembered is the condition that a row's lease meets one. The table's own columns
// may be called as those of the leases, and mean theirs wherever they are in scope.
func (t *table) remembered(condition string) string {
	return fmt.Sprintf("EXISTS (SELECT 1 FROM (SELECT l.item AS qsidecar_item FROM %s l WHERE l.queue = %s AND %s) x WHERE x.qsidecar_item = %s)",
		t.g.Own(leasesTable), t.g.Text(t.queue), condition, t.g.Item(t.key))
}

// order is what claims go by.
func (t *table) order() string {
	var all []string
	by := func(c string, descending bool) {
		if c = t.g.Name(c); descending {
			c += " DESC"
		}
		all = append(all, c)
	}
	for _, o := range t.Order {
		by(o.Column, o.Descending)
	}
	if len(t.Order) > 0 {
		return strings.Join(all, ", ")
	}
	if c, has := t.one[Priority]; has {
		by(c.Name, true)
	}
	if c, has := t.one[CreatedAt]; has {
		by(c.Name, t.LIFO)
	}
	for _, c := range t.key {
		by(c.Name, t.LIFO)
	}
	return strings.Join(all, ", ")
}
