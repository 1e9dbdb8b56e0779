package e2e

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// setClock has the server's clock run by so much before the right time: what all
// of the sidecars' statements, and plain INSERTs, use as the present.
func (p *server) setClock(ahead time.Duration) {
	p.t.Helper()
	p.query(p.url, fmt.Sprintf(`CREATE OR REPLACE FUNCTION qsidecar.qsidecar_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
		AS 'SELECT pg_catalog.now() + interval ''%d ms'''`, ahead.Milliseconds()))
}

// TestPostgresClockCrashRun: the server's clock is set forward and back by a
// minute all the time. That is no reason for a second delivery or a lost lease of
// anybody.
func TestPostgresClockCrashRun(t *testing.T) {
	s, p := newPostgresSite(t)
	s.hostLease = 2 * time.Second
	jobs := size(50_000)
	clock := []time.Duration{time.Minute, 0, -time.Minute, 0, time.Minute, -time.Minute}
	set := 0
	v := crashRun{
		Queue: "crash", Jobs: jobs, Workers: 16,
		Sidecars: []*sidecar{s.started("a"), s.started("b")},
		Killers: []killer{{Every: jobs / 20, Strike: func(*crashRuntime) {
			p.setClock(clock[set%len(clock)])
			set++
		}}},
		Left: p.jobs,
	}.run(t)
	if len(v.Problems) > 0 {
		t.Errorf("%d problems:\n%s", len(v.Problems), v.summary(20))
	}
	if v.Redelivered+v.Lost+v.Unknown+v.InDoubt != 0 {
		t.Errorf("the clock was noticed: %v", v)
	}
	figure(t, "the server's clock was set %d times, by a minute or two", set)
}

// TestPostgresClock: what becomes of jobs when the server's clock is set. What
// sidecars hold for living sessions stays, whatever the clock says. Instants in
// rows (due times, ends of timed leases, limits of runs) are the server's: they
// come when its clock says so.
func TestPostgresClock(t *testing.T) {
	s, p := newPostgresSite(t)
	s.hostLease = 4 * time.Second
	a, b := s.started("a"), s.started("b")
	producer, w := a.dial(), a.dial()
	held := map[string]*conn{} // leases, and who has them
	for _, sc := range []*sidecar{a, b} {
		c := sc.dial()
		sc.dial().enqueueN("held", 3)
		for range 3 {
			held[c.claimOne("held").Lease] = c
		}
	}
	flows := func(when string) {
		t.Helper()
		began := time.Now()
		for _, sc := range []*sidecar{a, b} {
			if !sc.alive() {
				continue
			}
			c := sc.dial()
			producer.enqueueN("flow", 5)
			for range 5 {
				c.must(msg{"op": "ack", "lease": c.claimOne("flow").Lease})
			}
		}
		figure(t, "%s: jobs flow (%v)", when, time.Since(began).Round(time.Millisecond))
	}
	// keeps sets the clock while a sidecar stands still for a moment, and looks what
	// the other one does about it. Its last beat is a sixth of the lease period old
	// at most: with the stop less than the three fifths for which it trusts its beat.
	stopped := 0
	keeps := func(when string, ahead time.Duration) {
		t.Helper()
		sc := []*sidecar{a, b}[stopped%2]
		stopped++
		sc.signal(syscall.SIGSTOP)
		p.setClock(ahead)
		pass(s.hostLease * 3 / 10)
		sc.signal(syscall.SIGCONT)
		pass(s.hostLease * 5 / 10)
		for lease, c := range held {
			if r := c.ask(msg{"op": "extend", "lease": lease}); r.Error != nil {
				t.Errorf("%s: a lease of a living session: %v", when, r.Error)
			}
		}
		if n := w.stat("held"); n.Claimed != len(held) {
			t.Errorf("%s: %+v, want %d claimed", when, n, len(held))
		}
		flows(when)
	}
	takes := func(queue string, attempt int) {
		t.Helper()
		if job := w.claimOne(queue); job.Attempt != attempt {
			t.Errorf("%s: attempt %d, want %d", queue, job.Attempt, attempt)
		} else {
			w.must(msg{"op": "ack", "lease": job.Lease})
		}
	}

	// Half a minute from now, by a clock that is set forward by one.
	for _, req := range []msg{
		{"queue": "scheduled", "delay_ms": 30_000}, {"queue": "timed"}, {"queue": "limited", "timeout_ms": 30_000}, {"queue": "tomorrow", "delay_ms": 86_400_000},
	} {
		req["op"] = "enqueue"
		producer.must(req)
	}
	producer.must(msg{"op": "claim", "queue": "timed", "lease_ms": 30_000})
	producer.claimOne("limited")
	keeps("a minute forward", time.Minute)
	takes("scheduled", 1)
	takes("timed", 2)
	eventually(t, patience, "the run over its limit is taken back", func() bool { return w.stat("limited").Claimed == 0 })
	keeps("and back", 0)

	// What is due in a moment comes when the clock, set back, gets there again.
	producer.must(msg{"op": "enqueue", "queue": "soon", "delay_ms": 5000})
	keeps("a minute back", -time.Minute)
	if n := w.stat("soon"); n.Scheduled != 1 {
		t.Errorf("soon, by a clock set back: %+v", n)
	}
	keeps("and forward again", 0)
	takes("soon", 1)

	// A sidecar that dies as the clock is set back is found out no later for it.
	b.kill()
	p.setClock(-time.Minute)
	died := time.Now()
	for range 3 {
		job := w.claimOne("held")
		if job.Attempt != 2 {
			t.Errorf("a job of the sidecar that died: attempt %d, want 2", job.Attempt)
		}
		w.must(msg{"op": "ack", "lease": job.Lease})
	}
	took := time.Since(died)
	figure(t, "a sidecar (host_lease %v) died as the clock was set back: its jobs were worked elsewhere after %v", s.hostLease, took.Round(time.Millisecond))
	if took > 10*s.hostLease {
		t.Errorf("its jobs came after %v", took)
	}
	p.setClock(0)
	flows("and forward again")
	if n := w.stat("tomorrow"); n.Scheduled != 1 {
		t.Errorf("tomorrow's job: %+v", n)
	}
}
