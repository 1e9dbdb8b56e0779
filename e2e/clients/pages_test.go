package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testdocs"
	"github.com/qsidecar/qsidecar/internal/testserver/pythonenv"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// pages are the pages whose examples TestPages runs.
var pages = []string{"README.md", "docs/tutorial.md", "docs/concepts/*.md", "docs/how-to/*.md", "docs/operations/*.md"}

// pagePackages are the Python packages that a page's examples need.
var pagePackages = map[string][]string{
	"docs/how-to/django.md":            djangoPackages,
	"docs/how-to/traces.md":            {"opentelemetry-sdk==1.45.2"},
	"docs/how-to/results.md":           {"Flask==3.1.3", "fastapi==0.163.2", "httpx==0.28.1"},
	"docs/how-to/flask-and-fastapi.md": {"Flask==3.1.3", "fastapi==0.163.2", "httpx==0.28.1"},
}

// TestPages runs the examples of the pages. A page is one session of bash in a new folder, and its
// blocks run in their order:
//
//   - a block of a language in interpreters runs;
//   - a block of text or json directly after it is output that must appear, see outputLine;
//   - the comment `file: NAME` above a block writes it to a file;
//   - the comment `not run: REASON` leaves a block out;
//   - a block of yaml without a comment is a config, which a test in internal/config reads.
//
// If the page doesn't start a sidecar itself, one runs with the page's config.yaml, and reloads it
// when the page changes it.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, pattern := range pages {
		found, err := filepath.Glob(kit.Path(pattern))
		if err != nil || len(found) == 0 {
			t.Errorf("no page %s: %v", pattern, err)
		}
		for _, path := range found {
			name, err := filepath.Rel(kit.Path("."), path)
			if err != nil {
				t.Fatal(err)
			}
			if steps := pageSteps(t, name); len(steps) > 0 {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					runPage(t, name, steps)
				})
			}
		}
	}
}

// A pageStep is a part of a page's session.
type pageStep struct {
	line   int
	script string // in bash
	file   string // the name of the file that it writes
	want   string // lines of output
}

// interpreters run the languages of a page's blocks.
var interpreters = map[string]string{
	"js": "node --input-type=module -", "python": "python3 -", "ruby": `ruby -I "$REPOSITORY/clients/ruby/lib" -`, "php": "php", "sql": `psql -q -v ON_ERROR_STOP=1 "$DATABASE_URL"`,
}

const (
	fileMark   = "file: "
	skipMark   = "not run: "
	configFile = "config.yaml"
)

// pageSteps returns the steps of a page. It reports the blocks that no test runs.
func pageSteps(t *testing.T, name string) (steps []pageStep) {
	t.Helper()
	last := -1 // the block that the last step ran
	for i, b := range testdocs.Blocks(t, kit.Path(name)) {
		interpreter := interpreters[b.Language]
		file, isFile := strings.CutPrefix(b.Mark, fileMark)
		reason, skipped := strings.CutPrefix(b.Mark, skipMark)
		document := "<<'END_OF_BLOCK'\n" + b.Text + "END_OF_BLOCK\n"
		step := pageStep{line: b.Line}
		switch {
		case skipped && reason != "", b.Language == "mermaid", b.Language == "yaml" && !isFile:
			continue
		case isFile:
			step.script = fmt.Sprintf("mkdir -p \"$(dirname %[1]s)\"\ncat >%[1]s %s", file, document)
			if strings.HasPrefix(b.Text, "#!") {
				step.script += "chmod +x " + file + "\n"
			}
			if step.file = file; file == configFile {
				step.script += "! qsidecar ping >ping.log 2>&1 || qsidecar reload\n"
			}
		case b.Language == "sh":
			step.script = b.Text
		case interpreter != "":
			step.script = interpreter + " " + document
		case (b.Language == "text" || b.Language == "json") && last == i-1 && last >= 0:
			steps[len(steps)-1].want = b.Text
			continue
		default:
			t.Errorf("%s:%d: nothing runs this block of %q: write <!-- %sREASON --> or <!-- %sNAME --> above it", name, b.Line, b.Language, skipMark, fileMark)
			continue
		}
		steps = append(steps, step)
		last = i
	}
	return steps
}

// ownSidecar starts the sidecar of a page that doesn't start one itself, with the first config.yaml
// of the page.
func ownSidecar(steps []pageStep) string {
	config := "cat >config.yaml <<<'queues: {\"*\": {}}'\n"
	if i := slices.IndexFunc(steps, func(s pageStep) bool { return s.file == configFile }); i >= 0 {
		config = steps[i].script
	}
	return config + "qsidecar serve --config config.yaml >sidecar.log 2>&1 &\n" +
		"until qsidecar ping >ping.log 2>&1; do sleep 0.1; done\n"
}

func runPage(t *testing.T, name string, steps []pageStep) {
	t.Helper()
	var body strings.Builder
	for i, step := range steps {
		fmt.Fprintf(&body, "printf '\\n%s\\n'\n%s", stepMark(i), step.script)
	}
	script := "set -eu -o pipefail\ntrap 'kill $(jobs -p) 2>kill.log || :; wait' EXIT\n"
	if !strings.Contains(body.String(), "qsidecar serve") {
		script += ownSidecar(steps)
	}
	script += body.String() + fmt.Sprintf("printf '\\n%s\\n'\n", stepMark(len(steps)))
	s := kit.NewSite(t)
	var output kit.LockedBuffer
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, &output, &output
	cmd.Env = pageEnvironment(t, name, s, script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the state has the result
		close(ended)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails if all have ended
		<-ended
		if t.Failed() {
			t.Logf("output:\n%s\nthe sidecar's log:\n%s", output.String(), s.Read("sidecar.log"))
		}
	})
	for i, step := range steps {
		testwait.Until(t, fmt.Sprintf("%s:%d: the block ends", name, step.line), func() bool {
			select {
			case <-ended:
				return true
			default:
				return strings.Contains(output.String(), "\n"+stepMark(i+1)+"\n")
			}
		})
	}
	testwait.Closed(t, name+" ends", ended)
	if !cmd.ProcessState.Success() {
		t.Fatalf("%s: %v", name, cmd.ProcessState)
	}
	for i, step := range steps {
		_, after, _ := strings.Cut(output.String(), "\n"+stepMark(i)+"\n")
		for line := range strings.Lines(step.want) {
			at := outputLine(strings.TrimSpace(line)).FindStringIndex(after)
			if at == nil {
				t.Errorf("%s:%d: the output lacks %q", name, step.line, line)
				break
			}
			after = after[at[1]:]
		}
	}
}

func stepMark(i int) string { return fmt.Sprintf("=== step %d ===", i) }

// The parts of expected output that differ between runs: … (any text), times, durations, blanks.
var outputParts = []struct{ shown, matches *regexp.Regexp }{
	{regexp.MustCompile(`…`), regexp.MustCompile(`.*?`)},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)},
	{regexp.MustCompile(`\b[\d.]+(µs|ms|s|m|h)\b`), regexp.MustCompile(`[\d.]+(µs|ms|s|m|h)`)},
	{regexp.MustCompile(`[ \t]+`), regexp.MustCompile(`[ \t]+`)},
}

// outputLine returns an expression for a line of expected output.
func outputLine(line string) *regexp.Regexp {
	pattern := ""
	for line != "" {
		start, end, matches := len(line), len(line), ""
		for _, part := range outputParts {
			if at := part.shown.FindStringIndex(line); at != nil && at[0] < start {
				start, end, matches = at[0], at[1], part.matches.String()
			}
		}
		pattern += regexp.QuoteMeta(line[:start]) + matches
		line = line[end:]
	}
	return regexp.MustCompile(`(?m)^[ \t]*` + pattern + `[ \t]*$`)
}

// pageEnvironment returns the environment of a page: the program and the clients, a home, and if the
// page names them, a Python and a PostgreSQL.
func pageEnvironment(t *testing.T, name string, s *kit.Site, script string) []string {
	t.Helper()
	bin := filepath.Join(s.Dir, "bin")
	programs := map[string]string{"qsidecar": kit.Binary}
	env := []string{
		"QSIDECAR_SOCKET=" + filepath.Join(s.Dir, "qsidecar", "qsidecar.sock"), // not that of this host's sidecar
		"HOME=" + s.Dir, "PATH=" + bin + ":" + os.Getenv("PATH"), "LANG=C.UTF-8", "QSIDECAR_CONFIG=none", "QSIDECAR_ENQUEUE_TIMEOUT=60",
		"XDG_STATE_HOME=" + filepath.Join(s.Dir, "state"), "XDG_RUNTIME_DIR=" + s.Dir, "REPOSITORY=" + kit.Path("."),
	}
	if strings.Contains(script, "python3") {
		python, path := pagePython(t, name)
		programs["python3"] = python
		env = append(env, "PYTHONPYCACHEPREFIX="+os.Getenv("PYTHONPYCACHEPREFIX"), "PYTHONPATH="+path)
	}
	if strings.Contains(script, "go test") {
		env = append(env, goModules(t)...)
	}
	if strings.Contains(script, "DATABASE_URL") {
		_, server := kit.NewPostgresSite(t)
		env = append(env, "DATABASE_URL="+server.URL)
	}
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if name == "docs/how-to/rails.md" {
		app := clientlib.NewRailsApp(t, "trixie", s.Dir)
		env = append(append(env, app.Env...), "PATH="+bin+":"+app.Path)
	}
	for program, path := range programs {
		if err := os.Symlink(path, filepath.Join(bin, program)); err != nil {
			t.Fatal(err)
		}
	}
	return env
}

// pagePython returns a Python, and a path with the client and the packages of a page.
func pagePython(t *testing.T, name string) (python, path string) {
	t.Helper()
	python, err := pythonenv.Newest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	version, err := pythonenv.Version(t.Context(), python)
	if err != nil {
		t.Fatal(err)
	}
	packages, err := pythonenv.Packages(t.Context(), version, append([]string{"psycopg[binary]==3.3.9"}, pagePackages[name]...)...)
	if err != nil {
		t.Fatal(err)
	}
	return python, clientlib.PythonPackage + ":" + packages
}
