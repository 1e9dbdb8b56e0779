package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// binary is the program under test, as users get it.
const binary = "bin/qsidecar"

// journeys is the end-to-end package of `make test`.
const journeys = module + "e2e/journeys"

// module is the path of this module.
const module = "github.com/qsidecar/qsidecar/"

// onlyInTest are the packages that `make check` would run as `make test` does: the race detector finds nothing in what
// they test, and they skip nothing with -short. TestOnlyInTest holds those of pureInTest to that.
var onlyInTest = append([]string{"e2e/journeys", "e2e/kit/crash", "internal/testrules", "scripts/reference", "scripts/suite"}, pureInTest...)

// pureInTest are the packages of onlyInTest that start no goroutines, nor do their tests. The tests of the packages that use them run them with
// the race detector.
var pureInTest = []string{
	"backends", "backends/internal/batches", "backends/internal/checks", "backends/internal/cursor", "backends/internal/product", "backends/internal/sqltext",
	"backends/mysql/internal/cluster", "backends/mysql/internal/session", "backends/postgres/internal/hosts", "backends/postgres/internal/queueset", "backends/sqlite/diagnose",
	"bridge/internal/backendref", "bridge/internal/dispatch", "bridge/internal/failurelog", "bridge/internal/jobends", "bridge/internal/lease", "bridge/internal/maintenance", "bridge/internal/metrics",
	"bridge/internal/permission", "bridge/internal/plan", "bridge/internal/quota", "bridge/internal/search", "bridge/internal/wirejob",
	"internal/adopt", "internal/engines", "internal/manual", "internal/occurrence", "internal/tail", "internal/testdocs", "internal/textfmt", "internal/timezones", "internal/webpath", "internal/wiretext",
	"protocol",
}

// slowFirst are the packages that take longest, so that none of them runs alone at the end.
var slowFirst = []string{"/backends/mysql", "/internal/web", "/e2e/journeys", "/backends/adopted", "/backends/postgres", "/cmd/qsidecar", "/bridge", "/backends/sqlite", "/backends/sqlserver",
	"/e2e/crash", "/e2e/cluster", "/e2e/system", "/e2e/clients", "/e2e/network", "/e2e/web", "/e2e/adopted", "/e2e/config"}

// suite is make test or make check.
type suite struct {
	short   bool     // go test -short: tests can skip what make check runs
	needs   []string // tools by their names in scripts/need.sh
	streams func(context.Context, options) ([]stream, error)
}

var (
	testSuite = suite{
		short: true, streams: testStreams,
		needs: []string{"python3", "ruby", "nc", "npm", "pgbouncer", "debs", "mount"},
	}
	clusterSuite = suite{
		needs: []string{"npm", "debs"},
	}
	checkSuite = suite{
		streams: checkStreams,
		needs: []string{"cc", "python3", "venv", "ruby", "psql", "nc", "mandoc", "socat", "php", "strace", "mount", "npm",
			"buildah", "bwrap", "machine", "shellcheck", "tmux", "chromium", "nginx", "caddy", "pgbouncer", "debs"},
	}
)

// suiteNamed returns the suite of the option -suite.
func suiteNamed(name string) (suite, error) {
	switch name {
	case "test":
		return testSuite, nil
	case "check":
		return checkSuite, nil
	}
	return suite{}, fmt.Errorf("no suite %q: it is test or check", name)
}

func runTest(ctx context.Context, o options) error {
	r, err := runSuite(ctx, "test", testSuite, o)
	if err != nil {
		return err
	}
	return r.finish()
}

func runCheck(ctx context.Context, o options) error {
	r, err := runSuite(ctx, "check", checkSuite, o)
	if err != nil {
		return err
	}
	r.slowest(20)
	return r.finish()
}

func runSuite(ctx context.Context, name string, s suite, o options) (*report, error) {
	r, err := newReport(name, s.short, o)
	if err != nil {
		return nil, err
	}
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	streams, err := s.streams(ctx, o)
	if err != nil {
		return nil, err
	}
	r.run(ctx, streams)
	r.ranAsRoot()
	return r, nil
}

// prepare installs missing tools, lists them first, and builds the program.
func (s suite) prepare(ctx context.Context) error {
	if err := s.plan(ctx); err != nil {
		return err
	}
	for _, s := range []step{
		{name: "need", cmd: append([]string{"scripts/need.sh"}, s.needs...)},
		{name: "build", cmd: []string{"scripts/build.sh", binary}},
	} {
		cmd := child(ctx, s, s.cmd...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(s.cmd, " "), err)
		}
	}
	return nil
}

// run runs the streams at the same time and waits for all of them.
func (r *report) run(ctx context.Context, streams []stream) {
	stop := make(chan struct{})
	var all, watch sync.WaitGroup
	watch.Go(func() { r.progress(stop) })
	for _, s := range streams {
		for i := range s {
			s[i].env = append(s[i].env, local.EnvRan+"="+r.ran)
		}
		all.Go(func() { r.runStream(ctx, s) })
	}
	all.Wait()
	close(stop)
	watch.Wait()
	r.serversMissing()
}

// serversMissing adds a failure for each server that was unavailable.
func (r *report) serversMissing() {
	ran, err := os.ReadFile(r.ran)
	if err != nil {
		r.fail("servers", "", err.Error())
	}
	for line := range strings.Lines(string(ran)) {
		if strings.Contains(line, testserver.NotTested) {
			r.fail("servers", "", line)
		}
	}
}

// testStreams returns one go test over all packages, so that it balances the load.
func testStreams(ctx context.Context, o options) ([]stream, error) {
	packages, err := list(ctx)
	if err != nil {
		return nil, err
	}
	packages = slices.DeleteFunc(packages, func(p string) bool {
		return strings.Contains(p, "/e2e/") && p != journeys && !strings.Contains(p, "/e2e/kit/")
	})
	args := append(common(o), "-short", "-timeout=15m")
	return []stream{{{name: "tests", test: append(args, packages...), env: testEnv()}}}, nil
}

// noRace leaves SQLite without the race detector: it is C, translated to Go, and takes six times the processor time with it. Its locks are those of
// package sync, so races of this module's code are still found.
const noRace = "-gcflags=modernc.org/...=-race=false"

// withoutRace are tests of backends/mysql that start clusters. They run in the step servers: most of their work is that of the servers, and the
// race detector sees what they run beside a single server.
var withoutRace = []string{
	"TestExamineGalera", "TestExamineGroup", "TestGaleraConflicts", "TestGaleraErrorAfterCommit", "TestGaleraGroups", "TestGaleraHosts", "TestGaleraIDsWhileNodesChange", "TestGaleraLateInsert",
	"TestGroupConflicts", "TestGroupHosts", "TestGroupLosesPrimaryAtCommit", "TestMultiPrimary", "TestMultiPrimaryGroups",
}

// onNewest are tests of backends/postgres that start servers of the newest version. They run in the step race.
var onNewest = []string{
	"TestAnsweredIsOnDisk", "TestClusterReturnsToOldPrimary", "TestFilesRestored", "TestReplacedPrimaryWhoseCommitsHang", "TestServerCrashesInACommit", "TestUnknownCommitLeavesNoSession",
}

// inOneGoroutine are the topics of the conformance suite whose tests start no goroutines. `make test` has run them on the servers of the step race.
var inOneGoroutine = []string{
	"Alone", "Attempts", "ClaimLimits", "Commands", "Emptied", "FailedCounts", "GroupHistories", "GroupReady", "GroupWalk", "Inspect", "InvalidValues", "LateCommits", "Leases",
	"Obstacles", "Order", "OwnRetention", "Progress", "Sidecars", "Values",
}

// adoptedInOneGoroutine are the longest tests of backends/adopted that start no goroutines. They run in the step adopted, without the race
// detector. Other packages have tests of these names too, which `make test` has run on the servers of the step race.
var adoptedInOneGoroutine = []string{
	"TestBlockedHead", "TestCoarseTimes", "TestCommandOnAllJobs", "TestGiveBackRestores", "TestGuesses", "TestHostileNames", "TestHostileSettingsOfAPooler",
	"TestHostileSettingsOfARole", "TestHostileSettingsOfMySQL", "TestIndexes", "TestKindsOfObstacles", "TestLocalTimes", "TestManyRowsThatCannotBeGivenBack", "TestNoFunctionOfOthersRuns",
	"TestRowsThatCantBeClaimed", "TestSettleIgnoresWhere", "TestSettleTakesTheKeysIndex", "TestStateKinds", "TestTimeForms",
}

// byEmulation are the topics of TestConformanceByEmulation that `make test` runs, and that have no larger form.
var byEmulation = []string{"Settle", "Leases", "Sidecars", "Retention", "LockedRows"}

// inTestAlone are tests of bridge and backends/internal/core that `make test` runs, and whose goroutines other tests run with the race detector: fleets, over many
// phases of their heartbeats, and measurements of memory. The race detector itself ended in the fleets, with "CHECK failed: tsan_rtl.cpp:346" or SIGSEGV.
var inTestAlone = []string{
	"TestMoreRefusedRowsThanAreRemembered", // in one goroutine
	"TestLeasesOutlastTheSidecarTimeout", "TestLeasesOutlastTheSidecarTimeoutInALargeFleet", "TestOnlyKillersDie", "TestSidecarThatReturnsInTimeKeepsItsLeases",
	"TestMemoryOfAbandonedWrites", "TestMemoryOfIdleSessions", "TestMemoryOfNacks", "TestMemoryOfSettledLeases",
}

// without is the argument of go test that leaves out tests, and topics of TestConformance.
func without(tests, topics []string) string {
	skip := "^(" + strings.Join(tests, "|") + ")$"
	if len(topics) > 0 {
		for _, server := range []string{"", "/^MySQL", "/^PostgreSQL/committed$"} { // SQLite and memory have none
			skip += "|^TestConformance$" + server + "/^(" + strings.Join(topics, "|") + ")$"
		}
	}
	return "-skip=" + skip
}

// only is the argument of go test that runs some tests, unless the option -run selects others.
func only(o options, tests []string) []string {
	if o.run != "" {
		return nil
	}
	return []string{"-run=^(" + strings.Join(tests, "|") + ")$"}
}

// checkStreams returns three streams: one mostly computes, one mostly waits for processes, and one has the short steps, so that
// none of them runs alone at the end. The race detector sees each engine once, on its newest server. The step servers tests the oldest
// ones without it.
func checkStreams(ctx context.Context, o options) ([]stream, error) {
	packages, err := list(ctx)
	if err != nil {
		return nil, err
	}
	inside := func(p string) bool { return strings.Contains(p, "/e2e/") }
	packages = slices.DeleteFunc(packages, func(p string) bool { return slices.Contains(onlyInTest, strings.TrimPrefix(p, module)) })
	// Most of the emulation is a parser without goroutines, and internal/testserver is about other programs.
	others := func(p string) bool {
		return strings.Contains(p, "/backends/sqlserver") || strings.HasSuffix(p, "/internal/testserver")
	}
	unit := slices.DeleteFunc(slices.Clone(packages), func(p string) bool { return inside(p) || others(p) })
	ends := slices.DeleteFunc(packages, func(p string) bool { return !inside(p) })
	return []stream{{
		{name: "lint", cmd: []string{"make", "--no-print-directory", "lint"}},
		{name: "race", test: slices.Concat(common(o), []string{"-race", noRace, "-timeout=40m", without(slices.Concat(withoutRace, inTestAlone, adoptedInOneGoroutine), inOneGoroutine)}, unit), env: append(testEnv(), "CGO_ENABLED=1", testserver.EnvAge+"="+testserver.Newest)},
	}, {
		{name: "e2e", test: slices.Concat(common(o), []string{"-p=2", "-parallel=4", "-timeout=40m"}, ends), env: testEnv()},
	}, {
		{name: "traces", dir: "e2e/traces", test: append(common(o), "-timeout=20m", "./..."), env: testEnv()},
		{name: "deploy", dir: "deploy", test: append(common(o), "-timeout=20m", "./..."), env: testEnv()},
		{name: "bench", dir: "bench", test: append(common(o), "-timeout=20m", "./..."), env: testEnv()},
		{name: "emulation", test: slices.Concat(common(o), []string{"-timeout=20m", "-skip=^TestConformanceByEmulation$/^(" + strings.Join(byEmulation, "|") + ")$", "./backends/sqlserver/..."}), env: testEnv()},
		{name: "servers", test: slices.Concat(common(o), []string{"-timeout=30m", without(onNewest, nil), "./backends/mysql", "./backends/postgres", "./internal/testserver"}), env: append(testEnv(), testserver.EnvAge+"="+testserver.Oldest)},
		{name: "adopted", test: slices.Concat(common(o), []string{"-timeout=20m", "./backends/adopted"}, only(o, adoptedInOneGoroutine)), env: append(testEnv(), testserver.EnvAge+"="+testserver.Newest)},
		{name: "docs", cmd: []string{"make", "--no-print-directory", "docs"}},
	}}, nil
}

// common returns the arguments of every go test: no cached results, random order, and no vet, which
// lint runs. Without paths, the tests share what they compile with the program and the release.
func common(o options) []string {
	args := []string{"-count=1", "-shuffle=on", "-vet=off", "-trimpath"}
	if o.run != "" {
		args = append(args, "-run="+o.run)
	}
	return args
}

// testEnv keeps the data of the tests in memory and names the program under test. All steps except the race detector build without cgo, as the
// program is built, so that they share what they build.
func testEnv() []string {
	at, err := filepath.Abs(binary)
	if err != nil {
		panic(err) // the working directory no longer exists
	}
	return []string{local.EnvMemory + "=/dev/shm", "QSIDECAR_BIN=" + at, "CGO_ENABLED=0"}
}

// list returns every package of this module that has tests, slow ones first.
func list(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	rank := func(p string) int {
		if i := slices.IndexFunc(slowFirst, func(s string) bool { return strings.HasSuffix(p, s) }); i >= 0 {
			return i
		}
		return len(slowFirst)
	}
	packages := strings.Fields(string(out))
	slices.SortStableFunc(packages, func(a, b string) int { return rank(a) - rank(b) })
	return packages, nil
}

// ranAsRoot adds a failure for each line of root-tests.txt of this suite that no test reported, so
// that tests which need root are not skipped silently.
func (r *report) ranAsRoot() {
	wanted, err := os.ReadFile("scripts/root-tests.txt")
	if err != nil {
		r.fail("root", "", err.Error())
		return
	}
	ran, err := os.ReadFile(r.ran)
	if err != nil {
		r.fail("root", "", err.Error())
		return
	}
	for s := bufio.NewScanner(bytes.NewReader(wanted)); s.Scan(); {
		what, mine := strings.CutPrefix(s.Text(), r.name+" ")
		if mine && !bytes.Contains(ran, []byte("ran as root: "+what+", ")) {
			r.fail("root", what, "this test did not run as root (scripts/root-tests.txt requires it)")
		}
	}
	for line := range strings.Lines(string(ran)) {
		if strings.HasPrefix(line, "ran as root: ") {
			r.printf("%s", strings.TrimSpace(line))
		}
	}
}
