package clients

import (
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
)

// lossyPayloads are values that JSON lacks, with a part of the error that an enqueue gives. The programs enqueue X.
var lossyPayloads = map[string]struct {
	program  []string
	payloads map[string]string
}{
	"ruby": {
		[]string{"ruby", "-W0", "-rtime", "-rset", "-rbigdecimal", "-rqsidecar", "-e", "begin; Qsidecar::Client.new(socket: '/nowhere').enqueue('mail', X); rescue ArgumentError => e; puts e.message; end"},
		map[string]string{
			`"\x89PNG".b`: "raw: true", `{ a: ["\xFF"] }`: "raw: true", `Float::NAN`: "can't be JSON", `{ a: { b: Object.new } }`: "the class Object",
			`Time.now`: "the class Time", `[Struct.new(:a).new(1)]`: "which JSON lacks", `Set[1]`: "the class Set", `1r`: "the class Rational", `BigDecimal("1.5")`: "the class BigDecimal",
			`[].tap { |a| a << a }`: "can't be JSON",
		},
	},
	"python": {
		[]string{"python3", "-c", "import qsidecar\ntry: qsidecar.Client('/nowhere').enqueue('mail', X)\nexcept (TypeError, ValueError) as e: print(e)"},
		map[string]string{"b'x'": "raw=", "{'a': [b'x']}": "raw=", "float('nan')": "can't be JSON", "object()": "object is not JSON", "'\\ud800'": "can't be JSON"},
	},
	"node": {
		[]string{"node", "-e", "const { Client } = require('./clients/node'); new Client({ socket: '/nowhere' }).enqueue('mail', X).catch((e) => console.log(e instanceof TypeError ? e.message : ''))"},
		map[string]string{
			"Promise.resolve(1)": "a promise", "{ a: [Promise.resolve(1)] }": "a promise", "{ a: new Map() }": "a Map", "[new Set()]": "a Set",
			"{ a: NaN }": "NaN", "{ a: new Uint8Array(3) }": "binary", "() => 1": "JSON value", "1n": "payload",
		},
	},
}

// TestLossyPayloadsAreRejected checks that no client stores something else than the value that it was given. The error names what
// was wrong, and needs no sidecar.
func TestLossyPayloadsAreRejected(t *testing.T) {
	t.Parallel()
	for name, c := range lossyPayloads {
		for payload, want := range c.payloads {
			t.Run(name+" "+payload, func(t *testing.T) {
				t.Parallel()
				argv := append([]string{}, c.program...)
				argv[len(argv)-1] = strings.Replace(argv[len(argv)-1], "X", payload, 1)
				cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
				cmd.Dir = kit.Path(".")
				cmd.Env = append(os.Environ(), "RUBYLIB="+clientlib.RubyPackage+"/lib", "PYTHONPATH="+clientlib.PythonPackage, "LANG=C.UTF-8")
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), "payload") || name != "node" && !strings.Contains(string(out), "mail") {
					t.Errorf("it prints %q (%v), want an error with %q", out, err, want)
				}
			})
		}
	}
	for _, payload := range []any{math.NaN(), func() {}, make(chan int)} {
		if _, err := qsidecar.NewJob("mail", payload); err == nil || !strings.Contains(err.Error(), "the payload of a job for mail can't be JSON") {
			t.Errorf("go: %T gives %v", payload, err)
		}
	}
}
