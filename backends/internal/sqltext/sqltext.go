// Package sqltext reads the SQL statements of an engine from .sql files, when a database is opened.
//
// A file has statements and fragments, whose text follows a line "-- name: X" or "-- fragment: X". Other lines that begin
// with -- are comments. In a text, {X} stands for the fragment X, and :x for the parameter x. The program names the
// parameters of each statement once more, in the order in which it passes their values. So a statement costs nothing
// when it runs: it is a string with the server's placeholders. What doesn't agree panics: a name that one side doesn't
// have, a parameter or a fragment without a use, and a statement that the program never asks for.
//
// Start reading at Read, then Text.Get.
package sqltext

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Text is the text of an engine's files.
type Text struct {
	statements map[string]string
	fragments  map[string]string
	number     string // what precedes the number of a placeholder; "": placeholders have no numbers
	used       map[string]bool
	got        []string
}

// Read reads the .sql files of a folder. Placeholders are the numbers of parameters after `number`: "$" for $1. If it is
// empty, each placeholder is a question mark. with has further fragments by their names, such as values of constants.
func Read(files fs.FS, number string, with map[string]string) *Text {
	t := &Text{statements: map[string]string{}, fragments: maps.Clone(with), number: number, used: map[string]bool{}}
	if with == nil {
		t.fragments = map[string]string{}
	}
	for name := range with {
		t.used[name] = true
	}
	paths, err := fs.Glob(files, "sql/*.sql")
	if err != nil || len(paths) == 0 {
		panic(fmt.Sprintf("sqltext: no files: %v", err))
	}
	for _, path := range paths {
		text, err := fs.ReadFile(files, path)
		if err != nil {
			panic(err) // impossible: the file is embedded
		}
		t.add(path, string(text))
	}
	return t
}

func (t *Text) add(path, text string) {
	var into map[string]string
	name := ""
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch kind {
		case "-- name", "-- fragment":
			if into = t.statements; kind == "-- fragment" {
				into = t.fragments
			}
			if name = rest; into[name] != "" {
				panic(fmt.Sprintf("sqltext: %s: there are two %q", path, name))
			}
		default:
			if strings.HasPrefix(line, "--") {
				continue
			}
			if into == nil && strings.TrimSpace(line) != "" {
				panic(fmt.Sprintf("sqltext: %s: %q has no name before it", path, line))
			}
			if into != nil {
				into[name] += line
			}
		}
	}
}

// Get returns a statement. params are the names of its parameters in the order of their values, with spaces between them.
// pairs are fragments of this statement alone: names, each followed by its text.
func (t *Text) Get(name, params string, pairs ...string) string {
	text, ok := t.statements[name]
	if !ok {
		panic(fmt.Sprintf("sqltext: there is no statement %q", name))
	}
	t.used[name] = true
	own := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		own[pairs[i]] = pairs[i+1]
	}
	text, err := t.numbered(t.expand(name, text, own, 0), strings.Fields(params))
	if err != "" {
		panic(fmt.Sprintf("sqltext: statement %s: %s", name, err))
	}
	for fragment := range own {
		if !t.used["of "+name+": "+fragment] {
			panic(fmt.Sprintf("sqltext: statement %s: there is no {%s}", name, fragment))
		}
	}
	t.got = append(t.got, text)
	return text
}

// maxDepth is how deep fragments can contain others.
const maxDepth = 9

// expand replaces the fragments in a text.
func (t *Text) expand(name, text string, own map[string]string, depth int) string {
	var b strings.Builder
	text = strings.TrimSpace(text)
	for {
		before, rest, ok := strings.Cut(text, "{")
		fragment, after, closed := strings.Cut(rest, "}")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		if !closed || strings.Trim(fragment, "abcdefghijklmnopqrstuvwxyz_") != "" || fragment == "" { // a brace of the SQL
			b.WriteByte('{')
			text = rest
			continue
		}
		value, known := own[fragment]
		if known {
			t.used["of "+name+": "+fragment] = true
		} else if value, known = t.fragments[fragment]; known {
			t.used["fragment "+fragment] = true
		}
		if !known || depth > maxDepth {
			panic(fmt.Sprintf("sqltext: statement %s: there is no fragment {%s}", name, fragment))
		}
		b.WriteString(t.expand(name, value, own, depth+1))
		text = after
	}
}

// numbered replaces the parameters in a text by placeholders.
func (t *Text) numbered(text string, params []string) (numbered, wrong string) {
	var b strings.Builder
	var found []string
	for i := 0; i < len(text); {
		end := i + 1
		switch c := text[i]; {
		case c == '\'' || c == '"' || c == '`': // a text or a name
			if n := strings.IndexByte(text[end:], c); n >= 0 {
				end += n + 1
			}
		case c == ':' && strings.HasPrefix(text[i:], "::"):
			end++ // a cast
		case c == ':' && end < len(text) && isLetter(text[end]):
			for end < len(text) && (isLetter(text[end]) || text[end] >= '0' && text[end] <= '9') {
				end++
			}
			name := text[i+1 : end]
			n := slices.Index(params, name)
			if n < 0 {
				return "", fmt.Sprintf("the program passes no parameter %q", name)
			}
			found = append(found, name)
			if t.number == "" {
				b.WriteByte('?')
			} else {
				b.WriteString(t.number + strconv.Itoa(n+1))
			}
			i = end
			continue
		}
		b.WriteString(text[i:end])
		i = end
	}
	if t.number == "" && !slices.Equal(found, params) {
		return "", fmt.Sprintf("it has the parameters %q in this order, and the program passes %q", found, params)
	}
	for i, name := range params {
		if !slices.Contains(found, name) || t.number != "" && slices.Contains(params[:i], name) {
			return "", fmt.Sprintf("it has no parameter %q, or the program passes it twice", name)
		}
	}
	return b.String(), ""
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c == '_' }

// Done returns all statements that Get returned. It panics if a statement or a fragment of the files has no use.
func (t *Text) Done() []string {
	for name := range t.statements {
		if !t.used[name] {
			panic(fmt.Sprintf("sqltext: nothing uses the statement %q", name))
		}
	}
	for name := range t.fragments {
		if !t.used["fragment "+name] && !t.used[name] {
			panic(fmt.Sprintf("sqltext: nothing uses the fragment %q", name))
		}
	}
	return t.got
}
