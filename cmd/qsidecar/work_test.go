package main

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/protocol"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestWork: jobs are worked at once by commands of one run and by those of lines,
// and a signal ends it in order.
func TestWork(t *testing.T) {
	h := newHost(t)
	h.serve()
	var jobs strings.Builder
	for i := range 50 {
		fmt.Fprintf(&jobs, "%d\n", i)
	}
	lines := h.file("lines.sh", `while read -r job; do id=${job#*'"id":"'}; echo '{"op":"ack","id":"'"${id%%'"'*}"'"}'; done`)
	for _, args := range [][]string{
		{"q", "-j", "4", "--", "sh", "-c", "cat; echo oh >&2"},
		{"q", "-j", "4", "--result", "--", "cat"},
		{"q", "-j", "4", "--payload-file", "--", "cat"},
		{"q", "-j", "4", "--line", "--", "sh", lines},
	} {
		h.mustWith(0, jobs.String(), "enqueue", "q", "--lines")
		h.must(0, append([]string{"work", "--drain"}, args...)...)
		if got := h.must(0, "stats", "q", "--json"); !strings.Contains(got, `"ready":0,`) || !strings.Contains(got, `"claimed":0,`) {
			t.Errorf("after work %v: %s", args, got)
		}
		w := h.start(strings.NewReader(""), append([]string{"work"}, args...)...)
		h.must(0, "enqueue", "q", "x")
		testwait.Until(t, "the job is done", func() bool {
			got := h.must(0, "stats", "q", "--json")
			return strings.Contains(got, `"ready":0,`) && strings.Contains(got, `"claimed":0,`)
		})
		if code := w.stop(); code != 0 {
			t.Errorf("after SIGTERM work %v exits with %d:\n%s", args, code, w.errOut)
		}
	}
}

// TestWorkFlags: what does not go together is said, word for word.
func TestWorkFlags(t *testing.T) {
	h := newHost(t)
	how := "work takes queues, then -- and the command with its arguments, as in: qsidecar work mail -- ./send.sh\nRun `qsidecar work --help` to see more"
	for args, want := range map[string]string{
		"work mail":                                   how,
		"work mail true":                              how,
		"work -- true":                                how,
		"work mail --":                                how,
		"work q -j 0 -- true":                         "-j: 0 is outside 1 to 1000",
		"work q --once --drain -- true":               "--once works one job and --drain all that are ready: leave one of them out",
		"work q --once -j 2 -- true":                  "--once works one job: leave -j out",
		"work q --payload-arg --payload-file -- true": "--payload-arg and --payload-file are two places for one payload: leave one of them out",
		"work q --line --result -- true":              "--line has payload and result in its lines: leave --payload-arg, --payload-file and --result out",
		"work q --dead-on 65,x -- true":               `--dead-on: "x" is no exit code from 1 to 255; write several as 65,66`,
		"work q --dead-on 0 -- true":                  `--dead-on: "0" is no exit code from 1 to 255; write several as 65,66`,
		"work q --dead-on 75 -- true":                 "--dead-on: 75 means *not now*, and cannot mean dead as well",
		"work q -- no-such-program-here":              "no-such-program-here cannot be run: executable file not found in $PATH; no job was claimed",
	} {
		r := h.run(strings.Fields(args)...)
		if got := strings.TrimSuffix(strings.TrimPrefix(r.err, "qsidecar: "), "\n"); r.code != exitUsage || got != want {
			t.Errorf("%s: exit code %d, said\n%s\nwant 2 and\n%s", args, r.code, got, want)
		}
	}
	if r := h.run("work", "q", "--", "true"); r.code != exitUnavailable || !strings.Contains(r.err, "no sidecar answers") {
		t.Errorf("without a sidecar: %+v", r)
	}
}

// brokenWriter is a stderr that nobody reads.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestTail: the end of a stderr, as text that the wire takes.
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
		tl := &tail{passOn: brokenWriter{}}
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

// TestLineAnswers: what a program's answer to a job means, and what is wrong with it,
// word for word.
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
		`{"op":"ack","color":1}`:    `its answer is wrong: there is no field "color" here; names are lower case and exact`,
		`{"op":"ack","lease":"1."}`: "its answer is wrong: lease is given twice",
		`{"op":"ack","dead":true}`:  `its answer is wrong: ack takes no field "dead"`,
		`{"op":"purge"}`:            `its answer is wrong: purge takes no field "lease"`,
		`{"op":"extend","id":"1"}`:  `its answer is "extend", and must be an ack or a nack`,
	} {
		v, err := verdictOf(answer{line: []byte(line)}, job, limits)
		switch {
		case want == "" && (err != nil || v.settle.Lease != job.Lease):
			t.Errorf("%s: %v, %+v", line, err, v.settle)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
	v, err := verdictOf(answer{line: []byte(`{"op":"nack","id":"1","error":"no such\nstreet"}`)}, job, limits)
	if err != nil || v.why != `"no such\nstreet"` {
		t.Errorf("a nack is told as %s (%v), want one line", v.why, err)
	}
}

// FuzzLineAnswer: whatever a program answers, it settles the job that it was asked
// about, or is told to be wrong.
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
		v, err := verdictOf(answer{line: line}, job, limits)
		switch {
		case err != nil && (v.settle != nil || err.Error() == ""):
			t.Errorf("%q: %v and %+v", line, err, v)
		case err == nil && (v.settle.Lease != job.Lease || v.settle.Leases != nil || v.settle.Op != protocol.OpAck && v.settle.Op != protocol.OpNack):
			t.Errorf("%q settles %+v", line, v.settle)
		}
		if _, again := verdictOf(answer{err: errors.New("x")}, job, limits); again == nil {
			t.Error("an error is an answer")
		}
	})
}

// TestGuard: it kills the groups that it was told of and that were not taken back, and
// refuses what names none.
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
	if err := standGuard(strings.NewReader(fmt.Sprintf("%d\n%d\n-%d\n", spared.Process.Pid, killed.Process.Pid, spared.Process.Pid))); err != nil {
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
		if err := standGuard(strings.NewReader(line)); err == nil || !strings.Contains(err.Error(), "names no process group") {
			t.Errorf("%q: %v", line, err)
		}
	}
}
