package e2e

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// rewrite gives the sidecar's config another text.
func (sc *sidecar) rewrite(text string) {
	sc.t.Helper()
	if err := os.WriteFile(sc.config, []byte(text), 0o644); err != nil {
		sc.t.Fatal(err)
	}
}

// text is the sidecar's config.
func (sc *sidecar) text() string {
	sc.t.Helper()
	text, err := os.ReadFile(sc.config)
	if err != nil {
		sc.t.Fatal(err)
	}
	return string(text)
}

// TestReloadsAtOnce: of commands that ask for a reload at the same time each is answered, and
// at most one of them says what changed: the config is taken once. A wrong one is told to all.
func TestReloadsAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.queues = ""
	a := s.started("a")
	first, c := a.text(), a.dial()
	const asking = 4
	atOnce := func(text string) (answers [asking]said) {
		t.Helper()
		a.rewrite(text)
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() { answers[i] = cli(t, s.dir, nil, "reload", "--socket", a.socket) })
		}
		all.Wait()
		return answers
	}
	for n := range 5 {
		before := c.must(msg{"op": "status"}).Generation
		told := 0
		for _, said := range atOnce(fmt.Sprintf("%s  q%d: {}\n", first, n)) {
			switch want := fmt.Sprintf("queues.q%d added\n", n); {
			case said.code == 0 && strings.Contains(said.out, want):
				told++
			case said.code != 0 || !strings.HasPrefix(said.out, "nothing changed: "):
				t.Errorf("%+v", said)
			}
		}
		if told > 1 {
			t.Errorf("%d of them changed the config", told)
		}
		if st := c.must(msg{"op": "status"}); st.Generation != before+1 {
			t.Errorf("the generation was %d, and is %d", before, st.Generation)
		}
		c.must(msg{"op": "enqueue", "queue": fmt.Sprintf("q%d", n)})
		for _, said := range atOnce(first + "  q: {timeuot: 1s}\n") {
			said.tells(t, 2, "timeuot", "what ran before goes on")
		}
	}
}

// TestStormOfHangUps: SIGHUPs while workers use it: the last config that was written before
// one runs, no job is lost or delivered twice, no request fails.
func TestStormOfHangUps(t *testing.T) {
	t.Parallel()
	s, srv := newPostgresSite(t)
	r := &reloadRun{t: t, s: s, srv: srv, queues: map[string]bool{}, pool: 8, attempts: 20, secret: s.dir + "/secret"}
	r.passwords()
	r.a = s.sidecar("a")
	r.write(r.text())
	r.a.start()
	r.admin = r.a.dial()
	r.page = adminAt(t, r.adminSocket())
	goroutines, files := r.goroutines(), r.files()
	workers := newReloadWorkers(t, r.a.socket, 16)
	workers.after(100)
	const storm = 200
	for n := range storm {
		switch n % 4 {
		case 1:
			r.attempts = 21 + n
			r.write(r.text())
		case 2:
			r.pool = 5 + n%7 // another pool
			r.write(r.text())
		case 3:
			r.write("queues: {\n")
		}
		r.a.signal(syscall.SIGHUP)
		workers.after(workers.acked() + 1)
	}
	r.queues["last"] = true
	r.write(r.text())
	for range storm { // all at once
		r.a.signal(syscall.SIGHUP)
	}
	eventually(t, patience, "the last config runs", func() bool {
		return r.admin.ask(msg{"op": "stats", "queue": "last"}).Error == nil && r.status().ConfigError == ""
	})
	workers.after(workers.acked() + 100)
	workers.stop()
	r.settleDown(files, goroutines)
	workers.judge(r.admin.stat("work"))
	figure(t, "%d SIGHUPs under 16 workers: %d generations, %d jobs, each delivered once", 2*storm, r.status().Generation, workers.acked())
}

// TestHangUpBeforeAndAfter: a SIGHUP that comes while serve waits for a database at its start,
// or for its workers at its end, does not end it.
func TestHangUpBeforeAndAfter(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // a server that says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s := newSite(t)
	s.extra = "drain_timeout: 60s\n"
	a := s.sidecar("a")
	text := a.text()
	a.rewrite(strings.Replace(text, s.url, "postgres://app@"+silent.Addr().String()+"/app", 1))
	a.launch()
	asked, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	a.signal(syscall.SIGHUP)
	a.rewrite(text)
	a.signal(syscall.SIGHUP)
	asked.Close()
	silent.Close()
	eventually(t, patience, "it serves by the config that was written", func() bool {
		w, err := dialWire(a.socket)
		if err != nil {
			return !a.alive()
		}
		defer w.Close()
		r, err := w.call(msg{"op": "stats"})
		return err == nil && r.Error == nil
	})
	if !a.alive() {
		t.Fatalf("it ended: %v", a.status)
	}

	c := a.dial()
	c.enqueueN("mail", 1)
	job := c.claimOne("mail")
	a.signal(syscall.SIGTERM)
	eventually(t, patience, "it drains", func() bool {
		r := c.ask(msg{"op": "claim", "queue": "mail"})
		return r.Error != nil && r.Error.Code == "draining"
	})
	for range 20 {
		a.signal(syscall.SIGHUP)
		c.must(msg{"op": "ping"})
	}
	c.must(msg{"op": "ack", "lease": job.Lease})
	if code := a.exit(patience); code != 0 {
		t.Errorf("it exited with %d (%v)", code, a.status)
	}
}

// TestBackAndForth: the database moves to another one and back, again and again, while jobs of
// both are held; each is settled where it is, whichever the config names at that time.
func TestBackAndForth(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		s := newSite(t)
		backAndForth(t, s, strings.Replace(s.url, "q.db", "other.db", 1))
	})
	t.Run("postgres", func(t *testing.T) {
		s, srv := newPostgresSite(t)
		if err := srv.Exec(t.Context(), "CREATE DATABASE other TEMPLATE template0"); err != nil {
			t.Fatal(err)
		}
		backAndForth(t, s, strings.Replace(s.url, "/e2e", "/other", 1))
	})
}

// moving is a sidecar whose database moves between two, and the worker that it has.
type moving struct {
	t     *testing.T
	a     *sidecar
	w     *conn
	texts [2]string    // a config for each
	held  [2][]wireJob // in each
}

func backAndForth(t *testing.T, s *site, elsewhere string) {
	a := s.started("a")
	m := &moving{t: t, a: a, w: a.dial(), texts: [2]string{a.text(), strings.Replace(a.text(), s.url, elsewhere, 1)}}
	for n := range 8 {
		if n > 0 {
			m.to(n % 2)
		}
		want := fmt.Sprintf("%d of %d", n/2, n%2)
		m.w.must(msg{"op": "enqueue", "queue": "work", "payload": want})
		m.held[n%2] = append(m.held[n%2], m.claims(want, 1))
	}
	if st := m.w.must(msg{"op": "status"}); len(st.Databases) != 2 {
		t.Errorf("the databases are %+v", st.Databases)
	}
	m.settles()
	m.dies()
	m.keepsTimed()
}

// to has the config name that one.
func (m *moving) to(n int) {
	m.t.Helper()
	m.a.rewrite(m.texts[n])
	m.w.must(msg{"op": "reload"})
}

// claims takes a job, which must be that one in that attempt.
func (m *moving) claims(payload string, attempt int) wireJob {
	m.t.Helper()
	job := m.w.claimOne("work")
	if job.Payload != payload || job.Attempt != attempt {
		m.t.Errorf("claimed attempt %d of %q, want %d of %q", job.Attempt, job.Payload, attempt, payload)
	}
	return job
}

func (m *moving) ack(leases ...string) {
	m.t.Helper()
	if r := m.w.must(msg{"op": "ack", "leases": leases}); r.Acked != len(leases) || len(r.Lost) > 0 {
		m.t.Errorf("acked %d of %d, lost %v", r.Acked, len(leases), r.Lost)
	}
}

// leaves waits until one of the databases is left.
func (m *moving) leaves() {
	m.t.Helper()
	eventually(m.t, patience, "a database is left", func() bool { return len(m.w.must(msg{"op": "status"}).Databases) == 1 })
}

// empty: nothing is left in the one that the config names.
func (m *moving) empty() {
	m.t.Helper()
	if got := m.w.stat("work"); got.total() != 0 {
		m.t.Errorf("left: %+v", got)
	}
}

// settles what is held in both, while the config names the second one, and then the first.
func (m *moving) settles() {
	first, second, w := m.held[0], m.held[1], m.w
	w.must(msg{"op": "extend", "leases": []string{first[0].Lease, second[0].Lease}})
	w.refused("bad_request", msg{"op": "ack", "lease": first[0].Lease, "enqueue": []msg{{"queue": "work"}}}) // into the other one
	m.ack(first[0].Lease, second[0].Lease)
	w.must(msg{"op": "nack", "lease": first[1].Lease, "delay_ms": 0})
	w.refused("lease_lost", msg{"op": "ack", "lease": first[1].Lease})
	other := m.a.dial()
	other.must(msg{"op": "extend", "lease": first[2].Lease, "bind": true})
	// A claim that waits gets what is in the next one by then.
	w.post(msg{"op": "claim", "queue": "work", "wait_ms": patience.Milliseconds()})
	m.a.caughtUp()
	m.a.rewrite(m.texts[0])
	other.must(msg{"op": "reload"})
	r := w.next()
	if len(r.Jobs) != 1 || r.Jobs[0].ID != first[1].ID || r.Jobs[0].Attempt != 2 {
		m.t.Fatalf("the waiting claim got %+v", r)
	}
	m.ack(r.Jobs[0].Lease, second[1].Lease, second[2].Lease)
	w.must(msg{"op": "nack", "lease": second[3].Lease, "delay_ms": 0, "charge": false})
	m.leaves()
	other.must(msg{"op": "ack", "lease": first[2].Lease})
}

// dies: a worker that goes frees what it has in either.
func (m *moving) dies() {
	m.to(1)
	m.claims(m.held[1][3].Payload, 1)
	if err := m.w.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.w = m.a.dial()
	m.ack(m.claims(m.held[1][3].Payload, 2).Lease)
	m.empty()
	m.to(0)
	m.ack(m.claims(m.held[0][3].Payload, 2).Lease)
	m.empty()
}

// keepsTimed: a timed lease keeps its database open too, also when its worker is gone.
func (m *moving) keepsTimed() {
	m.w.must(msg{"op": "enqueue", "queue": "work", "payload": "timed"})
	timed := m.a.dial()
	jobs := timed.must(msg{"op": "claim", "queue": "work", "lease_ms": 3_600_000}).Jobs
	if len(jobs) != 1 {
		m.t.Fatalf("claimed %+v", jobs)
	}
	if err := timed.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.to(1)
	m.w.must(msg{"op": "nack", "lease": jobs[0].Lease, "delay_ms": 0})
	m.leaves()
	m.w.refused("lease_lost", msg{"op": "ack", "lease": jobs[0].Lease})
	m.to(0)
	m.ack(m.claims("timed", 2).Lease)
	m.empty()
}
