package condition

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// Table writes conditions for the rows of one queue's table.
type Table struct{ *mapping.Mapping }

// NoLimit is greater than any limit of attempts.
const NoLimit = 1 << 15

// Constant is a constant of the config as a value of the column.
func (t *Table) Constant(column string, v mapping.Value) string {
	if v.Null {
		return "NULL"
	}
	c, _ := t.Info.Column(column) // mapping.Check found it
	return t.Dialect.Constant(v.Text, c)
}

// Equal compares a column with a constant of the config.
func (t *Table) Equal(column string, v mapping.Value) string {
	if v.Null {
		return t.Dialect.Name(column) + " IS NULL"
	}
	return t.Dialect.Name(column) + " = " + t.Constant(column, v)
}

// InQueue are the conditions that every row of the queue meets.
func (t *Table) InQueue() (all []string) {
	for _, column := range slices.Sorted(maps.Keys(t.Where)) {
		all = append(all, t.Equal(column, t.Where[column]))
	}
	return all
}

// Shows is the condition that a row shows the state; nil: no row shows it.
func (t *Table) Shows(s backends.State) []string {
	if !t.HasState(s) {
		return nil
	}
	if c, marked := t.DeadMarker(); marked && s == backends.StateDead {
		return []string{t.Quote(c) + " IS NOT NULL"}
	}
	c, _ := t.Column(mapping.State)
	return []string{t.Equal(c.Name, t.States[s])}
}

// notDead is the condition that a row does not have the mark of dead ones.
func (t *Table) notDead() []string {
	if c, has := t.DeadMarker(); has {
		return []string{t.Quote(c) + " IS NULL"}
	}
	return nil
}

// Claimed are the conditions of a claimed row, besides those for whose claim it is. They do not
// ask for the claim's mark, since it can stay in rows that are done or dead.
func (t *Table) Claimed() []string {
	shown := t.Shows(backends.StateClaimed)
	if shown == nil {
		shown = t.Shows(backends.StateReady)
	}
	return append(shown, t.notDead()...)
}

// Waiting are the conditions of a row that waits, as the table's own consumers see it.
func (t *Table) Waiting() []string {
	all := append(t.InQueue(), t.Shows(backends.StateReady)...)
	if c, has := t.ClaimMarker(); has {
		all = append(all, t.Equal(c.Name, mapping.Value{Null: true}))
	}
	all = append(all, t.notDead()...)
	if len(all) == 0 {
		all = []string{"1 = 1"} // with claim_mode: transaction every row of the table waits
	}
	return all
}

// InState are the conditions of the rows in a state, as a sidecar sees them; nil: no row shows
// the state.
func (t *Table) InState(state backends.State) []string {
	limit := cmp.Or(t.MaxAttempts, NoLimit)
	attempts, counted := t.Column(mapping.Attempts)
	switch state {
	case backends.StateReady:
		return []string{t.Claimable(limit)}
	case backends.StateScheduled:
		later := t.HasLease(fmt.Sprintf("l.not_before > %s AND l.not_before < %d", t.Dialect.NowMillis(), int64(lease.Never)))
		if c, has := t.Column(mapping.RunAt); has {
			later += " OR " + t.isFuture(c)
		}
		all := append(t.Waiting(), "("+later+")")
		if counted {
			all = append(all, fmt.Sprintf("coalesce(%s, 0) < %s", t.Quote(attempts), t.AttemptLimit(limit)))
		}
		return all
	case backends.StateDead:
		return t.dead(limit)
	case backends.StateClaimed:
		c, marked := t.ClaimMarker()
		if t.ClaimInTx {
			return nil // the row does not show it
		}
		all := append(t.InQueue(), t.Claimed()...)
		if marked {
			all = append(all, t.Quote(c)+" IS NOT NULL")
		}
		return all
	default:
		shown := t.Shows(state)
		if shown == nil || t.OnAck != mapping.Update {
			return nil
		}
		return append(t.InQueue(), shown...)
	}
}

// dead returns the conditions of dead rows: rows that show that state, and waiting rows with all
// attempts used, by sidecars or by the table's own consumers.
func (t *Table) dead(limit int) []string {
	attempts, counted := t.Column(mapping.Attempts)
	shown := t.Shows(backends.StateDead)
	if !counted && shown == nil {
		return append(t.Waiting(), t.HasLease(fmt.Sprintf("l.not_before = %d", int64(lease.Never))))
	}
	if !counted {
		return append(t.InQueue(), shown...)
	}
	used := append(t.Waiting(), fmt.Sprintf("%s >= %s", t.Quote(attempts), t.AttemptLimit(limit)))
	if shown == nil {
		return used
	}
	return append(t.InQueue(), "("+shown[0]+" OR "+query.And(used...)+")")
}
