package adopted

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// Misfit is one thing in which a queue's mapping does not fit its table.
type Misfit struct {
	Key  string // the config's: queues.NAME.columns.id
	Text string // what is so
	Do   string // what to do about it; empty: Text says it
}

// Error implements error.
func (m *Misfit) Error() string {
	if m.Do == "" {
		return m.Key + ": " + m.Text
	}
	return m.Key + ": " + m.Text + ": " + m.Do
}

// joined is one error that has all of them.
func joined(all []*Misfit) error {
	var errs []error
	for _, m := range all {
		errs = append(errs, m)
	}
	return errors.Join(errs...)
}

// problems collects what is wrong with a mapping.
type problems struct {
	queue string
	all   []*Misfit
}

// add has what is wrong, and what to do, in one text.
func (p *problems) add(key, format string, args ...any) {
	p.wrong(key, "", format, args...)
}

// wrong adds what is wrong, and what to do about it.
func (p *problems) wrong(key, do, format string, args ...any) {
	p.all = append(p.all, &Misfit{Key: "queues." + p.queue + "." + key, Text: fmt.Sprintf(format, args...), Do: do})
}

// column finds a column, or tells what is there.
func (t *table) column(p *problems, key, name string) (backends.Column, bool) {
	c, ok := t.info.Column(name)
	if ok {
		return c, true
	}
	var names []string
	near, least := "", max(1, len(name)/3)+1
	for _, c := range t.info.Columns {
		if strings.EqualFold(c.Name, name) {
			p.add(key, "the table has no column %s: it is called %s there", name, c.Name)
			return c, false
		}
		if d := distance(strings.ToLower(name), strings.ToLower(c.Name)); d < least {
			near, least = c.Name, d
		}
		names = append(names, c.Name)
	}
	if near == "" {
		p.add(key, "the table has no column %s: it has %s", name, strings.Join(names, ", "))
	} else {
		p.add(key, "the table has no column %s: is it %s? It has %s", name, near, strings.Join(names, ", "))
	}
	return c, false
}

// catalogued is a column's name as the catalogue has it, where the server takes the two for
// the same.
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

// spelled is the mapping with the columns' names as the catalogue has them.
func (m Table) spelled(info backends.TableInfo) Table {
	columns, where := map[Role][]string{}, map[string]Value{}
	for role, names := range m.Columns {
		for _, name := range names {
			columns[role] = append(columns[role], catalogued(info, name))
		}
	}
	for name, v := range m.Where {
		to := catalogued(info, name)
		if _, twice := m.Where[to]; twice {
			to = name // which is told
		}
		where[to] = v
	}
	m.Columns, m.Where, m.Order = columns, where, slices.Clone(m.Order)
	for i := range m.Order {
		m.Order[i].Column = catalogued(info, m.Order[i].Column)
	}
	if m.Token != nil {
		token := *m.Token
		token.Column = catalogued(info, token.Column)
		m.Token = &token
	}
	return m
}

// alike is an archive with its columns' names as the table has them.
func alike(archive, table backends.TableInfo) backends.TableInfo {
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

// declared is a column's type for people: without what an engine has to know of it.
func declared(c backends.Column) string {
	for _, more := range []string{" CHARACTER SET ", " COLLATE ", " DEFAULT (", " AUTO_INCREMENT"} {
		c.Type, _, _ = strings.Cut(c.Type, more)
	}
	return c.Type
}

// distance is how many letters one has to add, remove or change to make a b. A word
// that begins or ends with the other is one away.
func distance(a, b string) int {
	if short, long := a, b; len(short) >= 3 {
		if len(short) > len(long) {
			short, long = long, short
		}
		if len(short) >= 3 && (strings.HasPrefix(long, short) || strings.HasSuffix(long, short)) {
			return 1
		}
	}
	x, y := []rune(a), []rune(b)
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i, r := range x {
		last := row[0]
		row[0] = i + 1
		for j, s := range y {
			changed := last
			if r != s {
				changed++
			}
			last = row[j+1]
			row[j+1] = min(changed, row[j]+1, last+1)
		}
	}
	return row[len(y)]
}
