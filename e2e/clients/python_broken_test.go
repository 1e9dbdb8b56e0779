package clients

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// brokenPythons are copies of the Python client that lack one reaction each: the scenario that must
// fail, and the change that removes the reaction. The changed text is unique in the file.
var brokenPythons = []struct{ scenario, file, from, to string }{
	{ // escapes text that is not UTF-8
		"bytes", "_wire.py",
		`out[name] = value.decode()`,
		`out[name] = value.decode(errors="replace")`,
	},
	{ // does not bind leases after a reconnect
		"bind", "_session.py",
		`leases = self._to_bind(wire)[:MAX_LIST]`,
		`leases: List[str] = []`,
	},
	{ // treats a repeated settle as the first one
		"settled-or-lost", "_session.py",
		`call.resent, call.sent = call.resent or call.sent, False`,
		`call.sent = False`,
	},
	{ // repeats every request without a reply
		"enqueue-without-key", "_session.py",
		`(call.sent and not call.repeatable())`,
		`False`,
	},
	{ // ignores retry_ms
		"unavailable-settle", "_call.py",
		`return backoff(tries + 2) if asked is None else asked / 1000`,
		`return backoff(tries + 2)`,
	},
	{ // children inherit the connection
		"close-on-exec", "_wire.py",
		`self._socket.connect(path)`,
		`self._socket.connect(path); self._socket.set_inheritable(True)`,
	},
}

// TestPythonBroken checks that the kit fails each broken copy of the client, only by the scenario
// of the missing reaction. A soak runs all scenarios on each copy. Otherwise these are the ones of brokenPythons.
func TestPythonBroken(t *testing.T) {
	t.Parallel()
	python := clientlib.PythonEnv(t, clientlib.PythonPackage) // only for the interpreter: a copy is imported from its adapter's directory
	var only []string
	if !kit.Soak {
		for _, b := range brokenPythons {
			only = append(only, b.scenario)
		}
	}
	for _, b := range brokenPythons {
		t.Run(b.scenario, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(clientlib.PythonPackage)); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "qsidecar", b.file)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), b.from); n != 1 {
				t.Fatalf("%q is %d times in %s, want once: change the test with the client", b.from, n, b.file)
			}
			if err := os.WriteFile(file, []byte(strings.Replace(string(text), b.from, b.to, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			report, _ := runKitOnly(t, only, "json", testwait.Limit/4, python, filepath.Join(dir, "kit_adapter.py"))
			var failed []string
			for _, line := range regexp.MustCompile(`(?m)^FAIL (\S+)`).FindAllStringSubmatch(report, -1) {
				failed = append(failed, line[1])
			}
			if want := []string{b.scenario}; !slices.Equal(failed, want) {
				t.Errorf("the kit failed it by %q, want %q:\n%s", failed, want, report)
			}
		})
	}
}
