package journeys

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestWorkOutcomes checks how the exit code of a command settles its job.
func TestWorkOutcomes(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Queues = "  \"*\": {backoff: {initial: 1h, max: 1h}}\n"
	a := s.Start("a")
	c := a.Dial()
	s.Script("send.sh", `
case $QSIDECAR_KEY in
unread) exit 0 ;;
esac
payload=$(cat)
case $payload in
ok) exit 0 ;;
later) exit 75 ;;
dead) echo 'no such address' >&2; exit 66 ;;
fail) printf 'first\nthe last words\n' >&2; exit 3 ;;
killed) kill -9 $$ ;;
env) env >env.tmp; grep -a SigIgn /proc/self/status >>env.tmp; mv env.tmp env ;;
esac`)
	ids := map[string]string{}
	for _, p := range []string{"ok", "later", "dead", "fail", "killed"} {
		ids[p] = c.Put("mail", p)[0]
	}
	c.Must(kit.Msg{"op": "enqueue", "queue": "mail", "key": "unread", "payload": strings.Repeat("x", 1<<20)})
	env := c.Must(kit.Msg{"op": "enqueue", "queue": "mail", "payload": "env", "priority": 7, "headers": kit.Msg{"x-kind": "a b"}}).Job.ID

	a.Work("mail", "-j", "4", "--drain", "--dead-on", "65,66", "--", "./send.sh").WaitExit(0)
	for _, want := range []struct{ payload, state, message string }{
		{"dead", "dead", "exit status 66: no such address"},
		{"fail", "scheduled", "exit status 3: first\nthe last words"},
		{"killed", "scheduled", "killed by SIGKILL"},
	} {
		j := c.Peek("mail", ids[want.payload])
		if j.State != want.state || j.Attempt != 1 || len(j.Errors) != 1 || j.Errors[0].Cause != "nacked" || j.Errors[0].Message != want.message {
			t.Errorf("%q became %+v, want it %s after one attempt that ended with %q", want.payload, j, want.state, want.message)
		}
	}
	if j := c.Peek("mail", ids["later"]); j.State != "scheduled" || j.Attempt != 0 || len(j.Errors) != 0 {
		t.Errorf("after 75: %+v, want it scheduled with no attempt used", j)
	}
	if n := c.Stats("mail").Total(); n != 4 {
		t.Errorf("%d jobs are left, want the 4 that were not done", n)
	}
	soon := c.Put("soon", "later")[0]
	a.Work("soon", "--once", "--snooze-delay", "0s", "--", "./send.sh").WaitExit(0)
	if j := c.Peek("soon", soon); j.State != "ready" || j.Attempt != 0 {
		t.Errorf("after 75 with --snooze-delay 0s: %+v, want it ready with no attempt used", j)
	}
	got := strings.Split(s.Read("env"), "\n")
	for _, want := range []string{
		"QSIDECAR_JOB=" + env, "QSIDECAR_QUEUE=mail", "QSIDECAR_ATTEMPT=1", "QSIDECAR_MAX_ATTEMPTS=20", "QSIDECAR_PRIORITY=7",
		"QSIDECAR_KEY=", `QSIDECAR_HEADERS={"x-kind":"a b"}`, "QSIDECAR_HEADER_X_KIND=a b", "QSIDECAR_LAST_ERROR=", "QSIDECAR_SOCKET=" + a.Socket,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("the command's environment lacks %q", want)
		}
	}
	if !getsSIGPIPE(t, got) {
		t.Error("the command ignores SIGPIPE: it would continue to write without a reader")
	}
	if fence := slices.IndexFunc(got, func(v string) bool { return strings.HasPrefix(v, "QSIDECAR_FENCE=") }); fence < 0 || got[fence] == "QSIDECAR_FENCE=0" {
		t.Error("the command has no fence")
	}
	for _, line := range got {
		if strings.Contains(line, "of another job") {
			t.Errorf("the command has %q", line)
		}
	}
}

// TestWorkKilled checks that a killed worker frees its job at once, and that nothing of its command
// remains. A process that an earlier command started continues.
func TestWorkKilled(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	s.Script("send.sh", `
sleep 1000 >&- 2>&- &
[ "$QSIDECAR_KEY" = leaves ] && { echo $! >left; exit 0; }
(trap '' TERM; sleep 1000) &
echo $$ $! >pids.tmp; mv pids.tmp pids
wait`)
	c.Must(kit.Msg{"op": "enqueue", "queue": "mail", "key": "leaves"})
	c.Put("mail", "x")
	w := a.Work("mail", "--", "./send.sh")
	testwait.Until(t, "the command runs", func() bool { return s.Read("pids") != "" })
	left := strings.TrimSpace(s.Read("left"))
	defer func() {
		if pid, err := strconv.Atoi(left); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the test must end it
		}
	}()
	w.Signal(syscall.SIGKILL)
	if j := c.ClaimOne("mail"); j.Attempt != 2 {
		t.Errorf("then the job is on attempt %d, want 2", j.Attempt)
	}
	s.WaitEnded("pids", 2)
	if !kit.IsRunning(t, left) {
		t.Error("the process that the first command left behind has ended, but the page documents that it continues")
	}
}
