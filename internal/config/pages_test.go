package config

import (
	"path/filepath"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testdocs"
)

// TestDocumentedConfigs checks the configs on the engines' pages.
func TestDocumentedConfigs(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../backends/*/README.md")
	if err != nil || len(pages) < 2 {
		t.Fatalf("%v, %v", pages, err)
	}
	for _, page := range pages {
		section := "## Point a sidecar there"
		if filepath.Base(filepath.Dir(page)) == "adopted" {
			section = "## Worked examples"
		}
		for _, text := range testdocs.CodeBlocks(t, page, section, "yaml") {
			parsePage(t, page, text)
		}
	}
}

// TestDocumentedFragments checks the configs on the how-to pages and on that of proxies that TestPages of e2e/clients does
// not run.
func TestDocumentedFragments(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/how-to/*.md")
	if err != nil || len(pages) < 2 {
		t.Fatalf("%v, %v", pages, err)
	}
	for _, page := range append(pages, "../../docs/operations/proxy.md") {
		for _, b := range testdocs.Blocks(t, page) {
			if b.Language == "yaml" && b.Mark == "" {
				parsePage(t, page, b.Text)
			}
		}
	}
}

func parsePage(t *testing.T, page, text string) {
	t.Helper()
	if _, err := Parse(page, []byte(text), func(string) (string, bool) { return "", false }); err != nil {
		t.Error(err)
	}
}
