// Package sqltext reads the SQL statements of an engine from .sql files, when a database is opened.
//
// A file has statements and fragments, whose text follows a line "-- name: X" or "-- fragment: X". Other lines that begin
// with -- are comments. In a text, {X} stands for the fragment X, and :x for the parameter x. A line "-- with X: TEXT"
// defines a fragment for the text that follows it, and for the fragments in that text. The program names the
// parameters of each statement once more, in the order in which it passes their values. So a statement costs nothing
// when it runs: it is a string with the server's placeholders. What doesn't agree panics: a name that one side doesn't
// have, a parameter or a fragment without a use, and a statement that the program never asks for. SQL Server's parameters
// have names and types: see Declared.
//
// In files are the statements with this project's tables, because they are what a change of the tables or of an index must
// be compared with. Beside the code are what depends on values (a range of the index, a list of rows), the SQL for adopted
// tables, migrations, the settings of a session, and questions about the server: each has one use, next to what reads the answer.
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
	statements map[string]*part
	fragments  map[string]*part
	number     string // what precedes the number of a placeholder; "": placeholders have no numbers
	got        []string
	comments   []string // of what Get has expanded
}

// part is the text of a statement or of a fragment.
type part struct {
	text     string
	comments []string
	with     map[string]*part
	used     bool
}

// Read reads the .sql files of a folder. Placeholders are the numbers of parameters after `number`: "$" for $1. If it is
// empty, each placeholder is a question mark. with has further fragments by their names, such as values of constants.
func Read(files fs.FS, number string, with map[string]string) *Text {
	t := &Text{statements: map[string]*part{}, fragments: map[string]*part{}, number: number}
	for name, text := range with {
		t.fragments[name] = &part{text: text}
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
	var now *part
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line)+" ", ": ")
		rest = strings.TrimSpace(rest)
		with, isWith := strings.CutPrefix(kind, "-- with ")
		into := t.statements
		switch {
		case kind == "-- fragment":
			into = t.fragments
			fallthrough
		case kind == "-- name":
			if into[rest] != nil {
				panic(fmt.Sprintf("sqltext: %s: there are two %q", path, rest))
			}
			now = &part{with: map[string]*part{}}
			into[rest] = now
		case isWith && !strings.Contains(with, " ") && now != nil:
			now.with[with] = &part{text: rest}
		case strings.HasPrefix(line, "--"):
			if now != nil {
				now.comments = append(now.comments, strings.TrimSpace(line[2:]))
			}
		case now != nil:
			now.text += line
		case strings.TrimSpace(line) != "":
			panic(fmt.Sprintf("sqltext: %s: %q has no name before it", path, line))
		}
	}
}

// Get returns a statement. params are the names of its parameters in the order of their values, with spaces between them.
func (t *Text) Get(name, params string) string {
	p := t.statements[name]
	if p == nil {
		panic(fmt.Sprintf("sqltext: there is no statement %q", name))
	}
	text, wrong := t.numbered(t.expand(name, p, t.fragments, 0), strings.Fields(params))
	if wrong != "" {
		panic(fmt.Sprintf("sqltext: statement %s: %s", name, wrong))
	}
	t.got = append(t.got, text)
	return text
}

// Declared returns a statement that declares its parameters in its comments, and in those of its fragments, and these comments.
func (t *Text) Declared(name string) (text string, comments []string) {
	t.comments = nil
	text = t.Get(name, "")
	return text, t.comments
}

// maxDepth is how deep fragments can contain others.
const maxDepth = 12

// expand replaces the fragments in a text.
func (t *Text) expand(name string, p *part, known map[string]*part, depth int) string {
	p.used = true
	t.comments = append(t.comments, p.comments...)
	if len(p.with) > 0 {
		known = maps.Clone(known)
		maps.Copy(known, p.with)
	}
	var b strings.Builder
	text := strings.TrimSpace(p.text)
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
		if known[fragment] == nil || depth > maxDepth {
			panic(fmt.Sprintf("sqltext: statement %s: there is no fragment {%s}", name, fragment))
		}
		b.WriteString(t.expand(name, known[fragment], known, depth+1))
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

// Done returns all statements that Get returned. It panics if a statement or a fragment has no use.
func (t *Text) Done() []string {
	unused(t.statements)
	unused(t.fragments)
	return t.got
}

func unused(parts map[string]*part) {
	for name, p := range parts {
		if !p.used {
			panic(fmt.Sprintf("sqltext: nothing uses %q", name))
		}
		unused(p.with)
	}
}
