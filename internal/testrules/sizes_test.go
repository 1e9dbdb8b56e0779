package testrules

import (
	"bytes"
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The largest sizes in lines.
const (
	maxFileLines     = 400   // with tests
	maxFunctionLines = 60    // without tests
	maxPackageLines  = 4_000 // without tests
)

// sizeExceptions lists the code that can be larger, such as tables and switches.
//
//go:embed sizes.txt
var sizeExceptions []byte

// TestSizes checks that files, functions and packages are small enough to read, or that
// sizes.txt lists them with a reason.
func TestSizes(t *testing.T) {
	allowed := readExceptions(t, "sizes.txt", sizeExceptions)
	found, packages := map[string]string{}, map[string]int{}
	walkRepository(t, func(file, rel string) error {
		if !slices.Contains([]string{".go", ".py", ".rb", ".sh"}, filepath.Ext(rel)) {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		lines := bytes.Count(text, []byte("\n"))
		if lines > maxFileLines {
			found[rel+" -"] = fmt.Sprintf("the file has %d lines, and %d are the limit", lines, maxFileLines)
		}
		if filepath.Ext(rel) != ".go" || strings.HasSuffix(rel, "_test.go") {
			return nil
		}
		packages[path.Dir(rel)] += lines
		return findLongFunctions(rel, text, found)
	})
	for dir, lines := range packages {
		if lines > maxPackageLines {
			found[dir+" -"] = fmt.Sprintf("the package has %d lines without tests, and %d are the limit", lines, maxPackageLines)
		}
	}
	if len(packages) < 50 {
		t.Fatalf("only %d packages were found", len(packages))
	}
	for _, where := range slices.Sorted(maps.Keys(found)) {
		if _, ok := allowed[where]; !ok {
			t.Errorf("%s: %s: simplify or split it, or add the line to internal/testrules/sizes.txt with a reason", where, found[where])
		}
	}
	for _, where := range slices.Sorted(maps.Keys(allowed)) {
		if _, ok := found[where]; !ok {
			t.Errorf("sizes.txt: %s is within the limits: remove the line", where)
		}
	}
}

// findLongFunctions adds the functions of a file that are too long.
func findLongFunctions(rel string, text []byte, found map[string]string) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, rel, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1; n > maxFunctionLines {
			found[rel+" "+f.Name.Name] = fmt.Sprintf("the function has %d lines, and %d are the limit", n, maxFunctionLines)
		}
	}
	return nil
}
