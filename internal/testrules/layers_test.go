package testrules

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// layers says which packages must not know of which. A pattern is
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
	{"./clients/go/...", `^qsidecar/(backends|bridge|cmd)`, "a client knows the wire only", false},
	{"./...", `^qsidecar/cmd`, "the command is above every other package", true},
	{"./internal/textfmt", `^qsidecar/`, "it formats values and depends on none of ours", false},
	{"./internal/logging", `^qsidecar/`, "it writes lines and depends on none of ours", false},
	{"./internal/worker", `^qsidecar/(backends|bridge|internal/(check|config|databases|engines|daemon|adopt))|yaml|cobra|^database/sql`, "the worker talks to a sidecar through clients/go", true},
	{"./internal/engines", `^qsidecar/(protocol|bridge|clients|internal)`, "the registry of engines depends on the engines alone", true},
	{"./internal/config", `^qsidecar/(clients|internal/(check|databases|daemon|worker|adopt|logging))|cobra|^database/sql`, "the config starts nothing", true},
	{"./internal/databases", `^qsidecar/(bridge|clients|internal/(check|daemon|worker|adopt))|yaml|cobra|^database/sql`, "it opens the databases of a config", true},
	{"./internal/daemon", `^qsidecar/(clients|internal/(check|worker|adopt|engines))|yaml|cobra|^database/sql`, "the daemon parses no flags and no YAML", true},
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
