package statement

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// update builds an UPDATE.
type update struct {
	*condition.Builder
	sets []set
}

// set is a column and what an update writes there.
type set struct {
	column     backends.Column
	expression string
}

func (q *Queue) newUpdate() *update { return &update{Builder: &condition.Builder{Table: q.Table}} }

func (u *update) set(c backends.Column, expression string) {
	u.sets = append(u.sets, set{c, expression})
}

// setState sets the state that the row shows; false: the table has no value for it.
func (u *update) setState(s backends.State) bool {
	v, ok := u.States[s]
	c, has := u.Column(mapping.State)
	if ok && has {
		u.set(c, u.Constant(c.Name, v))
	}
	return ok && has
}

// setNow stores the present time in the role, if a column has it.
func (u *update) setNow(role mapping.Role) (has bool) {
	c, has := u.Column(role)
	if has {
		u.set(c, u.Now(c))
	}
	return has
}

// setNull stores NULL in those of the roles that have a column which can be NULL.
func (u *update) setNull(roles ...mapping.Role) {
	for _, role := range roles {
		if c, has := u.Column(role); has && c.Nullable {
			u.set(c, "NULL")
		}
	}
}

// endClaim removes from the row what a claim wrote there. What the row had there before comes back.
func (u *update) endClaim(before map[mapping.Role]string) {
	for _, role := range u.ClaimRoles() {
		if text, had := before[role]; had {
			c, _ := u.Column(role)
			u.set(c, u.ExactValue(c, text))
		} else {
			u.setNull(role)
		}
	}
}

// addAttempts adds to the number of attempts that the row shows.
func (u *update) addAttempts(c backends.Column, n int) {
	u.set(c, fmt.Sprintf("coalesce(%s, 0) + %d", u.Quote(c), n))
}

// setError stores a message for people, cut to what the column holds.
func (u *update) setError(text string) error {
	c, has := u.Column(mapping.Error)
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
		text = mapping.Truncate(c, text)
	}
	u.set(c, u.Value(c, text))
	return nil
}

// setShown stores in the role what each claim shows there: one value for all, or each row's own.
func (u *update) setShown(role mapping.Role, leases []*lease.Lease) {
	c, _ := u.Column(role)
	texts, items := groupByShown(role, leases)
	if len(texts) == 1 {
		u.set(c, u.Value(c, texts[0]))
		return
	}
	u.set(c, "CASE"+u.Cases(texts, items, func(text string) string { return u.Value(c, text) })+" END")
}

// groupByShown groups the ids of jobs by what their claims wrote in the role. It leaves out
// claims that wrote nothing there.
func groupByShown(role mapping.Role, leases []*lease.Lease) (texts []string, items map[string][]string) {
	items = map[string][]string{}
	for _, l := range leases {
		text, shown := l.Shown[role]
		if !shown {
			continue
		}
		if items[text] == nil {
			texts = append(texts, text)
		}
		items[text] = append(items[text], l.Item)
	}
	return texts, items
}

// write is what a statement does to the rows that it finds by their key.
type write struct {
	sets   string // what an UPDATE sets
	delete bool
}

func (w write) empty() bool { return w == write{} }

// byKey changes the rows that the condition finds by their key. Without changes it only finds them.
func (q *Queue) byKey(w write, where string) string {
	switch {
	case w.delete:
		return q.Dialect.DeleteByKey(q.SQLName, q.KeyIndex(), where)
	case w.empty():
		return "SELECT " + query.Columns(q.Dialect.ToText("1")) + " FROM " + q.SQLName + " WHERE " + where
	}
	return q.Dialect.UpdateByKey(q.SQLName, q.KeyIndex(), w.sets, where)
}

// statement changes the rows that the condition finds by their key.
func (u *update) statement(where string) *backends.Statement {
	return &backends.Statement{Text: (&Queue{Table: u.Table}).byKey(u.write(), where), Args: u.Args}
}

// write is what the update sets. It gives the owner's time to columns whose defaults would store the time in the zone of the
// sidecar's session.
func (u *update) write() (w write) {
	if len(u.sets) == 0 {
		return w
	}
	for _, c := range u.Info.Columns {
		if c.Touched && !slices.Contains(c.Denied, "UPDATE") && !slices.ContainsFunc(u.sets, func(s set) bool { return s.column.Name == c.Name }) {
			u.set(c, u.Now(c))
		}
	}
	texts := make([]string, len(u.sets))
	for i, s := range u.sets {
		texts[i] = u.Quote(s.column) + " = " + s.expression
	}
	return write{sets: strings.Join(texts, ", ")}
}

// CheckChange returns an error if the table lacks what a command of the kind backends.Change sets, or the login the right for a command
// that deletes.
func (q *Queue) CheckChange(c *backends.Command) error {
	switch {
	case (c.Kind == backends.Delete || c.Kind == backends.Purge) && !q.Deletes():
		return q.unsupported("", fmt.Sprintf("a job cannot be deleted: this login lacks DELETE on %s: %s", q.SQLName, q.Info.Grant("DELETE ON "+q.SQLName)))
	case c.Kind != backends.Change:
		return nil
	case c.Priority != nil && !q.Has(mapping.Priority):
		return q.unsupported(mapping.Priority, "a job's priority cannot be stored")
	case (c.Delay != nil || !c.RunAt.IsZero()) && !q.Has(mapping.RunAt):
		return q.unsupported(mapping.RunAt, "a job cannot be scheduled")
	}
	return nil
}

// Change sets the priority or the time of rows that wait.
func (q *Queue) Change(b *condition.Builder, where string, c *backends.Command) *backends.Statement {
	u := &update{Builder: b}
	if to, has := u.Column(mapping.Priority); has && c.Priority != nil {
		u.set(to, u.Value(to, fmt.Sprint(*c.Priority)))
	}
	if to, has := u.Column(mapping.RunAt); has {
		if c.Delay != nil {
			u.set(to, u.NowPlus(to, u.Arg(core.MS(*c.Delay))))
		} else if !c.RunAt.IsZero() {
			u.set(to, u.FromMillis(to, u.Arg(c.RunAt.UnixMilli())))
		}
	}
	return u.statement(where)
}

// Reset makes rows ready again. With attempts it also removes their attempts and end. before is what a row had before its
// claim, if that is known.
func (q *Queue) Reset(b *condition.Builder, where string, attempts bool, before map[mapping.Role]string) *backends.Statement {
	u := &update{Builder: b}
	u.reset(attempts, before)
	return u.statement(where)
}

func (u *update) reset(attempts bool, before map[mapping.Role]string) {
	u.setState(backends.StateReady)
	u.endClaim(before)
	if attempts {
		u.setNull(mapping.FinishedAt, mapping.FailedAt)
		if c, has := u.Column(mapping.Attempts); has {
			u.set(c, "0")
		}
	}
}

// Delete deletes the rows that the condition finds by their key.
func (q *Queue) Delete(b *condition.Builder, where string) *backends.Statement {
	return &backends.Statement{Text: q.byKey(write{delete: true}, query.And(append(q.OfEachRow(), where)...)), Args: b.Args}
}
