package mapping

import (
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Mapping is a Table that fits the catalogue, with its columns found.
type Mapping struct {
	Table   // with the columns' names as the catalogue spells them
	Queue   string
	Dialect backends.Dialect
	Info    backends.TableInfo
	SQLName string // the table's name, quoted

	Key     []backends.Column // of the role ID
	Payload []backends.Column
	Headers []backends.Column
	columns map[Role]backends.Column // of all other roles

	ArchiveTo ArchiveTable      // with OnAck Archive
	Retained  []Retention       // the rows that are deleted when they are old
	Warnings  backends.Findings // what fits, and could be better
}

// ArchiveTable is the table that an ack moves rows to.
type ArchiveTable struct {
	SQLName string            // quoted
	Common  []string          // the columns that both tables have
	Stamps  []backends.Column // columns of the archive alone that store when a row arrived
}

// Retention describes rows to delete after they were finished for Age.
type Retention struct {
	*Mapping                // of the table that has the rows: the queue's own, or its archive
	State    backends.State // empty: all rows of the queue
	Since    backends.Column
	Age      time.Duration
}

// ConfigKey is the key of the config that asks for the deletion.
func (r Retention) ConfigKey() string {
	if r.State == backends.StateDead {
		return "retention.dead"
	}
	return "retention.done"
}

// Column returns the column in a role that has one column at most.
func (m *Mapping) Column(role Role) (c backends.Column, has bool) {
	c, has = m.columns[role]
	return c, has
}

// Has reports whether the config names columns for the role.
func (m *Mapping) Has(role Role) bool { return len(m.Columns[role]) > 0 }

// IsIn reports whether the named column has the role.
func (m *Mapping) IsIn(role Role, column string) bool {
	c, has := m.columns[role]
	return has && c.Name == column
}

// Quote quotes the name of a column.
func (m *Mapping) Quote(c backends.Column) string { return m.Dialect.Name(c.Name) }

// HasState reports whether a row shows that it is in the state.
func (m *Mapping) HasState(s backends.State) bool {
	if m.hasStateValue(s) {
		return true
	}
	_, marked := m.DeadMarker()
	return marked && s == backends.StateDead
}

// hasStateValue reports whether the column in the role State has a value for the state.
func (m *Mapping) hasStateValue(s backends.State) bool {
	_, column := m.columns[State]
	_, value := m.States[s]
	return column && value
}

// DeadMarker returns the column that is NULL in all rows but dead ones. There is none if the
// state shows the dead ones.
func (m *Mapping) DeadMarker() (c backends.Column, has bool) {
	if m.hasStateValue(backends.StateDead) {
		return c, false
	}
	return m.Column(FailedAt)
}

// ClaimMarker returns the column that is NULL in rows that wait and not NULL in claimed ones:
// the token's, or else the time of the claim. There is none if the state shows the claimed
// ones. A state column of many values without one for claimed rows is taken for an omission
// in the config, so that the time of the claim is then no marker.
func (m *Mapping) ClaimMarker() (c backends.Column, has bool) {
	if m.HasState(backends.StateClaimed) || m.ClaimInTx {
		return c, false
	}
	state, stated := m.columns[State]
	if c, has = m.columns[TokenRole]; !has && (!stated || state.Kind == backends.BoolColumn) {
		c, has = m.columns[ClaimedAt]
	}
	return c, has
}

// ClaimRoles are the roles in which a row shows whose claim it is.
func (m *Mapping) ClaimRoles() (roles []Role) {
	for _, role := range claimRoles {
		if _, has := m.columns[role]; has {
			roles = append(roles, role)
		}
	}
	return roles
}

// Stamped are those of the columns that an INSERT must fill with the owner's time: their
// defaults would store the time in the zone of the sidecar's session.
func Stamped(columns []backends.Column) (all []backends.Column) {
	for _, c := range columns {
		if c.Stamped && !slices.Contains(c.Denied, "INSERT") {
			all = append(all, c)
		}
	}
	return all
}
