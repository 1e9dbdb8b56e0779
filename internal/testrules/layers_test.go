package testrules

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// layers lists the imports that are forbidden between packages. A pattern matches the paths
// that a package's own code and tests import.
var layers = []struct {
	packages, never, why string
	tests                bool // the rule also applies to tests
}{
	{"./protocol/...", `^qsidecar/(backends|bridge|cmd|clients|e2e)|^database/sql|fsnotify`, "the wire does not depend on what is above it", true},
	{"./backends", `^qsidecar/(protocol|bridge|cmd|clients|e2e|backends/)|^database/sql|modernc|pgx|mysql|mssql`, "a job table is no engine and no wire", true},
	{"./backends/...", `^qsidecar/(protocol|bridge|cmd|clients|e2e)`, "an engine depends on jobs, not on the wire", true},
	{"./backends/sqlite", `^qsidecar/backends/adopted`, "adopted tables use engines through the interface only, and no engine depends on them", false},
	{"./backends/postgres", `^qsidecar/backends/adopted`, "as above", false},
	{"./backends/mysql", `^qsidecar/backends/adopted`, "as above", false},
	{"./backends/sqlserver", `^qsidecar/backends/adopted`, "as above", false},
	{"./backends/internal/checks", `^qsidecar/backends/[^i]|pgx|mysql|mssql|sqlite`, "what the diagnostics of all engines share", true},
	{"./backends/adopted/...", `^qsidecar/backends/(sqlite|postgres|mysql|sqlserver)|pgx|mysql|mssql`, "what adopted tables need is written once for all engines", false},
	{"./backends/adopted/mapping", `^qsidecar/backends/`, "a mapping is checked without conditions and statements", false},
	{"./backends/adopted/internal/condition", `^qsidecar/backends/adopted$|/internal/(statement|advise)$`, "conditions follow from the mapping, statements from the conditions", false},
	{"./backends/adopted/internal/statement", `^qsidecar/backends/adopted$|/internal/advise$`, "statements are built apart from the code that runs them", false},
	{"./backends/adopted/guess", `^qsidecar/backends/adopted$|/internal/(condition|lease|statement|advise)$`, "the adoption wizard is apart from the code that runs queues", false},
	{"./bridge/...", `^qsidecar/(cmd|clients)|^qsidecar/backends/|fsnotify|yaml|cobra|^database/sql|modernc`, "the bridge does not depend on engines, files or flags", false},
	{"./bridge/...", `^qsidecar/(cmd|clients)|^qsidecar/backends/(sqlite|postgres|mysql|sqlserver)`, "the bridge's tests run on memory", true},
	{"./bridge/internal/...", `^qsidecar/bridge$`, "the bridge is built of these packages, never the other way round", true},
	{"./internal/unixsocket", `^qsidecar/`, "sockets know nothing of jobs", true},
	{"./clients/go/...", `^qsidecar/(backends|bridge|cmd)`, "a client depends on the wire only", false},
	{"./...", `^qsidecar/cmd`, "the command is above every other package", true},
	{"./internal/timezones", `^qsidecar/`, "it has time zones and depends on none of ours", true},
	{"./internal/occurrence", `^qsidecar/(backends|protocol|bridge|clients|internal/[^ot])`, "when schedules run follows from their definitions and the time alone", true},
	{"./backends/internal/batches", `^qsidecar/(bridge|protocol|clients|backends/[^i])|pgx|mysql|mssql|sqlite`, "batches are kept once for all engines", true},
	{"./backends/internal/schedules", `^qsidecar/(bridge|protocol|clients|backends/[^i])|pgx|mysql|mssql|sqlite`, "schedules are kept once for all engines", true},
	{"./internal/textfmt", `^qsidecar/`, "it formats values and depends on none of ours", false},
	{"./internal/jobevents", `^qsidecar/`, "it passes on events and depends on none of ours", true},
	{"./internal/traces", `^qsidecar/(backends|bridge|clients|internal/[^jt])|yaml|cobra|^database/sql`, "spans are made of job events alone", false},
	{"./internal/wiretext", `^qsidecar/(backends|bridge|clients|internal/[^tw])`, "it describes parts of the wire and depends on the wire alone", false},
	{"./internal/logging", `^qsidecar/`, "it writes lines and depends on none of ours", false},
	{"./internal/worker", `^qsidecar/(backends|bridge|internal/(check|config|databases|engines|daemon|adopt))|yaml|cobra|^database/sql`, "the worker talks to a sidecar through clients/go", true},
	{"./internal/top", `^qsidecar/(backends|bridge|internal/(check|config|databases|engines|daemon|adopt|worker))|cobra|^database/sql`, "the view talks to a sidecar through clients/go", false},
	{"./internal/statusline", `^qsidecar/(backends|bridge|internal/[^w])|cobra`, "it talks to a sidecar through clients/go", false},
	{"./internal/tail", `^qsidecar/(backends|bridge|internal/(check|config|databases|engines|daemon|adopt|worker))|cobra|^database/sql`, "the command talks to a sidecar through clients/go", false},
	{"./internal/engines", `^qsidecar/(protocol|bridge|clients|internal/([^t]|t[^e]|te[^x]))`, "the registry of engines depends on the engines, and on the formatting of texts", true},
	{"./internal/config", `^qsidecar/(clients|internal/(check|databases|daemon|worker|adopt|logging))|cobra|^database/sql`, "the config starts nothing", true},
	{"./internal/databases", `^qsidecar/(bridge|clients|internal/(check|daemon|worker|adopt))|yaml|cobra|^database/sql`, "it opens the databases of a config", true},
	{"./internal/adminapi", `^qsidecar/(backends|bridge|internal/([^w]|worker))|^database/sql|yaml|cobra`, "the API reaches the databases only through the protocol", false},
	{"./internal/daemon", `^qsidecar/(clients|internal/(check|worker|adopt|engines))|yaml|cobra|^database/sql`, "the daemon parses no flags and no YAML", true},
	{"./internal/web", `^qsidecar/(backends|bridge|clients|internal/([^w]|worker))|yaml|cobra|prometheus|^database/sql`, "the page knows only the protocol", false},
	{"./internal/adopt", `^qsidecar/(bridge|clients|internal/(check|daemon|worker))|yaml|cobra|^database/sql`, "the wizard reads a table and writes a config", true},
	{"./internal/check", `^qsidecar/(clients|internal/(daemon|worker|adopt|engines))|yaml|cobra|^database/sql`, "the check examines and prints nothing", true},
	{"./cmd/qsidecar", `^database/sql|fsnotify|goccy/go-yaml|prometheus|go-systemd`, "the command has commands, output and exit codes", false},
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

// TestEnginesDoNotImportEachOther checks that no engine imports another one. All can import the
// suite and their common internal packages.
func TestEnginesDoNotImportEachOther(t *testing.T) {
	engine := regexp.MustCompile(`^qsidecar/backends/(\w+)`)
	for _, pkg := range imports(t, "./backends/...", true) {
		mine := engine.FindStringSubmatch(pkg.path)
		if mine != nil && mine[1] == "adopted" {
			continue // this isn't an engine; TestLayers covers it
		}
		for _, path := range pkg.imports {
			other := engine.FindStringSubmatch(path)
			if mine != nil && other != nil && other[1] != mine[1] && other[1] != "backendtest" && other[1] != "internal" && other[1] != "adopted" { // its tests can use adopted tables; TestLayers covers them
				t.Errorf("%s imports %s: the engines know nothing of each other", pkg.path, path)
			}
		}
	}
	for _, name := range []string{"memory", "sqlite", "backendtest"} {
		imports(t, "./backends/"+name, true) // fails if the engine doesn't exist
	}
}

// TestOperatorToolingIsApart: the hot path of an engine does not import its diagnose
// package, and its migrate package imports neither.
func TestOperatorToolingIsApart(t *testing.T) {
	for _, engine := range []string{"postgres", "mysql", "sqlserver", "sqlite"} {
		for pkg, never := range map[string]string{
			"":         "/diagnose",
			"/migrate": "($|/diagnose)",
		} {
			for _, p := range imports(t, "./backends/"+engine+pkg, false) {
				for _, path := range p.imports {
					if regexp.MustCompile("^qsidecar/backends/" + engine + never).MatchString(path) {
						t.Errorf("%s imports %s: the directions are diagnose → engine → migrate", p.path, path)
					}
				}
			}
		}
	}
}

// TestOnlyOnePackageImportsTheEngines: internal/engines is the registry of the engines. No
// other package outside backends imports one, apart from tests.
func TestOnlyOnePackageImportsTheEngines(t *testing.T) {
	engine := regexp.MustCompile(`^qsidecar/backends/(memory|sqlite|postgres|mysql|sqlserver)(/|$)`)
	found := false
	for _, pkg := range imports(t, "./...", false) {
		for _, path := range pkg.imports {
			if !engine.MatchString(path) || strings.HasPrefix(pkg.path, "qsidecar/backends/") {
				continue
			}
			if pkg.path == "qsidecar/internal/engines" {
				found = true
			} else {
				t.Errorf("%s imports %s: only internal/engines imports the engines", pkg.path, path)
			}
		}
	}
	if !found {
		t.Error("internal/engines imports no engine: this test checks the wrong package")
	}
}

// bridgeArrows lists the packages of the bridge from the top down, each with those of them that it or its tests import. All
// of these are below it. Packages with wire know the messages of clients or their sockets.
var bridgeArrows = []struct {
	pkg, imports string
	wire         bool
}{
	{"bridge", "session plan pipeline heartbeat lease depth metrics outbox permission quota wirejob", true}, // some in tests alone
	{"session", "plan pipeline jobends history progress lease backendref depth replysize search failurelog outbox permission quota wirejob", true},
	{"plan", "pipeline permission", true},
	{"pipeline", "dispatch maintenance heartbeat history jobends progress lease backendref depth failurelog fairshare metrics quota", false},
	{"dispatch", "quota", false},
	{"maintenance", "heartbeat backendref metrics", false},
	{"heartbeat", "lease backendref metrics quota", false},
	{"lease", "metrics quota", false},
	{"backendref", "", false},
	{"depth", "", false},
	{"history", "", false},
	{"jobends", "", false},
	{"progress", "", false},
	{"failurelog", "", false},
	{"fairshare", "", false},
	{"metrics", "", false},
	{"replysize", "quota wirejob", true},
	{"search", "", false},
	{"outbox", "", false},
	{"permission", "", true},
	{"quota", "", false},
	{"wirejob", "", true},
}

// TestBridgeArrows checks that the packages of the bridge import only those of the list, and that all arrows point down.
func TestBridgeArrows(t *testing.T) {
	path := func(pkg string) string {
		if pkg == "bridge" {
			return "qsidecar/bridge"
		}
		return "qsidecar/bridge/internal/" + pkg
	}
	allowed := map[string][]string{}
	for i, a := range bridgeArrows {
		below := map[string]bool{}
		for _, b := range bridgeArrows[i+1:] {
			below[b.pkg] = true
		}
		allowed[path(a.pkg)] = []string{}
		for to := range strings.FieldsSeq(a.imports) {
			if !below[to] {
				t.Errorf("%s, which %s imports, is not below it", to, a.pkg)
			}
			allowed[path(a.pkg)] = append(allowed[path(a.pkg)], path(to))
		}
		if a.wire {
			allowed[path(a.pkg)] = append(allowed[path(a.pkg)], "qsidecar/protocol", "qsidecar/internal/unixsocket", "net")
		}
	}
	guarded := regexp.MustCompile(`^qsidecar/(protocol|internal/unixsocket|bridge(/.*)?)$|^net$`)
	for _, pkg := range imports(t, "./bridge/...", true) {
		to, known := allowed[pkg.path]
		if !known {
			t.Errorf("%s is not in the list of the bridge's packages", pkg.path)
		}
		for _, imported := range pkg.imports {
			if guarded.MatchString(imported) && imported != pkg.path && !slices.Contains(to, imported) {
				t.Errorf("%s imports %s, which is above it, or of which it must not know", pkg.path, imported)
			}
		}
		for _, arrow := range to {
			if strings.HasPrefix(arrow, "qsidecar/bridge") && !slices.Contains(pkg.imports, arrow) {
				t.Errorf("%s does not import %s any more: remove it from the list", pkg.path, arrow)
			}
		}
		delete(allowed, pkg.path)
	}
	for pkg := range allowed {
		t.Errorf("%s does not exist", pkg)
	}
}

type importing struct {
	path    string
	imports []string
}

// imports lists the direct imports of each package of the pattern. It cuts this module's
// paths so that they begin with qsidecar/. It fails if the pattern matches no package,
// because such a rule checks nothing.
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
