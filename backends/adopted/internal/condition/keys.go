package condition

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// keyEscaper escapes what separates the columns of a key; see backends.Dialect.RowKey.
var keyEscaper = strings.NewReplacer(`\`, `\\`, `,`, `\,`)

// Item is the id of the job whose key's columns have these texts.
func (t *Table) Item(cells [][]byte) string {
	if len(t.Key) == 1 {
		return string(cells[0])
	}
	texts := make([]string, len(t.Key))
	for i := range t.Key {
		texts[i] = keyEscaper.Replace(string(cells[i]))
	}
	return strings.Join(texts, ",")
}

// keyTexts is the opposite of Item. nil: no row has that id.
func (t *Table) keyTexts(item string) (all []string) {
	if len(t.Key) == 1 {
		return t.possible([]string{item})
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
	return t.possible(append(all, one.String()))
}

var (
	integerType = regexp.MustCompile(`(?i)^(tiny|small|medium|big)?int`)
	decimalForm = regexp.MustCompile(`^(-?[0-9]+(\.[0-9]+)?|NaN|-?Infinity)$`)
	// decimalType matches the types of columns that hold other numbers than 64-bit integers, and their digits.
	decimalType = regexp.MustCompile(`(?i)^(?:numeric|decimal)(?:\(([0-9]+)(?:, ?-?([0-9]+))?\))?`)
)

// possible returns the texts if the key's columns can have them as values, else nil. The
// database would refuse a whole statement for an impossible one.
func (t *Table) possible(texts []string) []string {
	if len(texts) != len(t.Key) {
		return nil
	}
	if _, untyped := t.Dialect.(backends.UntypedDialect); untyped {
		return texts
	}
	for i, c := range t.Key {
		text := texts[i]
		if c.Values != nil && !slices.Contains(c.Values, text) {
			return nil
		}
		switch c.Kind {
		case backends.NumberColumn:
			if !possibleNumber(c, text) {
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

func possibleNumber(c backends.Column, text string) bool {
	limited := c.Least != 0 || c.Most != 0
	switch {
	case !decimalForm.MatchString(text):
		return false
	case decimalType.MatchString(c.Type) || anyNumber(c):
		return true
	case !limited && strings.Contains(c.Type, "unsigned"):
		_, err := strconv.ParseUint(text, 10, 64)
		return err == nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && !(limited && (n < c.Least || n > c.Most))
}

// anyNumber reports whether the column can hold any number: a domain of PostgreSQL has a name of its own.
func anyNumber(c backends.Column) bool {
	return c.Kind == backends.NumberColumn && c.Least == 0 && c.Most == 0 && !integerType.MatchString(c.Type)
}

// Requested returns a filter for the rows that a query found by ids. A server can find a row by
// a text that is not its key: by 7-1 the row 7. The case of a UUID's letters does not count.
func (t *Table) Requested(ids []string) func(item string) bool {
	form := func(id string) string { return id }
	if slices.ContainsFunc(t.Key, func(c backends.Column) bool { return c.Kind == backends.UUIDColumn }) {
		form = strings.ToLower
	}
	all := make(map[string]bool, len(ids))
	for _, id := range ids {
		all[form(id)] = true
	}
	return func(item string) bool { return all[form(item)] }
}

// KeyTexts are the expressions whose values Item reads.
func (t *Table) KeyTexts() (all []string) {
	for _, c := range t.Key {
		all = append(all, t.Dialect.AsText(c))
	}
	return all
}

// KeyOrder are the key's columns, for an ORDER BY.
func (t *Table) KeyOrder() string {
	var all []string
	for _, c := range t.Key {
		all = append(all, t.Quote(c))
	}
	return strings.Join(all, ", ")
}

// KeyIndex is the name of an index that begins with the key's columns, or empty if none is known.
func (t *Table) KeyIndex() string { return t.keyIndex().Name }

// OfEachRow has a condition that each row meets, which reads a column outside the key's index, if such a column is known. If a statement reads
// only the columns of an index, MySQL can read all of that index, and waits for locks on other rows.
func (t *Table) OfEachRow() []string {
	index := t.keyIndex()
	for _, role := range []mapping.Role{mapping.State, mapping.TokenRole, mapping.ClaimedAt} {
		if c, has := t.Column(role); has && !slices.ContainsFunc(index.Columns, func(x backends.IndexColumn) bool { return x.Name == c.Name }) {
			return []string{"(" + t.Quote(c) + " IS NULL OR " + t.Quote(c) + " IS NOT NULL)"}
		}
	}
	return nil
}

func (t *Table) keyIndex() (index backends.Index) {
	for _, x := range t.Info.Indexes {
		if x.Only != "" || len(x.Columns) < len(t.Key) {
			continue
		}
		if !slices.ContainsFunc(x.Columns[:len(t.Key)], func(c backends.IndexColumn) bool {
			return !slices.ContainsFunc(t.Key, func(k backends.Column) bool { return k.Name == c.Name })
		}) {
			return x
		}
	}
	return index
}

// MaxItems is the most ids that one statement names: each column of a composite key takes an
// argument for each of them.
func (t *Table) MaxItems() int {
	if len(t.Key) == 1 {
		return 1000
	}
	return 128
}

// ValidID is the condition that a job's id identifies the row and has at most MaxID bytes; empty: it
// is true of all rows.
func (t *Table) ValidID() string {
	var all []string
	if u, ok := t.Dialect.(backends.UntypedDialect); ok {
		for _, c := range t.Key {
			all = append(all, u.IsExact(c))
		}
	}
	most, known := len(t.Key)-1, true
	for _, c := range t.Key {
		digits := decimalType.FindStringSubmatch(c.Type)
		switch {
		case digits != nil && digits[1] == "" || digits == nil && anyNumber(c):
			known = false
		case digits != nil:
			precision, _ := strconv.Atoi(digits[1])
			scale, _ := strconv.Atoi(digits[2])
			most += precision + scale + len("-0.")
		case c.Kind != backends.TextColumn && c.Kind != backends.OtherColumn:
			most += 40
		case c.Chars > 0:
			most += 8 * c.Chars // each letter has up to four bytes, or is escaped
		default:
			known = false
		}
	}
	if !known || most > MaxID {
		all = append(all, fmt.Sprintf("%s <= %d", t.Dialect.TextLength(t.Dialect.RowKey(t.Key)), MaxID))
	}
	if len(all) == 0 {
		return ""
	}
	return query.And(all...)
}
