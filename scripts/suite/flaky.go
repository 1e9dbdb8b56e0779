package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tally is the results of one test in several runs.
type tally struct {
	runs, fails, skips int
	slowest            time.Duration
}

// runFlaky runs a suite n times while other processes keep the processors and the disk busy, and
// prints a table of all tests.
func runFlaky(ctx context.Context, o options) error {
	s, err := suiteNamed(o.suite)
	if err != nil {
		return err
	}
	return repeat(ctx, o, "flaky", s)
}

// runTouched does the same as runFlaky for the tests that differ from a commit.
func runTouched(ctx context.Context, o options) error {
	packages, err := touched(ctx, o.base)
	if err != nil {
		return err
	}
	if len(packages) == 0 {
		fmt.Printf("make flaky-touched: no test differs from %s\n", o.base)
		return nil
	}
	s := checkSuite
	s.streams = func(_ context.Context, o options) ([]stream, error) {
		var s stream
		for _, pkg := range slices.Sorted(maps.Keys(packages)) {
			o.run = "^(" + strings.Join(packages[pkg], "|") + ")$"
			dir, module := moduleOf(pkg)
			s = append(s, step{name: "touched-" + strings.ReplaceAll(pkg, "/", "-"), dir: dir,
				test: append(common(o), "-timeout=20m", module), env: testEnv()})
		}
		return []stream{s}, nil
	}
	return repeat(ctx, o, "touched", s)
}

// moduleOf splits a package's directory into its module's directory and the rest.
func moduleOf(pkg string) (dir, rest string) {
	for _, module := range []string{"deploy", "bench", "e2e/traces"} {
		if rest, ok := strings.CutPrefix(pkg+"/", module+"/"); ok {
			return module, "./" + strings.TrimSuffix(rest, "/")
		}
	}
	return "", "./" + pkg
}

func repeat(ctx context.Context, o options, name string, s suite) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	quiet, stop := context.WithCancel(ctx)
	defer stop()
	if err := startLoad(quiet, o.load); err != nil {
		return err
	}
	table := map[string]*tally{}
	start, runs, fails, seen := time.Now(), 0, 0, "" // the servers are the same in all runs
	for n := range o.n {
		r, err := newReport(filepath.Join(name, strconv.Itoa(n+1)), s.short, o)
		if err != nil {
			return err
		}
		r.quiet = true
		list, err := s.streams(ctx, o)
		if err != nil {
			return err
		}
		r.run(ctx, list)
		r.addTo(table)
		passed, failed, _ := r.counts()
		fails += failed
		seen = r.servers()
		runs++
		fmt.Printf("run %d of %d: %d passed, %d failed in %v\n", n+1, o.n, passed, failed, time.Since(r.start).Round(time.Second))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if o.time > 0 && time.Since(start) > o.time {
			fmt.Printf("the time is over after %d of %d runs\n", n+1, o.n)
			break
		}
	}
	printTable(table)
	fmt.Printf("make %s: %d runs beside %d busy processes and one that writes to the disk, on %s, in %v\n%d passed, %d failed\n",
		name, runs, o.load, seen, time.Since(start).Round(time.Second), len(table), fails)
	if fails > 0 || len(table) == 0 {
		return errFailed // a run without any test proves nothing
	}
	return nil
}

// addTo adds a run's results to the table.
func (r *report) addTo(table map[string]*tally) {
	for id, res := range r.results {
		t := table[id.String()]
		if t == nil {
			t = new(tally)
			table[id.String()] = t
		}
		t.runs++
		switch res.action {
		case "fail":
			t.fails++
		case "skip":
			t.skips++
		}
		t.slowest = max(t.slowest, res.took)
	}
}

// printTable prints every top-level test and each subtest that failed: first failed tests, then
// slow ones.
func printTable(table map[string]*tally) {
	names := slices.Collect(maps.Keys(table))
	names = slices.DeleteFunc(names, func(n string) bool {
		_, test, _ := strings.Cut(n, " ")
		return strings.Contains(test, "/") && table[n].fails == 0
	})
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(table[b].fails, table[a].fails), cmp.Compare(table[b].slowest, table[a].slowest), strings.Compare(a, b))
	})
	fmt.Printf("%8s %6s %6s %10s  %s\n", "failures", "runs", "skips", "slowest", "test")
	for _, n := range names {
		t := table[n]
		fmt.Printf("%8d %6d %6d %9.1fs  %s\n", t.fails, t.runs, t.skips, t.slowest.Seconds(), n)
	}
}

// startLoad starts processes that keep the processors and the disk busy until ctx ends.
func startLoad(ctx context.Context, busy int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for n := range busy + 1 {
		what := "busy"
		if n == busy {
			what = "write"
		}
		if err := exec.CommandContext(ctx, self, what).Start(); err != nil {
			return err
		}
	}
	return nil
}

// busy keeps one processor busy until its parent ends.
func busy(ctx context.Context, _ options) error {
	parent := os.Getppid()
	for n := uint64(1); ctx.Err() == nil && os.Getppid() == parent; n++ {
		for range 1 << 24 {
			n = n*6364136223846793005 + 1
		}
	}
	return nil
}

// writeDisk writes and syncs a file until its parent ends.
func writeDisk(ctx context.Context, _ options) (err error) {
	f, err := os.CreateTemp("", "qsidecar-load")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	parent, block := os.Getppid(), make([]byte, 1<<20)
	for n := int64(0); ctx.Err() == nil && os.Getppid() == parent; n++ {
		if _, err := f.WriteAt(block, n%256<<20); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return nil
}
