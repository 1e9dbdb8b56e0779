package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/qsidecar/qsidecar/internal/manual"
)

// TestManPages checks that each listed command has a page with all of its help.
// TestReleaseManPages checks the roff.
func TestManPages(t *testing.T) {
	h := newHost(t)
	dir := filepath.Join(h.dir, "share", "man1")
	h.must(0, "man", dir)
	root := h.app(nil, nil, nil, nil).root()
	commands := append(manual.All(root), root)
	if len(commands) < 20 {
		t.Errorf("the help lists %d commands", len(commands))
	}
	for _, c := range commands {
		text, err := os.ReadFile(filepath.Join(dir, manual.PageName(c)+".1"))
		if err != nil {
			t.Error(err)
			continue
		}
		page := unroff(string(text))
		for _, want := range append(strings.Split(c.Long, "\n"), strings.Split(c.Example, "\n")...) {
			if want = strings.TrimSpace(strings.TrimPrefix(want, "Exit codes:")); !strings.Contains(page, want) {
				t.Errorf("the page of %s lacks %q", c.Name(), want)
			}
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(page, "--"+f.Name) {
				t.Errorf("the page of %s lacks --%s", c.Name(), f.Name)
			}
		})
	}
	if pages, err := os.ReadDir(dir); err != nil || len(pages) != len(commands) {
		t.Errorf("there are %d pages (%v), of %d commands", len(pages), err, len(commands))
	}
}

// unroff returns roff as text.
func unroff(roff string) string {
	return strings.NewReplacer(`\e`, `\`, `\-`, `-`, `\(ga`, "`", `\(aq`, `'`, `\(ha`, `^`, `\(ti`, `~`, `\&`, ``, `\fB`, ``, `\fI`, ``, `\fR`, ``).Replace(roff)
}
