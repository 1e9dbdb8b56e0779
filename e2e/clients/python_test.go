package clients

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testserver/pythonenv"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// kitProgram is the conformance kit, built once.
var kitProgram = sync.OnceValues(func() (string, error) {
	to := filepath.Join(filepath.Dir(kit.Binary), "kit")
	build := exec.Command("go", "build", "-trimpath", "-o", to, kit.Path("clients/kit"))
	out, err := build.CombinedOutput()
	if err != nil {
		return string(out), err
	}
	return to, nil
})

// kitTurns limits the runs, because each starts as many interpreters as there are scenarios.
var kitTurns = make(chan struct{}, 2)

// runKit runs the kit on an adapter and returns its report and whether all scenarios passed.
// patience is how long the client can take for each reaction.
func runKit(t *testing.T, codec string, patience time.Duration, adapter ...string) (report string, ok bool) {
	t.Helper()
	return runKitOnly(t, nil, codec, patience, adapter...)
}

// runKitOnly runs some scenarios of the kit, or all if only is nil.
func runKitOnly(t *testing.T, only []string, codec string, patience time.Duration, adapter ...string) (report string, ok bool) {
	t.Helper()
	kitTurns <- struct{}{}
	defer func() { <-kitTurns }()
	program, err := kitProgram()
	if err != nil {
		t.Fatalf("building the kit: %v\n%s", err, program)
	}
	args := append([]string{"-only", strings.Join(only, ","), "-codec", codec, "-patience", patience.String(), "-transcripts", kit.Path("protocol/testdata/transcripts"), "--"}, adapter...)
	cmd := exec.CommandContext(t.Context(), program, args...)
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); err != nil && code != 1 {
		t.Fatalf("the kit: %v\n%s", err, out)
	}
	return string(out), err == nil
}

// python is an interpreter for the client's tests: the oldest supported and the newest, with
// msgpack and without.
type python struct {
	name, codec string
	argv        []string
}

func pythons(t *testing.T) []python {
	t.Helper()
	var all []python
	oldest := func(ctx context.Context) (string, error) { return pythonenv.Debian(ctx, "bullseye") }
	for _, get := range []func(context.Context) (string, error){oldest, pythonenv.Newest} {
		interpreter, err := get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		version, err := pythonenv.Version(t.Context(), interpreter)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all,
			python{version + "-json", "json", []string{interpreter, "-S"}}, // hides msgpack
			python{version + "-msgpack", "msgpack", []string{interpreter}})
	}
	if !strings.HasPrefix(all[0].name, "3.9-") {
		t.Fatalf("the oldest Python is %s, want 3.9", all[0].name)
	}
	return all
}

// TestPythonKit checks that both Python clients have every reaction of clients/README.md.
func TestPythonKit(t *testing.T) {
	t.Parallel()
	for i, p := range pythons(t) {
		if !kit.Soak && (i == 1 || i == 2) {
			continue // the oldest without msgpack and the newest with it cover nearly everything
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			adapter := append(slices.Clip(p.argv), filepath.Join(clientlib.PythonPackage, "kit_adapter.py"))
			for name, options := range map[string][]string{"Client": nil, "AsyncClient": {"--async"}} {
				if report, ok := runKit(t, p.codec, testwait.Limit, append(slices.Clip(adapter), options...)...); !ok {
					t.Errorf("the kit on %s of Python:\n%s", name, report)
				}
			}
		})
	}
}

// TestPythonSuite runs the package's own tests, each run on its own sidecar.
func TestPythonSuite(t *testing.T) {
	t.Parallel()
	for i, p := range pythons(t) {
		if !kit.Soak && (i == 1 || i == 2) {
			continue // as in TestPythonKit
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			s := kit.NewSite(t)
			s.Queues = "  \"*\": {}\n  kept: {retention: {done: 1h}}\n  waited: {retention: {done: 1h}}\n  late: {backoff: {initial: 1h, max: 1h}}\n"
			suite := exec.Command(p.argv[0], append(p.argv[1:], "-W", "error", "-m", "unittest", "discover", "-s", "tests")...)
			suite.Dir = clientlib.PythonPackage
			interpreter, err := json.Marshal(p.argv)
			if err != nil {
				t.Fatal(err)
			}
			suite.Env = append(os.Environ(), "QSIDECAR_SOCKET="+s.Start("a").Socket, "QSIDECAR_KEPT=kept", "QSIDECAR_TEST_PYTHON="+string(interpreter))
			if out, err := suite.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestPythonTypes checks that mypy --strict finds nothing, so that its users' mypy does not either.
func TestPythonTypes(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), clientlib.PythonEnv(t, pythonenv.Tools...), "-m", "mypy", "--strict",
		"--cache-dir", filepath.Join(t.TempDir(), "mypy"), "qsidecar")
	cmd.Dir = clientlib.PythonPackage
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, strings.TrimSpace(string(out)))
	}
}
