package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/internal/textfmt"
)

// Error is an error in a config, or in the flags and variables that select one.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error.
func Errorf(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }

// ErrorIn adds the name of the database to err, if there are several.
func (c *Config) ErrorIn(name string, err error) error {
	if len(c.Databases) == 1 {
		return err
	}
	return fmt.Errorf("databases.%s: %w", name, err)
}

// KeepUsable removes the parts of a config that have errors, so that the other databases and
// adopted tables can be checked.
func (c *Config) KeepUsable(usage error) {
	for name, d := range c.Databases {
		d.check("", func(string, string, ...any) { delete(c.Databases, name) })
	}
	maps.DeleteFunc(c.Queues, func(name string, q queueConfig) bool {
		return !q.adopts() || slices.ContainsFunc(Problems(usage), func(text string) bool {
			return strings.Contains(text, "queues."+name+".") || strings.Contains(text, "queues."+name+":")
		})
	})
	c.Log = defaultConfig().Log
}

// Problems returns the single errors of a config.
func Problems(err error) (texts []string) {
	var file *configError
	switch joined, ok := err.(interface{ Unwrap() []error }); {
	case err == nil:
		return nil
	case ok:
		for _, e := range joined.Unwrap() {
			texts = append(texts, Problems(e)...)
		}
		return texts
	case errors.As(err, &file):
		return file.each
	}
	return []string{err.Error()}
}

// Limits of what an error shows.
const (
	maxShown    = 500 // bytes of a line of the file
	maxProblems = 100
)

// configError contains all problems of a config file.
type configError struct {
	each []string // one line for each problem, with its position
	text string   // all problems with the lines of the file
}

func (e *configError) Error() string { return e.text }

// hideUnknownValues cuts lines after an unknown key. The key can be a misspelt password.
func (y *yamlDecoder) hideUnknownValues(lines []string) {
	for _, p := range y.problems {
		if !p.unknownKey || p.line < 1 || p.line > len(lines) || p.column < 1 || p.column > len(lines[p.line-1]) {
			continue
		}
		before, key := lines[p.line-1][:p.column-1], lines[p.line-1][p.column-1:]
		if name, value, ok := strings.Cut(key, ":"); ok && strings.TrimSpace(value) != "" {
			lines[p.line-1] = before + name + ": …"
		}
	}
}

// err returns all problems in the order of the file.
func (y *yamlDecoder) err() error {
	if len(y.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(y.problems, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
	})
	lines := strings.Split(y.src, "\n")
	y.hideUnknownValues(lines)
	shownLines := map[int]string{} // masking a long line is slow, and it can have many problems
	var b strings.Builder
	var each []string
	fmt.Fprintf(&b, "%s has %s", y.name, textfmt.Plural(int64(len(y.problems)), "error"))
	for _, p := range y.problems[:min(len(y.problems), maxProblems)] {
		text := masked(unexpand(p.text, y.expanded))
		if p.line < 1 || p.line > len(lines) {
			fmt.Fprintf(&b, "\n%s: %s", y.name, text)
			each = append(each, fmt.Sprintf("%s: %s", y.name, text))
			continue
		}
		each = append(each, fmt.Sprintf("%s:%d:%d: %s", y.name, p.line, p.column, text))
		line := strings.TrimRight(lines[p.line-1], "\r")
		shown, known := shownLines[p.line]
		if !known {
			if shown = maskedLine(line); len(shown) > maxShown {
				shown = strings.ToValidUTF8(shown[:maxShown], "") + "…"
			}
			shownLines[p.line] = shown
		}
		fmt.Fprintf(&b, "\n%s:%d:%d: %s\n  %4d | %s", y.name, p.line, p.column, text, p.line, shown)
		if shown == line { // otherwise the column can be hidden
			fmt.Fprintf(&b, "\n       | %s^", strings.Repeat(" ", max(p.column-1, 0)))
		}
	}
	if more := len(y.problems) - maxProblems; more > 0 {
		text := fmt.Sprintf("%s: %s: correct these first", y.name, textfmt.Plural(int64(more), "more error"))
		fmt.Fprintf(&b, "\n%s", text)
		each = append(each, text)
	}
	return &configError{each, b.String()}
}
