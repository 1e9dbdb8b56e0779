package worker

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// brokenWriter is a stderr without a reader.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestTail checks that the end of stderr becomes text that the protocol accepts.
func TestTail(t *testing.T) {
	for _, row := range []struct {
		name   string
		writes []string
		want   string
	}{
		{"nothing", nil, ""},
		{"little", []string{"a\n", "b\n"}, "a\nb"},
		{"bytes", []string{"a\xff\x00b\n"}, "a\uFFFDb"},
		{"much in one", []string{strings.Repeat("x\n", tailSize)}, strings.TrimSpace(strings.Repeat("x\n", tailSize/2-1))},
		{"much in little", slicesOf("0123456\n", 5*tailSize/8), strings.TrimSpace(strings.Repeat("0123456\n", tailSize/8-1))},
		{"one long line", []string{strings.Repeat("x", 9*tailSize)}, strings.Repeat("x", tailSize)},
		{"long, then the last words", []string{strings.Repeat("x", 9*tailSize), "\nthe last words\n"}, "the last words"},
	} {
		tl := &tailBuffer{forward: brokenWriter{}}
		for _, w := range row.writes {
			if n, err := tl.Write([]byte(w)); n != len(w) || err != nil {
				t.Errorf("%s: wrote %d, %v", row.name, n, err)
			}
		}
		if got := tl.text(); got != row.want {
			t.Errorf("%s: the end is %d bytes %.60q, want %d %.60q", row.name, len(got), got, len(row.want), row.want)
		}
		tl.reset()
		if got := tl.text(); got != "" {
			t.Errorf("%s: after the reset there is %q", row.name, got)
		}
	}
}

func slicesOf(s string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = s
	}
	return all
}

// TestLineAnswers checks what each answer means, and the exact message for each invalid one.
func TestLineAnswers(t *testing.T) {
	job := protocol.Job{ID: "1", Lease: "1.mine"}
	limits := protocol.NewLimits(protocol.DefaultMaxFrame)
	for line, want := range map[string]string{
		`{"op":"ack","id":"1"}`: "",
		` { "id": "1", "op": "nack", "error": "no such\nstreet" }`: "",
		`{"op":"ack"}`:              `its answer is not for this job: it must have the job's "id":"1"`,
		`{"op":"ack","id":"2"}`:     `its answer is not for this job: it must have the job's "id":"1"`,
		`{"op":"ack","id":1}`:       `its answer is not for this job: it must have the job's "id":"1"`,
		`{}`:                        "its answer is wrong: op is missing",
		`{ }`:                       "its answer is wrong: op is missing",
		`debugging`:                 `its answer is not a JSON object such as {"op":"ack","id":"1"}`,
		``:                          `its answer is not a JSON object such as {"op":"ack","id":"1"}`,
		`{"op":"ack","color":1}`:    `its answer is wrong: there is no field "color" here: ack takes lease, leases, result, enqueue, claim`,
		`{"op":"ack","lease":"1."}`: "its answer is wrong: lease is given twice",
		`{"op":"ack","dead":true}`:  `its answer is wrong: ack takes no field "dead"`,
		`{"op":"purge"}`:            `its answer is wrong: purge takes no field "lease"`,
		`{"op":"extend","id":"1"}`:  `its answer is "extend", and must be an ack or a nack`,
	} {
		v, err := parseAnswer(answer{line: []byte(line)}, job, limits)
		switch {
		case want == "" && (err != nil || v.request.Lease != job.Lease):
			t.Errorf("%s: %v, %+v", line, err, v.request)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
	v, err := parseAnswer(answer{line: []byte(`{"op":"nack","id":"1","error":"no such\nstreet"}`)}, job, limits)
	if err != nil || v.reason != `"no such\nstreet"` {
		t.Errorf("a nack is reported as %s (%v), want one line", v.reason, err)
	}
}

// FuzzLineAnswer checks that any answer settles the right job, or is an error.
func FuzzLineAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"op":"ack","id":"1"}`, `{"op":"ack","id":"1","result":"x","enqueue":[{"queue":"q"}]}`, `{ }`, ` {"op":"nack","id":"1","error":"e","dead":true}`, `{"op":"ack"}`,
		`{"lease":"1.other","op":"ack"}`, `{"leases":["1.other"],"op":"ack"}`, `{"op":"purge"}`, `[]`, ``, `{"op":"ack"}{"op":"ack"}`,
	} {
		f.Add([]byte(seed))
	}
	job := protocol.Job{ID: "1", Lease: "1.mine"}
	limits := protocol.NewLimits(protocol.DefaultMaxFrame)
	f.Fuzz(func(t *testing.T, line []byte) {
		v, err := parseAnswer(answer{line: line}, job, limits)
		switch {
		case err != nil && (v.request != nil || err.Error() == ""):
			t.Errorf("%q: %v and %+v", line, err, v)
		case err == nil && (v.request.Lease != job.Lease || v.request.Leases != nil || v.request.Op != protocol.OpAck && v.request.Op != protocol.OpNack):
			t.Errorf("%q settles %+v", line, v.request)
		}
		if _, again := parseAnswer(answer{err: errors.New("x")}, job, limits); again == nil {
			t.Error("an error is an answer")
		}
	})
}

// TestTimeoutAfterTheExit checks that a command that has exited is not taken for one that took too
// long, although the timer fires before the worker notices the exit. A worker that was suspended
// finds both at once.
func TestTimeoutAfterTheExit(t *testing.T) {
	w := New(Options{Timeout: 1, KillAfter: time.Minute})
	p := &process{cmd: exec.Command("true"), stderr: &tailBuffer{}, exited: make(chan struct{})}
	if err := p.cmd.Run(); err != nil {
		t.Fatal(err)
	}
	close(p.exited)
	for range 64 { // select chooses one of two ready channels at random
		if v, over := w.waitForExit(t.Context(), p); over {
			t.Fatalf("the command had exited, and the outcome is: %s", v.reason)
		}
	}
	late, stop := w.deadline()
	defer stop()
	testwait.Receive(t, "the end of the run time", late)
}

// TestGuard checks that the guard kills exactly the remaining groups, and rejects invalid
// lines.
func TestGuard(t *testing.T) {
	sleepers := make([]*exec.Cmd, 2)
	for i := range sleepers {
		sleepers[i] = exec.Command("sleep", "1000")
		sleepers[i].SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := sleepers[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	killed, spared := sleepers[0], sleepers[1]
	if err := RunGuard(strings.NewReader(fmt.Sprintf("%d\n%d\n-%d\n", spared.Process.Pid, killed.Process.Pid, spared.Process.Pid))); err != nil {
		t.Error(err)
	}
	if err := killed.Wait(); killed.ProcessState == nil || killed.ProcessState.String() != "signal: killed" {
		t.Errorf("the watched one ended by %v", err)
	}
	if err := spared.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := spared.Wait(); spared.ProcessState.String() != "signal: terminated" {
		t.Errorf("the one that was taken back ended by %v", err)
	}
	for _, line := range []string{"0\n", "x\n", "1 2\n"} {
		if err := RunGuard(strings.NewReader(line)); err == nil || !strings.Contains(err.Error(), "names no process group") {
			t.Errorf("%q: %v", line, err)
		}
	}
}
