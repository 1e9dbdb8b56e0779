// Package testdocs reads the examples of a Markdown page, so that a test runs what the page shows.
package testdocs

import (
	"os"
	"strings"
	"testing"
)

// CodeBlocks returns the code blocks in a language below a heading of a Markdown file, up to the
// next heading of the same or a higher rank. It fails the test if there are none.
func CodeBlocks(t testing.TB, path, heading, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rank := len(heading) - len(strings.TrimLeft(heading, "#"))
	below, inside := false, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case inside && line == "```":
			inside = false
		case inside:
			blocks[len(blocks)-1] += line + "\n"
		case below && line == "```"+language:
			inside = true
			blocks = append(blocks, "")
		case line == heading:
			below = true
		case strings.HasPrefix(line, "#") && len(line)-len(strings.TrimLeft(line, "#")) <= rank:
			below = false
		}
	}
	if inside || len(blocks) == 0 {
		t.Fatalf("%s has no %s below %q, or does not close it", path, language, heading)
	}
	return blocks
}
