package adopted

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/encoding/charmap"

	"github.com/qsidecar/qsidecar/backends"
)

// values holds the config's constants against the columns that have to hold them. The
// database is not asked: some would take a text for the number 0 and say nothing.
func (t *table) values(p *problems) {
	if c, has := t.one[State]; has {
		said := map[string]backends.State{}
		for _, s := range slices.Sorted(maps.Keys(t.States)) {
			v := t.States[s]
			key := "states." + string(s)
			if why := unfit(c, v); why != "" {
				p.add(key, "%s", why)
				continue
			}
			if other, twice := said[same(c, v)]; twice {
				p.add(key, "the same value as states.%s: nothing would tell the two apart", other)
			}
			said[same(c, v)] = s
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.Where)) {
		key := "where." + name
		c, ok := t.column(p, key, name)
		if !ok {
			continue
		}
		if why := unfit(c, t.Where[name]); why != "" {
			p.add(key, "%s", why)
		}
		if c.Name == t.one[State].Name {
			p.wrong(key, "leave it out here", "the column %s is in the role state, too: its rows would never leave that state", c.Name)
		}
	}
	t.tokenFits(p)
	if c, has := t.one[OwnLimit]; has && c.Name == t.one[Attempts].Name {
		p.wrong("columns.max_attempts", "name the one that holds each row's limit, or leave it out", "the column %s is in the role attempts, too", c.Name)
	}
	if c, has := t.one[Attempts]; has && c.Most > 0 && int64(t.MaxAttempts) > c.Most {
		p.wrong("max_attempts", fmt.Sprintf("set one up to %d, or leave columns.attempts out", c.Most), "%d is more than the column %s holds (%s)", t.MaxAttempts, c.Name, declared(c))
	}
}

// tokenFits: what a claim writes into the token's column.
func (t *table) tokenFits(p *problems) {
	c, has := t.one[token]
	if !has {
		return
	}
	if c.Generated {
		p.add("token.column", "the column %s is generated: nobody can write it", c.Name)
	}
	if t.Token.Text != "" {
		if why := unfit(c, Value{Text: t.Token.Text}); why != "" {
			p.add("token.value", "%s", why)
		}
		return
	}
	for _, n := range []int64{t.Token.From, t.Token.To} {
		if why := unfit(c, Value{Text: strconv.FormatInt(n, 10)}); why != "" {
			p.add("token.range", "%s", why)
			return
		}
	}
}

var (
	wholeNumber = regexp.MustCompile(`^[-+]?[0-9]+$`)
	uuidForm    = regexp.MustCompile(`(?i)^\{?[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}\}?$`)
)

// truths are the words for the values of a truth column.
var truths = map[string]string{
	"true": "true", "t": "true", "yes": "true", "y": "true", "on": "true", "1": "true",
	"false": "false", "f": "false", "no": "false", "n": "false", "off": "false", "0": "false",
}

// foldsCase finds the types of columns for which large letters are the same as small ones.
var foldsCase = regexp.MustCompile(`(?i)_ci\b|_ci_|\bnocase\b`)

// same is a form that equal values of the column have in common.
func same(c backends.Column, v Value) string {
	switch {
	case v.Null:
		return "NULL"
	case c.Kind == backends.BoolColumn && truths[strings.ToLower(v.Text)] != "":
		return "=" + truths[strings.ToLower(v.Text)]
	case c.Kind == backends.NumberColumn || counts(c):
		if n, err := strconv.ParseInt(v.Text, 10, 64); err == nil {
			return fmt.Sprint("=", n)
		}
	case c.Kind == backends.TextColumn && foldsCase.MatchString(c.Type):
		return "=" + strings.ToLower(strings.TrimRight(v.Text, " "))
	}
	return "=" + v.Text
}

// counts: it is a truth by its type's name alone, and holds other numbers, too.
func counts(c backends.Column) bool { return c.Kind == backends.BoolColumn && c.Most > 1 }

// unfit says why the column cannot hold the value; empty: it can.
func unfit(c backends.Column, v Value) string {
	if v.Null {
		if !c.Nullable {
			return fmt.Sprintf("the column %s cannot be NULL", c.Name)
		}
		return ""
	}
	is := fmt.Sprintf("the column %s is of the type %s", c.Name, declared(c))
	kind := c.Kind
	if counts(c) && truths[strings.ToLower(v.Text)] == "" {
		kind = backends.NumberColumn
	}
	switch kind {
	case backends.TextColumn:
		return unfitText(c, v.Text)
	case backends.NumberColumn:
		if !wholeNumber.MatchString(v.Text) {
			return fmt.Sprintf("%s, and %q is no whole number", is, v.Text)
		}
		n, err := strconv.ParseInt(v.Text, 10, 64)
		if limited := c.Least != 0 || c.Most != 0; limited && (err != nil || n < c.Least || n > c.Most) {
			return fmt.Sprintf("%s, which holds %d to %d, and %s is outside", is, c.Least, c.Most, v.Text)
		}
	case backends.BoolColumn:
		if truths[strings.ToLower(v.Text)] == "" {
			return fmt.Sprintf("%s, and %q is neither true nor false", is, v.Text)
		}
	case backends.UUIDColumn:
		if !uuidForm.MatchString(v.Text) {
			return fmt.Sprintf("%s, and %q is no UUID", is, v.Text)
		}
	case backends.JSONColumn:
		if !json.Valid([]byte(v.Text)) {
			return fmt.Sprintf("%s, and %q is no JSON text", is, v.Text)
		}
	case backends.TimeColumn:
		if !isTime(v.Text) {
			return fmt.Sprintf("%s, and %q is no time (write 2006-01-02 15:04:05)", is, v.Text)
		}
	}
	return ""
}

func unfitText(c backends.Column, text string) string {
	switch {
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return fmt.Sprintf("%q is no text that the column %s could hold", text, c.Name)
	case c.Values != nil && !slices.Contains(c.Values, text):
		return fmt.Sprintf("the column %s is of the type %s, which has no %q: it has %s", c.Name, declared(c), text, strings.Join(c.Values, ", "))
	case c.Chars > 0 && utf8.RuneCountInString(text) > c.Chars:
		return fmt.Sprintf("%q is longer than the column %s holds (%s)", text, c.Name, declared(c))
	}
	for _, letter := range text {
		if c.Charset != "unknown" && foreign(letter, c.Charset) {
			return fmt.Sprintf("%q has %q, which the column %s cannot hold: its character set is %s", text, string(letter), c.Name, c.Charset)
		}
	}
	return ""
}

// tooLong refuses a text that has more letters than the column. Servers cut some of
// these without an error: blanks at the end, and what a type of a fixed length leaves out.
// How many letters a MySQL TEXT holds depends on them; there the server refuses.
func tooLong(c backends.Column, text string) error {
	kind, _, _ := strings.Cut(c.Type, " ")
	if n := utf8.RuneCountInString(text); c.Chars > 0 && n > c.Chars && !strings.HasSuffix(kind, "text") {
		return backends.Refused(fmt.Errorf("the column %s (%s) holds %d letters, and the text has %d: shorten it, or widen the column", c.Name, declared(c), c.Chars, n))
	}
	return nil
}

// heldBy is as much of a text for people as the column holds: its beginning, with a
// question mark for each letter that the column's character set lacks.
func heldBy(c backends.Column, text string) string {
	letters := []rune(text)
	if c.Chars > 0 && len(letters) > c.Chars {
		letters = letters[:c.Chars]
	}
	for i, letter := range letters {
		if foreign(letter, c.Charset) {
			letters[i] = '?'
		}
	}
	return string(letters)
}

// foreign: the character set lacks the letter. What MySQL calls latin1 is Windows-1252.
func foreign(letter rune, charset string) bool {
	switch charset {
	case "ascii", "unknown":
		return letter > unicode.MaxASCII
	case "latin1":
		_, has := charmap.Windows1252.EncodeRune(letter)
		return !has
	case "utf8mb3":
		return letter > 0xffff
	}
	return false
}

func isTime(text string) bool {
	if text == "infinity" || text == "-infinity" {
		return true
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, time.DateTime + "Z07:00", time.DateTime + "Z07", time.DateOnly, "2006-01-02T15:04:05"} {
		if _, err := time.Parse(layout, text); err == nil { // fractions of a second go with each
			return true
		}
	}
	return false
}
