package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// errFailed means that a suite failed and that its line was printed.
var errFailed = errors.New("tests failed")

// event is one line of go test -json (go doc cmd/test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64 // in seconds
	Output  string

	ImportPath string // for build-output
}

// testID identifies a test of a step. A package can run in several steps.
type testID struct{ step, pkg, test string }

func (t testID) String() string {
	pkg := strings.TrimPrefix(strings.TrimPrefix(t.pkg, "github.com/qsidecar/qsidecar"), "/")
	return strings.TrimSpace(cmp.Or(pkg, t.step) + " " + t.test)
}

// result is the result of a test.
type result struct {
	action string // pass, fail or skip
	took   time.Duration
}

// report collects the results of a suite's steps.
type report struct {
	name  string // name of the suite
	out   string // directory of logs
	quiet bool   // print no progress, for flaky
	short bool   // tests can skip what make check runs
	start time.Time
	ran   string // file to which the tests add the servers that they used

	mu      sync.Mutex
	results map[testID]result
	running map[testID]time.Time
	output  map[testID]*bytes.Buffer // output of tests that have not passed
	failed  map[string]bool          // steps with a failure that was already printed
	reasons []string                 // failed tests, each followed by what it logged first
	fails   int
}

func newReport(name string, short bool, o options) (*report, error) {
	out := filepath.Join(o.out, name)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	ran, err := filepath.Abs(filepath.Join(out, "servers"))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(ran, nil, 0o666); err != nil {
		return nil, err
	}
	return &report{
		name: name, out: out, short: short, start: time.Now(), ran: ran, results: map[testID]result{},
		running: map[testID]time.Time{}, output: map[testID]*bytes.Buffer{}, failed: map[string]bool{},
	}, os.Chmod(ran, 0o666) // some tests run as another user
}

func (r *report) printf(format string, args ...any) {
	if !r.quiet {
		fmt.Printf(format+"\n", args...)
	}
}

// event handles one line of go test -json.
func (r *report) event(step string, line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		r.printf("%s", bytes.TrimSpace(line)) // not an event, for example a warning of the go command
		return
	}
	id := testID{step, cmp.Or(e.Package, e.ImportPath), e.Test}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Action {
	case "output", "build-output":
		if r.output[id] == nil {
			r.output[id] = new(bytes.Buffer)
		}
		r.output[id].WriteString(e.Output)
	case "run":
		r.running[id] = time.Now()
	case "pass", "fail", "skip", "build-fail":
		r.end(id, e)
	}
}

// end handles the end of a test, or of a package if the id has no test.
func (r *report) end(id testID, e event) {
	delete(r.running, id)
	took := time.Duration(e.Elapsed * float64(time.Second))
	if id.test != "" {
		r.results[id] = result{e.Action, took}
	}
	switch {
	case strings.HasSuffix(e.Action, "fail"):
		if id.test != "" || !r.testFailedIn(id) {
			r.fails++ // a package fails together with its tests, so it counts only if none of them failed
		}
		r.failed[id.step] = true
		text := r.outputOf(id)
		fmt.Printf("FAIL %s (%v)\n%s\n", id, took, text)
		r.addReason(id, text)
	case id.test != "" && e.Action == "skip" && !r.maySkip(id):
		r.fails++
		r.failed[id.step] = true
		fmt.Printf("FAIL %s was skipped\n%s\n", id, r.outputOf(id))
	case id.test == "" && e.Action == "pass":
		r.printf("ok   %-34s %5.1f s %s", id, took.Seconds(), figures(r.output[id]))
	}
	delete(r.output, id)
}

// loggedAt is a line of a test's output that begins with a file and a line number: an error or a log line.
var loggedAt = regexp.MustCompile(`(?m)^ {4,}\w+\.go:\d+: .*`)

// ended is a line that gives the reason why the whole program of a package ended, or where its tests race.
var ended = regexp.MustCompile(`(?m)^(?:panic|fatal error|signal|race|WARNING): .*`)

// addReason records what a failed test logged first: its errors are among that, and the logs of servers come later. The
// end of the report repeats it, because CI shows only a part of a long report.
func (r *report) addReason(id testID, output string) {
	const lines, width = 12, 400
	r.reasons = append(r.reasons, "FAIL "+id.String())
	for _, line := range slices.Concat(ended.FindAllString(output, lines), loggedAt.FindAllString(output, lines)) {
		r.reasons = append(r.reasons, line[:min(len(line), width)])
	}
}

// maySkip reports whether a test can be skipped: only if make check runs it.
func (r *report) maySkip(id testID) bool {
	b := r.output[id]
	return r.short && b != nil && bytes.Contains(b.Bytes(), []byte("make check runs"))
}

// testFailedIn reports whether a test of the package failed.
func (r *report) testFailedIn(pkg testID) bool {
	for id, res := range r.results {
		if id.step == pkg.step && id.pkg == pkg.pkg && res.action == "fail" {
			return true
		}
	}
	return false
}

// outputOf returns the output of a failed test. A test that ran when its package ended, for example
// by a panic, has no own event, so a package includes the output of such tests.
func (r *report) outputOf(id testID) string {
	text := new(strings.Builder)
	if b := r.output[id]; b != nil {
		text.Write(tail(b.Bytes(), 64<<10))
	}
	if id.test != "" {
		return text.String()
	}
	for other, b := range r.output {
		if _, open := r.running[other]; open && other.step == id.step && other.pkg == id.pkg {
			fmt.Fprintf(text, "still running: %s\n%s", other, tail(b.Bytes(), 32<<10))
			r.results[other] = result{"fail", time.Since(r.running[other])}
			delete(r.running, other)
		}
	}
	return text.String()
}

// figures returns the lines "figure: …" at the end of a package's output, indented.
func figures(b *bytes.Buffer) string {
	text := new(strings.Builder)
	if b != nil {
		for line := range strings.Lines(b.String()) {
			if rest, ok := strings.CutPrefix(line, "figure: "); ok {
				text.WriteString("\n       " + strings.TrimSpace(rest))
			}
		}
	}
	return text.String()
}

// fail records a failure that has no event.
func (r *report) fail(step, test, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails++
	r.failed[step] = true
	fmt.Printf("FAIL %s %s\n%s\n", step, test, why)
}

func (r *report) failedIn(step string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed[step]
}

// stepDone prints how a step ended, and the processor time of its processes.
func (r *report) stepDone(name string, took, cpu time.Duration, err error) {
	state := "ok"
	if err != nil {
		state = "FAILED"
	}
	r.printf("==   %s: %s after %v (%v of CPU)", name, state, took.Round(time.Second), cpu.Round(time.Second))
}

// progress prints from time to time what runs.
func (r *report) progress(stop <-chan struct{}) {
	tick := time.NewTicker(20 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		r.mu.Lock()
		var now []string
		for id, since := range r.running {
			if !strings.Contains(id.test, "/") && time.Since(since) > 5*time.Second {
				now = append(now, id.String())
			}
		}
		slices.Sort(now)
		r.printf("…    %v: %d tests ended; running: %s", time.Since(r.start).Round(time.Second), len(r.results), strings.Join(now[:min(len(now), 4)], ", "))
		r.mu.Unlock()
	}
}

// counts returns the numbers of tests, including subtests.
func (r *report) counts() (passed, failed, skipped int) {
	for _, res := range r.results {
		switch res.action {
		case "pass":
			passed++
		case "skip":
			skipped++
		}
	}
	return passed, r.fails, skipped
}

// serverLine is a line of testserver: which server ran for which program.
var serverLine = regexp.MustCompile(`(?m)^(PostgreSQL|MySQL|MariaDB|PgBouncer) (\d[\d.]*)\S* .*ran for `)

// servers returns the products and versions on which the tests ran.
func (r *report) servers() string {
	text, err := os.ReadFile(r.ran)
	if err != nil {
		return err.Error()
	}
	found := map[string]bool{}
	for id := range r.results {
		switch {
		case strings.HasSuffix(id.pkg, "/backends/memory"), strings.HasSuffix(id.pkg, "/bridge"):
			found["memory"] = true
		case strings.HasSuffix(id.pkg, "/backends/sqlite"):
			found["SQLite"] = true
		}
	}
	for _, m := range serverLine.FindAllSubmatch(text, -1) {
		found[string(m[1])+" "+strings.TrimRight(string(m[2]), ".")] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(found)), ", ")
}

// slowest prints the n slowest top-level tests.
func (r *report) slowest(n int) {
	var ids []testID
	for id := range r.results {
		if !strings.Contains(id.test, "/") {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b testID) int { return cmp.Compare(r.results[b].took, r.results[a].took) })
	r.printf("the %d slowest tests:", min(n, len(ids)))
	for _, id := range ids[:min(n, len(ids))] {
		r.printf("  %6.1f s  %s", r.results[id].took.Seconds(), id)
	}
}

// finish prints the closing lines. The one before the last describes the run. CI reads the last
// one.
func (r *report) finish() error {
	passed, failed, skipped := r.counts()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &use); err != nil {
		return err
	}
	cpu := time.Duration(use.Utime.Nano() + use.Stime.Nano()).Round(time.Second)
	state := "passed"
	if failed > 0 || passed == 0 {
		state = "FAILED"
	}
	for _, line := range r.reasons {
		fmt.Println(line)
	}
	fmt.Printf("make %s: %s on %s in %v (%v of CPU)\n", r.name, state, r.servers(), time.Since(r.start).Round(time.Second), cpu)
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if state == "FAILED" {
		return errFailed
	}
	return nil
}
