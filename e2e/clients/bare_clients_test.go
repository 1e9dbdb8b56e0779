package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// command runs another program, which must end by itself and succeed.
func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	ctx := testwait.Context(t)
	cmd := exec.CommandContext(ctx, name, args...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v (%v)\noutput:  %s%s(scripts/need.sh installs what is missing)",
			name, strings.Join(args, " "), err, context.Cause(ctx), out.String(), diag.String())
	}
	return out.String()
}

// TestFirstClient runs forty lines of Python, written from PROTOCOL.md with only the standard
// library. They enqueue, claim and ack in both codecs.
func TestFirstClient(t *testing.T) {
	const file = "testdata/first_client.py"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("\n")); n > 40 {
		t.Errorf("the client has %d lines, want 40 at most", n)
	}
	s := kit.NewSite(t)
	a := s.Start("a")
	if got, want := command(t, "python3", file, a.Socket), "call_json acked 1\ncall_msgpack acked 1\n"; got != want {
		t.Errorf("it printed %q, want %q", got, want)
	}
	if left := s.JobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// TestNetcat checks that each one-line shell command gets one line back, and that nc ends.
func TestNetcat(t *testing.T) {
	a := kit.NewSite(t).Start("a")
	nc := func(line string) kit.Reply {
		t.Helper()
		out := command(t, "sh", "-c", fmt.Sprintf(`printf '%s\n' | nc -N -U %s`, line, a.Socket))
		if strings.Count(out, "\n") != 1 {
			t.Fatalf("%s: want one line back, got %q", line, out)
		}
		var r kit.Reply
		if err := json.Unmarshal([]byte(out), &r); err != nil || r.Error != nil {
			t.Fatalf("%s: %v, %s", line, err, out)
		}
		return r
	}
	id := nc(`{"op":"enqueue","queue":"q","payload":"hi"}`).Job.ID
	jobs := nc(`{"op":"claim","queue":"q","lease_ms":60000}`).Jobs
	if len(jobs) != 1 || jobs[0].ID != id || jobs[0].Payload != "hi" {
		t.Fatalf("claimed %+v, want the job %s", jobs, id)
	}
	if got := nc(`{"op":"ack","lease":"` + jobs[0].Lease + `"}`).Acked; got != 1 {
		t.Errorf("acked %d, want 1", got)
	}
	// A session lease ends with its nc, at once, and uses up no attempt.
	nc(`{"op":"enqueue","queue":"q","payload":"again"}`)
	nc(`{"op":"claim","queue":"q"}`)
	if again := nc(`{"op":"claim","queue":"q","lease_ms":60000,"wait_ms":30000}`).Jobs; len(again) != 1 || again[0].Attempt != 1 {
		t.Errorf("after a claim that was hung up on: %+v, want the job again on its first attempt", again)
	}
}

// TestWaitingClaimWakes checks that a claim of up to ten jobs returns the only job.
func TestWaitingClaimWakes(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	waiter, producer := a.Dial(), a.Dial()
	claim := func(cause string, rounds int, enqueue func() int64) {
		var worst, sum time.Duration
		for range rounds {
			waiter.Post(kit.Msg{"op": "claim", "queue": "q", "max": 10, "wait_ms": kit.WaitMS()})
			a.CaughtUp()
			at := enqueue()
			r := waiter.Next()
			took := kit.Since(at)
			if len(r.Jobs) != 1 {
				t.Fatalf("%s: %d jobs, want 1 (%v)", cause, len(r.Jobs), r.Error)
			}
			waiter.Must(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease})
			worst, sum = max(worst, took), sum+took
		}
		kit.Figure(t, "%s: the waiting claim is answered after %v on average, %v at worst (%d times)",
			cause, (sum / time.Duration(rounds)).Round(10*time.Microsecond), worst.Round(10*time.Microsecond), rounds)
	}
	claim("enqueued through the same sidecar", 20, func() int64 {
		at := kit.Monotonic()
		producer.Must(kit.Msg{"op": "enqueue", "queue": "q", "payload": "x"})
		return at
	})
	claim("plain INSERT by a Python program", 5, func() int64 {
		out := command(t, "python3", "-c", insertProgram, s.File())
		var at int64
		if _, err := fmt.Sscan(out, &at); err != nil {
			t.Fatalf("%v: %q", err, out)
		}
		return at
	})
}

// insertProgram is an application that only uses the table. It prints when its commit was done, by
// the clock of kit.Monotonic.
const insertProgram = `
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], timeout=10)
with db:
    db.execute("INSERT INTO qsidecar_jobs (queue, payload) VALUES (?, ?)", ("q", b"by hand"))
print(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
`
