// Package guess proposes how a queue may live in a table that is there: which column
// and which value means what, by names, types, keys and a sample of the rows. What
// nothing proves is marked as guessed, and what nothing tells is left to decide.
package guess

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
)

// Proposal is a mapping to start from.
type Proposal struct {
	Info  backends.TableInfo
	Table adopted.Table

	Notes map[string]Note // what is to be said of a key of the config
	Hints []Hint          // keys that are left out
	Looks string          // what was looked at
}

// Note says why a key is as it is. Of a list or a map it stands at what it is about:
// columns.payload, states.ready, where.NAME.
type Note struct {
	Guessed bool // nothing proves it
	Text    string
}

// Hint is a key that is left out, for people to decide.
type Hint struct {
	Key  string // the config's
	YAML string // what may stand there; empty: nothing can be said
	Text string
}

// Unadoptable says why no queue can live in a table.
type Unadoptable struct {
	Table string
	Why   []string
}

// Error implements error.
func (e *Unadoptable) Error() string {
	return fmt.Sprintf("the table %s cannot be adopted: %s", e.Table, strings.Join(e.Why, "\nand "))
}

// Table proposes a mapping of a table: that of the schema (empty: where the login
// looks) and name. The error is an *Unadoptable, or the database's.
func Table(ctx context.Context, engine adopted.Adopter, schema, name string) (*Proposal, error) {
	info, err := engine.Describe(ctx, schema, name)
	if err != nil {
		return nil, err
	}
	if why := unadoptable(engine.Dialect(), info); len(why) > 0 {
		full := name
		if schema != "" {
			full = schema + "." + name
		}
		return nil, &Unadoptable{full, why}
	}
	p := &Proposal{
		Info: info, Notes: map[string]Note{},
		Table: adopted.Table{Schema: schema, Name: name, Columns: map[adopted.Role][]string{}, States: map[backends.State]adopted.Value{}, Where: map[string]adopted.Value{}},
	}
	g := &guessing{Proposal: p, used: map[string]bool{}, times: map[string]timeForm{}}
	if why := g.library(); why != "" {
		return nil, &Unadoptable{p.Table.Name, []string{why}}
	}
	g.key()
	if err := g.findTimes(ctx, engine); err != nil {
		return nil, err
	}
	if err := g.stateColumn(ctx, engine); err != nil {
		return nil, err
	}
	g.roles()
	s, err := look(ctx, engine, g.plan())
	if err != nil {
		return nil, err
	}
	p.Looks = s.told()
	g.states(s)
	g.kinds(s)
	g.attempts(s)
	g.limit()
	noHold := fmt.Errorf("%s has no jobs held so far", engine.Info().Engine)
	if h, holds := engine.(backends.TxClaimer); holds {
		noHold = h.NoOpenTx()
	}
	g.settling(noHold)
	if err := g.archive(ctx, engine); err != nil {
		return nil, err
	}
	g.clock(engine.Info().Engine)
	g.order()
	g.asPublished(engine.Info().Engine)
	if _, hears := engine.(backends.ChannelListener); hears {
		g.channel()
	}
	g.rest()
	return p, nil
}

// unadoptable is what no config can mend.
func unadoptable(g backends.Dialect, info backends.TableInfo) (why []string) {
	if len(info.Columns) == 0 {
		hint := "see that it is spelled as the database has it, and that this login may look at it"
		if len(info.Similar) > 0 {
			hint = "there is " + strings.Join(info.Similar, ", ")
		}
		return []string{"there is no such table: " + hint}
	}
	table := g.Table(info.Schema, info.Name)
	if info.Kind != "table" {
		return []string{fmt.Sprintf("it is a %s, and only a table's rows can be locked: adopt the table below it", info.Kind)}
	}
	if info.Unsafe != "" {
		why = append(why, "its rows cannot be changed in a transaction, so that a job could be lost, or worked twice: "+info.Unsafe)
	}
	if len(info.Unique) == 0 {
		why = append(why, fmt.Sprintf("it has no primary key, and no unique key of columns that are never NULL, so that nothing tells one job from another: ALTER TABLE %s ADD PRIMARY KEY (…)", table))
	}
	if slices.Contains(info.Denied, "SELECT") {
		why = append(why, fmt.Sprintf("this login lacks SELECT on it: GRANT SELECT, UPDATE ON %s", table))
	}
	return why
}

// guessing is a Proposal being made.
type guessing struct {
	*Proposal
	used  map[string]bool // columns that have a role
	times map[string]timeForm
	state backends.Column // without a name: there is none
	token backends.Column
	kind  backends.Column // says what kind of job a row is
}

func (g *guessing) note(key string, guessed bool, format string, args ...any) {
	g.Notes[key] = Note{guessed, fmt.Sprintf(format, args...)}
}

func (g *guessing) hint(key, yaml, format string, args ...any) {
	g.Hints = append(g.Hints, Hint{key, yaml, fmt.Sprintf(format, args...)})
}

// drop takes back the hints for a key.
func (g *guessing) drop(key string) {
	g.Hints = slices.DeleteFunc(g.Hints, func(h Hint) bool { return h.Key == key })
}

func (g *guessing) key() {
	key := g.Info.Unique[0]
	g.Table.Columns[adopted.ID] = key
	for _, c := range key {
		g.used[c] = true
	}
	if others := g.Info.Unique[1:]; len(others) > 0 {
		var all []string
		for _, k := range others {
			all = append(all, strings.Join(k, ", "))
		}
		g.note("columns.id", false, "also unique: %s", strings.Join(all, "; "))
	}
}

// take gives a column its role.
func (g *guessing) take(role adopted.Role, c backends.Column) {
	g.Table.Columns[role] = append(g.Table.Columns[role], c.Name)
	g.used[c.Name] = true
}

// column is the one in the role.
func (g *guessing) column(role adopted.Role) (backends.Column, bool) {
	if names := g.Table.Columns[role]; len(names) == 1 {
		return g.Info.Column(names[0])
	}
	return backends.Column{}, false
}
