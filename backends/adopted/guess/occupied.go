package guess

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// dropOccupied takes roles away from columns that the application's own code seems to need: those that a claim or a settle
// would overwrite although rows that wait have values there, and those that refer to another table.
func (g *guesser) dropOccupied(ctx context.Context) error {
	for _, role := range []mapping.Role{mapping.Worker, mapping.ClaimedAt} {
		if c, has := g.column(role); has {
			if to := g.refersTo(c); to != "" {
				g.drop(role, c, "its values are keys of %s, and sidecars write others", to)
			}
		}
	}
	if c := g.token; c.Name != "" {
		if to := g.refersTo(c); to != "" {
			g.drop(mapping.TokenRole, c, "its values are keys of %s, and sidecars write others", to)
		}
	}
	if err := g.sampleWaiting(ctx); err != nil {
		return err
	}
	set := func(c backends.Column) int { return g.waiting.rows - g.waiting.null[c.Name] }
	occupied := func(c backends.Column) (why string) {
		switch n := set(c); {
		case n > 0:
			return fmt.Sprintf("%d of %d sampled rows that wait have a value there, so its own code seems to need it", n, g.waiting.rows)
		case !c.Nullable && !c.Default && g.waiting.rows == 0:
			return "each new row has a value there, so its own code seems to need it"
		}
		return ""
	}
	for _, role := range []mapping.Role{mapping.Worker, mapping.ClaimedAt, mapping.FinishedAt, mapping.FailedAt, mapping.Result} {
		if c, has := g.column(role); has {
			if why := occupied(c); why != "" {
				g.drop(role, c, "%s", why)
			}
		}
	}
	if c := g.token; c.Name != "" && g.state.Name != "" {
		if why := occupied(c); why != "" {
			g.drop(mapping.TokenRole, c, "%s", why)
		}
	}
	return nil
}

// drop takes the column's role away, and gives the reason.
func (g *guesser) drop(role mapping.Role, c backends.Column, why string, args ...any) {
	key := "columns." + string(role)
	if role == mapping.TokenRole {
		key, g.token = "token", backends.Column{}
	}
	delete(g.Table.Columns, role)
	delete(g.Notes, key)
	delete(g.used, c.Name)
	g.hint(key, "", "%s has such a name, but "+why, append([]any{c.Name}, args...)...)
}

// refersTo is the table to which the column refers; empty: to none.
func (g *guesser) refersTo(c backends.Column) string {
	for _, k := range g.Info.Constraints {
		if k.Kind == backends.ForeignKey && slices.ContainsFunc(k.Columns, func(sql string) bool { return strings.Trim(sql, "\"`[]") == c.Name }) {
			return k.Table
		}
	}
	return ""
}

// sampleWaiting reads rows that wait, as far as the proposal can identify these. In a table without a state, a row without
// the mark of a claim waits.
func (g *guesser) sampleWaiting(ctx context.Context) error {
	d := g.engine.Dialect()
	g.waiting = &sample{columns: columns{info: g.Info}, of: map[string]map[string]*value{}, null: map[string]int{}}
	a := &g.waiting.columns
	if c, has := g.column(mapping.Attempts); has {
		a.values = append(a.values, c)
		g.waiting.of[c.Name] = map[string]*value{}
	}
	for _, role := range []mapping.Role{mapping.Worker, mapping.ClaimedAt, mapping.FinishedAt, mapping.FailedAt, mapping.Result} {
		if c, has := g.column(role); has {
			a.set = append(a.set, c)
		}
	}
	if g.token.Name != "" {
		a.set = append(a.set, g.token)
	}
	where := g.waitingCondition()
	if len(a.values)+len(a.set) == 0 || where == "" {
		return nil
	}
	output := []string{d.ToText("1")}
	for _, c := range a.values {
		output = append(output, d.AsText(c))
	}
	for _, c := range a.set {
		empty := d.Name(c.Name) + " IS NULL"
		if c.Kind == backends.TextColumn && c.Values == nil {
			empty += " OR " + d.Name(c.Name) + " = ''"
		}
		output = append(output, d.ToText("CASE WHEN "+empty+" THEN 0 ELSE 1 END"))
	}
	short, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	err := g.engine.Query(short, &backends.Statement{
		Text: d.SelectFirst(query.Columns(output...), d.Table(g.Info.Schema, g.Info.Name), where, "", fmt.Sprint(sampleRows)),
		Row: func(cells [][]byte) error {
			g.waiting.count(cells[1:])
			return nil
		},
	})
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return nil // check asks again
	}
	return err
}

// waitingCondition is the condition for rows that wait; empty: it is unknown.
func (g *guesser) waitingCondition() string {
	d := g.engine.Dialect()
	var all []string
	equal := func(c backends.Column, v mapping.Value) {
		if v.Null {
			all = append(all, d.Name(c.Name)+" IS NULL")
		} else {
			all = append(all, d.Name(c.Name)+" = "+d.Constant(v.Text, c))
		}
	}
	ready, stated := g.Table.States[backends.StateReady]
	if g.state.Name != "" && !stated {
		return ""
	}
	marker := backends.Column{}
	if _, claimed := g.Table.States[backends.StateClaimed]; !claimed && g.token.Name != "" {
		marker = g.token
	} else if c, has := g.column(mapping.ClaimedAt); !claimed && has && (g.state.Name == "" || g.state.Kind == backends.BoolColumn) {
		marker = c
	}
	if g.state.Name == "" && marker.Name == "" {
		return ""
	}
	if stated {
		equal(g.state, ready)
	}
	if marker.Name != "" {
		equal(marker, mapping.Value{Null: true})
		// A row that is finished, or dead, needn't show a claim any more.
		for _, role := range []mapping.Role{mapping.FinishedAt, mapping.FailedAt} {
			if c, has := g.column(role); has && c.Nullable && !stated {
				equal(c, mapping.Value{Null: true})
			}
		}
	}
	return strings.Join(all, " AND ")
}
