package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// atWork is a running `qsidecar work`.
type atWork struct {
	t         testing.TB
	cmd       *exec.Cmd
	out, diag *lockedBuffer
	exited    chan struct{}
}

// lockedBuffer collects what a process says, and may be read meanwhile: its
// first megabyte.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() < 1<<20 {
		l.b.Write(p)
	}
	return len(p), nil
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// works starts `qsidecar work` with the arguments, in the site's directory.
func (sc *sidecar) works(args ...string) *atWork {
	sc.t.Helper()
	w := &atWork{t: sc.t, out: new(lockedBuffer), diag: new(lockedBuffer), exited: make(chan struct{})}
	w.cmd = exec.Command(binary, append([]string{"work", "--socket", sc.socket}, args...)...)
	w.cmd.Dir = filepath.Dir(sc.socket)
	w.cmd.Env = append(os.Environ(), "QSIDECAR_LEASE=of another job", "QSIDECAR_HEADER_OLD=of another job")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"} {
		w.cmd.Env = append(w.cmd.Env, name+"=of another job") // what work itself was told by who started it
	}
	w.cmd.Stdout, w.cmd.Stderr = w.out, w.diag
	w.cmd.WaitDelay = time.Second // a grandchild may hold stderr open
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.cmd.Start(); err != nil {
		sc.t.Fatal(err)
	}
	go func() {
		_ = w.cmd.Wait() // the state says all
		close(w.exited)
	}()
	sc.t.Cleanup(func() {
		_ = w.cmd.Process.Kill() // fails where it is gone already
		<-w.exited
		if sc.t.Failed() {
			sc.t.Logf("qsidecar work %s said:\n%s%s", strings.Join(args, " "), w.out, w.diag)
		}
	})
	return w
}

func (w *atWork) signal(sig syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(sig); err != nil {
		w.t.Fatalf("signal %v to work: %v", sig, err)
	}
}

// ends waits for its end and checks the exit code.
func (w *atWork) ends(code int) {
	w.t.Helper()
	select {
	case <-w.exited:
	case <-time.After(2 * patience):
		w.t.Fatalf("work did not end:\n%s", w.diag)
	}
	if got := w.cmd.ProcessState.ExitCode(); got != code {
		w.t.Fatalf("work exited with %d (%v), want %d:\n%s", got, w.cmd.ProcessState, code, w.diag)
	}
}

// script writes an executable shell script into the site's directory.
func (s *site) script(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := testserver.WriteProgram(path, []byte("#!/bin/sh\n"+text)); err != nil {
		s.t.Fatal(err)
	}
}

// read is a file of the site's directory; empty where there is none.
func (s *site) read(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	return string(b)
}

// put enqueues payloads and returns their ids.
func (c *conn) put(queue string, payloads ...string) (ids []string) {
	c.t.Helper()
	for _, p := range payloads {
		ids = append(ids, c.must(msg{"op": "enqueue", "queue": queue, "payload": p}).Job.ID)
	}
	return ids
}

// view is one job, as peek shows it.
func (c *conn) view(queue, id string) wireJob {
	c.t.Helper()
	jobs := c.must(msg{"op": "peek", "queue": queue, "ids": []string{id}}).Jobs
	if len(jobs) != 1 {
		c.t.Fatalf("peek of job %s: %+v", id, jobs)
	}
	return jobs[0]
}

// gone waits until the processes whose ids are in the site's file have ended.
func (s *site) gone(file string, n int) {
	s.t.Helper()
	pids := strings.Fields(s.read(file))
	if len(pids) != n {
		s.t.Fatalf("%s names the processes %v, want %d", file, pids, n)
	}
	for _, pid := range pids {
		eventually(s.t, patience, "process "+pid+" has ended", func() bool { return !lives(s.t, pid) })
	}
}

// lives reports whether a process lives and is no zombie.
func lives(t testing.TB, pid string) bool {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, state, ok := bytes.Cut(stat, []byte(") "))
	return ok && state[0] != 'Z' && state[0] != 'X'
}

// TestWorkOutcomes: how a command ends is what becomes of its job.
func TestWorkOutcomes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.queues = "  \"*\": {backoff: {initial: 1h, max: 1h}}\n"
	a := s.started("a")
	c := a.dial()
	s.script("send.sh", `
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
		ids[p] = c.put("mail", p)[0]
	}
	c.must(msg{"op": "enqueue", "queue": "mail", "key": "unread", "payload": strings.Repeat("x", 1<<20)})
	env := c.must(msg{"op": "enqueue", "queue": "mail", "payload": "env", "priority": 7, "headers": msg{"x-kind": "a b"}}).Job.ID

	a.works("mail", "-j", "4", "--drain", "--dead-on", "65,66", "--", "./send.sh").ends(0)
	for _, want := range []struct{ payload, state, message string }{
		{"dead", "dead", "exit status 66: no such address"},
		{"fail", "scheduled", "exit status 3: first\nthe last words"},
		{"killed", "scheduled", "killed by SIGKILL"},
	} {
		j := c.view("mail", ids[want.payload])
		if j.State != want.state || j.Attempt != 1 || len(j.Errors) != 1 || j.Errors[0].Cause != "nacked" || j.Errors[0].Message != want.message {
			t.Errorf("%q became %+v, want it %s after one attempt that ended with %q", want.payload, j, want.state, want.message)
		}
	}
	if j := c.view("mail", ids["later"]); j.State != "scheduled" || j.Attempt != 0 || len(j.Errors) != 0 {
		t.Errorf("75 made %+v, want it scheduled and uncharged", j)
	}
	if n := c.stat("mail").total(); n != 4 {
		t.Errorf("%d jobs are left, want the 4 that were not done", n)
	}
	got := strings.Split(s.read("env"), "\n")
	for _, want := range []string{
		"QSIDECAR_JOB=" + env, "QSIDECAR_QUEUE=mail", "QSIDECAR_ATTEMPT=1", "QSIDECAR_MAX_ATTEMPTS=20", "QSIDECAR_PRIORITY=7",
		"QSIDECAR_KEY=", `QSIDECAR_HEADERS={"x-kind":"a b"}`, "QSIDECAR_HEADER_X_KIND=a b", "QSIDECAR_LAST_ERROR=", "QSIDECAR_SOCKET=" + a.socket,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("the command's environment lacks %q", want)
		}
	}
	if !getsSIGPIPE(t, got) {
		t.Error("the command ignores SIGPIPE: it would go on writing to nobody")
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

// TestWorkTimeout: nothing of a command that took too long is left, also a
// grandchild that does not heed SIGTERM.
func TestWorkTimeout(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.started("a")
	c := a.dial()
	s.script("send.sh", `
sh -c 'trap "" TERM; echo $$ >>pids; sleep 1000; sleep 1000' &
echo $$ >>pids
echo waiting >&2
wait`)
	id := c.put("mail", "x")[0]
	a.works("mail", "--once", "--timeout", "4s", "--kill-after", "300ms", "--", "./send.sh").ends(0)
	s.gone("pids", 2)
	j := c.view("mail", id)
	if want := "it took longer than 4s (--timeout) and was stopped: waiting"; len(j.Errors) != 1 || j.Errors[0].Message != want || j.State != "scheduled" {
		t.Errorf("the job is %+v, want it scheduled and %q", j, want)
	}
}

// TestWorkKilled: a worker that was killed frees its job at once, and nothing of its
// command is left; what an earlier command left behind goes on.
func TestWorkKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.started("a")
	c := a.dial()
	s.script("send.sh", `
sleep 1000 >&- 2>&- &
[ "$QSIDECAR_KEY" = leaves ] && { echo $! >left; exit 0; }
(trap '' TERM; sleep 1000) &
echo $$ $! >pids.tmp; mv pids.tmp pids
wait`)
	c.must(msg{"op": "enqueue", "queue": "mail", "key": "leaves"})
	c.put("mail", "x")
	w := a.works("mail", "--", "./send.sh")
	eventually(t, patience, "the command runs", func() bool { return s.read("pids") != "" })
	left := strings.TrimSpace(s.read("left"))
	defer func() {
		if pid, err := strconv.Atoi(left); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // ours to end
		}
	}()
	w.signal(syscall.SIGKILL)
	if j := c.claimOne("mail"); j.Attempt != 2 {
		t.Errorf("then the job is on attempt %d, want 2", j.Attempt)
	}
	s.gone("pids", 2)
	if !lives(t, left) {
		t.Error("what the first command left behind has ended too: the page says that it is let be")
	}
}

// TestWorkMissingCommand: it is said at once, and no job is burnt.
func TestWorkMissingCommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.started("a")
	c := a.dial()
	s.script("orphan.sh", "")
	if err := testserver.WriteProgram(filepath.Join(s.dir, "orphan.sh"), []byte("#!/no/such/interpreter\n")); err != nil {
		t.Fatal(err)
	}
	if err := testserver.WriteProgram(filepath.Join(s.dir, "headless.sh"), []byte("exit 0\n")); err != nil {
		t.Fatal(err)
	}
	id := c.put("mail", "x")[0]
	for _, row := range []struct {
		command string
		code    int
		words   string
	}{
		{"./none.sh", 2, "./none.sh cannot be run: no such file or directory; no job was claimed"},
		{"no-such-program", 2, "no-such-program cannot be run: executable file not found in $PATH; no job was claimed"},
		{s.dir, 2, "cannot be run: is a directory; no job was claimed"},
		{"./orphan.sh", 1, "./orphan.sh cannot be run: it, or the interpreter that its first line names, is not there"},
		{"./headless.sh", 1, "./headless.sh cannot be run: exec format error: does a script lack its first line, #!/bin/sh?"},
	} {
		for _, mode := range []string{"--drain", "--line"} {
			w := a.works("mail", mode, "--", row.command)
			w.ends(row.code)
			if !strings.Contains(w.diag.String(), row.words) {
				t.Errorf("%s: it said %q, want %q", row.command, w.diag, row.words)
			}
			if j := c.view("mail", id); j.State != "ready" || j.Attempt != 0 || len(j.Errors) != 0 {
				t.Fatalf("%s: the job is %+v, want it ready and uncharged", row.command, j)
			}
		}
	}
}
