package metrics

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// jsonLog returns the lines of a JSON log. It skips lines in another format.
func jsonLog(sc *kit.Sidecar) (lines []map[string]any) {
	sc.T.Helper()
	text, err := os.ReadFile(sc.LogFile)
	if err != nil {
		sc.T.Fatal(err)
	}
	for in := bufio.NewScanner(bytes.NewReader(text)); in.Scan(); {
		var line map[string]any
		if bytes.HasPrefix(in.Bytes(), []byte("{")) {
			if err := json.Unmarshal(in.Bytes(), &line); err != nil {
				sc.T.Fatalf("%s: %v", in.Text(), err)
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// logs waits for a line of that event with those fields.
func logs(sc *kit.Sidecar, event string, fields kit.Msg) {
	sc.T.Helper()
	testwait.Until(sc.T, fmt.Sprintf("a line %q with %v is logged", event, fields), func() bool {
		return slices.ContainsFunc(jsonLog(sc), func(line map[string]any) bool {
			for key, want := range fields {
				if fmt.Sprint(line[key]) != fmt.Sprint(want) {
					return false
				}
			}
			return line["event"] == event
		})
	})
}

// TestLogOfEachEvent checks that each important event is logged, with the same keys for the same
// things, and with the trace if it is about a job.
func TestLogOfEachEvent(t *testing.T) {
	s := kit.NewSite(t)
	s.SidecarTimeout = 5 * time.Second // short, because the test waits for what a heartbeat finds
	sc := s.Sidecar("a")
	good, err := os.ReadFile(sc.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(sc.ConfigFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sc.Start() // in the text format
	testwait.Until(t, "the start is logged", func() bool { events := sc.Events(); return events["serving"] == 1 && events["database_joined"] == 1 })
	c := sc.Dial()
	write(string(good) + "log: {format: json}\n")
	c.Must(kit.Msg{"op": "reload"})
	logs(sc, "config_reloaded", kit.Msg{"level": "INFO", "generation": 2, "changes": "log.format: text → json"})
	if events := sc.Events(); events["serving"] != 1 || events["database_joined"] != 1 {
		t.Errorf("the start is logged as %v", events)
	}
	write("nonsense: 1\n")
	c.MustFail("bad_request", kit.Msg{"op": "reload"})
	logs(sc, "config_reload_failed", kit.Msg{"level": "ERROR", "generation": 2})
	write(string(good) + "log: {format: json}\n")
	c.Must(kit.Msg{"op": "reload"})

	jobsAreLogged(sc)
	sc.Dial().Must(kit.Msg{"op": "pause", "queue": "mail"})
	logs(sc, "operator_command", kit.Msg{"level": "INFO", "op": "pause", "queue": "mail", "uid": os.Getuid()})

	sc.Signal(syscall.SIGTERM)
	if code := sc.WaitExit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	logs(sc, "stopping", kit.Msg{"level": "INFO", "signal": "terminated"})
	logs(sc, "stopped", kit.Msg{"level": "INFO"})
}

// jobsAreLogged makes jobs fail, die and lose their leases.
func jobsAreLogged(sc *kit.Sidecar) {
	sc.T.Helper()
	c := sc.Dial()
	c.Must(kit.Msg{"op": "hello", "worker": "w"})
	claim := func(more kit.Msg) (kit.Job, kit.Msg) {
		sc.T.Helper()
		job := kit.Msg{"op": "enqueue", "queue": "mail", "payload": "a secret of the application", "headers": kit.Msg{"traceparent": traceParent}}
		maps.Copy(job, more)
		c.Must(job)
		j := c.ClaimOne("mail")
		return j, kit.Msg{"queue": "mail", "job": j.ID, "attempt": 1, "max_attempts": j.MaxAttempts, "worker": "w", "trace_id": traceID, "database": "main"}
	}
	with := func(keys kit.Msg, key string, value any) kit.Msg {
		keys = maps.Clone(keys)
		keys[key] = value
		return keys
	}

	j, keys := claim(nil)
	c.Must(kit.Msg{"op": "nack", "lease": j.Lease, "error": "no such\naddress", "delay_ms": 600_000})
	logs(sc, "attempt_failed", with(with(keys, "cause", "nacked"), "error", "no such\naddress"))

	j, keys = claim(kit.Msg{"max_attempts": 1})
	c.Must(kit.Msg{"op": "nack", "lease": j.Lease, "error": "no"})
	logs(sc, "job_dead", with(with(keys, "cause", "nacked"), "level", "WARN"))

	j, keys = claim(nil)
	c.Must(kit.Msg{"op": "reclaim", "queue": "mail", "ids": []string{j.ID}})
	logs(sc, "lease_lost", with(with(keys, "during", "heartbeat"), "level", "WARN")) // which a reclaim brings forward
	c.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": j.Lease})
	c.Must(kit.Msg{"op": "ack", "lease": c.ClaimOne("mail").Lease}) // a purge would miss it if it is prefetched by now

	_, keys = claim(kit.Msg{"timeout_ms": 50}) // it makes no call, so the next heartbeat finds it
	logs(sc, "jobs_reaped", kit.Msg{"queue": "mail", "cause": "timed_out", "jobs": 1, "database": "main"})
	logs(sc, "lease_lost", with(keys, "during", "heartbeat"))
	c.Must(kit.Msg{"op": "purge", "queue": "mail", "state": "scheduled"})

	n := kit.Size(10_000)
	c.Enqueue("many", n)
	w := sc.Dial()
	w.Must(kit.Msg{"op": "hello", "worker": "dies"})
	for held := 0; held < n; {
		held += len(w.Must(kit.Msg{"op": "claim", "queue": "many", "max": 1000}).Jobs)
	}
	w.Close()
	logs(sc, "worker_disconnected", kit.Msg{"level": "WARN", "worker": "dies", "jobs": n, "dead": 0, "cause": "disconnected", "uid": os.Getuid(), "pid": os.Getpid()})
	if lines := len(jsonLog(sc)); lines > 150 {
		sc.T.Errorf("%d lines are logged where a worker left with %d jobs", lines, n)
	}
	log, err := os.ReadFile(sc.LogFile)
	if err != nil {
		sc.T.Fatal(err)
	}
	for _, secret := range []string{"a secret of the application", j.Lease} {
		if bytes.Contains(log, []byte(secret)) {
			sc.T.Errorf("the log has %q", secret)
		}
	}
}
