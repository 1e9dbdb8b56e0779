package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// lineWorker is a program for --persistent that does what a job's payload names.
const lineWorker = `
import base64, json, os, signal, sys, time
with open("starts", "a") as f: f.write(f"{os.getpid()}\n")
def answer(**fields): print(json.dumps({"id": job["id"], **fields}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    what = job.get("payload", "bytes")
    assert "lease" not in job
    if what == "bytes": answer(op="ack", result_b64=job["payload_b64"])
    elif what == "echo": answer(op="ack", result=f'{job["id"]} {job["queue"]} {job["attempt"]} {job["headers"]["x"]}')
    elif what == "more": answer(op="ack", enqueue=[{"queue": "next", "payload": "by the ack"}])
    elif what == "fail": answer(op="nack", error="no such address", delay_ms=3600000)
    elif what == "dead": answer(op="nack", error="never", dead=True)
    elif what == "later": answer(op="nack", snooze=True, delay_ms=3600000)
    elif what == "garbage": print("debugging", flush=True)
    elif what == "long": print("x" * 5000000, flush=True)
    elif what == "closed": os.close(1); time.sleep(1000)
    elif what == "crash": print("oh dear", file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit 66": sys.exit(66)
    elif what == "exit 0": sys.exit(0)
    elif what == "slow": time.sleep(1000)
    elif what == "last": answer(op="ack"); sys.exit(0)
    elif what == "twice": answer(op="ack"); twice = job["id"]
    elif what == "after twice": answer(op="ack", id=twice)
    else: answer(op="ack")
`

// TestWorkPersistent checks one program that processes job after job. Its answers settle jobs as on the
// wire. If the program fails, its job fails, and the next job gets a new process.
func TestWorkPersistent(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Queues = "  \"*\": {retention: {done: 1h}, backoff: {initial: 1h, max: 1h}}\n"
	a := s.Start("a")
	c := a.Dial()
	if err := os.WriteFile(filepath.Join(s.Dir, "line.py"), []byte(lineWorker), 0o644); err != nil {
		t.Fatal(err)
	}
	every := []byte("\x00\xff\n\r\"\\")
	raw := c.Must(kit.Msg{"op": "enqueue", "queue": "q", "payload_b64": every}).Job.ID
	echo := c.Must(kit.Msg{"op": "enqueue", "queue": "q", "payload": "echo", "headers": kit.Msg{"x": "<é>"}}).Job.ID
	type want struct {
		payload, state, message string
		attempt                 int
	}
	fine := want{"fine", "done", "", 1}
	wants := []want{
		{"more", "done", "", 1},
		{"fail", "scheduled", "no such address", 1},
		{"dead", "dead", "never", 1},
		{"later", "scheduled", "", 0},
		fine,
		{"garbage", "scheduled", "its answer is not a JSON object such as", 1},
		fine, // otherwise a program that does not answer is restarted with growing pauses
		{"long", "scheduled", "its answer has more than 4194304 bytes", 1},
		fine,
		{"closed", "scheduled", "it closed its stdout without an answer", 1},
		{"crash", "scheduled", "killed by SIGKILL: oh dear", 1},
		fine,
		{"exit 66", "dead", "exit status 66", 1},
		{"exit 0", "scheduled", "it ended without an answer (exit status 0)", 1},
		fine,
		{"last", "done", "", 1},
		fine,
		{"twice", "done", "", 1},
		{"after twice", "scheduled", "its answer is not for this job", 1}, // a late second answer to the previous job
		fine,
	}
	var ids []string
	for _, w := range wants {
		ids = append(ids, c.Put("q", w.payload)...)
	}
	a.Work("q", "--persistent", "--drain", "--dead-on", "66", "--kill-after", "100ms", "--", "python3", "line.py").WaitExit(0)
	for i, w := range wants {
		j := c.Peek("q", ids[i])
		message := ""
		if len(j.Errors) > 0 {
			message = j.Errors[0].Message
		}
		if j.State != w.state || j.Attempt != w.attempt || !strings.HasPrefix(message, w.message) || message != "" && w.message == "" {
			t.Errorf("%q: the job is %s after %d attempts, %q; want %s, %d, %q", w.payload, j.State, j.Attempt, message, w.state, w.attempt, w.message)
		}
	}
	if j := c.Peek("q", raw); string(j.ResultB64) != string(every) {
		t.Errorf("the bytes were returned as %q%q", j.Result, j.ResultB64)
	}
	if j, want := c.Peek("q", echo), echo+" q 1 <é>"; j.Result != want {
		t.Errorf("the program read %q, want %q", j.Result, want)
	}
	if st := c.Stats("next"); st.Ready != 1 {
		t.Errorf("the ack's own job is not there: %+v", st)
	}
	for _, pid := range lines(s, "starts") {
		if kit.IsRunning(t, pid) {
			t.Errorf("process %s is left", pid)
		}
	}

	// A job that is too slow is stopped. The program that waits for jobs is not.
	slow := c.Put("slow", "slow")[0]
	started := len(lines(s, "starts"))
	w := a.Work("slow", "-j", "2", "--persistent", "--timeout", "15s", "--kill-after", "1s", "--", "python3", "line.py")
	testwait.Until(t, "it was stopped", func() bool { return len(c.Peek("slow", slow).Errors) == 1 })
	c.Put("slow", "fine")
	testwait.Until(t, "the next is done", func() bool { return c.Stats("slow").Done == 1 })
	w.Signal(syscall.SIGTERM)
	w.WaitExit(0)
	if n := len(lines(s, "starts")) - started; n < 2 || n > 3 {
		t.Errorf("%d programs were started, want 2 or 3", n)
	}
}
