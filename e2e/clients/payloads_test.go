package clients

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// payloadValues are the payloads that each client enqueues in each queue, in this order, before
// payloadBytes.
var payloadValues = []any{"Zoë, \"☎\"\n", 17.0, map[string]any{"to": []any{"ada", 1.5, nil}}, nil}

var payloadBytes = []byte("\xff\xfe")

// payloadRead is a payload as a client reads it.
type payloadRead struct {
	Queue string
	Value any
	Bytes string // in hex, if it is not JSON
	Error string // that reading it as JSON gave
}

// payloadClients are the clients, each with what enqueues the payloads in queues, and what reads
// those of queues.
var payloadClients = map[string]struct {
	enqueue func(t *testing.T, sc *kit.Sidecar, queues []string)
	read    func(t *testing.T, sc *kit.Sidecar, queues []string) []payloadRead
}{
	"node": {
		func(t *testing.T, sc *kit.Sidecar, queues []string) { payloadScript(t, sc, "node", "enqueue", queues) },
		func(t *testing.T, sc *kit.Sidecar, queues []string) []payloadRead {
			return payloadScript(t, sc, "node", "read", queues)
		},
	},
	"python": {
		func(t *testing.T, sc *kit.Sidecar, queues []string) {
			payloadScript(t, sc, "python3", "enqueue", queues)
		},
		func(t *testing.T, sc *kit.Sidecar, queues []string) []payloadRead {
			return payloadScript(t, sc, "python3", "read", queues)
		},
	},
	"ruby": {
		func(t *testing.T, sc *kit.Sidecar, queues []string) { payloadScript(t, sc, "ruby", "enqueue", queues) },
		func(t *testing.T, sc *kit.Sidecar, queues []string) []payloadRead {
			return payloadScript(t, sc, "ruby", "read", queues)
		},
	},
	"go":  {enqueueByGo, readByGo},
	"cli": {enqueueByCLI, readByWork},
	"shell": {
		func(t *testing.T, sc *kit.Sidecar, queues []string) {
			runShell(sc, t, "sh", `set -eu
. clients/shell/qsidecar.sh
for queue in `+strings.Join(queues, " ")+`; do
	printf 'Zoë, "☎"\n' | qsidecar_enqueue "$queue" -
	qsidecar_enqueue "$queue" 17
	qsidecar_enqueue "$queue" '{"to": ["ada", 1.5, null]}' --json
	qsidecar_enqueue "$queue" null
	printf '\377\376' | qsidecar_enqueue "$queue" - --raw
done`)
		},
		readByShell,
	},
}

// TestPayloadsOfAllClients checks that each client reads the payloads of every client: JSON values
// as the values that they are, and other bytes by its way to the bytes, which its error names.
func TestPayloadsOfAllClients(t *testing.T) {
	t.Parallel()
	sc := kit.NewSite(t).Start("a")
	for from, c := range payloadClients {
		var queues []string
		for to := range payloadClients {
			queues = append(queues, from+"-to-"+to)
		}
		c.enqueue(t, sc, queues)
	}
	for to, c := range payloadClients {
		var queues []string
		for from := range payloadClients {
			queues = append(queues, from+"-to-"+to)
		}
		read := make(map[string][]payloadRead)
		for _, p := range c.read(t, sc, queues) {
			read[p.Queue] = append(read[p.Queue], p)
		}
		for _, queue := range queues {
			all := read[queue]
			if len(all) != len(payloadValues)+1 {
				t.Errorf("%s: read %+v", queue, all)
				continue
			}
			for i, want := range payloadValues {
				if !reflect.DeepEqual(all[i].Value, want) || all[i].Bytes != "" {
					t.Errorf("%s: %+v, want the value %#v", queue, all[i], want)
				}
			}
			last := all[len(payloadValues)]
			if last.Bytes != hex.EncodeToString(payloadBytes) || !strings.Contains(last.Error, "raw") && !strings.Contains(last.Error, "Payload") {
				t.Errorf("%s: %+v, want the bytes, and an error that names how to read them", queue, last)
			}
		}
	}
}

// payloadScript runs testdata/payloads of an interpreter.
func payloadScript(t *testing.T, sc *kit.Sidecar, interpreter, what string, queues []string) (read []payloadRead) {
	t.Helper()
	file := "testdata/payloads." + map[string]string{"node": "js", "python3": "py", "ruby": "rb"}[interpreter]
	cmd := exec.CommandContext(testwait.Context(t), interpreter, append([]string{file, what}, queues...)...)
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.Socket, "PYTHONPATH="+clientlib.PythonPackage, "RUBYLIB="+kit.Path("clients/ruby/lib"), "LANG=C.UTF-8")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v", interpreter, what, err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p payloadRead
		if err := d.Decode(&p); err != nil {
			t.Fatalf("%s: %v\n%s", interpreter, err, out)
		}
		read = append(read, p)
	}
	return read
}

func dialGo(t *testing.T, sc *kit.Sidecar) *qsidecar.Client {
	t.Helper()
	c, err := qsidecar.Dial(testwait.Context(t), qsidecar.Options{Socket: sc.Socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // always nil
	return c
}

func enqueueByGo(t *testing.T, sc *kit.Sidecar, queues []string) {
	c := dialGo(t, sc)
	for _, queue := range queues {
		var jobs []protocol.NewJob
		for _, value := range payloadValues {
			job, err := qsidecar.NewJob(queue, value)
			if err != nil {
				t.Fatal(err)
			}
			jobs = append(jobs, job)
		}
		jobs = append(jobs, protocol.NewJob{Queue: queue, Payload: payloadBytes})
		if _, err := c.EnqueueMany(testwait.Context(t), jobs); err != nil {
			t.Fatal(err)
		}
	}
}

func readByGo(t *testing.T, sc *kit.Sidecar, queues []string) (read []payloadRead) {
	c := dialGo(t, sc)
	for _, queue := range queues {
		jobs, err := c.Claim(testwait.Context(t), qsidecar.Claim{Queues: []string{queue}, Max: 10, Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for _, job := range jobs {
			p := payloadRead{Queue: queue}
			if err := qsidecar.Decode(&job, &p.Value); err != nil {
				p.Bytes, p.Error = hex.EncodeToString(job.Payload), err.Error()
			}
			read = append(read, p)
		}
	}
	return read
}

// enqueueByCLI enqueues with the program, with a flag for what can be taken for something else.
func enqueueByCLI(t *testing.T, sc *kit.Sidecar, queues []string) {
	for _, queue := range queues {
		for _, args := range [][]string{{payloadValues[0].(string), "--text"}, {"17"}, {`{"to":["ada",1.5,null]}`}, {"null", "--json"}} {
			enqueueBy(t, sc, "", append([]string{queue}, args...)...)
		}
		enqueueBy(t, sc, string(payloadBytes), queue, "-", "--raw")
	}
}

func enqueueBy(t *testing.T, sc *kit.Sidecar, stdin string, args ...string) {
	t.Helper()
	args = append([]string{"enqueue", "--socket", sc.Socket}, args...)
	if r := kit.RunCLIWith(t, filepath.Dir(sc.Socket), nil, stdin, args...); r.Code != 0 {
		t.Fatalf("qsidecar %v: exit code %d\n%s", args, r.Code, r.Stderr)
	}
}

// readByWork reads with `qsidecar work`, whose command has the payload on its stdin.
func readByWork(t *testing.T, sc *kit.Sidecar, queues []string) (read []payloadRead) {
	for _, queue := range queues {
		out := filepath.Join(filepath.Dir(sc.Socket), queue)
		sc.Work(queue, "--drain", "--", "sh", "-c", `{ od -An -v -tx1 | tr -d ' \n'; echo; } >>"$0"`, out).WaitExit(0)
		read = append(read, payloadTexts(t, queue, out)...)
	}
	return read
}

// readByShell reads with the functions of the shell library.
func readByShell(t *testing.T, sc *kit.Sidecar, queues []string) (read []payloadRead) {
	for _, queue := range queues {
		out := filepath.Join(filepath.Dir(sc.Socket), queue)
		runShell(sc, t, "sh", fmt.Sprintf(`set -eu
. clients/shell/qsidecar.sh
while qsidecar_claim %s; do
	{ qsidecar_payload | od -An -v -tx1 | tr -d ' \n'; echo; } >>'%s'
	qsidecar_ack
done`, queue, out))
		read = append(read, payloadTexts(t, queue, out)...)
	}
	return read
}

// payloadTexts reads a file with the payloads that a shell got, a line of hex for each. The first
// is that of a JSON string, which is its text. The others are as they are stored. An empty payload
// is null.
func payloadTexts(t *testing.T, queue, file string) (read []payloadRead) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		b, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		p := payloadRead{Queue: queue}
		switch err := json.Unmarshal(b, &p.Value); {
		case len(read) == 0:
			p.Value = string(b)
		case err != nil && len(b) > 0:
			p.Bytes, p.Error = hex.EncodeToString(b), "raw" // a shell always has the bytes
		}
		read = append(read, p)
	}
	return read
}
