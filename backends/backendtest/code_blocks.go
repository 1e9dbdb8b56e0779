package backendtest

import (
	"os"
	"strings"
	"testing"
)

// Documented are the code blocks in a language below a heading of a Markdown file,
// up to the next heading of its rank or a higher one: what an engine's README tells
// people to run is run by its test. It fails where there is none.
func Documented(t testing.TB, path, heading, language string) (blocks []string) {
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
