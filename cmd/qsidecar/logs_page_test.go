package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLogsPage: every text that the page on the log has is one that the program says.
func TestLogsPage(t *testing.T) {
	page, err := os.ReadFile("../../deploy/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, pattern := range []string{"*.go", "../../bridge/*.go"} {
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
	texts := regexp.MustCompile("(?m)^\\| (?:info|warn|error) \\| `([^`]+)`|then `([^`]+)` says|until `([^`]+)`").FindAllStringSubmatch(string(page), -1)
	if len(texts) < 15 {
		t.Fatalf("the page has %d texts", len(texts))
	}
	for _, m := range texts {
		if text := m[1] + m[2] + m[3]; !strings.Contains(source.String(), `"`+text+`"`) {
			t.Errorf("nothing says %q", text)
		}
	}
}
