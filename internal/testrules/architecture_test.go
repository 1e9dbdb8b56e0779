package testrules

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The parts of docs/architecture.md that these tests read.
var (
	codeText  = regexp.MustCompile("`([^`\n]+)`")
	isPath    = regexp.MustCompile(`^(?:\./)?[\w.-]+(?:/[\w.-]+)+/?$|^[\w-]+\.(?:go|md|mod|sh|sql|txt|ya?ml)$`)
	link      = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	node      = regexp.MustCompile(`(\w+)\["([\w./-]+)"\]`)
	flowchart = regexp.MustCompile("(?s)```mermaid\nflowchart[^\n]*\n(.*?)```")
)

// TestArchitecturePaths checks that each file and package that docs/architecture.md names in
// backquotes, in links and in its diagram exists. Text in backquotes with a slash or the
// extension of a file is a path from the root of the repository.
func TestArchitecturePaths(t *testing.T) {
	root := filepath.Join("..", "..")
	paths := pathsOf(readArchitecture(t), "docs")
	if len(paths) == 0 {
		t.Fatal("docs/architecture.md names no path: has it another form?")
	}
	for _, p := range paths {
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(p))); errors.Is(err, fs.ErrNotExist) {
			t.Errorf("docs/architecture.md names %s, which does not exist", p)
		} else if err != nil {
			t.Error(err)
		}
	}
}

// goroutine matches a line that starts a goroutine.
var goroutine = regexp.MustCompile(`(?m)^[^/\n]*(?:\bgo (?:func\(|\w[\w.]*\()|\.Go\()`)

// TestArchitectureGoroutines checks that the section on goroutines names each file of the sidecar that starts one, or its package.
func TestArchitectureGoroutines(t *testing.T) {
	page := readArchitecture(t)
	_, section, _ := strings.Cut(page, "\n## Goroutines\n")
	section, _, _ = strings.Cut(section, "\n## ")
	named := pathsOf(section, "docs")
	root, found := filepath.Join("..", ".."), 0
	for _, dir := range []string{"bridge", "backends", "internal"} {
		if err := filepath.WalkDir(filepath.Join(root, dir), func(file string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (strings.HasPrefix(d.Name(), "test") || strings.HasSuffix(d.Name(), "test")):
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
				return nil
			}
			text, err := os.ReadFile(file)
			if err != nil || !goroutine.Match(text) {
				return err
			}
			found++
			rel, err := filepath.Rel(root, file)
			if name := filepath.ToSlash(rel); !slices.Contains(named, name) && !slices.Contains(named, path.Dir(name)) {
				t.Errorf("%s starts a goroutine, which the section on goroutines of docs/architecture.md doesn't name", name)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if found < 20 {
		t.Errorf("%d files start goroutines: has their code another form?", found)
	}
}

// TestPathsOf checks that the paths of a page are found in each form.
func TestPathsOf(t *testing.T) {
	page := "`a/b.go` and `Type.Method`, `c.md`, `run d e`, [f](../f/g#h), [i](https://i.example/j)\n" +
		"```mermaid\nflowchart LR\n  k[\"k/l\"] --> m[\"m\"]\n```\n"
	want := []string{"a/b.go", "c.md", "f/g", "k/l", "m"}
	if got := pathsOf(page, "docs"); !slices.Equal(got, want) {
		t.Errorf("the paths are %q, want %q", got, want)
	}
	if got := pathsOf("`Type.Method`", "docs"); len(got) != 0 {
		t.Errorf("the paths are %q, want none", got)
	}
}

// TestArchitectureDiagrams checks that each arrow of the diagrams of packages is an import.
func TestArchitectureDiagrams(t *testing.T) {
	diagrams := flowchart.FindAllStringSubmatch(readArchitecture(t), -1)
	if len(diagrams) != 2 {
		t.Fatalf("docs/architecture.md has %d diagrams of packages, want all packages and those of the bridge", len(diagrams))
	}
	imported := map[string][]string{}
	for _, pkg := range imports(t, "./...", false) {
		imported[pkg.path] = pkg.imports
	}
	for _, m := range diagrams {
		checkDiagram(t, m[1], imported)
	}
}

func checkDiagram(t *testing.T, diagram string, imported map[string][]string) {
	t.Helper()
	packages := map[string]string{} // by their ids in the diagram
	for _, n := range node.FindAllStringSubmatch(diagram, -1) {
		packages[n[1]] = n[2]
	}
	arrows := 0
	for line := range strings.Lines(node.ReplaceAllString(diagram, "$1")) {
		from, to, isArrow := strings.Cut(strings.TrimSpace(line), " --> ")
		if !isArrow {
			t.Errorf("can't read the line %q of a diagram", line)
		}
		for a := range strings.SplitSeq(from, " & ") {
			for b := range strings.SplitSeq(to, " & ") {
				arrows++
				if !slices.Contains(imported["qsidecar/"+packages[a]], "qsidecar/"+packages[b]) {
					t.Errorf("a diagram has an arrow from %s (%s) to %s (%s), which isn't an import", a, packages[a], b, packages[b])
				}
			}
		}
	}
	if arrows == 0 {
		t.Error("a diagram has no arrow")
	}
}

func readArchitecture(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// pathsOf lists the paths that a page in the directory dir names, from the root of the
// repository, without duplicates.
func pathsOf(page, dir string) []string {
	found := map[string]bool{}
	for _, m := range codeText.FindAllStringSubmatch(page, -1) {
		if isPath.MatchString(m[1]) {
			found[path.Clean(m[1])] = true
		}
	}
	for _, m := range link.FindAllStringSubmatch(page, -1) {
		if !strings.Contains(m[1], "://") {
			found[path.Join(dir, m[1])] = true
		}
	}
	for _, m := range node.FindAllStringSubmatch(page, -1) {
		found[path.Clean(m[2])] = true
	}
	return slices.Sorted(maps.Keys(found))
}
