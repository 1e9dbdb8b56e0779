package testrules

import (
	"bufio"
	"bytes"
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// timingExceptions lists the permitted uses of a clock, one a line:
//
//	path/of/file.go Function: reason
//
//go:embed timing.txt
var timingExceptions []byte

// clockCalls are the functions that make a test depend on the machine's speed.
var clockCalls = map[string]bool{
	"time.Sleep": true, "time.Since": true, "time.Until": true, "time.After": true, "time.AfterFunc": true,
	"time.Tick": true, "time.NewTicker": true, "time.NewTimer": true,
	"context.WithTimeout": true, "context.WithDeadline": true,
	"context.WithTimeoutCause": true, "context.WithDeadlineCause": true,
}

// clockMethods compare an instant with time.Now().
var clockMethods = map[string]bool{"Sub": true, "After": true, "Before": true, "Compare": true}

// sleepInScript finds a sleep, and a time limit of its own, in the tests of the clients in other languages.
var sleepInScript = regexp.MustCompile(`time\.(sleep|time|monotonic|perf_counter)\(|\bsleep[ (][0-9a-z.$]|Process\.clock_gettime|Time\.now|\.(wait|join)\([1-9]|Timeout\.timeout\([1-9]`)

// TestNoClockInTests checks that tests wait for facts. A test uses package testwait or
// testing/synctest, or timing.txt lists its function with a reason.
func TestNoClockInTests(t *testing.T) {
	allowed := readExceptions(t, "timing.txt", timingExceptions)
	found := map[string]string{} // "path Function" -> first use
	walkRepository(t, func(path, rel string) error {
		switch {
		case isTestCode(rel):
			return findInGo(path, rel, found)
		case isTestScript(rel):
			return findInScript(path, rel, found)
		}
		return nil
	})
	for _, where := range slices.Sorted(maps.Keys(found)) {
		if _, ok := allowed[where]; !ok {
			t.Errorf("%s: %s: use internal/testwait or testing/synctest, or add the line to internal/testrules/timing.txt with a reason", where, found[where])
		}
	}
	for where := range allowed {
		if _, ok := found[where]; !ok {
			t.Errorf("timing.txt: %s uses no clock: remove the line", where)
		}
	}
}

// walkRepository calls f for each file of the repository, with its path and its path below the
// root, except hidden files and those that a build or an installation created.
func walkRepository(t *testing.T, f func(path, rel string) error) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && path != root || slices.Contains([]string{"bin", "dist", "node_modules"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		return f(path, filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator))))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// isTestCode reports whether a Go file is a test or only serves tests. Only package testwait
// can use a clock, so it doesn't count.
func isTestCode(rel string) bool {
	if !strings.HasSuffix(rel, ".go") || strings.HasPrefix(rel, "internal/testwait/") {
		return false
	}
	if strings.HasSuffix(rel, "_test.go") {
		return true
	}
	for _, dir := range []string{"backends/backendtest/", "backends/adopted/adoptedtest/", "e2e/", "clients/kit/", "internal/testserver/", "protocol/transcript/"} {
		if strings.HasPrefix(rel, dir) {
			return true
		}
	}
	return false
}

func isTestScript(rel string) bool {
	if !strings.HasPrefix(rel, "clients/") && !strings.HasPrefix(rel, "e2e/") {
		return false
	}
	switch filepath.Ext(rel) {
	case ".py", ".rb", ".sh", ".php":
		return strings.Contains(rel, "/tests/") || strings.Contains(rel, "/test/") || strings.HasPrefix(rel, "e2e/")
	}
	return false
}

func findInGo(path, rel string, found map[string]string) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, decl := range file.Decls {
		name := declName(decl)
		if strings.HasPrefix(name, "Benchmark") {
			continue // a benchmark prints figures but doesn't assert them
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			what := selector(call.Fun)
			if what == "synctest.Test" {
				return false // inside, the clock is virtual
			}
			if !clockCalls[what] && !comparesNow(call) {
				return true
			}
			where := rel + " " + name
			if _, ok := found[where]; !ok {
				found[where] = fmt.Sprintf("line %d calls %s", files.Position(call.Pos()).Line, what)
			}
			return true
		})
	}
	return nil
}

// declName is a function's name, Type.Method for a method, or the first name that a
// var declares.
func declName(decl ast.Decl) string {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return d.Name.Name
		}
		at := d.Recv.List[0].Type
		if star, ok := at.(*ast.StarExpr); ok {
			at = star.X
		}
		if index, ok := at.(*ast.IndexExpr); ok {
			at = index.X
		}
		return fmt.Sprint(at) + "." + d.Name.Name
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				return v.Names[0].Name
			}
		}
	}
	return "-"
}

func selector(fun ast.Expr) string {
	s, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); ok {
		return x.Name + "." + s.Sel.Name
	}
	return "." + s.Sel.Name
}

// comparesNow reports whether the call is time.Now().Sub(…), x.Before(time.Now()), and
// so on.
func comparesNow(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !clockMethods[s.Sel.Name] {
		return false
	}
	isNow := func(e ast.Expr) bool {
		c, ok := e.(*ast.CallExpr)
		return ok && selector(c.Fun) == "time.Now"
	}
	return isNow(s.X) || slices.ContainsFunc(call.Args, isNow)
}

func findInScript(path, rel string, found map[string]string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for n, line := range bytes.Split(text, []byte("\n")) {
		if m := sleepInScript.Find(line); m != nil {
			found[rel+" -"] = fmt.Sprintf("line %d has %q", n+1, m)
			return nil
		}
	}
	return nil
}

// readExceptions returns the lines `path Function: reason` of a list.
func readExceptions(t *testing.T, name string, list []byte) map[string]string {
	t.Helper()
	allowed := map[string]string{}
	for s := bufio.NewScanner(bytes.NewReader(list)); s.Scan(); {
		line := s.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		where, reason, ok := strings.Cut(line, ": ")
		if _, twice := allowed[where]; !ok || strings.Count(where, " ") != 1 || len(reason) < 10 || twice {
			t.Fatalf("%s: %q is not `path Function: reason`, or stands twice", name, line)
		}
		allowed[where] = reason
	}
	return allowed
}
