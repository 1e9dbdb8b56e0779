package main

import (
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestLongCommandsHaveNoTimeLimit checks that a command which changes any number of jobs isn't
// limited to a minute.
func TestLongCommandsHaveNoTimeLimit(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.must(0, "enqueue", "q", "x")
	h.callTimeout = time.Nanosecond
	h.must(0, "retry", "q", "--all")
	h.must(0, "purge", "q", "--state", "ready", "--yes")
	if r := h.run("retry", "q", "1"); r.code != 5 || !strings.Contains(r.err, "did not answer within 1ns") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
}

// TestJobsOfOtherStates checks that a command that leaves out named jobs prints which states
// it changes, and what helps with the others.
func TestJobsOfOtherStates(t *testing.T) {
	h := newHost(t)
	h.serve()
	scheduled := strings.TrimSpace(h.must(0, "enqueue", "q", "x", "--delay", "1h"))
	h.must(0, "enqueue", "q", "x")
	claimed := h.claim("q").ID
	h.must(0, "enqueue", "grouped", "x", "--group", "g")
	blocked := strings.TrimSpace(h.must(0, "enqueue", "grouped", "x", "--group", "g", "--key", "k"))
	for _, c := range []struct {
		args []string
		code int
		out  string
		err  string
	}{
		{[]string{"retry", "q", scheduled, claimed}, 1, "",
			"qsidecar: nothing was retried: job " + scheduled + " is scheduled (run `qsidecar change q ID --delay 0` to make it ready); job " + claimed + " is claimed\n"},
		{[]string{"change", "q", claimed, scheduled, "--priority", "1"}, 0, "changed 1 job\n", "qsidecar: not changed: job " + claimed + " is claimed\n"},
		{[]string{"delete", "q", claimed, "--yes"}, 1, "",
			"qsidecar: nothing was deleted: job " + claimed + " is claimed (run `qsidecar cancel q ID --delete` to end it)\n"},
		{[]string{"reclaim", "q", scheduled, "98", "99", "--yes"}, 1, "",
			"qsidecar: nothing was reclaimed: job " + scheduled + " is scheduled; jobs 98, 99 are not in the queue q: done and not kept, removed, or never stored\n"},
		{[]string{"change", "q", scheduled, scheduled, "--delay", "0"}, 0, "changed 1 job\n", ""},
		{[]string{"retry", "grouped", blocked}, 1, "", "qsidecar: nothing was retried: job " + blocked + " is blocked\n"},
		{[]string{"cancel", "grouped", "--key", "k"}, 0, "cancelled 1 job\n", ""},
		{[]string{"retry", "q", "--all"}, 0, "retried 0 jobs\n", ""},
		{[]string{"cancel", "q", scheduled, claimed, "99"}, 0, "cancelled 2 jobs\n",
			"qsidecar: not cancelled: job 99 is not in the queue q: done and not kept, removed, or never stored\n"},
		{[]string{"cancel", "q", scheduled}, 0, "cancelled 1 job\n", ""},
		{[]string{"cancel", "q", "--key", "k"}, 1, "", "qsidecar: nothing was cancelled: no job of q has the key k\n"},
		{[]string{"cancel", "q", "99", "--json"}, 1, `{"count":0,"unchanged":[{"id":"99","state":"deleted"}]}` + "\n",
			`{"ok":false,"error":{"code":"failed","message":"nothing was cancelled: job 99 is not in the queue q: done and not kept, removed, or never stored"}}` + "\n"},
		{[]string{"cancel", "q"}, 2, "", "qsidecar: cancel which jobs? Name their ids, or give --key, or search with --state, --error, --text and --header\n"},
	} {
		if r := h.run(c.args...); r.code != c.code || r.out != c.out || r.err != c.err {
			t.Errorf("%v: exit code %d\n%s%s\nwant %d\n%s%s", c.args, r.code, r.out, r.err, c.code, c.out, c.err)
		}
	}
}

// TestUnknownQueue checks that commands on a queue that nothing is known about print that, with a similar name.
func TestUnknownQueue(t *testing.T) {
	h := newHost(t)
	h.serve()
	id := strings.TrimSpace(h.must(0, "enqueue", "mails", "x"))
	const note = "qsidecar: no job of the queue mial is stored, and none was counted in the last 14 days\n"
	if r := h.run("stats", "mial"); r.code != 0 || r.err != note || !strings.Contains(r.out, "mial") {
		t.Errorf("%d %s%s", r.code, r.out, r.err)
	}
	if r := h.run("stats", "mail"); r.code != 0 || !strings.Contains(r.err, ": did you mean mails?") {
		t.Errorf("%d %s%s", r.code, r.out, r.err)
	}
	for _, c := range []struct {
		out  string
		args []string
	}{
		{"retried 0 jobs\n", []string{"retry", "mial", "--all"}},
		{"purged 0 jobs\n", []string{"purge", "mial", "--state", "dead", "--yes"}},
	} {
		if r := h.run(c.args...); r.code != 0 || r.err != note || r.out != c.out {
			t.Errorf("%v: %d %s%s", c.args, r.code, r.out, r.err)
		}
	}
	if r := h.run("dead", "mial"); r.code != 0 || r.err != note || r.out != "no job is dead\n" {
		t.Errorf("dead: %d %s%s", r.code, r.out, r.err)
	}
	if r := h.run("show", "mial", id); r.code != 1 || r.err != "qsidecar: no job of the queue mial has the id "+id+", but one of the queue mails has: run `qsidecar show "+id+"`\n" {
		t.Errorf("show: %d %s%s", r.code, r.out, r.err)
	}
	if r := h.run("work", "mail", "--drain", "--", "true"); r.code != 0 || r.err != strings.ReplaceAll(strings.TrimSpace(note), "mial", "mail")+": did you mean mails?\n" {
		t.Errorf("work: %d %s%s", r.code, r.out, r.err)
	}
	for name, args := range map[string][]string{"mial": {"pause", "mial"}, "capped": {"limit", "capped", "--max-claimed", "1"}} {
		if r := h.run(args...); r.code != 0 || r.err != "qsidecar: the queue "+name+" had no jobs so far: is its name right?\n" {
			t.Errorf("%d %s%s", r.code, r.out, r.err)
		}
	}
	if r := h.run("work", "mial", "--drain", "--", "true"); r.code != 0 || r.err != "qsidecar: the queue mial is paused: `qsidecar resume mial` ends that\n" {
		t.Errorf("work: %d %s%s", r.code, r.out, r.err)
	}
	for _, args := range [][]string{{"pause", "mial"}, {"stats", "mial"}, {"stats", "mails"}, {"resume", "mial"}, {"retry", "mails", "--all"}, {"limit", "mails", "--max-claimed", "1"}, {"limit", "mails", "--none"}} {
		if r := h.run(args...); r.code != 0 || r.err != "" {
			t.Errorf("%v: %d %s", args, r.code, r.err)
		}
	}
	h.must(0, "purge", "mails", "--state", "ready", "--yes")
	if r := h.run("stats", "mails"); r.code != 0 || r.err != "" { // it had a job
		t.Errorf("%d %s%s", r.code, r.out, r.err)
	}
}

// TestCancelFoundJobs checks that a search cancels the jobs that it finds, after a confirmation, and no others.
func TestCancelFoundJobs(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.must(0, "enqueue", "q", "for ada", "--delay", "1h")
	h.must(0, "enqueue", "q", "for ada too")
	h.must(0, "enqueue", "q", "for ada, key", "--key", "k")
	h.must(0, "enqueue", "q", "for bob")
	h.must(0, "enqueue", "grouped", "1", "--group", "g")
	h.must(0, "enqueue", "grouped", "2", "--group", "g")
	testwait.Until(t, "the first job of the group is ready", func() bool { return strings.Contains(h.must(0, "peek", "grouped", "--state", "ready"), "g") })
	if out := h.must(0, "cancel", "grouped", "--state", "blocked", "--yes"); out != "cancelled 1 job\n" {
		t.Errorf("blocked: %s", out)
	}
	if r := h.run("cancel", "q", "--text", "ada"); r.code != 2 || !strings.Contains(r.err, "this would cancel 3 jobs of q") {
		t.Errorf("without --yes: exit code %d: %s", r.code, r.err)
	}
	if out := h.must(0, "cancel", "q", "--key", "k", "--delete", "--yes"); out != "cancelled 1 job\n" {
		t.Errorf("by key: %s", out)
	}
	if out := h.must(0, "cancel", "q", "--text", "ada", "--yes"); out != "cancelled 2 jobs\n" {
		t.Errorf("by text: %s", out)
	}
	h.must(1, "cancel", "q", "--text", "ada", "--yes") // nothing is left to cancel
	if out := h.must(0, "peek", "q", "--state", "dead", "--text", "cancelled by an operator"); strings.Count(out, "for ada") != 2 {
		t.Errorf("by their error:\n%s", out)
	}
	if out := h.must(0, "cancel", "q", "--state", "ready", "--yes"); out != "cancelled 1 job\n" {
		t.Errorf("by state: %s", out)
	}
}

// TestRetryNamesTakenKeys: a retry leaves a dead job whose key another job has by now, names it, and retries the others.
func TestRetryNamesTakenKeys(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve()
	h.must(0, "enqueue", "q", "for 1", "--max-attempts", "1", "--key", "k")
	lost := h.claim("q")
	h.must(0, "nack", lost.Lease, "--error", "taken")
	h.must(0, "enqueue", "q", "for 2", "--max-attempts", "1")
	h.must(0, "nack", h.claim("q").Lease, "--error", "taken")
	h.must(0, "enqueue", "q", "for 3", "--key", "k", "--on-conflict", "replace")
	left := "job " + lost.ID + " is dead, and another job has the key (run `qsidecar peek q --key KEY` to see it)\n"
	for _, c := range []struct {
		args     string
		code     int
		out, err string
	}{
		{"--text taken", 0, "retried 1 job\n", "qsidecar: 1 job of 2 not retried: " + left},
		{"--all", 0, "retried 0 jobs\n", "qsidecar: not retried: " + left},
		{lost.ID, 1, "", "qsidecar: nothing was retried: " + left},
	} {
		if r := h.run(append([]string{"retry", "q"}, strings.Fields(c.args)...)...); r.code != c.code || r.out != c.out || r.err != c.err {
			t.Errorf("retry %s with a taken key: %d, %q, %q", c.args, r.code, r.out, r.err)
		}
	}
}

// TestRetryAndDeleteFoundJobs checks that a search retries and deletes the jobs that it finds, and no others.
func TestRetryAndDeleteFoundJobs(t *testing.T) {
	h := newHost(t)
	h.serve()
	for _, text := range []string{"connection refused by a", "connection refused by b", "no such mailbox"} {
		h.must(0, "enqueue", "q", "for "+text, "--max-attempts", "1", "--header", "tenant="+text[len(text)-1:])
		h.must(0, "nack", h.claim("q").Lease, "--error", text)
	}
	if out := h.must(0, "dead", "q", "--text", "refused"); strings.Count(out, "connection refused") != 2 || strings.Contains(out, "mailbox") {
		t.Errorf("dead --text:\n%s", out)
	}
	if out := h.must(0, "dead", "--header", "tenant=b"); strings.Count(out, "connection refused") != 1 {
		t.Errorf("dead --header:\n%s", out)
	}
	if out := h.must(0, "dead", "q", "--text", "nothing like it"); out != "no such dead jobs\n" {
		t.Errorf("a search without a result: %s", out)
	}
	if out := h.must(0, "dead", "q", "--error", "for"); out != "no such dead jobs\n" { // it is in payloads
		t.Errorf("dead --error: %s", out)
	}
	if out := h.must(0, "retry", "q", "--error", "refused"); out != "retried 2 jobs\n" {
		t.Errorf("retry --text: %s", out)
	}
	if r := h.run("retry", "q", "--text", "refused"); r.code != 1 || !strings.Contains(r.err, "no such jobs that are dead") {
		t.Errorf("again: %d %s", r.code, r.err)
	}
	if r := h.run("delete", "q", "--text", "for"); r.code != 2 || !strings.Contains(r.err, "this would delete 3 jobs of q") {
		t.Errorf("without --yes: %d %s", r.code, r.err)
	}
	if out := h.must(0, "delete", "q", "--text", "for", "--state", "dead", "--yes"); out != "deleted 1 job\n" {
		t.Errorf("delete of dead jobs: %s", out)
	}
	claimed := h.claim("q")
	if out := h.must(0, "delete", "q", "--text", "refused", "--yes"); out != "deleted 1 job\n" {
		t.Errorf("delete beside a claimed job: %s", out)
	}
	h.must(0, "ack", claimed.Lease)
}

// TestShowWithoutWorkers checks that a ready job's description names the lack of workers.
func TestShowWithoutWorkers(t *testing.T) {
	h := newHost(t)
	h.serve()
	id := strings.TrimSpace(h.must(0, "enqueue", "q", "x"))
	const none = "for a worker: on this host none asks for jobs of q now, or has one"
	if out := h.must(0, "show", "q", id); !strings.Contains(out, none) {
		t.Errorf("without a worker:\n%s", out)
	}
	h.claim("q")
	again := strings.TrimSpace(h.must(0, "enqueue", "q", "y"))
	if out := h.must(0, "show", "q", again); strings.Contains(out, "waits") {
		t.Errorf("with a claimed job:\n%s", out)
	}
}
