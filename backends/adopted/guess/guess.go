// Package guess proposes how a queue could live in an existing table: which column and which value
// means what. It goes by names, types, keys and a sample of the rows. What nothing proves is
// marked as guessed, and what nothing shows is left to people.
//
// It is the wizard of `qsidecar adopt`. It uses package mapping, and an engine by
// backends.Adopter, but not the code that runs queues. Start reading at Table.
package guess

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// Proposal is a mapping to start from.
type Proposal struct {
	Info  backends.TableInfo
	Table mapping.Table

	Notes   map[string]Note // by key of the config: why it is as it is
	Hints   []Hint          // keys that are left out
	Sampled string          // the rows that were sampled, for people
}

// fromName is the reason for a guess.
const fromName = "from the column's name"

// Note is the reason for a key. The key of an entry of a list or a map is written
// columns.payload, states.ready, where.NAME.
type Note struct {
	Guessed bool // nothing proves it
	Text    string
}

// Hint is a key that is left out, for people to decide.
type Hint struct {
	Key  string // the config's
	YAML string // a possible value; empty: unknown
	Text string
}

// Unadoptable is the error for a table that no queue can live in.
type Unadoptable struct {
	Table string
	Why   []string
}

// Error implements error.
func (u *Unadoptable) Error() string {
	return fmt.Sprintf("the table %s cannot be adopted: %s", u.Table, strings.Join(u.Why, "\nand "))
}

// Table proposes a mapping of the table of that schema (empty: where the login looks for names) and
// name. The error is an *Unadoptable, or the database's.
func Table(ctx context.Context, engine backends.Engine, schema, name string) (*Proposal, error) {
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
	g := &guesser{engine: engine, used: map[string]bool{}, times: map[string]timeForm{}, Proposal: &Proposal{
		Info: info, Notes: map[string]Note{},
		Table: mapping.Table{Schema: schema, Name: name, Columns: map[mapping.Role][]string{}, States: map[backends.State]mapping.Value{}, Where: map[string]mapping.Value{}},
	}}
	if why := mapping.Unshareable(info); why != "" {
		return nil, &Unadoptable{name, []string{why}}
	}
	return g.Proposal, g.guess(ctx)
}

// guess fills the proposal in.
func (g *guesser) guess(ctx context.Context) error {
	g.key()
	if err := g.findTimes(ctx); err != nil {
		return err
	}
	if err := g.findStateColumn(ctx); err != nil {
		return err
	}
	g.roles()
	s, err := takeSample(ctx, g.engine, g.toSample())
	if err != nil {
		return err
	}
	g.Sampled = s.describe()
	g.stateValues(s)
	g.kindValue(s)
	if err := g.dropOccupied(ctx); err != nil {
		return err
	}
	g.attempts(s)
	g.ownLimit()
	if g.claims(); g.elsewhere != "" {
		return &Unadoptable{g.Table.Name, []string{"nothing in a row shows that it is claimed, and " + g.elsewhere + ", which refers to its rows, seems to. " +
			"A sidecar changes rows of one table, so both sides would run the same jobs: leave it to its own consumers, and enqueue jobs for sidecars into a queue of their own"}}
	}
	if err := g.archive(ctx); err != nil {
		return err
	}
	g.timeZone()
	g.order()
	g.knownLibrary()
	g.channel()
	g.unmapped()
	return nil
}

// unadoptable is what no config can fix.
func unadoptable(d backends.Dialect, info backends.TableInfo) (why []string) {
	if len(info.Columns) == 0 {
		return []string{"there is no such table: " + mapping.SimilarOr(info, mapping.MissingTable)}
	}
	table := d.Table(info.Schema, info.Name)
	if info.Kind != "table" {
		return []string{fmt.Sprintf("it is a %s, and only a table's rows can be locked: adopt the table that it reads", info.Kind)}
	}
	if info.Unsafe != "" {
		why = append(why, "its rows can't be changed in a transaction, so a job could be lost or run twice: "+info.Unsafe)
	}
	if len(info.Unique) == 0 {
		why = append(why, fmt.Sprintf("it has no primary key, and no unique key of columns that are never NULL, so jobs would have no ids: ALTER TABLE %s ADD PRIMARY KEY (…)", table))
	}
	if info.Lacks != "" {
		why = append(why, fmt.Sprintf("this login lacks %s: %s", info.Lacks, info.Grant(info.Lacks)))
	}
	if slices.Contains(info.Denied, "SELECT") {
		why = append(why, "this login lacks SELECT on it: "+info.Grant("SELECT, UPDATE ON "+table))
	}
	return why
}

// guesser makes a Proposal.
type guesser struct {
	*Proposal
	engine backends.Engine
	used   map[string]bool // columns that have a role
	times  map[string]timeForm
	state  backends.Column // without a name: there is none
	token  backends.Column
	kind   backends.Column // holds what kind of job a row is

	waiting   *sample // rows that wait
	elsewhere string  // the table that seems to show which rows are claimed; empty: none
}

func (g *guesser) note(key string, guessed bool, format string, args ...any) {
	g.Notes[key] = Note{guessed, fmt.Sprintf(format, args...)}
}

func (g *guesser) hint(key, yaml, format string, args ...any) {
	g.Hints = append(g.Hints, Hint{key, yaml, fmt.Sprintf(format, args...)})
}

// dropHints removes the hints for a key.
func (g *guesser) dropHints(key string) {
	g.Hints = slices.DeleteFunc(g.Hints, func(h Hint) bool { return h.Key == key })
}

func (g *guesser) key() {
	key := g.Info.Unique[0]
	g.Table.Columns[mapping.ID] = key
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

// assign gives a column its role.
func (g *guesser) assign(role mapping.Role, c backends.Column) {
	g.Table.Columns[role] = append(g.Table.Columns[role], c.Name)
	g.used[c.Name] = true
}

// column is the one in the role.
func (g *guesser) column(role mapping.Role) (backends.Column, bool) {
	if names := g.Table.Columns[role]; len(names) == 1 {
		return g.Info.Column(names[0])
	}
	return backends.Column{}, false
}

func (g *guesser) has(role mapping.Role) bool {
	_, has := g.column(role)
	return has
}

// isSQLite reports whether columns of times have no zones.
func (g *guesser) isSQLite() bool { return g.engine.Info().Engine == "sqlite" }

// hasAll reports whether the table has all the columns.
func (g *guesser) hasAll(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { _, has := g.Info.Column(name); return !has })
}

// unmapped lists the columns without a role.
func (g *guesser) unmapped() {
	var names, needed []string
	for _, c := range g.Info.Columns {
		if _, fixed := g.Table.Where[c.Name]; fixed || g.used[c.Name] && c.Name != g.kind.Name {
			continue
		}
		names = append(names, c.Name)
		if !c.Nullable && !c.Default && !c.Generated {
			needed = append(needed, c.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	text := "not used by sidecars: " + strings.Join(names, ", ")
	if len(needed) > 0 {
		text += ". Sidecars can't enqueue jobs here, because an INSERT must set " + strings.Join(needed, ", ")
	}
	g.hint("columns", "", "%s", text)
}
