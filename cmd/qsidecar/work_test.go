package main

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestWork checks concurrent jobs with a command per job and with persistent commands, and
// the exit after a signal.
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
		{"q", "-j", "4", "--persistent", "--", "sh", lines},
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

// TestWorkAfterAnUnexpectedError: a table is missing for a while, as during a restore, and claims get the error internal. The worker goes
// on, as those of the client libraries do.
func TestWorkAfterAnUnexpectedError(t *testing.T) {
	h := newHost(t)
	file := filepath.Join(h.dir, "q.db")
	h.serve("--database", "sqlite:"+file)
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rename := func(from, to string) {
		t.Helper()
		if _, err := db.Exec("ALTER TABLE " + from + " RENAME TO " + to); err != nil {
			t.Fatal(err)
		}
	}
	h.must(0, "enqueue", "q", "x")
	rename("qsidecar_jobs", "away")
	w := h.start(strings.NewReader(""), "work", "q", "--", "cat")
	testwait.Until(t, "a claim fails", func() bool { return strings.Contains(w.errOut.String(), "internal") || w.ended() })
	rename("away", "qsidecar_jobs")
	testwait.Until(t, "the job is done", func() bool {
		got := h.must(0, "stats", "q", "--json")
		return w.ended() || strings.Contains(got, `"ready":0,`) && strings.Contains(got, `"claimed":0,`)
	})
	if code := w.stop(); code != 0 {
		t.Errorf("it exits with %d", code)
	}
}

// TestWorkFlags checks the exact messages for flags that contradict each other.
func TestWorkFlags(t *testing.T) {
	h := newHost(t)
	how := "work takes queues, then -- and the command with its arguments, as in: qsidecar work mail -- ./send.sh\nRun `qsidecar work --help` to see more"
	for args, want := range map[string]string{
		"work mail":                                   how,
		"work mail true":                              how,
		"work -- true":                                how,
		"work mail --":                                how,
		"work q -j 0 -- true":                         "-j: 0 is outside 1 to 1000",
		"work q --ack never -- true":                  "--ack: \"never\" is neither behind nor sync",
		"work q --once --drain -- true":               "--once works one job and --drain all that are ready: leave one of them out",
		"work q --once -j 2 -- true":                  "--once works one job: leave -j out",
		"work q --payload-arg --payload-file -- true": "--payload-arg and --payload-file exclude each other: leave one of them out",
		"work q --persistent --result -- true":        "--persistent has payload and result in its lines: leave --payload-arg, --payload-file and --result out",
		"work q --dead-on 65,x -- true":               `--dead-on: "x" is not an exit code from 1 to 255; write several as 65,66`,
		"work q --dead-on 0 -- true":                  `--dead-on: "0" is not an exit code from 1 to 255; write several as 65,66`,
		"work q --dead-on 75 -- true":                 "--dead-on: 75 means *not now*, and cannot mean dead as well",
		"work q -- no-such-program-here":              "no-such-program-here cannot be run: executable file not found in $PATH; no job was claimed",
	} {
		r := h.run(strings.Fields(args)...)
		if got := strings.TrimSuffix(strings.TrimPrefix(r.err, "qsidecar: "), "\n"); r.code != exitUsage || got != want {
			t.Errorf("%s: exit code %d and\n%s\nwant 2 and\n%s", args, r.code, got, want)
		}
	}
	if r := h.run("work", "q", "--", "true"); r.code != exitUnavailable || !strings.Contains(r.err, "no sidecar answers") {
		t.Errorf("without a sidecar: %+v", r)
	}
}
