// Package testdocs reads the examples of a Markdown page, so that a test runs what the page shows.
package testdocs

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A Block is a fenced code block of a page.
type Block struct {
	Language string
	Mark     string // the text of an HTML comment on the line above the fence, or ""
	Text     string
	Line     int      // of the opening fence, from 1
	Headings []string // the headings that the block is below, each with its #s
}

var comment = regexp.MustCompile(`^<!-- (.*) -->$`)

// Blocks returns the code blocks of a Markdown file in their order.
func Blocks(t testing.TB, path string) (blocks []Block) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var headings []string
	inside, mark := false, ""
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case inside && line == "```":
			inside, mark = false, ""
		case inside:
			blocks[len(blocks)-1].Text += line + "\n"
		case strings.HasPrefix(line, "```"):
			inside = true
			blocks = append(blocks, Block{Language: line[3:], Mark: mark, Line: i + 1, Headings: slices.Clone(headings)})
		case strings.HasPrefix(line, "#"):
			headings = slices.DeleteFunc(headings, func(h string) bool { return rank(h) >= rank(line) })
			headings = append(headings, line)
			mark = ""
		default:
			mark = ""
			if m := comment.FindStringSubmatch(line); m != nil {
				mark = m[1]
			}
		}
	}
	if inside {
		t.Fatalf("%s does not close its last code block", path)
	}
	return blocks
}

func rank(heading string) int { return len(heading) - len(strings.TrimLeft(heading, "#")) }

// CodeBlocks returns the code blocks in a language below a heading of a Markdown file, up to the
// next heading of the same or a higher rank. It fails the test if there are none.
func CodeBlocks(t testing.TB, path, heading, language string) (blocks []string) {
	t.Helper()
	for _, b := range Blocks(t, path) {
		if b.Language == language && slices.Contains(b.Headings, heading) {
			blocks = append(blocks, b.Text)
		}
	}
	if len(blocks) == 0 {
		t.Fatalf("%s has no %s below %q", path, language, heading)
	}
	return blocks
}
