package adopted

import (
	"fmt"
	"math/bits"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// maxID is how long a job's id may be, in bytes, on every engine (design.md §4).
const maxID = 255

// inKey escapes what separates the columns of a key; see backends.Grammar.Item.
var inKey = strings.NewReplacer(`\`, `\\`, `,`, `\,`)

// item is the id of the job whose key's columns have these texts.
func (t *table) item(cells [][]byte) string {
	if len(t.key) == 1 {
		return string(cells[0])
	}
	texts := make([]string, len(t.key))
	for i := range t.key {
		texts[i] = inKey.Replace(string(cells[i]))
	}
	return strings.Join(texts, ",")
}

// texts are those of the key's columns, out of a job's id; nil: no row has that id.
func (t *table) texts(item string) (all []string) {
	if len(t.key) == 1 {
		return possible(t.key, []string{item})
	}
	var one strings.Builder
	for i := 0; i < len(item); i++ {
		switch c := item[i]; c {
		case ',':
			all = append(all, one.String())
			one.Reset()
		case '\\':
			if i++; i == len(item) || item[i] != ',' && item[i] != '\\' {
				return nil
			}
			one.WriteByte(item[i])
		default:
			one.WriteByte(c)
		}
	}
	return possible(t.key, append(all, one.String()))
}

var (
	numberForm = regexp.MustCompile(`^-?[0-9]{1,40}(\.[0-9]{1,40})?$`)
	decimal    = regexp.MustCompile(`(?i)^(numeric|decimal)`)
)

// possible leaves out texts that no value of the columns has: the database would
// refuse the whole statement for them.
func possible(key []backends.Column, texts []string) []string {
	if len(texts) != len(key) {
		return nil
	}
	for i, c := range key {
		text := texts[i]
		if c.Values != nil && !slices.Contains(c.Values, text) {
			return nil
		}
		switch c.Kind {
		case backends.NumberColumn:
			m := numberForm.FindStringSubmatch(text)
			if m == nil || m[1] != "" && !decimal.MatchString(c.Type) {
				return nil
			}
		case backends.UUIDColumn:
			if len(text) != 36 || strings.Trim(text, "0123456789abcdefABCDEF-") != "" {
				return nil
			}
		}
	}
	return texts
}

// named reports whether the ids name a row (nil: they name all). A server may find a row
// by a text that is not its key's: by 7-1 the row 7. The case of a UUID's letters
// doesn't count.
func (t *table) named(ids []string) func(item string) bool {
	form := func(id string) string { return id }
	if slices.ContainsFunc(t.key, func(c backends.Column) bool { return c.Kind == backends.UUIDColumn }) {
		form = strings.ToLower
	}
	all := make(map[string]bool, len(ids))
	for _, id := range ids {
		all[form(id)] = true
	}
	return func(item string) bool { return ids == nil || all[form(item)] }
}

// keyTexts are the expressions whose values item puts together.
func (t *table) keyTexts() (all []string) {
	for _, c := range t.key {
		all = append(all, t.g.AsText(c))
	}
	return all
}

// keyNames are the key's columns, for an ORDER BY.
func (t *table) keyNames() string {
	var all []string
	for _, c := range t.key {
		all = append(all, t.g.Name(c.Name))
	}
	return strings.Join(all, ", ")
}

// rowIs is the condition for the row of a job. w gets its arguments.
func (w *writing) rowIs(item string) string {
	texts := w.t.texts(item)
	if texts == nil {
		return "1 = 0"
	}
	all := make([]string, len(texts))
	for i, text := range texts {
		all[i] = w.equals(w.t.key[i], text)
	}
	return strings.Join(all, " AND ")
}

// among is the condition for the rows of several jobs, at most t.most() of them.
// w gets its arguments.
func (w *writing) among(items []string) string {
	t := w.t
	items = slices.DeleteFunc(slices.Clone(items), func(item string) bool { return t.texts(item) == nil })
	if len(items) == 0 {
		return "1 = 0"
	}
	if len(t.key) == 1 {
		w.args = append(w.args, items)
		return t.g.AnyOf(len(w.args), t.key[0])
	}
	// The last comes again and again: the texts of statements are few.
	size := powerOfTwo(len(items))
	all := make([]string, 0, size)
	for i := range size {
		all = append(all, "("+w.rowIs(items[min(i, len(items)-1)])+")")
	}
	return "(" + strings.Join(all, " OR ") + ")"
}

// powerOfTwo is the least that is no less than n.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }

// most is how many jobs one statement is about: each column of a key of several is
// an argument for each.
func (t *table) most() int {
	if len(t.key) == 1 {
		return 1000
	}
	return 128
}

// amongst makes as many statements as it takes for these jobs.
func (t *table) amongst(items []string, f func(w *writing, where string) *backends.Statement) (all []*backends.Statement) {
	for some := range slices.Chunk(items, t.most()) {
		w := &writing{t: t}
		all = append(all, f(w, w.among(some)))
	}
	return all
}

// keyed finds the key.
func (t *table) keyed(p *problems) {
	names := t.Columns[ID]
	if len(names) == 0 {
		p.add("columns.id", "it is missing: which column is the table's key?")
		return
	}
	if len(t.key) < len(names) {
		return // a column is not there
	}
	key := slices.Clone(names)
	slices.Sort(key)
	if !slices.ContainsFunc(t.info.Unique, func(u []string) bool {
		u = slices.Clone(u)
		slices.Sort(u)
		return slices.Equal(u, key)
	}) {
		what := "the column " + names[0] + " alone is"
		if len(names) > 1 {
			what = "the columns " + strings.Join(names, ", ") + " are"
		}
		p.add("columns.id", "%s no primary key and no unique key: a job must be one row", what)
	}
	for _, c := range t.key {
		switch c.Kind {
		case backends.BytesColumn, backends.JSONColumn:
			p.add("columns.id", "the column %s is of the type %s, which cannot be in it: a job's id is a text", c.Name, declared(c))
		}
	}
}

// short is the condition that a job's id is no longer than one may be; empty: none
// can be.
func (t *table) short() string {
	most, known := len(t.key)-1, true
	for _, c := range t.key {
		switch {
		case c.Kind != backends.TextColumn && c.Kind != backends.OtherColumn:
			most += 40
		case c.Chars > 0:
			most += 8 * c.Chars // each of four bytes, or escaped
		default:
			known = false
		}
	}
	if known && most <= maxID {
		return ""
	}
	return fmt.Sprintf("%s <= %d", t.g.TextLength(t.g.RowKey(t.key)), maxID)
}
