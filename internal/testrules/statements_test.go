package testrules

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// tableInSQL finds a table of this project in a statement, or in a part of one.
var tableInSQL = regexp.MustCompile(`\b(FROM|INTO|UPDATE|JOIN)\s+(\S+\.)?\[?qsidecar_[a-z]+`)

// TestStatementsAreInFiles checks that an engine's statements with this project's tables are in .sql files: see package sqltext.
func TestStatementsAreInFiles(t *testing.T) {
	t.Parallel()
	for _, folder := range append([]string{"mysql/internal/claim", "mysql/internal/table"}, engines...) {
		paths, err := filepath.Glob(filepath.Join("..", "..", "backends", folder, "*.go"))
		if err != nil || len(paths) == 0 {
			t.Fatal(paths, err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			ast.Inspect(parsed(t, path), func(n ast.Node) bool {
				if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
					s, err := strconv.Unquote(text.Value)
					if err == nil && tableInSQL.MatchString(s) {
						t.Errorf("%s has the statement %q: put it into a .sql file of the engine", path, s)
					}
				}
				return true
			})
		}
	}
}
