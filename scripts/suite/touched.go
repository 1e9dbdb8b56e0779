package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// hunk matches the head of a change in a unified diff without context, with the position of the new
// lines.
var hunk = regexp.MustCompile(`^@@ -\S+ \+(\d+)(?:,(\d+))? @@`)

// touched returns the test functions, by directory, that the working tree adds or changes since a
// commit.
func touched(ctx context.Context, base string) (map[string][]string, error) {
	diff, err := exec.CommandContext(ctx, "git", "diff", "--unified=0", "--no-renames", "--diff-filter=AM", base, "--", "*_test.go").Output()
	if err != nil {
		return nil, fmt.Errorf("git diff %s: %w", base, err)
	}
	found, file := map[string][]string{}, ""
	for line := range strings.Lines(string(diff)) {
		if name, ok := strings.CutPrefix(line, "+++ b/"); ok {
			file = strings.TrimSpace(name)
			continue
		}
		m := hunk.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		from, _ := strconv.Atoi(m[1]) // the pattern allows only digits
		count := 1
		if m[2] != "" {
			count, _ = strconv.Atoi(m[2])
		}
		names, err := testsAt(file, from, from+count-1)
		if err != nil {
			return nil, err
		}
		dir := path.Dir(file)
		for _, name := range names {
			if !slices.Contains(found[dir], name) {
				found[dir] = append(found[dir], name)
			}
		}
	}
	return found, nil
}

// testsAt returns the test functions of a file that overlap its lines from…to.
func testsAt(file string, from, to int) (names []string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
			continue
		}
		if files.Position(f.Pos()).Line <= to && files.Position(f.End()).Line >= from {
			names = append(names, f.Name.Name)
		}
	}
	return names, nil
}
