package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const tablesIntro = `# Tables and columns

This page comes from the schemas in ` + "`backends/ENGINE/migrate`" + `. A program can write these columns of ` + "`qsidecar_jobs`" + ` with a plain INSERT:
` + "`queue`, `payload`, `priority`, `headers`, `max_attempts`, `run_at` and `group_name`" + `. The pages of the engines describe their values:
[PostgreSQL](../../backends/postgres/README.md#a-plain-insert-is-an-enqueue),
[MySQL and MariaDB](../../backends/mysql/README.md#a-plain-insert-is-an-enqueue),
[SQLite](../../backends/sqlite/README.md#a-plain-insert-is-an-enqueue),
[SQL Server](../../backends/sqlserver/README.md#a-plain-insert-is-an-enqueue). All other columns belong to the sidecar: read them, and
don't write them. They can change with a version.

[The job table](../../backends/README.md) describes how long rows stay.

`

// schemas are the engines in the order of the columns of the page.
var schemas = []struct{ dir, title string }{
	{"postgres", "PostgreSQL"}, {"mysql", "MySQL, MariaDB"}, {"sqlite", "SQLite"}, {"sqlserver", "SQL Server"},
}

type table struct {
	name    string
	columns []column
}

type column struct{ name, kind, text string }

// tablesPage returns the page of the tables, with the types of each engine side by side.
func tablesPage(root string) (string, error) {
	engines := make([][]table, len(schemas))
	for i, s := range schemas {
		files, err := filepath.Glob(filepath.Join(root, "backends", s.dir, "migrate", "*.sql"))
		if err != nil || len(files) == 0 {
			return "", fmt.Errorf("no schema of %s: %w", s.dir, err)
		}
		for _, file := range files {
			sql, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			engines[i] = append(engines[i], tablesOf(string(sql))...)
		}
	}
	var names []string
	for _, tables := range engines {
		for _, t := range tables {
			if !slices.Contains(names, t.name) {
				names = append(names, t.name)
			}
		}
	}
	var out strings.Builder
	out.WriteString(tablesIntro)
	for _, name := range names {
		writeTable(&out, name, engines)
	}
	return strings.TrimRight(out.String(), "\n") + "\n", nil
}

// writeTable writes one table of all engines that have it.
func writeTable(out *strings.Builder, name string, engines [][]table) {
	var columns []string
	kinds, texts := map[string][]string{}, map[string]string{}
	for i, tables := range engines {
		at := slices.IndexFunc(tables, func(t table) bool { return t.name == name })
		if at < 0 {
			continue
		}
		for _, c := range tables[at].columns {
			if kinds[c.name] == nil {
				kinds[c.name] = make([]string, len(engines))
				columns = append(columns, c.name)
			}
			kinds[c.name][i] = c.kind
			if texts[c.name] == "" {
				texts[c.name] = c.text
			}
		}
	}
	fmt.Fprintf(out, "## `%s`\n\n| column |", name)
	for _, s := range schemas {
		fmt.Fprintf(out, " %s |", s.title)
	}
	out.WriteString(" meaning |\n|" + strings.Repeat(" --- |", len(schemas)+2) + "\n")
	for _, c := range columns {
		fmt.Fprintf(out, "| `%s` |", c)
		for _, kind := range kinds[c] {
			if kind != "" {
				kind = "`" + kind + "`"
			}
			fmt.Fprintf(out, " %s |", kind)
		}
		fmt.Fprintf(out, " %s |\n", strings.ReplaceAll(texts[c], "|", "\\|"))
	}
	out.WriteString("\n")
}

var (
	createTable = regexp.MustCompile(`^\s*CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(?:\{s\}\.)?(qsidecar_\w+) \($`)
	columnLine  = regexp.MustCompile("^`?([a-z_]+)`? +(\\{s\\}\\.\\w+|[A-Za-z0-9]+(?:\\([0-9a-z]+\\))?)")
)

// tablesOf returns the tables that a script creates.
func tablesOf(sql string) (tables []table) {
	depth, above := 0, ""
	for line := range strings.Lines(sql) {
		code, comment, _ := strings.Cut(strings.TrimSpace(line), "--")
		comment = strings.TrimSpace(comment)
		if depth == 0 {
			if m := createTable.FindStringSubmatch(strings.TrimRight(code, " ")); m != nil {
				tables, depth, above = append(tables, table{name: m[1]}), 1, ""
			}
			continue
		}
		if depth == 1 && code == "" {
			above = strings.TrimSpace(above + " " + comment)
			continue
		}
		if m := columnLine.FindStringSubmatch(code); m != nil && depth == 1 {
			t := &tables[len(tables)-1]
			if comment == "" && !isGroup(above) {
				comment = above
			}
			t.columns = append(t.columns, column{m[1], strings.ToLower(strings.TrimPrefix(m[2], "{s}.")), comment})
		}
		above = ""
		depth += strings.Count(code, "(") - strings.Count(code, ")")
	}
	return tables
}

// isGroup reports whether a comment is the title of several columns.
func isGroup(comment string) bool {
	return slices.Contains([]string{"the policy of the last claim", "the claim", "the claim; all NULL: there is none", "the end"}, comment)
}
