package mapping

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/qsidecar/qsidecar/backends"
)

// kindNames are kinds of columns, for people.
func kindNames(kinds []backends.ColumnKind) string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = map[backends.ColumnKind]string{
			backends.TextColumn: "text", backends.NumberColumn: "whole numbers", backends.JSONColumn: "JSON", backends.BytesColumn: "bytes",
		}[k]
	}
	return strings.Join(names, ", ")
}

// roleKinds are the kinds of columns that can have a role. Other roles take every kind, or a
// time.
var roleKinds = map[Role][]backends.ColumnKind{
	Attempts: {backends.NumberColumn}, OwnLimit: {backends.NumberColumn}, Priority: {backends.NumberColumn},
	Worker: {backends.TextColumn}, Error: {backends.TextColumn, backends.JSONColumn},
	Result: {backends.TextColumn, backends.JSONColumn, backends.BytesColumn},
}

// columnType checks that the column's type suits its role.
func (c *checker) columnType(role Role, column backends.Column) {
	if slices.Contains(timeRoles, role) {
		if why, fix := c.unfitTime(column); why != "" {
			c.AddFix(role.configKey(), fix, "%s", why)
		}
	}
	if kinds := roleKinds[role]; kinds != nil && !slices.Contains(kinds, column.Kind) && !(holdsNumbers(column) && slices.Contains(kinds, backends.NumberColumn)) {
		c.AddFix(role.configKey(), "name a column of a type that can: "+kindNames(kinds), "the column %s is of the type %s, which can't hold it", column.Name, DeclaredType(column))
	}
	if column.Generated && role != CreatedAt {
		c.Add(role.configKey(), "the column %s is generated, so nothing can be stored in it", column.Name)
	}
}

// constants checks that the columns can hold the config's constants. It does not ask the
// database: some servers would take a text for the number 0 without an error.
func (c *checker) constants() {
	state, stated := c.columns[State]
	if stated {
		c.stateValues(state)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Where)) {
		key := "where." + name
		column, ok := c.find(key, name)
		if !ok {
			continue
		}
		if why := unfit(column, c.Where[name]); why != "" {
			c.Add(key, "%s", why)
		}
		if column.Name == state.Name {
			c.AddFix(key, "remove it here", "the column %s also has the role state, so its rows would never leave that state", column.Name)
		}
	}
	c.tokenValues()
	attempts, counted := c.columns[Attempts]
	if counted && c.IsIn(OwnLimit, attempts.Name) {
		c.AddFix("columns.max_attempts", "name the column that holds each row's limit, or remove it", "the column %s also has the role attempts", attempts.Name)
	}
	if counted && attempts.Most > 0 && int64(c.MaxAttempts) > attempts.Most {
		c.AddFix("max_attempts", fmt.Sprintf("set at most %d, or remove columns.attempts", attempts.Most),
			"%d is more than the column %s holds (%s)", c.MaxAttempts, attempts.Name, DeclaredType(attempts))
	}
}

// stateValues checks that the column in the role State can hold a different value for each state.
func (c *checker) stateValues(column backends.Column) {
	seen := map[string]backends.State{}
	for _, s := range slices.Sorted(maps.Keys(c.States)) {
		v := c.States[s]
		key := "states." + string(s)
		if why := unfit(column, v); why != "" {
			c.Add(key, "%s", why)
			continue
		}
		if other, twice := seen[canonical(column, v)]; twice {
			c.Add(key, "it has the same value as states.%s: name two different values", other)
		}
		seen[canonical(column, v)] = s
	}
}

// tokenValues checks that the token's column can hold what claims write there.
func (c *checker) tokenValues() {
	column, has := c.columns[TokenRole]
	if !has {
		return
	}
	if column.Generated {
		c.Add("token.column", "the column %s is generated, so nothing can be stored in it", column.Name)
	}
	if c.Token.Text != "" {
		if why := unfit(column, Value{Text: c.Token.Text}); why != "" {
			c.Add("token.value", "%s", why)
		}
		return
	}
	for _, n := range []int64{c.Token.From, c.Token.To} {
		if why := unfit(column, Value{Text: strconv.FormatInt(n, 10)}); why != "" {
			c.Add("token.range", "%s", why)
			return
		}
	}
}

var (
	wholeNumber = regexp.MustCompile(`^[-+]?[0-9]+$`)
	uuidForm    = regexp.MustCompile(`(?i)^\{?[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}\}?$`)
	// ignoresCase matches the types of columns that compare texts without case.
	ignoresCase = regexp.MustCompile(`(?i)_ci\b|_ci_|\bnocase\b`)
)

// Truth is true or false for a text that people or engines write for a boolean; else it is
// empty.
func Truth(text string) string {
	switch strings.ToLower(text) {
	case "true", "t", "yes", "y", "on", "1":
		return "true"
	case "false", "f", "no", "n", "off", "0":
		return "false"
	}
	return ""
}

// canonical is a form that equal values of the column have in common.
func canonical(c backends.Column, v Value) string {
	switch {
	case v.Null:
		return "NULL"
	case c.Kind == backends.BoolColumn && Truth(v.Text) != "":
		return "=" + Truth(v.Text)
	case c.Kind == backends.NumberColumn || holdsNumbers(c):
		if n, err := strconv.ParseInt(v.Text, 10, 64); err == nil {
			return fmt.Sprint("=", n)
		}
	case c.Kind == backends.TextColumn && ignoresCase.MatchString(c.Type):
		return "=" + strings.ToLower(strings.TrimRight(v.Text, " "))
	}
	return "=" + v.Text
}

// holdsNumbers reports whether a boolean column is boolean in name alone, and also holds other
// numbers than 0 and 1.
func holdsNumbers(c backends.Column) bool { return c.Kind == backends.BoolColumn && c.Most > 1 }

// unfit returns why the column cannot hold the value; empty: it can.
func unfit(c backends.Column, v Value) string {
	if v.Null {
		if !c.Nullable {
			return fmt.Sprintf("the column %s cannot be NULL", c.Name)
		}
		return ""
	}
	is := fmt.Sprintf("the column %s is of the type %s", c.Name, DeclaredType(c))
	kind := c.Kind
	if holdsNumbers(c) && Truth(v.Text) == "" {
		kind = backends.NumberColumn
	}
	switch kind {
	case backends.TextColumn:
		return unfitText(c, v.Text)
	case backends.NumberColumn:
		if !wholeNumber.MatchString(v.Text) {
			return fmt.Sprintf("%s, and %q is not a whole number", is, v.Text)
		}
		n, err := strconv.ParseInt(v.Text, 10, 64)
		if limited := c.Least != 0 || c.Most != 0; limited && (err != nil || n < c.Least || n > c.Most) {
			return fmt.Sprintf("%s, which holds %d to %d, and %s is outside", is, c.Least, c.Most, v.Text)
		}
	case backends.BoolColumn:
		if Truth(v.Text) == "" {
			return fmt.Sprintf("%s, and %q is neither true nor false", is, v.Text)
		}
	case backends.UUIDColumn:
		if !uuidForm.MatchString(v.Text) {
			return fmt.Sprintf("%s, and %q is not a UUID", is, v.Text)
		}
	case backends.JSONColumn:
		if !json.Valid([]byte(v.Text)) {
			return fmt.Sprintf("%s, and %q is not a JSON text", is, v.Text)
		}
	case backends.TimeColumn:
		if !isTime(v.Text) {
			return fmt.Sprintf("%s, and %q is not a time (write 2006-01-02 15:04:05)", is, v.Text)
		}
	}
	return ""
}

func unfitText(c backends.Column, text string) string {
	switch {
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return fmt.Sprintf("%q is not a text that the column %s can hold", text, c.Name)
	case c.Values != nil && !slices.Contains(c.Values, text):
		return fmt.Sprintf("the column %s is of the type %s, which has no %q: it has %s", c.Name, DeclaredType(c), text, strings.Join(c.Values, ", "))
	case c.Chars > 0 && utf8.RuneCountInString(text) > c.Chars:
		return fmt.Sprintf("%q is longer than the column %s holds (%s)", text, c.Name, DeclaredType(c))
	}
	for _, letter := range text {
		if c.Charset != "unknown" && !inCharset(letter, c.Charset) {
			return fmt.Sprintf("%q has %q, which the column %s cannot hold: its character set is %s", text, string(letter), c.Name, c.Charset)
		}
	}
	return ""
}

func isTime(text string) bool {
	if text == "infinity" || text == "-infinity" {
		return true
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, time.DateTime + "Z07:00", time.DateTime + "Z07", time.DateOnly, "2006-01-02T15:04:05"} {
		if _, err := time.Parse(layout, text); err == nil { // each layout also takes fractions of a second
			return true
		}
	}
	return false
}
