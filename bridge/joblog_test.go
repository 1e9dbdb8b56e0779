package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/jobevents"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	aTrace      = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceparent = "00-" + aTrace + "-00f067aa0ba902b7-01"
)

// logged keeps the lines of a log.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// of returns the lines of an event.
func (l *logged) of(t testing.TB, event string) (lines []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.buf.Bytes()) {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if fields["event"] == event {
			delete(fields, "time")
			delete(fields, "session")
			delete(fields, "msg")
			delete(fields, "event")
			lines = append(lines, fields)
		}
	}
	return lines
}

// startLogged starts a Bridge and keeps its log.
func startLogged(t testing.TB, o Options) (*sidecar, *logged) {
	t.Helper()
	l := new(logged)
	return run(t, newFor(t, o, slog.New(slog.NewJSONHandler(l, nil)))), l
}

// `wants` waits for a line of the event, and compares it.
func (l *logged) wants(t *testing.T, event string, want map[string]any) {
	t.Helper()
	want["database"] = "main"
	l.wantsIn(t, event, want)
}

// wantsIn is like `wants`, for a line without a database.
func (l *logged) wantsIn(t *testing.T, event string, want map[string]any) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("lines %q: %v", event, l.of(t, event))
		}
	}()
	testwait.Until(t, fmt.Sprintf("a line %q that is %v", event, want), func() bool {
		return slices.ContainsFunc(l.of(t, event), func(got map[string]any) bool { return cmp.Equal(want, got) })
	})
}

func (c *client) enqueueTraced(maxAttempts int) string {
	c.t.Helper()
	return c.call(`{"op":"enqueue","queue":"q","max_attempts":%d,"headers":{"traceparent":%q}}`, maxAttempts, traceparent).Job.ID
}

// TestJobsAreLogged shows that each bad end of a job is one log line, which contains the job and its trace.
func TestJobsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := startLogged(t, options(memory.New()))
		c := s.dial(t)
		c.call(`{"op":"hello","worker":"w1"}`)
		id := c.enqueueTraced(2)
		base := func(attempt int, level string) map[string]any {
			return map[string]any{"level": level, "queue": "q", "job": id, "attempt": float64(attempt), "max_attempts": 2.0, "trace_id": aTrace, "worker": "w1"}
		}
		with := func(m map[string]any, key string, value any) map[string]any { m[key] = value; return m }

		j := c.claim1("q")
		c.call(`{"op":"nack","lease":%q,"error":"421 \n try again","delay_ms":0}`, j.Lease)
		log.wants(t, "attempt_failed", with(with(base(1, "INFO"), "cause", "nacked"), "error", "421 \n try again"))

		j = c.claim1("q")
		c.call(`{"op":"nack","lease":%q,"error":%q}`, j.Lease, strings.Repeat("ä", 2000))
		log.wants(t, "job_dead", with(with(base(2, "WARN"), "cause", "nacked"), "error", strings.Repeat("ä", jobevents.MaxError/2)+"…"))

		id = c.enqueueTraced(2)
		j = c.claim1("q")
		c.call(`{"op":"reclaim","queue":"q","ids":[%q]}`, id)
		command := map[string]any{"level": "INFO", "op": "reclaim", "queue": "q", "jobs": 1.0, "worker": "w1", "uid": float64(os.Getuid())}
		if me, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil {
			command["user"] = me.Username
		}
		log.wantsIn(t, "operator_command", command)
		log.wants(t, "lease_lost", with(base(1, "WARN"), "during", "heartbeat")) // which a reclaim brings forward
		c.refused("lease_lost", `{"op":"ack","lease":%q}`, j.Lease)
		log.wants(t, "lease_lost", map[string]any{"level": "WARN", "job": id, "during": "ack", "worker": "w1"}) // the session had forgotten the rest

		j = c.claim1("q") // a forced release uses up no attempt
		if j.Attempt != 1 {
			t.Fatalf("attempt %d", j.Attempt)
		}
		c.close()
		log.wants(t, "attempt_failed", with(base(1, "INFO"), "cause", "disconnected"))
		log.wants(t, "worker_disconnected", map[string]any{"level": "WARN", "worker": "w1", "cause": "disconnected", "error": ErrHangUp.Error(), "jobs": 1.0, "dead": 0.0,
			"uid": float64(os.Getuid()), "pid": float64(os.Getpid())})

		for _, lines := range [][]map[string]any{log.of(t, "attempt_failed"), log.of(t, "job_dead"), log.of(t, "lease_lost")} {
			for _, line := range lines {
				if strings.Contains(fmt.Sprint(line), j.Lease) {
					t.Errorf("a lease is logged: %v", line)
				}
			}
		}
	})
}

// TestReapIsLogged shows that the log has the numbers of reaped jobs, and the lost lease of each session that held
// one.
func TestReapIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := startLogged(t, options(memory.New()))
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q","timeout_ms":10,"headers":{"traceparent":%q}}`, traceparent)
		c.claim1("q")
		log.wants(t, "jobs_reaped", map[string]any{"level": "INFO", "queue": "q", "cause": "timed_out", "jobs": 1.0})
		log.wants(t, "lease_lost", map[string]any{"level": "WARN", "queue": "q", "job": "1", "attempt": 1.0, "max_attempts": 20.0, "trace_id": aTrace, "during": "heartbeat"})
	})
}

// TestDeadByALeavingWorker shows that the log finds out by the attempts which of several jobs are dead.
func TestDeadByALeavingWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := startLogged(t, options(memory.New()))
		c := s.dial(t)
		c.enqueueTraced(1)
		c.enqueueTraced(5)
		c.call(`{"op":"claim","queue":"q","max":2}`)
		c.close()
		log.wants(t, "job_dead", map[string]any{"level": "WARN", "queue": "q", "job": "1", "attempt": 1.0, "max_attempts": 1.0, "trace_id": aTrace, "cause": "disconnected"})
		log.wants(t, "attempt_failed", map[string]any{"level": "INFO", "queue": "q", "job": "2", "attempt": 1.0, "max_attempts": 5.0, "trace_id": aTrace, "cause": "disconnected"})
	})
}

// TestRefusalsAreLogged shows that the log has forbidden requests, and connections over a limit.
func TestRefusalsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Sockets[0].Allow = []Rule{me([]protocol.Op{protocol.OpPing})}
		o.Limits.Connections = 1
		s, log := startLogged(t, o)
		c := s.dial(t)
		c.call(`{"op":"ping"}`)
		me := map[string]any{"uid": float64(os.Getuid()), "pid": float64(os.Getpid()), "socket": s.path}
		with := func(more map[string]any) map[string]any { maps.Copy(more, me); return more }
		c.refused("forbidden", `{"op":"stats","queue":"q"}`)
		log.wantsIn(t, "request_forbidden", with(map[string]any{"level": "INFO", "op": "stats", "queue": ""}))
		r := s.dial(t).refused("busy", `{"op":"ping"}`)
		log.wantsIn(t, "connection_rejected", with(map[string]any{"level": "WARN", "error": r.Error.Message}))
	})
}

// unusable is a database with a row that maintenance can't use.
type unusable struct{ backends.Backend }

func (u unusable) Maintain(ctx context.Context, w backends.Maintenance) (backends.MaintenanceResult, error) {
	r, err := u.Backend.Maintain(ctx, w)
	if w.Prune {
		r.Unusable = errors.New("row 7 is odd")
	}
	return r, err
}

// TestUnusableRowIsLogged shows that a row that can't be used is logged, but not at each try.
func TestUnusableRowIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, log := startLogged(t, options(unusable{memory.New()}))
		log.wants(t, "row_skipped", map[string]any{"level": "WARN", "error": "row 7 is odd"})
	})
}
