package metrics

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

const (
	traceID     = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceParent = "00-" + traceID + "-00f067aa0ba902b7-01"
)

// traced runs the program in a trace.
func traced(t *testing.T, parent string, args ...string) string {
	t.Helper()
	cmd := exec.Command(kit.Binary, args...)
	cmd.Env = append(os.Environ(), "TRACEPARENT="+parent, "TRACESTATE=vendor=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}

// TestTracePropagation checks that a trace passes from the environment of an enqueue to that of a
// worker's command, and to the jobs that it enqueues, and as a header of any client. A worker's own
// trace does not pass to its jobs.
func TestTracePropagation(t *testing.T) {
	sc := kit.NewSite(t).Start("a")
	at := []string{"--socket", sc.Socket}
	work := func(queue string) string {
		return traced(t, "00-ffffffffffffffffffffffffffffffff-ffffffffffffffff-01",
			append(at, "work", queue, "--once", "--", "sh", "-c", `echo "$TRACEPARENT $TRACESTATE"; "$0" enqueue next x >/dev/null`, kit.Binary)...)
	}
	sent := func(args ...string) { traced(t, traceParent, append(at, append([]string{"enqueue"}, args...)...)...) }

	sent("mail", "x")
	if got := work("mail"); got != traceParent+" vendor=1" {
		t.Errorf("the command is in the trace %q", got)
	}
	if got := work("next"); got != traceParent+" vendor=1" {
		t.Errorf("what it enqueued is in the trace %q", got)
	}
	sc.Dial().Must(kit.Msg{"op": "purge", "queue": "next", "state": "ready"})

	other := strings.Replace(traceParent, "4bf9", "5bf9", 1)
	sent("mail", "x", "--header", "traceparent="+other)
	if got := work("mail"); got != other { // without the state of another trace
		t.Errorf("with a different header: the trace %q", got)
	}
	for _, wrong := range []string{"", "00-" + traceID, strings.ToUpper(traceParent), traceParent + "-00"} {
		traced(t, wrong, append(at, "enqueue", "mail", "x")...)
		if got := work("mail"); got != "" {
			t.Errorf("the environment's trace %q is passed on as %q", wrong, got)
		}
	}
	sent("fails", "x")
	w := sc.Work("fails", "--once", "--", "false")
	<-w.Exited
	if want := "attempt 1 of 20, trace " + traceID + ": exit status 1"; !strings.Contains(w.Diag.String(), want) {
		t.Errorf("the worker prints %q, want %q", w.Diag, want)
	}
	c := sc.Dial()
	c.Must(kit.Msg{"op": "enqueue", "queue": "mail", "headers": kit.Msg{"traceparent": traceParent}})
	if got := work("mail"); got != traceParent {
		t.Errorf("a header of any client: the trace %q", got)
	}
	c.Must(kit.Msg{"op": "enqueue", "queue": "mail", "headers": kit.Msg{"traceparent": "my own idea"}})
	j := c.ClaimOne("mail")
	if j.Headers["traceparent"] != "my own idea" {
		t.Errorf("an invalid traceparent is not passed on unchanged: %v", j.Headers)
	}
}
