package clients

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

var examples = kit.Path("clients/examples")

// TestExampleWorker checks that the worker in PHP handles any payload, survives a restart of the
// sidecar, and ends gracefully.
func TestExampleWorker(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Queues = "  \"*\": {backoff: {initial: 1h, max: 1h}}\n"
	a := s.Start("a")
	example := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "php", append([]string{examples + "/worker.php"}, args...)...)
		cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+a.Socket)
		cmd.Stderr = os.Stderr
		cmd.WaitDelay = time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	payloads := []string{"Ada", "Zoë \"\\ \n☎", ""}
	var empty string
	for _, p := range payloads {
		out, err := example("greet", p).Output()
		if err != nil {
			t.Fatalf("enqueue %q: %v", p, err)
		}
		empty = strings.TrimSpace(string(out))
	}
	if _, err := strconv.Atoi(empty); err != nil {
		t.Errorf("it printed %q, want the job's id", empty)
	}
	w := example("greet")
	output := new(kit.LockedBuffer)
	w.Stdout = output
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	greeted := func(name string) func() bool {
		return func() bool { return strings.Contains(output.String(), "hello, "+name+" (attempt 1)\n") }
	}
	for _, p := range payloads[:2] {
		testwait.Until(t, "it greets "+strconv.Quote(p), greeted(p))
	}
	testwait.Until(t, "the empty one has failed", func() bool {
		j := a.Dial().Peek("greet", empty)
		return j.State == "scheduled" && len(j.Errors) == 1 && strings.Contains(j.Errors[0].Message, "there is no name to greet")
	})
	noJSON := a.Dial().Must(kit.Msg{"op": "enqueue", "queue": "greet", "payload_b64": []byte("\xff\xfe")}).Job.ID
	testwait.Until(t, "that of other bytes has failed", func() bool {
		j := a.Dial().Peek("greet", noJSON)
		return j.State == "scheduled" && len(j.Errors) == 1 && strings.Contains(j.Errors[0].Message, "returns its bytes")
	})
	a.Kill()
	a.Start()
	a.Dial().Put("greet", `"the restarted"`)
	testwait.Until(t, "it greets after the restart", greeted("the restarted"))
	if err := w.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := w.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v, want the exit code 0", err)
	}
	if left := s.JobsInFile(t); len(left) != 2 || left[0] != empty || left[1] != noJSON {
		t.Errorf("the jobs %v are left, want %s and %s", left, empty, noJSON)
	}
}
