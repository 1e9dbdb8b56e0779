package mapping

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// checker checks one mapping. Problems collects what does not fit.
type checker struct {
	*Mapping
	*Problems
}

// Check checks a queue's mapping against the catalogue's description of its table. It adds
// everything that does not fit to p. The result is nil if there is no such table; if p has
// problems, it is not fit for use.
func Check(p *Problems, t Table, info backends.TableInfo, d backends.Dialect) *Mapping {
	m := &Mapping{Table: t.inCatalogueSpelling(info), Queue: p.Queue, Dialect: d, Info: info, SQLName: d.Table(info.Schema, info.Name), columns: map[Role]backends.Column{}}
	c := &checker{m, p}
	full := t.Name
	if t.Schema != "" {
		full = t.Schema + "." + t.Name
	}
	if len(info.Columns) == 0 {
		p.Add("table", "there is no table %s: %s", full, SimilarOr(info, MissingTable))
		return nil
	}
	if info.Kind != "table" {
		p.Add("table", "%s is a %s: only a table's rows can be locked", full, info.Kind)
	}
	if info.Unsafe != "" {
		p.Add("table", "its rows can't be changed in a transaction, so a job could be lost or run twice: %s", info.Unsafe)
	}
	if why := Unshareable(info); why != "" {
		p.Add("table", "%s", why)
	}
	c.roles()
	c.key()
	c.states()
	c.stuckAfter()
	c.claimInTx()
	for _, o := range m.Order {
		c.find("order", o.Column)
	}
	c.constants()
	c.sharedColumns()
	c.rights()
	c.retentions()
	return m
}

// roles finds the columns of all roles.
func (c *checker) roles() {
	for _, role := range Roles {
		names := c.Columns[role]
		if len(names) == 0 {
			continue
		}
		var found []backends.Column
		for _, name := range names {
			if column, ok := c.find(role.configKey(), name); ok {
				found = append(found, column)
			}
		}
		if len(found) < len(names) {
			continue
		}
		switch {
		case role == ID:
			c.Key = found
		case role == Payload:
			c.Payload = found
		case role == Headers:
			c.Headers = found
		case len(found) > 1:
			c.Add(role.configKey(), "it takes one column, but %d are listed", len(found))
		default:
			c.columns[role] = found[0]
			c.columnType(role, found[0])
		}
	}
	for role := range c.Columns {
		if !slices.Contains(Roles, role) {
			c.Add("columns", "there is no role %q", role)
		}
	}
	if c.Token != nil {
		if column, ok := c.find(TokenRole.configKey(), c.Token.Column); ok {
			c.columns[TokenRole] = column
		}
	}
}

// zonedType matches PostgreSQL's types whose texts change with the session's time zone: ranges and arrays of times.
var zonedType = regexp.MustCompile(`^tstz|^timestamp.* with time zone\[`)

// key checks that the columns in the role ID are a unique key.
func (c *checker) key() {
	names := c.Columns[ID]
	if len(names) == 0 {
		c.Add("columns.id", "it is missing: name the columns of the table's key")
		return
	}
	if len(c.Key) < len(names) {
		return // a column does not exist
	}
	key := slices.Sorted(slices.Values(names))
	if !slices.ContainsFunc(c.Info.Unique, func(u []string) bool { return slices.Equal(slices.Sorted(slices.Values(u)), key) }) {
		what := "the column " + names[0] + " alone is"
		if len(names) > 1 {
			what = "the columns " + strings.Join(names, ", ") + " are"
		}
		c.Add("columns.id", "%s no primary key and no unique key: each job must be one row", what)
	}
	for _, column := range c.Key {
		if column.Kind == backends.BytesColumn || column.Kind == backends.JSONColumn || zonedType.MatchString(column.Type) {
			c.Add("columns.id", "the column %s is of the type %s, which can't be part of a job's id: name a key of numbers, texts or UUIDs", column.Name, DeclaredType(column))
		}
	}
}

// states checks that the mapping distinguishes waiting, claimed, dead and done rows.
func (c *checker) states() {
	state, stated := c.columns[State]
	marker, marked := c.ClaimMarker()
	if _, ready := c.States[backends.StateReady]; stated && !ready {
		c.Add("states.ready", "it is missing: name the value of the column %s that marks a job as ready", state.Name)
	}
	if !stated && len(c.Columns[State]) > 0 {
		return // the table has no such column, which is reported already
	}
	if !stated && len(c.States) > 0 {
		c.Add("states", "columns.state is missing: name the column that holds these values")
	}
	switch {
	case !marked && !c.HasState(backends.StateClaimed) && !c.ClaimInTx:
		c.Add("states.claimed", "nothing in a row shows that it is claimed: name its state, a token, or a columns.claimed_at that is NULL in ready rows")
	case marked && !marker.Nullable:
		role := ClaimedAt
		if c.Token != nil {
			role = TokenRole
		}
		c.Add(role.configKey(), "the column %s can't be NULL, so it doesn't show which rows are ready: name columns.state and states.claimed", marker.Name)
	}
	if dead, has := c.DeadMarker(); has && !dead.Nullable {
		c.Add(FailedAt.configKey(), "the column %s can't be NULL, so every row would be dead: name states.dead, or remove it", dead.Name)
	}
	if c.OnAck == Update && !c.hasStateValue(backends.StateDone) {
		c.Add("on_ack", "update needs states.done: name it, or set on_ack to delete or to an archive")
	}
}

// stuckAfter checks that a row shows when its own consumers claimed it.
func (c *checker) stuckAfter() {
	if c.StuckAfter <= 0 {
		return
	}
	if _, has := c.columns[ClaimedAt]; !has {
		c.Add("stuck_after", "columns.claimed_at is missing: no column shows since when a row is claimed")
	}
	if _, marked := c.ClaimMarker(); !marked && !c.HasState(backends.StateClaimed) {
		c.Add("stuck_after", "states.claimed is missing: no value shows which rows are claimed")
	}
}

// claimInTx refuses what needs a claimed row to show its claim: with claim_mode: transaction it shows nothing.
func (c *checker) claimInTx() {
	if !c.ClaimInTx {
		return
	}
	const why = "with claim_mode: transaction only its lock shows that a row is claimed: remove it"
	if _, claimed := c.States[backends.StateClaimed]; claimed {
		c.Add("states.claimed", why)
	}
	for _, role := range c.ClaimRoles() {
		c.Add(role.configKey(), why)
	}
	if c.StuckAfter > 0 {
		c.Add("stuck_after", "with claim_mode: transaction a row is ready again as soon as its consumer's connection ends: remove it")
	}
}

// sharedColumns refuses a column in two roles that are written, since a statement cannot write
// it twice. It also refuses to write columns that identify the row.
func (c *checker) sharedColumns() {
	by := map[string]Role{}
	for _, role := range writtenRoles {
		column, has := c.columns[role]
		if !has {
			continue
		}
		other, twice := by[column.Name]
		switch {
		case twice && !(role == FinishedAt && other == ClaimedAt): // that one is the time of the last change
			c.Add(role.configKey(), "the column %s also has the role %s: name another column for one of them, or remove it", column.Name, other)
		case slices.Contains(c.Columns[ID], column.Name):
			c.Add(role.configKey(), "the column %s is in the key, which must not change: name another column", column.Name)
		}
		if _, fixed := c.Where[column.Name]; fixed && role != State {
			c.Add("where."+column.Name, "the column %s also has the role %s, so its value changes: remove it here", column.Name, role)
		}
		by[column.Name] = role
	}
}

// rights checks that the login can read and write what claims and settles need.
func (c *checker) rights() {
	if c.Info.Lacks != "" {
		c.AddFix("table", c.Info.Grant(c.Info.Lacks), "this login lacks %s, which each statement about the table needs", c.Info.Lacks)
	}
	need := []string{"SELECT", "UPDATE"}
	if c.OnAck != Update {
		need = append(need, "DELETE")
	}
	if lacking := c.lacking(need); lacking != "" {
		c.AddFix("table", c.Info.Grant(lacking+" ON "+c.SQLName), "this login lacks %s on it", lacking)
	}
	for _, column := range c.Info.Columns {
		if !c.Names(column.Name) {
			continue
		}
		need := []string{"SELECT"}
		if slices.ContainsFunc(writtenRoles, func(r Role) bool { return c.IsIn(r, column.Name) }) {
			need = append(need, "UPDATE")
		}
		for _, right := range need {
			if slices.Contains(column.Denied, right) {
				c.AddFix("table", c.Info.Grant(fmt.Sprintf("%s (%s) ON %s", right, c.Quote(column), c.SQLName)), "this login lacks %s on its column %s", right, column.Name)
			}
		}
	}
}

// lacking are those of the rights that the login lacks on the table.
func (m *Mapping) lacking(rights []string) string {
	return strings.Join(slices.DeleteFunc(rights, func(right string) bool { return !slices.Contains(m.Info.Denied, right) }), ", ")
}

// Names reports whether the config mentions the column.
func (t Table) Names(column string) bool {
	for _, columns := range t.Columns {
		if slices.Contains(columns, column) {
			return true
		}
	}
	_, fixed := t.Where[column]
	return fixed || slices.ContainsFunc(t.Order, func(o Ordering) bool { return o.Column == column }) || t.Token != nil && t.Token.Column == column
}
