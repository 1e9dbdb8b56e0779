package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLogsPage checks that each message on the page is in the source, and that each message
// above debug is on the page.
func TestLogsPage(t *testing.T) {
	page, err := os.ReadFile("../../deploy/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, pattern := range []string{"*.go", "../../internal/*/*.go", "../../bridge/*.go", "../../bridge/internal/*/*.go", "../../backends/*.go", "../../backends/*/*.go", "../../backends/*/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(file, "_test.go") {
				source.Write(text)
			}
		}
	}
	logged := regexp.MustCompile(`\b[lL]og\.(?:Info|Warn|Error)\("([^"]+)"`).FindAllStringSubmatch(source.String(), -1)
	logged = append(logged, regexp.MustCompile(`(?m)^\tlog[A-Z]\w+ += "([^"]+)"`).FindAllStringSubmatch(source.String(), -1)...)
	if len(logged) < 60 {
		t.Errorf("%d texts found in the program", len(logged))
	}
	for _, m := range logged {
		if !strings.Contains(string(page), "`"+m[1]) {
			t.Errorf("the page does not have %q", m[1])
		}
	}
	texts := regexp.MustCompile("(?m)^\\| (?:info|warn|error) \\| `([^`]+)`|then `([^`]+)` says|until `([^`]+)`").FindAllStringSubmatch(string(page), -1)
	if len(texts) < 15 {
		t.Fatalf("the page has %d texts", len(texts))
	}
	for _, m := range texts {
		if text := m[1] + m[2] + m[3]; !strings.Contains(source.String(), `"`+text+`"`) {
			t.Errorf("nothing logs %q", text)
		}
	}
}
