package mapping

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/textfmt"
)

// Misfit is one thing in which a queue's mapping does not fit its table.
type Misfit struct {
	Key  string // the config's: queues.NAME.columns.id
	Text string // the problem, and the fix if Fix is empty
	Fix  string
}

// Error implements error.
func (m *Misfit) Error() string {
	if m.Fix == "" {
		return m.Key + ": " + m.Text
	}
	return m.Key + ": " + m.Text + ": " + m.Fix
}

// Join returns one error for all of them; nil: there are none.
func Join(all []*Misfit) error {
	var errs []error
	for _, m := range all {
		errs = append(errs, m)
	}
	return errors.Join(errs...)
}

// Problems collects the misfits of one queue's mapping.
type Problems struct {
	Queue string
	All   []*Misfit
}

// Add adds a misfit whose text also contains the fix.
func (p *Problems) Add(key, format string, args ...any) {
	p.AddFix(key, "", format, args...)
}

// AddFix adds a misfit and how to fix it.
func (p *Problems) AddFix(key, fix, format string, args ...any) {
	p.All = append(p.All, &Misfit{Key: "queues." + p.Queue + "." + key, Text: fmt.Sprintf(format, args...), Fix: fix})
}

// SimilarOr returns a hint for a missing table: the names like it, or else the other hint.
func SimilarOr(info backends.TableInfo, hint string) string {
	same := slices.DeleteFunc(slices.Clone(info.Tables), func(name string) bool {
		return !strings.EqualFold(name[strings.LastIndex(name, ".")+1:], info.Name)
	})
	if len(same) > 0 {
		return "there is " + strings.Join(same, ", ")
	}
	if near := textfmt.Nearest(info.Name, info.Tables); near != "" {
		return "did you mean " + near + "?"
	}
	return hint
}

// MissingTable is the hint for a missing table without similar ones.
const MissingTable = "check its spelling, and on a server that this login has the SELECT privilege on it"

// find finds a column by its name, or adds a problem that lists the columns.
func (c *checker) find(key, name string) (backends.Column, bool) {
	found, ok := c.Info.Column(name)
	if ok {
		return found, true
	}
	var names []string
	for _, other := range c.Info.Columns {
		if strings.EqualFold(other.Name, name) {
			c.Add(key, "the table has no column %s: it is called %s there", name, other.Name)
			return found, false
		}
		names = append(names, other.Name)
	}
	if near := textfmt.Nearest(name, names); near == "" {
		c.Add(key, "the table has no column %s: it has %s", name, strings.Join(names, ", "))
	} else {
		c.Add(key, "the table has no column %s: did you mean %s? It has %s", name, near, strings.Join(names, ", "))
	}
	return found, false
}

// catalogued is the catalogue's spelling of a column's name. It differs from name where the
// server ignores case.
func catalogued(info backends.TableInfo, name string) string {
	if _, has := info.Column(name); has || !info.FoldsCase {
		return name
	}
	for _, c := range info.Columns {
		if strings.EqualFold(c.Name, name) {
			return c.Name
		}
	}
	return name
}

// inCatalogueSpelling is the mapping with the columns' names as the catalogue spells them.
func (t Table) inCatalogueSpelling(info backends.TableInfo) Table {
	columns, where := map[Role][]string{}, map[string]Value{}
	for role, names := range t.Columns {
		for _, name := range names {
			columns[role] = append(columns[role], catalogued(info, name))
		}
	}
	for name, v := range t.Where {
		to := catalogued(info, name)
		if _, twice := t.Where[to]; twice {
			to = name // Check reports it
		}
		where[to] = v
	}
	t.Columns, t.Where, t.Order = columns, where, slices.Clone(t.Order)
	for i := range t.Order {
		t.Order[i].Column = catalogued(info, t.Order[i].Column)
	}
	if t.Token != nil {
		token := *t.Token
		token.Column = catalogued(info, token.Column)
		t.Token = &token
	}
	return t
}

// spellArchive spells the archive's columns as the table does.
func spellArchive(archive, table backends.TableInfo) backends.TableInfo {
	for i := range archive.Columns {
		archive.Columns[i].Name = catalogued(table, archive.Columns[i].Name)
	}
	for _, x := range archive.Indexes {
		for i := range x.Columns {
			x.Columns[i].Name = catalogued(table, x.Columns[i].Name)
		}
	}
	return archive
}
