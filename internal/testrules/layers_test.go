package testrules

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// layers says which packages must not know of which (design.md §5). A pattern is
// matched against the paths that a package's own code and tests import.
var layers = []struct {
	packages, never, why string
	tests                bool // the rule holds for tests too
}{
	{"./protocol/...", `^qsidecar/(backends|bridge|cmd|clients|e2e)|^database/sql|fsnotify`, "the wire knows nothing above it", true},
	{"./backends", `^qsidecar/(protocol|bridge|cmd|clients|e2e|backends/)|^database/sql|modernc|pgx|mysql|mssql`, "a job table is no engine and no wire", true},
	{"./backends/...", `^qsidecar/(protocol|bridge|cmd|clients|e2e)`, "an engine knows jobs and no wire", true},
	{"./backends/sqlite", `^qsidecar/backends/adopted`, "adopted tables know engines by their seam alone, and no engine knows them", false},
	{"./backends/postgres", `^qsidecar/backends/adopted`, "as above", false},
	{"./backends/mysql", `^qsidecar/backends/adopted`, "as above", false},
	{"./backends/sqlserver", `^qsidecar/backends/adopted`, "as above", false},
	{"./backends/adopted", `^qsidecar/backends/(sqlite|postgres|mysql|sqlserver)|pgx|mysql|mssql`, "what adopted tables need is written once for all engines", false},
	{"./bridge/...", `^qsidecar/(cmd|clients)|^qsidecar/backends/|fsnotify|yaml|cobra|^database/sql|modernc`, "the bridge knows no engine, no file, no flag", false},
	{"./bridge/...", `^qsidecar/(cmd|clients)|^qsidecar/backends/(sqlite|postgres|mysql|sqlserver)`, "the bridge's tests run on memory", true},
	{"./bridge/internal/...", `^qsidecar/bridge$`, "the bridge is built of these packages, never the other way round", true},
	{"./bridge/internal/backendref", `^qsidecar/(protocol|internal/unixsocket|bridge/internal/(metrics|quota|depth|fairshare|lease|heartbeat|maintenance|pipeline|permission|outbox|leasestring))|^net$`, "a reference to a backend: no sockets, no wire messages, and of the bridge's parts none", true},
	{"./bridge/internal/metrics", `^qsidecar/(protocol|internal/unixsocket|bridge/internal/(backendref|quota|depth|fairshare|lease|heartbeat|maintenance|pipeline|permission|outbox|leasestring))|^net$`, "counters: no sockets, no wire messages, and of the bridge's parts none", true},
	{"./bridge/internal/quota", `^qsidecar/(protocol|internal/unixsocket|bridge/internal/(backendref|metrics|depth|fairshare|lease|heartbeat|maintenance|pipeline|permission|outbox|leasestring))|^net$`, "limits of sessions: no sockets, no wire messages, and of the bridge's parts none", true},
	{"./bridge/internal/depth", `^qsidecar/(protocol|internal/unixsocket|bridge/internal/(backendref|metrics|quota|fairshare|lease|heartbeat|maintenance|pipeline|permission|outbox|leasestring))|^net$`, "cached depths: no sockets, no wire messages, and of the bridge's parts none", true},
	{"./bridge/internal/fairshare", `^qsidecar/(protocol|internal/unixsocket|bridge/internal/(backendref|metrics|depth|lease|heartbeat|maintenance|pipeline|permission|outbox|leasestring))|^net$`, "fair shares: no sockets, no wire messages, and of the bridge's parts only quota", true},
	{"./bridge/internal/lease", `^qsidecar/(protocol|internal/unixsocket|bridge/internal/(backendref|depth|fairshare|heartbeat|maintenance|pipeline|permission|outbox|leasestring))|^net$`, "the lease table: no sockets, no wire messages, and of the bridge's parts only metrics, quota", true},
	{"./bridge/internal/heartbeat", `^qsidecar/(protocol|internal/unixsocket|bridge/internal/(depth|fairshare|maintenance|pipeline|permission|outbox|leasestring))|^net$`, "the heartbeat: no sockets, no wire messages, and of the bridge's parts only backendref, lease, metrics, quota", true},
	{"./bridge/internal/maintenance", `^qsidecar/(protocol|internal/unixsocket|bridge/internal/(depth|fairshare|pipeline|permission|outbox|leasestring))|^net$`, "maintenance: no sockets, no wire messages, and of the bridge's parts only backendref, heartbeat, lease, metrics, quota", true},
	{"./bridge/internal/pipeline", `^qsidecar/(protocol|internal/unixsocket|bridge/internal/(permission|outbox|leasestring))|^net$`, "a database's pipeline: no sockets, no wire messages, and of the bridge's parts only those of a pipeline", true},
	{"./internal/unixsocket", `^qsidecar/`, "sockets know nothing of jobs", true},
	{"./clients/go/...", `^qsidecar/(backends|bridge|cmd)`, "a client knows the wire only", false},
}

func TestLayers(t *testing.T) {
	for _, l := range layers {
		for _, pkg := range imports(t, l.packages, l.tests) {
			for _, path := range pkg.imports {
				if regexp.MustCompile(l.never).MatchString(path) && path != pkg.path && !strings.HasPrefix(path, pkg.path+"/") {
					t.Errorf("%s imports %s: %s", pkg.path, path, l.why)
				}
			}
		}
	}
}

// TestEnginesAreStrangers: no engine knows another one; all know the suite
// and what is internal to them all.
func TestEnginesAreStrangers(t *testing.T) {
	engine := regexp.MustCompile(`^qsidecar/backends/(\w+)`)
	for _, pkg := range imports(t, "./backends/...", true) {
		mine := engine.FindStringSubmatch(pkg.path)
		if mine != nil && mine[1] == "adopted" {
			continue // no engine: its tests run on one, and see TestLayers
		}
		for _, path := range pkg.imports {
			other := engine.FindStringSubmatch(path)
			if mine != nil && other != nil && other[1] != mine[1] && other[1] != "backendtest" && other[1] != "internal" && other[1] != "adopted" { // its tests may be on adopted tables; see TestLayers
				t.Errorf("%s imports %s: the engines know nothing of each other", pkg.path, path)
			}
		}
	}
	for _, name := range []string{"memory", "sqlite", "backendtest"} {
		imports(t, "./backends/"+name, true) // fails where it is gone
	}
}

// TestOnlyTheCommandKnowsTheEngines: nothing but cmd/qsidecar, and tests, opens one.
func TestOnlyTheCommandKnowsTheEngines(t *testing.T) {
	found := false
	for _, pkg := range imports(t, "./...", false) {
		for _, path := range pkg.imports {
			if !strings.HasPrefix(path, "qsidecar/backends/") || strings.HasPrefix(pkg.path, "qsidecar/backends/") {
				continue
			}
			if pkg.path == "qsidecar/cmd/qsidecar" {
				found = true
			} else {
				t.Errorf("%s imports %s: only cmd/qsidecar wires the engines", pkg.path, path)
			}
		}
	}
	if !found {
		t.Error("cmd/qsidecar imports no engine: this test looks at the wrong place")
	}
}

type importing struct {
	path    string
	imports []string
}

// imports lists what each package of the pattern imports itself, with this
// module's paths cut to begin with qsidecar/. It fails where the pattern matches
// no package: a rule about something that is gone guards nothing.
func imports(t *testing.T, pattern string, tests bool) []importing {
	t.Helper()
	const module = "github.com/qsidecar/"
	format := `{{.ImportPath}} {{join .Imports " "}}`
	if tests {
		format += ` {{join .TestImports " "}} {{join .XTestImports " "}}`
	}
	cmd := exec.Command("go", "list", "-f", format, pattern)
	cmd.Dir = filepath.Join("..", "..")
	var diag bytes.Buffer
	cmd.Stderr = &diag
	out, err := cmd.Output()
	if err != nil || !strings.HasPrefix(string(out), module) {
		t.Fatalf("go list %s: %v, %s", pattern, err, diag.String())
	}
	var all []importing
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(strings.ReplaceAll(line, module, ""))
		all = append(all, importing{path: fields[0], imports: fields[1:]})
	}
	return all
}
