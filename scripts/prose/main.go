// Command prose runs vale over the files of this repository and compares the errors of each
// top-level directory with .vale/pending.txt. A directory must not have more errors than its
// line there. When the list is empty, remove it and this command, and let `make lint` run vale.
//
//	go run ./scripts/prose                       # as `make lint` does
//	go run ./scripts/prose -list e2e/kit         # the errors below a path
//	go run ./scripts/prose -table                # the errors of each pattern and directory
//	go run ./scripts/prose -update               # write the counts, if their sum did not grow
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	pendingFile = ".vale/pending.txt"
	header      = `# Errors of the style in .vale/styles that are still to be rewritten: "prose" are Markdown and comments,
# which scripts/prose counts, "texts" are strings and the comments of SQL and shell, which a test in
# internal/testrules counts. The figures can only shrink.
`
)

// An alert is one finding, as vale prints it with --output=JSON.
type alert struct {
	Check, Message, Severity string
	Line                     int
}

func main() {
	list := flag.String("list", "", "print the errors of the files below this `path`")
	table := flag.Bool("table", false, "print a table of the errors by pattern and directory")
	update := flag.Bool("update", false, "write the counts to "+pendingFile)
	flag.Parse()
	if err := run(*list, *table, *update); err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

func run(list string, table, update bool) error {
	files, err := tracked(list)
	if err != nil {
		return err
	}
	found, err := vale(files)
	if err != nil {
		return err
	}
	switch {
	case list != "":
		for _, file := range slices.Sorted(maps.Keys(found)) {
			for _, a := range found[file] {
				fmt.Printf("%s:%d: %s %s\n", file, a.Line, strings.TrimPrefix(a.Check, "Plain."), a.Message)
			}
		}
		return nil
	case table:
		printTable(found)
		return nil
	}
	counts := map[string]int{}
	for file, alerts := range found {
		counts[top(file)] += len(alerts)
	}
	pending, texts, err := readPending()
	if err != nil {
		return err
	}
	if update {
		return writePending(counts, pending, texts)
	}
	var worse []string
	for dir, n := range counts {
		if n > pending[dir] {
			worse = append(worse, fmt.Sprintf("%s has %d errors, %s allows %d (list them: go run ./scripts/prose -list %[1]s)", dir, n, pendingFile, pending[dir]))
		}
	}
	slices.Sort(worse)
	if len(worse) > 0 {
		return errors.New(strings.Join(worse, "\n") + "\nIf files moved between directories: go run ./scripts/prose -update")
	}
	return nil
}

// tracked lists the files under git that vale reads.
func tracked(below string) ([]string, error) {
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--",
		"*.md", "*.go", "*.py", "*.rb", "*.gemspec", "*.yaml", "*.yml").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	files := strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	return slices.DeleteFunc(files, func(f string) bool {
		_, err := os.Stat(f)
		return err != nil || strings.HasPrefix(f, ".vale/") || below != "" && !strings.HasPrefix(f, strings.TrimPrefix(below, "./"))
	}), nil
}

// vale returns the errors of each file.
func vale(files []string) (map[string][]alert, error) {
	if len(files) == 0 {
		return map[string][]alert{}, nil
	}
	args := []string{"tool", "-modfile=tools/vale/go.mod", "vale", "--output=JSON", "--no-exit", "--minAlertLevel=error"}
	cmd := exec.Command("go", append(args, files...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // vale's parsers are C
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("vale: %w\n%s", err, stderr.Bytes())
	}
	found := map[string][]alert{}
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("vale's JSON: %w", err)
	}
	return found, nil
}

// top is a file's first directory, or "." in the root.
func top(file string) string {
	dir, _, below := strings.Cut(file, "/")
	if !below {
		return "."
	}
	return dir
}

// printTable prints the errors of each pattern by directory, in Markdown.
func printTable(found map[string][]alert) {
	dirs, checks, cells := map[string]int{}, map[string]int{}, map[string]int{}
	for file, alerts := range found {
		dir := top(file)
		if sub, _, deeper := strings.Cut(strings.TrimPrefix(file, dir+"/"), "/"); deeper {
			dir = path.Join(dir, sub)
		}
		for _, a := range alerts {
			check := strings.TrimPrefix(a.Check, "Plain.")
			dirs[dir]++
			checks[check]++
			cells[dir+" "+check]++
		}
	}
	byCount := func(m map[string]int) []string {
		return slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(m[b]-m[a], strings.Compare(a, b)) })
	}
	columns, sum := byCount(checks), 0
	fmt.Printf("| directory | all | %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat(" --- |", len(columns)+2))
	row := func(name string, all int, cell func(check string) int) {
		fmt.Printf("| %s | %d |", name, all)
		for _, check := range columns {
			fmt.Printf(" %d |", cell(check))
		}
		fmt.Println()
	}
	for _, dir := range byCount(dirs) {
		sum += dirs[dir]
		row(dir, dirs[dir], func(check string) int { return cells[dir+" "+check] })
	}
	row("all", sum, func(check string) int { return checks[check] })
}

// readPending returns the figures of pending.txt: those of prose by directory, and the lines of texts.
func readPending() (prose map[string]int, texts []string, err error) {
	prose = map[string]int{}
	b, err := os.ReadFile(pendingFile)
	if errors.Is(err, os.ErrNotExist) {
		return prose, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch {
		case len(f) != 3 || f[0] == "#":
		case f[0] == "texts":
			texts = append(texts, strings.TrimSpace(line))
		default:
			if prose[f[1]], err = strconv.Atoi(f[2]); err != nil {
				return nil, nil, fmt.Errorf("%s: %q: %w", pendingFile, line, err)
			}
		}
	}
	return prose, texts, nil
}

// writePending replaces the figures of prose. Files can move between directories, so only the sum must not grow.
func writePending(counts, before map[string]int, texts []string) error {
	sum := func(m map[string]int) (n int) {
		for _, v := range m {
			n += v
		}
		return n
	}
	if len(before) > 0 && sum(counts) > sum(before) {
		return fmt.Errorf("%d errors, %d are allowed: rewrite the new ones", sum(counts), sum(before))
	}
	var b strings.Builder
	b.WriteString(header)
	for _, dir := range slices.Sorted(maps.Keys(counts)) {
		if counts[dir] > 0 {
			fmt.Fprintf(&b, "prose %s %d\n", dir, counts[dir])
		}
	}
	for _, line := range texts {
		b.WriteString(line + "\n")
	}
	return os.WriteFile(pendingFile, []byte(b.String()), 0o644)
}
