package adopted

import (
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
	g       backends.Dialect
	info    backends.TableInfo
	name    string            // quoted
	key     []backends.Column // in the role id
	one     map[Role]backends.Column
	payload []backends.Column
	headers []backends.Column
	archive []string // quoted names of the columns that both tables have
	archTo  string   // quoted
	// archStamps are columns of the archive alone that show when a row came there.
	archStamps []backends.Column
	aged       []aged            // what is deleted when it is old
	remarks    backends.Findings // what was seen on the way

	noEnqueue error // nil: jobs can be enqueued

	index  string // that has the rows which wait in the order of claims; empty: none is known to
	sought bool   // its first column is found at a value
}

// compile holds a mapping against the table as it is. p gets all that is wrong; nil:
// there is no such table.
func compile(p *problems, m Table, info backends.TableInfo, g backends.Dialect) *table {
	queue := p.queue
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
		return nil
	}
	if info.Kind != "table" {
		p.add("table", "%s is a %s: only a table's rows can be locked", full, info.Kind)
	}
	if info.Unsafe != "" {
		p.add("table", "its rows cannot be changed in a transaction, so that a job could be lost, or worked twice: %s", info.Unsafe)
	}
	t.name = g.Table(info.Schema, info.Name)
	t.roles(p)
	t.keyed(p)
	t.states(p)
	t.times(p)
	t.held(p)
	for _, o := range m.Order {
		t.column(p, "order", o.Column)
	}
	t.values(p)
	t.alone(p)
	t.rights(p)
	t.ages(p)
	if len(p.all) == 0 {
		t.noEnqueue = t.inserts()
	}
	return t
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

// times are the roles of a time.
var times = []Role{RunAt, CreatedAt, ClaimedAt, FinishedAt, FailedAt}

// kindNames are kinds of columns, for people.
func kindNames(kinds []backends.ColumnKind) string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = map[backends.ColumnKind]string{
			backends.TextColumn: "text", backends.NumberColumn: "whole numbers", backends.JSONColumn: "JSON", backends.BytesColumn: "bytes",
		}[k]
	}
	return strings.Join(names, ", ")
}

// fits holds a column's type and rules against its role.
func (t *table) fits(p *problems, role Role, c backends.Column) {
	key := "columns." + string(role)
	kinds := map[Role][]backends.ColumnKind{
		Attempts: {backends.NumberColumn}, OwnLimit: {backends.NumberColumn}, Priority: {backends.NumberColumn},
		Worker: {backends.TextColumn}, Error: {backends.TextColumn, backends.JSONColumn},
		Result: {backends.TextColumn, backends.JSONColumn, backends.BytesColumn},
	}[role]
	if slices.Contains(times, role) {
		if why, do := t.unfitTime(c); why != "" {
			p.wrong(key, do, "%s", why)
		}
	}
	if kinds != nil && !slices.Contains(kinds, c.Kind) && !(counts(c) && slices.Contains(kinds, backends.NumberColumn)) {
		p.wrong(key, "name a column of a type that can: "+kindNames(kinds), "the column %s is of the type %s, which can't hold it", c.Name, declared(c))
	}
	if c.Generated && role != CreatedAt {
		p.add(key, "the column %s is generated: nobody can write it", c.Name)
	}
}

func (t *table) states(p *problems) {
	_, state := t.one[State]
	_, done := t.States[backends.StateDone]
	mark, marked := t.marker()
	if _, ready := t.States[backends.StateReady]; state && !ready {
		p.add("states.ready", "it is missing: what does the column %s say of a job that waits?", t.one[State].Name)
	}
	if !state && len(t.States) > 0 {
		p.add("states", "columns.state is missing: which column says it?")
	}
	switch {
	case !marked && t.shows(backends.StateClaimed) == nil && !t.Hold:
		p.add("states.claimed", "nothing in a row would say that it is being worked on: name its state, or a token, or a columns.claimed_at that is NULL in rows that wait")
	case marked && !mark.Nullable:
		key := ClaimedAt
		if t.Token != nil {
			key = token
		}
		p.add(key.key(), "the column %s cannot be NULL, so nothing says which rows wait: name columns.state and states.claimed", mark.Name)
	}
	if c, has := t.tomb(); has && !c.Nullable {
		p.add(FailedAt.key(), "the column %s cannot be NULL, so every row would be dead: name states.dead, or leave it out", c.Name)
	}
	if t.OnAck == Update && !(state && done) {
		p.add("on_ack", "update needs states.done; say delete or archive, or name it")
	}
}

// held: while a job is held its row says nothing.
func (t *table) held(p *problems) {
	if !t.Hold {
		return
	}
	const why = "with hold: transaction a row says nothing while it is worked on, for its lock does: leave it out"
	if _, claimed := t.States[backends.StateClaimed]; claimed {
		p.add("states.claimed", why)
	}
	for _, role := range []Role{Worker, ClaimedAt, token} {
		if _, has := t.one[role]; has {
			p.add(role.key(), why)
		}
	}
	if t.StuckAfter > 0 {
		p.add("stuck_after", "with hold: transaction no row is ever left behind: its lock falls with its consumer's connection; leave it out")
	}
}

func (t *table) times(p *problems) {
	if _, ok := t.one[ClaimedAt]; t.StuckAfter > 0 && !ok {
		p.add("stuck_after", "columns.claimed_at is missing: nothing says since when a row is claimed")
	}
	if _, marked := t.marker(); t.StuckAfter > 0 && t.shows(backends.StateClaimed) == nil && !marked {
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
	if c, has := t.tomb(); has && s == backends.StateDead {
		return []string{t.g.Name(c.Name) + " IS NOT NULL"}
	}
	return nil
}

// tomb is the column that tells dead rows from all others, where it is NULL, if the state
// doesn't.
func (t *table) tomb() (c backends.Column, has bool) {
	if _, state := t.one[State]; state {
		if _, dead := t.States[backends.StateDead]; dead {
			return c, false
		}
	}
	c, has = t.one[FailedAt]
	return c, has
}

// alive is the condition that a row is not dead, where a column of times tells it.
func (t *table) alive() []string {
	if c, has := t.tomb(); has {
		return []string{t.g.Name(c.Name) + " IS NULL"}
	}
	return nil
}

// marker is the column that tells claimed rows from those that wait, where it is NULL, if
// the state doesn't: the token's, or else the time of the claim. Where a state of many values
// lacks one for claimed rows, that is more likely forgotten.
func (t *table) marker() (c backends.Column, has bool) {
	if t.shows(backends.StateClaimed) != nil || t.Hold {
		return c, false
	}
	state, stated := t.one[State]
	if c, has = t.one[token]; !has && (!stated || state.Kind == backends.BoolColumn) {
		c, has = t.one[ClaimedAt]
	}
	return c, has
}

// taken are the conditions of a row that is being worked on, beside what shows whose it is:
// what marks it may stay in a row that is done or dead.
func (t *table) taken() []string {
	shown := t.shows(backends.StateClaimed)
	if shown == nil {
		shown = t.shows(backends.StateReady)
	}
	return append(shown, t.alive()...)
}

// waits are the conditions of a row that waits, as its own consumers see it.
func (t *table) waits() []string {
	all := append(t.inQueue(), t.shows(backends.StateReady)...)
	if c, has := t.marker(); has {
		all = append(all, t.is(c.Name, Value{Null: true}))
	}
	all = append(all, t.alive()...)
	if len(all) == 0 {
		all = []string{"1 = 1"} // of a held queue: whatever is in its table waits
	}
	return all
}

// claimable are the conditions of a row that a claim takes now; limit is its
// policy's limit of attempts.
func (t *table) claimable(limit int) string {
	all := t.waits()
	if c, has := t.one[Attempts]; has {
		all = append(all, t.counted(c)+" < "+t.limit(limit))
	}
	if c, has := t.one[RunAt]; has {
		all = append(all, fmt.Sprintf("(%s IS NULL OR %s)", t.g.Name(c.Name), t.passed(c, 0)))
	}
	if short := t.short(); short != "" {
		all = append(all, short)
	}
	leases := t.g.SidecarTable(leasesTable) + " l"
	if h, ok := t.g.(backends.HintDialect); ok { // a claim looks again at what is remembered of those that it finds
		leases = h.UnlockedTable(leases)
	}
	all = append(all, t.not(leases, "l.not_before > "+t.g.NowMillis()))
	return strings.Join(all, " AND ")
}

// limit is how many attempts a row may have: its own column's number, or, where that is NULL
// or no such limit, the queue's.
func (t *table) limit(queue int) string {
	c, has := t.one[OwnLimit]
	if !has {
		return fmt.Sprint(queue)
	}
	name := t.g.Name(c.Name)
	return fmt.Sprintf("CASE WHEN %s BETWEEN 1 AND %d THEN %s WHEN %[1]s >= %[4]d THEN %[2]d ELSE %[5]d END", name, noLimit-1, t.g.Integer(name), noLimit, queue)
}

// counted is the column's number, in a form that an index of it serves.
func (t *table) counted(c backends.Column) string {
	if c.Nullable {
		return "coalesce(" + t.g.Name(c.Name) + ", 0)"
	}
	return t.g.Name(c.Name)
}

// remembered is the condition that a row's lease meets one. The table's own columns
// may be called as those of the leases, and mean theirs wherever they are in scope.
func (t *table) remembered(condition string) string {
	return fmt.Sprintf("EXISTS (SELECT 1 FROM (SELECT l.item AS qsidecar_item FROM %s l WHERE l.queue = %s AND %s) x WHERE x.qsidecar_item = %s)",
		t.g.SidecarTable(leasesTable), t.g.Text(t.queue), condition, t.g.RowKey(t.key))
}

// forgotten is the condition that a row's lease, should it have one, does not meet
// one. MySQL makes a join of a NOT EXISTS, and then may read and sort all that waits.
func (t *table) forgotten(condition string) string {
	return t.not(t.g.SidecarTable(leasesTable)+" l", condition)
}

func (t *table) not(leases, condition string) string {
	return fmt.Sprintf("(SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM %s WHERE l.queue = %s AND %s) x WHERE x.qsidecar_item = %s) IS NULL",
		leases, t.g.Text(t.queue), condition, t.g.RowKey(t.key))
}

// order is what claims go by.
func (t *table) order() string {
	var all []string
	for _, o := range t.by() {
		c := t.g.Name(o.Column)
		if o.Descending {
			c += " DESC"
		}
		all = append(all, c)
	}
	return strings.Join(all, ", ")
}

// by are the columns that claims go by.
func (t *table) by() (all []Ordering) {
	if len(t.Order) > 0 {
		return t.Order
	}
	if c, has := t.one[Priority]; has {
		all = append(all, Ordering{c.Name, true})
	}
	if c, has := t.one[CreatedAt]; has {
		all = append(all, Ordering{c.Name, t.LIFO})
	}
	for _, c := range t.key {
		all = append(all, Ordering{c.Name, t.LIFO})
	}
	return all
}
