package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"github.com/qsidecar/qsidecar/bench/internal/engines"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	played, err := playRole()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case !played:
		os.Exit(m.Run())
	}
}

// program returns the sidecar to measure: that of QSIDECAR_BIN, or one built for the test.
func program(t *testing.T) string {
	if bin := os.Getenv("QSIDECAR_BIN"); bin != "" {
		return bin
	}
	bin := filepath.Join(t.TempDir(), "qsidecar")
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "./cmd/qsidecar")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the program: %v\n%s", err, out)
	}
	return bin
}

// TestEngines runs all measurements once at a tiny size, so that they work when they are needed.
// The benchmark itself fails if a job is not processed or an ack is lost.
func TestEngines(t *testing.T) {
	bin := program(t)
	for _, e := range engines.All {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel() // most of the time is waiting
			var out bytes.Buffer
			file := filepath.Join(t.TempDir(), "RESULTS.md")
			args := strings.Fields("-fast -results " + file + " -workers 4 -jobs 64 -batch 10 -rounds 1 -rows 500 -held 200 -finished 2000 -wakes 8 -blocked 200 -span 1s -cell 10ms -engine " + e.Name)
			err := run(t.Context(), append(args, "-bin", bin), &out)
			t.Log(out.String())
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(out.String(), measure.ErrUnavailable.Error()) {
				return // the output reports it, and no other server replaces it
			}
			checkReport(t, e, out.String())
			results, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n, said := strings.Count(string(results), " | reached |")+strings.Count(string(results), " | missed |"), strings.Count(out.String(), ", aim "); n != said {
				t.Errorf("the file has %d ratios, the output %d", n, said)
			}
		})
	}
}

// ownPeers are the peers that need no other program, as patterns of `-only`. The speed of the other ones isn't ours, and so neither
// is the time that a test of them takes.
var ownPeers = []string{"qsidecar", "qsidecar by 100", "two short transactions", "best one-job SQL", "raw limit n=1000", "bare commit", "River", "socket echo",
	"qsidecar Node worker", "qsidecar Python worker", "qsidecar Python async worker", "qsidecar Ruby worker"}

// TestRivals measures ownPeers once at a tiny size. The benchmark itself fails if a job is not worked exactly once.
func TestRivals(t *testing.T) {
	var out bytes.Buffer
	var only []string
	for _, name := range ownPeers {
		only = append(only, name+"/32")
	}
	only = append(only, "raw limit n=1000/1", "qsidecar/flow", "bare commit/flow")
	file := filepath.Join(t.TempDir(), "RESULTS.md")
	err := run(t.Context(), []string{"-fast", "-parts", "rivals", "-engine", "postgres", "-bin", program(t), "-rounds", "1",
		"-cell", "1ms", "-only", strings.Join(only, ","), "-results", file}, &out)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range ownPeers {
		if !regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(name) + ` \|.* \d`).Match(table) {
			t.Errorf("the table has no figure of %s", name)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^\| PostgreSQL .* \| [\d.]+ \| [≥≤] `).FindAll(table, -1)); n < 4 {
		t.Errorf("%d ratios, want at least 4", n)
	}
	plot, err := os.ReadFile(strings.TrimSuffix(file, ".md") + ".svg")
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(plot, new(struct{})); err != nil || !bytes.Contains(plot, []byte("<polyline")) {
		t.Errorf("the plot is no SVG with a line: %v", err)
	}
}

// row matches a line of report.row: a name, the median, and the results of the rounds.
var row = regexp.MustCompile(`(?m)^(\S.*?) +(\d+) +\((\d+) … (\d+)\) +([\d.-]+) +([\d.-]+) +([\d.-]+) +([\d.-]+) +([\d.]+) +([\d.]+) +([\d.]+)`)

func checkReport(t *testing.T, e measure.Engine, said string) {
	for _, word := range []string{"NaN", "Inf"} {
		if strings.Contains(said, word) {
			t.Errorf("a figure is %s", word)
		}
	}
	rates := map[string]float64{}
	for _, m := range row.FindAllStringSubmatch(said, -1) {
		rate, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		rates[m[1]] = rate
		if p50, p99 := m[5], m[6]; !strings.HasPrefix(m[1], "direct") && (p50 == "-" || p99 == "-") {
			t.Errorf("%s: no latencies", m[1])
		}
	}
	want := []string{"enqueue in batches of 10", "claim one + ack one", "claim and ack in batches of 10", "enqueue one",
		"small table, one + one", "large table, one + one", "small table, batches of 10", "large table, batches of 10",
		"nothing to prune, one + one", "while being pruned, one + one"}
	for _, name := range want {
		if _, measured := rates[name]; !measured { // a rate can be 0 on a busy machine; the run checks that the jobs are worked
			t.Errorf("%s: no rate", name)
		}
	}
	ratios := len(e.Aims) + 2*len(e.Holds) + 8 // 2 of the backlog, retention, memory, 2 of groups, 2 of gates
	if e.Name != "sqlite" {
		ratios++ // connections
	}
	if n := len(regexp.MustCompile(`\d\)?, aim [≥≤] [\d.]+: (reached|missed)`).FindAllString(said, -1)); n != ratios {
		t.Errorf("%d ratios beside aims, want %d", n, ratios)
	}
	if regexp.MustCompile(`connections to the database that were seen with 4 busy workers +0,`).MatchString(said) {
		t.Error("no connection was counted")
	}
	if direct := regexp.MustCompile(`(?m)^direct.* \d+ +\(`).FindAllString(said, -1); len(direct) < 2 {
		t.Errorf("%d rivals with rates, want at least 2", len(direct))
	}
	loops := regexp.MustCompile(`(?m)^\w+, (the client, \w+|.*, two statements) +\d+ +\d+$`).FindAllString(said, -1)
	wanted := 0
	for _, l := range languages {
		if e.Drivers {
			wanted += len(l.codecs)
			if l.driver != "" {
				wanted++
			}
		}
	}
	if len(loops) != wanted {
		t.Errorf("%d loops of clients and drivers, want %d", len(loops), wanted)
	}
	for _, name := range []string{"Python", "Python async", "Ruby", "Node", "Go"} {
		for _, threads := range []int{1, 8, 32} {
			if !regexp.MustCompile(fmt.Sprintf(`(?m)^%s, %d at once( +\d+){2} +[\d.]+ +\([\d.]+ … [\d.]+\)( +[\d.]+){6}$`, name, threads)).MatchString(said) {
				t.Errorf("no rates of the worker %s with %d at once", name, threads)
			}
		}
	}
	for _, words := range []string{`the same host, notify: on +\d`, `another host, notify: off +\d`,
		`(?m)^idle, 4 workers on 20 queues$`, `(?m)^ *4 waits on 20 queues: CPU of the sidecar `, `(?m)^ *4 workers report progress 20 times a second: CPU of the sidecar `, `(?m)^ +200 +[1-9]\d* +[1-9]\d*$`} {
		if !regexp.MustCompile(words).MatchString(said) {
			t.Errorf("no line of the report matches %s", words)
		}
	}
}

func TestQuantiles(t *testing.T) {
	var l measure.Latencies
	for i := range 101 {
		l = append(l, time.Duration(100-i)*time.Millisecond)
	}
	if p50, p99 := l.At(0.5), l.At(0.99); p50 != 50*time.Millisecond || p99 != 99*time.Millisecond {
		t.Errorf("p50 %v, p99 %v", p50, p99)
	}
	for n, want := range map[int]string{7: "7", 999: "999", 1000: "1,000", 12345: "12,345", 10000000: "10,000,000"} {
		if got := measure.Whole(n); got != want {
			t.Errorf("%d is printed as %s", n, got)
		}
	}
	if got := measure.Median([]float64{3, 1, 2}); got != 2 {
		t.Errorf("median %v", got)
	}
	if got := measure.Median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median %v", got)
	}
}

func TestRefusesNonsense(t *testing.T) {
	for args, word := range map[string]string{
		"": "-bin", "-bin x -engine oracle": "oracle", "-bin x -jobs 0": "at least 1", "-bin x compare": "compare", "-bin x -parts idle,nothing": "nothing",
	} {
		if err := run(t.Context(), strings.Fields(args), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q: %v; want an error that names %s", args, err, word)
		}
	}
}
