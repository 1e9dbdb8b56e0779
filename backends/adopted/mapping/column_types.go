package mapping

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/encoding/charmap"

	"github.com/qsidecar/qsidecar/backends"
)

// DeclaredType is a column's type for people, without what only the engine needs of it.
func DeclaredType(c backends.Column) string {
	for _, more := range []string{" CHARACTER SET ", " COLLATE ", " DEFAULT (", " AUTO_INCREMENT"} {
		c.Type, _, _ = strings.Cut(c.Type, more)
	}
	return c.Type
}

// CheckLength refuses a text with more letters than the column holds, because servers cut some
// of these without an error: trailing blanks, and what a type of a fixed length leaves out.
// The length of a MySQL TEXT in letters depends on them, so it is left to the server.
func CheckLength(c backends.Column, text string) error {
	kind, _, _ := strings.Cut(c.Type, " ")
	if n := utf8.RuneCountInString(text); c.Chars > 0 && n > c.Chars && !strings.HasSuffix(kind, "text") {
		return backends.Refused(fmt.Errorf("the column %s (%s) holds %d letters, and the text has %d: shorten it, or widen the column", c.Name, DeclaredType(c), c.Chars, n))
	}
	return nil
}

// Truncate cuts a text for people to what the column holds. A question mark replaces each
// letter that the column's character set lacks.
func Truncate(c backends.Column, text string) string {
	letters := []rune(text)
	if c.Chars > 0 && len(letters) > c.Chars {
		letters = letters[:c.Chars]
	}
	for i, letter := range letters {
		if !inCharset(letter, c.Charset) {
			letters[i] = '?'
		}
	}
	return string(letters)
}

// inCharset reports whether the character set has the letter. MySQL's latin1 is Windows-1252.
func inCharset(letter rune, charset string) bool {
	switch charset {
	case "ascii", "unknown":
		return letter <= unicode.MaxASCII
	case "latin1":
		_, has := charmap.Windows1252.EncodeRune(letter)
		return has
	case "utf8mb3":
		return letter <= 0xffff
	}
	return true
}

// The least maximum of a column that can hold the times of this century.
const (
	mostSeconds = 1<<31 - 1
	mostMillis  = 1 << 41
)

// TimeUnit is the number of milliseconds in one unit of a column of whole numbers that holds
// times since 1970. A column too small for milliseconds counts seconds. 0: the unit is
// unknown, or the column is of another type.
func (t Table) TimeUnit(c backends.Column) int64 {
	switch {
	case c.Kind != backends.NumberColumn:
		return 0
	case t.Unit == 0 && c.Most > 0 && c.Most < mostMillis:
		return Seconds
	}
	return t.Unit
}

// unfitTime returns why a column can't hold times, and how to fix it; empty: it can.
func (t Table) unfitTime(c backends.Column) (why, fix string) {
	is := fmt.Sprintf("the column %s is of the type %s", c.Name, DeclaredType(c))
	switch {
	case c.Kind == backends.TimeColumn || c.TimeText:
		return "", ""
	case c.Kind != backends.NumberColumn:
		return is + ", which can't hold times", "name a column of a type that can: " + timeTypes
	case t.TimeUnit(c) == 0:
		return is + ", which doesn't show whether it counts seconds or milliseconds since 1970", "set times: seconds, or times: milliseconds"
	case c.Most > 0 && c.Most < mostSeconds:
		return is + ", which holds at most " + fmt.Sprint(c.Most) + ": too little for seconds since 1970", "name another column"
	case t.TimeUnit(c) == Milliseconds && c.Most > 0 && c.Most < mostMillis:
		return is + ", which holds at most " + fmt.Sprint(c.Most) + ": too little for milliseconds since 1970", "set times: seconds if it counts those, or name another column"
	}
	return "", ""
}

// timeTypes are the types that can hold times, for people.
const timeTypes = "a date with a time (timestamp, datetime), whole numbers of seconds or milliseconds since 1970 (int, bigint), or on SQLite TEXT"
