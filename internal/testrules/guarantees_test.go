package testrules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The lines of docs/guarantees.md that this test reads.
var (
	guarantee = regexp.MustCompile(`^## (\d+)\. `)
	proof     = regexp.MustCompile("^\\| `([a-z0-9/]+)` \\| `(Test\\w+)((?:/\\w+)*)` \\|")
	command   = regexp.MustCompile(`^go test (?:-short )?-run '([^']+)' \./([a-z0-9/]+)$`)
)

// TestGuaranteesPage compares docs/guarantees.md with the tests. Each guarantee has a number,
// each named test exists, and a command of its section runs that test.
func TestGuaranteesPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(page), "\n## ")[1:]
	if len(sections) != 10 {
		t.Errorf("%d guarantees, want the 10 of the design", len(sections))
	}
	conformance := conformanceTests(t)
	for i, section := range sections {
		section = "## " + section
		m := guarantee.FindStringSubmatch(section)
		if m == nil || m[1] != strconv.Itoa(i+1) {
			t.Errorf("section %d begins with %.40q", i+1, section)
			continue
		}
		checkSection(t, m[1], section, conformance)
	}
}

func checkSection(t *testing.T, number, section string, conformance map[string]bool) {
	t.Helper()
	commands := map[string][]*regexp.Regexp{} // by package
	for line := range strings.Lines(section) {
		if m := command.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			top, _, _ := strings.Cut(m[1], "/")
			run, err := regexp.Compile(top)
			if err != nil {
				t.Errorf("guarantee %s: %v", number, err)
				continue
			}
			commands[m[2]] = append(commands[m[2]], run)
		} else if strings.HasPrefix(line, "go test") {
			t.Errorf("guarantee %s: can't read the command %q", number, line)
		}
	}
	proofs := 0
	for line := range strings.Lines(section) {
		m := proof.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		proofs++
		pkg, name, sub := m[1], m[2], strings.TrimPrefix(m[3], "/")
		if !testsOf(t, pkg)[name] {
			t.Errorf("guarantee %s: %s has no %s", number, pkg, name)
		}
		if name == "TestConformance" && sub != "" && !conformance[sub] {
			t.Errorf("guarantee %s: the conformance suite has no %s", number, sub)
		}
		if !slices.ContainsFunc(commands[pkg], func(r *regexp.Regexp) bool { return r.MatchString(name) }) {
			t.Errorf("guarantee %s: no command runs %s of %s", number, name, pkg)
		}
	}
	if proofs == 0 || len(commands) == 0 {
		t.Errorf("guarantee %s has %d tests and commands for %d packages", number, proofs, len(commands))
	}
}

// testsOf are the test functions of a package.
func testsOf(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, file := range parseDir(t, pkg, "_test.go") {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}

// conformanceTests are Topic and Topic/Name of package backendtest. Run lists each topic
// with the variable of its tests.
func conformanceTests(t *testing.T) map[string]bool {
	t.Helper()
	byVar, topics := map[string][]string{}, map[string]string{}
	for _, file := range parseDir(t, "backends/backendtest", ".go") {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec: // var order = map[string]func(*kit){"Name": …}
				if lit, ok := first(n.Values).(*ast.CompositeLit); ok {
					byVar[n.Names[0].Name] = keysOf(lit)
				}
			case *ast.CompositeLit: // {"Order", order}
				if len(n.Elts) == 2 {
					name, ok1 := n.Elts[0].(*ast.BasicLit)
					tests, ok2 := n.Elts[1].(*ast.Ident)
					if ok1 && ok2 {
						topics[strings.Trim(name.Value, `"`)] = tests.Name
					}
				}
			}
			return true
		})
	}
	found := map[string]bool{}
	for _, topic := range slices.Collect(maps.Keys(topics)) {
		found[topic] = true
		for _, name := range byVar[topics[topic]] {
			found[topic+"/"+name] = true
		}
	}
	if len(found) < 50 {
		t.Fatalf("found only %d conformance tests: has backendtest.Run another form?", len(found))
	}
	return found
}

func first(all []ast.Expr) ast.Expr {
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

func keysOf(lit *ast.CompositeLit) (keys []string) {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if k, ok := kv.Key.(*ast.BasicLit); ok {
				keys = append(keys, strings.Trim(k.Value, `"`))
			}
		}
	}
	return keys
}

func parseDir(t *testing.T, dir, suffix string) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(dir), "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}
