package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// jsonLog are the lines of a log in JSON; those in another form are passed over.
func (sc *sidecar) jsonLog() (lines []map[string]any) {
	sc.t.Helper()
	text, err := os.ReadFile(sc.log)
	if err != nil {
		sc.t.Fatal(err)
	}
	for in := bufio.NewScanner(bytes.NewReader(text)); in.Scan(); {
		var line map[string]any
		if bytes.HasPrefix(in.Bytes(), []byte("{")) {
			if err := json.Unmarshal(in.Bytes(), &line); err != nil {
				sc.t.Fatalf("%s: %v", in.Text(), err)
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// logs waits for a line with that text and those fields.
func (sc *sidecar) logs(text string, fields msg) {
	sc.t.Helper()
	eventually(sc.t, patience, fmt.Sprintf("a line %q with %v is logged", text, fields), func() bool {
		return slices.ContainsFunc(sc.jsonLog(), func(line map[string]any) bool {
			for key, want := range fields {
				if fmt.Sprint(line[key]) != fmt.Sprint(want) {
					return false
				}
			}
			return line["msg"] == text
		})
	})
}

// texts counts the lines of a log by their texts, in either form.
func (sc *sidecar) texts() map[string]int {
	sc.t.Helper()
	log, err := os.ReadFile(sc.log)
	if err != nil {
		sc.t.Fatal(err)
	}
	counts := map[string]int{}
	for _, m := range logText.FindAllSubmatch(log, -1) {
		counts[strings.Trim(string(m[1])+string(m[2]), `"`)]++
	}
	return counts
}

var logText = regexp.MustCompile(`(?m)(?:^time=\S+ level=\w+ msg=("[^"]*"|\S+))|"msg":("[^"]*")`)

// TestLogOfALife: each event that matters is a line, with the same keys for the same things,
// and the trace of the job where it is about one.
func TestLogOfALife(t *testing.T) {
	s := newSite(t)
	s.hostLease = 5 * time.Second // what a beat finds is waited for
	sc := s.sidecar("a")
	good, err := os.ReadFile(sc.config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(sc.config, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sc.start() // in the form text
	eventually(t, patience, "the start is logged", func() bool { texts := sc.texts(); return texts["serving"] == 1 && texts["joined the database"] == 1 })
	c := sc.dial()
	write(string(good) + "log: {format: json}\n")
	c.must(msg{"op": "reload"})
	sc.logs("the config was reloaded", msg{"level": "INFO", "generation": 2, "changes": "log.format: text → json"})
	if texts := sc.texts(); texts["serving"] != 1 || texts["joined the database"] != 1 {
		t.Errorf("the start is logged as %v", texts)
	}
	write("nonsense: 1\n")
	c.refused("bad_request", msg{"op": "reload"})
	sc.logs("the config was not reloaded: what ran before goes on", msg{"level": "ERROR", "generation": 2})
	write(string(good) + "log: {format: json}\n")
	c.must(msg{"op": "reload"})

	sc.jobsAreLogged()
	sc.dial().must(msg{"op": "pause", "queue": "mail"})
	sc.logs("an operator's command was carried out", msg{"level": "INFO", "op": "pause", "queue": "mail", "uid": os.Getuid()})

	sc.signal(syscall.SIGTERM)
	if code := sc.exit(patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	sc.logs("stopping: workers may settle what they hold; a second signal ends that", msg{"level": "INFO", "signal": "terminated"})
	sc.logs("stopped: what was asked is written, and leases stay valid for the restart grace", msg{"level": "INFO"})
}

// jobsAreLogged has jobs fail, die and get lost.
func (sc *sidecar) jobsAreLogged() {
	sc.t.Helper()
	c := sc.dial()
	c.must(msg{"op": "hello", "worker": "w"})
	claim := func(more msg) (wireJob, msg) {
		sc.t.Helper()
		job := msg{"op": "enqueue", "queue": "mail", "payload": "a secret of the application", "headers": msg{"traceparent": traceParent}}
		maps.Copy(job, more)
		c.must(job)
		j := c.claimOne("mail")
		return j, msg{"queue": "mail", "job": j.ID, "attempt": 1, "max_attempts": j.MaxAttempts, "worker": "w", "trace_id": traceID, "database": "main"}
	}
	with := func(keys msg, key string, value any) msg { keys = maps.Clone(keys); keys[key] = value; return keys }

	j, keys := claim(nil)
	c.must(msg{"op": "nack", "lease": j.Lease, "error": "no such\naddress", "delay_ms": 600_000})
	sc.logs("a job failed and is tried again", with(with(keys, "cause", "nacked"), "error", "no such\naddress"))

	j, keys = claim(msg{"max_attempts": 1})
	c.must(msg{"op": "nack", "lease": j.Lease, "error": "no"})
	sc.logs("a job is dead", with(with(keys, "cause", "nacked"), "level", "WARN"))

	j, keys = claim(nil)
	c.must(msg{"op": "release", "queue": "mail", "ids": []string{j.ID}})
	c.refused("lease_lost", msg{"op": "ack", "lease": j.Lease})
	sc.logs("a job was lost: its lease is not valid any more", with(with(keys, "during", "ack"), "level", "WARN"))
	c.must(msg{"op": "purge", "queue": "mail", "state": "ready"})

	_, keys = claim(msg{"timeout_ms": 50}) // and makes no call: it is told at the next beat
	sc.logs("jobs were taken back", msg{"queue": "mail", "cause": "timed_out", "jobs": 1, "database": "main"})
	sc.logs("a job was lost: its lease is not valid any more", with(keys, "during", "beat"))
	c.must(msg{"op": "purge", "queue": "mail", "state": "scheduled"})

	n := size(10_000)
	c.enqueueN("many", n)
	w := sc.dial()
	w.must(msg{"op": "hello", "worker": "dies"})
	for held := 0; held < n; {
		held += len(w.must(msg{"op": "claim", "queue": "many", "max": 1000}).Jobs)
	}
	w.Close()
	sc.logs("a worker left while it held jobs", msg{"level": "WARN", "worker": "dies", "jobs": n, "dead": 0, "cause": "disconnected", "uid": os.Getuid(), "pid": os.Getpid()})
	if lines := len(sc.jsonLog()); lines > 150 {
		sc.t.Errorf("%d lines are logged where a worker left with %d jobs", lines, n)
	}
	log, err := os.ReadFile(sc.log)
	if err != nil {
		sc.t.Fatal(err)
	}
	for _, secret := range []string{"a secret of the application", j.Lease} {
		if bytes.Contains(log, []byte(secret)) {
			sc.t.Errorf("the log has %q", secret)
		}
	}
}

// logsAnOutage: that a database went away and came back is told, and not again and again.
func (sc *sidecar) logsAnOutage() {
	sc.t.Helper()
	var texts map[string]int
	eventually(sc.t, patience, "the outage and its end are logged", func() bool {
		texts = sc.texts()
		return texts["commits reach the database again"] > 0 && texts["a commit failed and is tried again"] > 0
	})
	lines := 0
	for _, n := range texts {
		lines += n
	}
	if lines > 40 {
		sc.t.Errorf("an outage of the database is logged in %d lines: %v", lines, texts)
	}
}
