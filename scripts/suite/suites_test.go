package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestOnlyInTest checks that a package without the race detector and its tests start no goroutines, and that none of the tests is skipped with -short.
func TestOnlyInTest(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, pkg := range pureInTest {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s has no files: %v", pkg, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, what := range concurrencyIn(t, file, text) {
				t.Errorf("%s has %s: take %s out of pureInTest", file, what, pkg)
			}
		}
	}
}

// concurrencyIn returns what a file of such a package can't have.
func concurrencyIn(t *testing.T, name string, text []byte) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, "a go statement")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); n.Sel.Name == "Go" || ok && x.Name == "testing" && n.Sel.Name == "Short" {
				found = append(found, "a call of "+n.Sel.Name)
			}
		}
		return true
	})
	return found
}

func TestConcurrencyIn(t *testing.T) {
	for text, want := range map[string]string{
		"package p\nfunc f() { go f() }":                                                            "a go statement",
		"package p\nfunc f(w *Group) { w.Go(func() {}) }":                                           "a call of Go",
		"package p\nimport \"testing\"\nfunc f() { _ = testing.Short() }":                           "a call of Short",
		"package p\nimport \"sync\"\nvar mu sync.Mutex\nfunc f(o options) { o.Short(); mu.Lock() }": "",
	} {
		if got := strings.Join(concurrencyIn(t, "p.go", []byte(text)), ", "); got != want {
			t.Errorf("%q has %q, want %q", text, got, want)
		}
	}
}

// TestTestsOfOneStep checks that each test that a step leaves out runs in another one: it is in that one's package, and no other has its name.
func TestTestsOfOneStep(t *testing.T) {
	for pkg, names := range map[string][]string{"backends/mysql": withoutRace, "backends/postgres": onNewest} {
		for _, name := range names {
			if got := filesOf(t, name); len(got) != 1 || filepath.Dir(got[0]) != pkg {
				t.Errorf("%s is in %v, want a file of %s", name, got, pkg)
			}
		}
	}
}

// TestAdoptedInOneGoroutine checks that the tests of the step adopted start no goroutines, and that a test with the same name runs in make test.
func TestAdoptedInOneGoroutine(t *testing.T) {
	for _, name := range adoptedInOneGoroutine {
		found := false
		for _, file := range filesOf(t, name) {
			text, err := os.ReadFile(filepath.Join("..", "..", file))
			if err != nil {
				t.Fatal(err)
			}
			mine := filepath.Dir(file) == "backends/adopted"
			found = found || mine
			_, body, _ := strings.Cut(string(text), "\nfunc "+name+"(")
			body, _, _ = strings.Cut(body, "\n}\n")
			if !mine && strings.Contains(body, "testing.Short()") {
				t.Errorf("%s skips %s with -short, so that no step runs it", file, name)
			}
			for _, what := range concurrencyIn(t, file, text) {
				if what != "a call of Short" {
					t.Errorf("%s has %s: take %s out of adoptedInOneGoroutine", file, what, name)
				}
			}
		}
		if !found {
			t.Errorf("backends/adopted has no test %s", name)
		}
	}
}

// filesOf returns the files with a test.
func filesOf(t *testing.T, name string) []string {
	t.Helper()
	cmd := exec.Command("git", "grep", "-l", "^func "+name+"(t ", "--", "*_test.go")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("no test %s: %v", name, err)
	}
	return strings.Fields(string(out))
}

// TestInOneGoroutine checks that the topics that the race detector doesn't see start no goroutines.
func TestInOneGoroutine(t *testing.T) {
	dir := filepath.Join("..", "..", "backends", "backendtest")
	text, err := os.ReadFile(filepath.Join(dir, "backendtest.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range inOneGoroutine {
		begins := "func emptied("
		if topic != "Emptied" {
			m := regexp.MustCompile(`\{"` + topic + `", (\w+)\}`).FindSubmatch(text)
			if m == nil {
				t.Errorf("package backendtest has no topic %s", topic)
				continue
			}
			begins = "var " + string(m[1]) + " = "
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), begins) {
				found++
				for _, what := range concurrencyIn(t, file, text) {
					if what != "a call of Short" { // the oldest servers run these topics without -short
						t.Errorf("%s has %s: take %s out of inOneGoroutine", file, what, topic)
					}
				}
			}
		}
		if found != 1 {
			t.Errorf("%d files have the tests of %s", found, topic)
		}
	}
}

// TestByEmulation checks that make test runs the topics that the step emulation leaves out.
func TestByEmulation(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "backends", "sqlserver", "conformance_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	if want := `var quickTopics = []string{"` + strings.Join(byEmulation, `", "`) + `"}`; !strings.Contains(string(text), want) {
		t.Errorf("backends/sqlserver has no %s", want)
	}
}

// TestInTestAlone checks that bridge and backends/internal/core have the tests that the step race leaves out, and that make test runs them.
func TestInTestAlone(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "bridge", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, filepath.Join("..", "..", "backends", "internal", "core", "careful_test.go"))
	left := slices.Clone(inTestAlone)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		left = slices.DeleteFunc(left, func(name string) bool {
			_, test, found := strings.Cut(string(text), "\nfunc "+name+"(")
			test, _, _ = strings.Cut(test, "\nfunc ")
			return found && !strings.Contains(test, "testing.Short()")
		})
	}
	if len(left) > 0 {
		t.Errorf("no package has %v, or it skips a part of them with -short", left)
	}
}
