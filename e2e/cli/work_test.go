package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestWorkTimeout checks that nothing remains of a command that took too long, not even a
// grandchild that ignores SIGTERM.
func TestWorkTimeout(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	s.Script("send.sh", `
sh -c 'trap "" TERM; echo $$ >>pids; sleep 1000; sleep 1000' &
echo $$ >>pids
echo waiting >&2
wait`)
	id := c.Put("mail", "x")[0]
	a.Work("mail", "--once", "--timeout", "15s", "--kill-after", "300ms", "--", "./send.sh").WaitExit(0)
	s.WaitEnded("pids", 2)
	j := c.Peek("mail", id)
	if want := "it took longer than 15s (--timeout) and was stopped: waiting"; len(j.Errors) != 1 || j.Errors[0].Message != want || j.State != "scheduled" {
		t.Errorf("the job is %+v, want it scheduled and %q", j, want)
	}
}

// TestWorkMissingCommand checks that a missing command is reported at once, and that no job uses up
// an attempt.
func TestWorkMissingCommand(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	s.Script("orphan.sh", "")
	if err := local.WriteProgram(filepath.Join(s.Dir, "orphan.sh"), []byte("#!/no/such/interpreter\n")); err != nil {
		t.Fatal(err)
	}
	if err := local.WriteProgram(filepath.Join(s.Dir, "headless.sh"), []byte("exit 0\n")); err != nil {
		t.Fatal(err)
	}
	id := c.Put("mail", "x")[0]
	for _, row := range []struct {
		command string
		code    int
		words   string
	}{
		{"./none.sh", 2, "./none.sh cannot be run: no such file or directory; no job was claimed"},
		{"no-such-program", 2, "no-such-program cannot be run: executable file not found in $PATH; no job was claimed"},
		{s.Dir, 2, "cannot be run: is a directory; no job was claimed"},
		{"./orphan.sh", 1, "./orphan.sh cannot be run: it, or the interpreter that its first line names, is not there"},
		{"./headless.sh", 1, "./headless.sh cannot be run: exec format error: does a script lack its first line, #!/bin/sh?"},
	} {
		for _, mode := range []string{"--drain", "--persistent"} {
			w := a.Work("mail", mode, "--", row.command)
			w.WaitExit(row.code)
			if !strings.Contains(w.Diag.String(), row.words) {
				t.Errorf("%s: it printed %q, want %q", row.command, w.Diag, row.words)
			}
			testwait.Until(t, "the job is ready: it can be prefetched for a moment", func() bool { return c.Peek("mail", id).State == "ready" })
			if j := c.Peek("mail", id); j.Attempt != 0 || len(j.Errors) != 0 {
				t.Fatalf("%s: the job is %+v, want it without an attempt", row.command, j)
			}
		}
	}
}
