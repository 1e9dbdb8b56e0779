package testrules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// A pattern is one file of .vale/styles/Plain, as vale reads it.
type pattern struct {
	Extends    string   `yaml:"extends"`
	Message    string   `yaml:"message"`
	Level      string   `yaml:"level"`
	Scope      string   `yaml:"scope"`
	IgnoreCase bool     `yaml:"ignorecase"`
	Tokens     []string `yaml:"tokens"`
	Exceptions []string `yaml:"exceptions"`
	Max        int      `yaml:"max"`
	Token      string   `yaml:"token"`

	match, except *regexp.Regexp
}

// readPatterns compiles the patterns in the way that vale does.
func readPatterns(t *testing.T) []pattern {
	t.Helper()
	files, err := filepath.Glob("../../.vale/styles/Plain/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no patterns in .vale/styles/Plain: %v", err)
	}
	var patterns []pattern
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var p pattern
		if err := yaml.UnmarshalWithOptions(b, &p, yaml.Strict()); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if p.Extends != "existence" {
			continue
		}
		flags := "(?m)"
		if p.IgnoreCase {
			flags = "(?mi)"
		}
		p.match = regexp.MustCompile(flags + `\b(?:` + strings.Join(p.Tokens, "|") + `)\b`)
		if len(p.Exceptions) > 0 {
			p.except = regexp.MustCompile(`(?i)\b(?:` + strings.Join(p.Exceptions, "|") + `)\b`)
		}
		patterns = append(patterns, p)
	}
	return patterns
}

// find returns the pattern's messages for a text.
func (p *pattern) find(text string) (messages []string) {
	var allowed [][]int
	if p.except != nil {
		allowed = p.except.FindAllStringIndex(text, -1)
	}
	for _, at := range p.match.FindAllStringIndex(text, -1) {
		if !slices.ContainsFunc(allowed, func(a []int) bool { return a[0] <= at[0] && at[1] <= a[1] }) {
			messages = append(messages, strings.ReplaceAll(p.Message, "%s", text[at[0]:at[1]]))
		}
	}
	return messages
}

// Parts of a text that are code or quotations.
var (
	codeSpan = regexp.MustCompile("`[^`\n]*`")
	keyword  = regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|WITH|EXEC|GRANT|BEGIN|WHERE|SET|FROM|AS|AND|OR|ON|IF)\b`)
)

// TestProse holds the texts that the program prints (errors, log messages, help) and the
// comments of SQL and shell to the patterns of .vale/styles. In `make lint` vale reads the other
// comments and Markdown.
func TestProse(t *testing.T) {
	patterns := readPatterns(t)
	check := func(rel string, line int, text string) {
		text = codeSpan.ReplaceAllString(text, "X")
		for i := range patterns {
			for _, message := range patterns[i].find(text) {
				t.Errorf("%s:%d: %s", rel, line, message)
			}
		}
	}
	walkRepository(t, func(path, rel string) error {
		switch name := filepath.Base(rel); {
		case strings.Contains("/"+rel, "/golden/"):
		case strings.HasSuffix(rel, ".go") && !isTestCode(rel):
			return checkLiterals(path, func(line int, text string) { check(rel, line, text) })
		case strings.HasSuffix(rel, ".sql"):
			return checkComments(path, "--", func(line int, text string) { check(rel, line, text) })
		case strings.HasSuffix(rel, ".sh"), name == "Makefile", name == "Containerfile", strings.HasPrefix(rel, "deploy/debian/"), strings.HasSuffix(rel, ".service"):
			return checkComments(path, "#", func(line int, text string) { check(rel, line, text) })
		}
		return nil
	})
}

// checkLiterals calls check with each string of a Go file that is prose. Parts that + joins are one text.
func checkLiterals(path string, check func(line int, text string)) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		switch e.(type) {
		case *ast.BasicLit, *ast.BinaryExpr:
		default:
			return true
		}
		text, ok := joined(e)
		if !ok {
			return true
		}
		if isProse(text) {
			check(fset.Position(e.Pos()).Line, text)
		}
		return false
	})
	return nil
}

// joined returns the text of a string literal, or of literals and other operands joined by +.
func joined(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		left, okLeft := joined(e.X)
		right, okRight := joined(e.Y)
		if !okLeft && !okRight {
			return "", false
		}
		if !okLeft {
			left = "X"
		}
		if !okRight {
			right = "X"
		}
		return left + right, true
	}
	return "", false
}

// isProse reports whether a string is a sentence or a part of one, and no SQL.
func isProse(text string) bool {
	return strings.Count(strings.TrimSpace(text), " ") >= 2 && len(keyword.FindAllString(text, 3)) < 3
}

// checkComments calls check with each run of comment lines of a script or of SQL.
func checkComments(path, mark string, check func(line int, text string)) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var run bytes.Buffer
	start := 0
	flush := func() {
		if run.Len() > 0 {
			check(start, run.String())
		}
		run.Reset()
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		line = strings.TrimSpace(line)
		if _, comment, ok := strings.Cut(line, " "+mark+" "); ok && !strings.HasPrefix(line, mark) {
			flush()
			check(n, comment)
			continue
		}
		comment, ok := strings.CutPrefix(line, mark)
		if !ok || strings.HasPrefix(comment, "!") {
			flush()
			continue
		}
		if run.Len() == 0 {
			start = n
		}
		run.WriteString(strings.TrimLeft(comment, mark[:1]) + "\n")
	}
	flush()
	return nil
}

// TestPatterns checks that the patterns find the examples of language.md's table "Do not
// write", and that they accept texts in plain English.
func TestPatterns(t *testing.T) {
	patterns := readPatterns(t)
	find := func(text string) (messages []string) {
		for i := range patterns {
			messages = append(messages, patterns[i].find(text)...)
		}
		return messages
	}
	for _, text := range []string{
		"Whoever connects is served.", "Who claims gets a job.", "The lock ends, and who waits gets it.", "what is left of it", "that which is there",
		"It tells all errors.", "The client is told so.", "the server says why", "It knows the queue.", "It wants a key.", "with the server's own words",
		"Nobody reads it.", "somebody else's job", "who he is", "his own socket",
		"That is no error.", "The op takes none.", "0 if the limit is none",
		"just now", "all the same", "begins\nanew", "for ever", "seldomer where that is slow", "likewise", "meanwhile",
		"a table that is there", "cannot be had yet", "a delivery when it is made", "It makes a queue.", "made up by clients",
		"a look into the table", "The server looks again.", "a bite of rows", "a lane", "its next beat", "housework of the house", "its place in the queue", "no room left",
		"A job may run twice.", "A queue may have several.", "The server MUST answer.", "goes on and on sending", "be it a job or a row",
	} {
		if len(find(text)) == 0 {
			t.Errorf("%q is accepted", text)
		}
	}
	for _, text := range []string{
		"The user who runs it needs a role.", "What follows is a list.", "a known error", "You want a queue? Name it.", "This doesn't tell two claims apart.",
		"There is no error.", "There are no workflows.", "The job is no longer valid.", "It has no lease.",
		"The suite looks like this.", "Look at the log.", "It takes place in one place.", "in place of the old one", "the heartbeat", "its replacement", "in the first place",
		"A user may enqueue.", "The role may not create tables.", "maybe", "It makes its jobs ready.", "made of two parts", "search for these words",
		"0 if there is none", "The job may have been stored.", "It may or may not have happened.", "It makes the database refuse jobs.", "tables that look wrong",
	} {
		if messages := find(text); len(messages) > 0 {
			t.Errorf("%q: %s", text, messages)
		}
	}
}
