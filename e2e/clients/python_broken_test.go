package clients

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// brokenPythons are copies of the Python client that lack one reaction each: the
// scenario that has to fail, and the change that takes the reaction out. What is changed
// stands once in the file.
var brokenPythons = []struct{ scenario, file, from, to string }{
	{ // what is no UTF-8 is made text all the same
		"bytes", "_wire.py",
		`out[name] = value.decode()`,
		`out[name] = value.decode(errors="replace")`,
	},
	{ // a reconnect, and the leases are left to end
		"bind", "_session.py",
		`leases = self.leases.unbound(wire.number)[:MAX_LIST]`,
		`leases: List[str] = []`,
	},
	{ // a second try is taken for the first
		"settled-or-lost", "_session.py",
		`call.twice, call.sent = call.twice or call.sent, False`,
		`call.sent = False`,
	},
	{ // everything without an answer is sent again
		"enqueue-without-key", "_session.py",
		`(call.sent and not call.repeatable())`,
		`False`,
	},
	{ // the sidecar asks for a moment, and is given none
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

// TestPythonBroken: the kit fails each broken copy of the client, by the scenario of
// the reaction that it lacks, and by no other.
func TestPythonBroken(t *testing.T) {
	t.Parallel()
	python := kit.PythonEnv(t, kit.PythonPackage) // for its interpreter: a copy is imported from beside its adapter
	for _, b := range brokenPythons {
		t.Run(b.scenario, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(kit.PythonPackage)); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "qsidecar", b.file)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), b.from); n != 1 {
				t.Fatalf("%q stands %d times in %s, want once: change the test with the client", b.from, n, b.file)
			}
			if err := os.WriteFile(file, []byte(strings.Replace(string(text), b.from, b.to, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			report, _ := runKit(t, "json", testwait.Limit/4, python, filepath.Join(dir, "kit_adapter.py"))
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
