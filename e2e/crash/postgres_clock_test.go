package crash

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// setClock moves the server's clock by ahead. All statements of sidecars and plain INSERTs use this
// clock.
func setClock(p *databases.Postgres, ahead time.Duration) {
	p.T.Helper()
	p.Query(p.URL, fmt.Sprintf(`CREATE OR REPLACE FUNCTION qsidecar.qsidecar_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
		AS 'SELECT pg_catalog.now() + interval ''%d ms'''`, ahead.Milliseconds()))
}

// TestPostgresClockCrashRun sets the server's clock forward and back by a minute repeatedly. That
// causes no second delivery and no lost lease.
func TestPostgresClockCrashRun(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	jobs := kit.Size(50_000)
	clock := []time.Duration{time.Minute, 0, -time.Minute, 0, time.Minute, -time.Minute}
	set := 0
	v := crash.Plan{
		Queue: "crash", Jobs: jobs, Workers: 16,
		Sidecars: []*kit.Sidecar{s.Start("a"), s.Start("b")},
		Killers: []crash.Killer{{Every: jobs / 20, Kill: func(*crash.Run) {
			setClock(p, clock[set%len(clock)])
			set++
		}}},
		Left: p.Jobs,
	}.Run(t)
	if len(v.Problems) > 0 {
		t.Errorf("%d problems:\n%s", len(v.Problems), v.Summary(20))
	}
	if v.Redelivered+v.Lost+v.Unknown+v.InDoubt != 0 {
		t.Errorf("the clock was noticed: %v", v)
	}
	kit.Figure(t, "the server's clock was set %d times, by a minute or two", set)
}

// TestPostgresClock checks jobs when the server's clock is set. Session leases stay valid, whatever
// the clock shows. Instants in rows (due times, ends of timed leases, run time limits) follow the
// server's clock.
func TestPostgresClock(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	a, b := s.Start("a"), s.Start("b")
	producer, w := a.Dial(), a.Dial()
	held := map[string]*kit.Conn{} // leases and their connections
	for _, sc := range []*kit.Sidecar{a, b} {
		c := sc.Dial()
		sc.Dial().Enqueue("held", 3)
		for range 3 {
			job := c.ClaimOne("held")
			w.WaitDelivered(job)
			held[job.Lease] = c
		}
	}
	flows := func(when string) {
		t.Helper()
		began := kit.Monotonic()
		for _, sc := range []*kit.Sidecar{a, b} {
			if !sc.Alive() {
				continue
			}
			c := sc.Dial()
			producer.Enqueue("flow", 5)
			for range 5 {
				c.Must(kit.Msg{"op": "ack", "lease": c.ClaimOne("flow").Lease})
			}
		}
		kit.Figure(t, "%s: jobs flow (%v)", when, kit.Since(began).Round(time.Millisecond))
	}
	db := databases.Owners(t, p.URL) // a new connection for each check would cost more than the checks
	// `beats` waits for a heartbeat of a sidecar.
	beats := func(sc *kit.Sidecar) {
		t.Helper()
		identity := sc.Identity()
		now := func() string {
			return strings.Join(db.Texts("SELECT heartbeats::text FROM qsidecar.qsidecar_sidecars WHERE sidecar = $1", identity), "")
		}
		before := now()
		testwait.Until(t, sc.Name+" makes a heartbeat", func() bool { return now() != before })
	}
	// keeps sets the clock while a sidecar is stopped, and checks what the other one does at its
	// next heartbeat.
	stopped := 0
	keeps := func(when string, ahead time.Duration) {
		t.Helper()
		sc, other := []*kit.Sidecar{a, b}[stopped%2], []*kit.Sidecar{b, a}[stopped%2]
		stopped++
		sc.Signal(syscall.SIGSTOP)
		setClock(p, ahead)
		beats(other)
		sc.Signal(syscall.SIGCONT)
		beats(sc)
		beats(other)
		for lease, c := range held {
			if r := c.Exchange(kit.Msg{"op": "extend", "lease": lease}); r.Error != nil {
				t.Errorf("%s: a lease of a living session: %v", when, r.Error)
			}
		}
		if n := w.Stats("held"); n.Claimed != len(held) {
			t.Errorf("%s: %+v, want %d claimed", when, n, len(held))
		}
		flows(when)
	}
	takes := func(queue string, attempt int) {
		t.Helper()
		if job := w.ClaimOne(queue); job.Attempt != attempt {
			t.Errorf("%s: attempt %d, want %d", queue, job.Attempt, attempt)
		} else {
			w.Must(kit.Msg{"op": "ack", "lease": job.Lease})
		}
	}

	// Due in less than a minute by a clock that is set forward by one minute.
	for _, req := range []kit.Msg{
		{"queue": "scheduled", "delay_ms": 50_000}, {"queue": "timed"}, {"queue": "limited", "timeout_ms": 50_000}, {"queue": "tomorrow", "delay_ms": 86_400_000},
	} {
		req["op"] = "enqueue"
		producer.Must(req)
	}
	producer.Must(kit.Msg{"op": "claim", "queue": "timed", "lease_ms": 50_000})
	producer.ClaimOne("limited")
	keeps("a minute forward", time.Minute)
	takes("scheduled", 1)
	takes("timed", 2)
	testwait.Until(t, "the run over its limit is taken back", func() bool { return w.Stats("limited").Claimed == 0 })
	keeps("and back", 0)

	// A job that is due soon becomes due when the clock, after it was set back, gets there again.
	producer.Must(kit.Msg{"op": "enqueue", "queue": "soon", "delay_ms": 50_000})
	keeps("a minute back", -time.Minute)
	if n := w.Stats("soon"); n.Scheduled != 1 {
		t.Errorf("soon, by a clock set back: %+v", n)
	}
	keeps("and forward again", time.Minute)
	takes("soon", 1)

	// A clock that is set back does not delay the eviction of a sidecar that dies then.
	b.Kill()
	setClock(p, -time.Minute)
	died := kit.Monotonic()
	for range 3 {
		job := w.ClaimOne("held")
		if job.Attempt != 2 {
			t.Errorf("a job of the sidecar that died: attempt %d, want 2", job.Attempt)
		}
		w.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	}
	took := kit.Since(died)
	kit.Figure(t, "a sidecar (sidecar_timeout %v) died as the clock was set back: its jobs were worked elsewhere after %v", s.SidecarTimeout, took.Round(time.Millisecond))
	setClock(p, 0)
	flows("and forward again")
	if n := w.Stats("tomorrow"); n.Scheduled != 1 {
		t.Errorf("tomorrow's job: %+v", n)
	}
}
