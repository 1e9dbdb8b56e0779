package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestWorkBytes checks that payloads of any bytes arrive on stdin and in a file, and that an
// argument which can't contain them fails with the reason.
func TestWorkBytes(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Queues = "  \"*\": {retention: {done: 1h}, backoff: {initial: 1h, max: 1h}}\n"
	a := s.Start("a")
	c := a.Dial()
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
	}
	put := func(queue string) string {
		return c.Must(kit.Msg{"op": "enqueue", "queue": queue, "payload_b64": all}).Job.ID
	}
	for _, row := range []struct {
		flag string
		cat  []string
	}{
		{"--result", []string{"cat"}},
		{"--payload-file", []string{"cat"}},
		{"--payload-file", []string{"sh", "-c", `test "$1" = "$QSIDECAR_PAYLOAD_FILE" && cat "$1" && echo "$1" >file`, "sh"}},
	} {
		id := put("q")
		a.Work(append([]string{"q", "--once", "--result", row.flag, "--"}, row.cat...)...).WaitExit(0)
		j := c.Must(kit.Msg{"op": "peek", "queue": "q", "ids": []string{id}}).Jobs[0]
		if j.State != "done" || !bytes.Equal(j.ResultB64, all) {
			t.Errorf("%s %v: the result is %q, want every byte; the job is %+v", row.flag, row.cat, j.ResultB64, j)
		}
	}
	if path := strings.TrimSpace(s.Read("file")); path == "" {
		t.Error("the command did not get the file's path")
	} else if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the payload's file is left: %v", err)
	}
	for what, fields := range map[string]kit.Msg{
		"which no argument can hold":               {"payload_b64": all},
		"the payload is too large for an argument": {"payload": strings.Repeat("x", 1<<20)},
	} {
		fields["op"], fields["queue"] = "enqueue", "arg"
		id := c.Must(fields).Job.ID
		a.Work("arg", "--once", "--payload-arg", "--", "true").WaitExit(0)
		if j := c.Peek("arg", id); j.Attempt != 1 || len(j.Errors) != 1 || !strings.Contains(j.Errors[0].Message, what) {
			t.Errorf("the job is %+v, want it failed: %s", j, what)
		}
	}
	id := c.Put("arg", "a 'b' $c\n")[0]
	a.Work("arg", "--once", "--payload-arg", "--result", "--", "printf", "%s|%s", "first").WaitExit(0)
	if j := c.Peek("arg", id); j.Result != "first|a 'b' $c\n" {
		t.Errorf("the argument was %q", j.Result)
	}
}

// TestWorkLargeOutput checks that 100 MB of output use no memory.
func TestWorkLargeOutput(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	id := c.Put("q", "x")[0]
	s.Script("talk.sh", `head -c 100000000 /dev/zero; head -c 100000000 /dev/zero | tr '\0' 'e' >&2; echo the end >&2
grep VmHWM /proc/$PPID/status >peak`)
	w := a.Work("q", "--once", "--result", "--", "./talk.sh")
	w.WaitExit(0)
	var kb int
	if _, err := fmt.Sscanf(s.Read("peak"), "VmHWM: %d kB", &kb); err != nil {
		t.Fatalf("%v: %q", err, s.Read("peak"))
	}
	kit.Figure(t, "qsidecar work had %d MiB at most under 200 MB of output", kb>>10)
	if kb > 80<<10 {
		t.Errorf("it had %d MiB", kb>>10)
	}
	if j := c.Peek("q", id); len(j.Errors) != 1 || !strings.Contains(j.Errors[0].Message, "it wrote 100000000 bytes, and a result has") {
		t.Errorf("the job is %.500v, want it failed for its result's size", j)
	}
}
