package testrules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// engines are the packages of the SQL engines.
var engines = []string{"postgres", "mysql", "sqlserver", "sqlite"}

// TestEnginesAreCongruent checks that each engine has the files of the table in docs/new-engine.md, and in them the methods
// of the core's interfaces.
func TestEnginesAreCongruent(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs/new-engine.md"))
	if err != nil {
		t.Fatal(err)
	}
	interfaces := methodsOf(t, filepath.Join(root, "backends/internal/core/driver.go"))
	file := map[string]string{} // by method, those of a Driver with "Driver." before them
	var names []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+\\.go)` \\|[^|]*\\|(.*)\\|$").FindAllStringSubmatch(string(page), -1) {
		names = append(names, row[1])
		for _, word := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			if name, method, one := strings.Cut(word[1], "."); one {
				if !interfaces[name][method] {
					t.Errorf("docs/new-engine.md: core has no %s", word[1])
				}
				file[name+"."+method] = row[1]
				continue
			}
			if interfaces[word[1]] == nil {
				t.Errorf("docs/new-engine.md: core has no interface %s", word[1])
			}
			for method := range interfaces[word[1]] {
				file[method] = row[1]
			}
		}
	}
	if len(names) < 10 || len(file) < 30 {
		t.Fatalf("the table of docs/new-engine.md has only %d files and %d methods", len(names), len(file))
	}
	for _, engine := range engines {
		dir := filepath.Join(root, "backends", engine)
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(dir, strings.Replace(name, "ENGINE", engine, 1))); err != nil {
				t.Error(err)
			}
		}
		paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			for method := range drivingMethods(t, path) {
				if want := strings.Replace(file[method], "ENGINE", engine, 1); want != "" && want != filepath.Base(path) {
					t.Errorf("backends/%s: %s is in %s, want it in %s as in the other engines", engine, method, filepath.Base(path), want)
				}
			}
		}
	}
}

func parsed(t *testing.T, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// methodsOf returns the methods of a file's interfaces, without embedded ones.
func methodsOf(t *testing.T, path string) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	ast.Inspect(parsed(t, path), func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if in, ok := spec.Type.(*ast.InterfaceType); ok {
				all[spec.Name.Name] = map[string]bool{}
				for _, m := range in.Methods.List {
					for _, name := range m.Names {
						all[spec.Name.Name][name.Name] = true
					}
				}
			}
		}
		return true
	})
	return all
}

// drivingMethods returns the methods by which an engine's types implement the core's interfaces.
func drivingMethods(t *testing.T, path string) map[string]bool {
	all := map[string]bool{}
	if strings.HasSuffix(path, "_test.go") {
		return all
	}
	for _, d := range parsed(t, path).Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil {
			continue
		}
		of := f.Recv.List[0].Type
		if star, ok := of.(*ast.StarExpr); ok {
			of = star.X
		}
		if name, ok := of.(*ast.Ident); ok && (name.Name == "tx" || name.Name == "access" || name.Name == "inspection") {
			method := f.Name.Name
			if name.Name == "access" {
				method = "Driver." + method
			}
			all[method] = true
		}
	}
	return all
}

var (
	createTable = regexp.MustCompile(`(?ms)^ *CREATE TABLE (?:IF NOT EXISTS )?(?:\{s\}\.)?(\w+) \(\n(.*?)^ *\)`)
	column      = regexp.MustCompile("(?m)^ +[`\\[]?([a-z]\\w*)[`\\]]? +[A-Za-z{]")
)

// columnsOf returns the columns of each table of a schema.
func columnsOf(t *testing.T, path string) map[string][]string {
	schema, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, table := range createTable.FindAllStringSubmatch(string(schema), -1) {
		for _, c := range column.FindAllStringSubmatch(table[2], -1) {
			all[table[1]] = append(all[table[1]], c[1])
		}
	}
	if len(all) < 7 || len(all["qsidecar_jobs"]) < 30 {
		t.Fatalf("%s: only %d tables, and %d columns of qsidecar_jobs", path, len(all), len(all["qsidecar_jobs"]))
	}
	return all
}

// TestColumnsHaveOneOrder checks that the columns that two engines' tables share are in the same order in both.
func TestColumnsHaveOneOrder(t *testing.T) {
	t.Parallel()
	schemas := map[string]map[string][]string{}
	for _, engine := range engines {
		schemas[engine] = columnsOf(t, filepath.Join("..", "..", "backends", engine, "migrate/schema.sql"))
	}
	for _, engine := range engines[1:] {
		for table, columns := range schemas[engine] {
			first := schemas[engines[0]][table]
			shared := func(of, in []string) []string {
				return slices.DeleteFunc(slices.Clone(of), func(c string) bool { return !slices.Contains(in, c) })
			}
			if want, got := shared(first, columns), shared(columns, first); !slices.Equal(want, got) {
				t.Errorf("%s: the columns are in the order\n%q on %s and\n%q on %s", table, want, engines[0], got, engine)
			}
		}
	}
}
