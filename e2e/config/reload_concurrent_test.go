package config

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/admin"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestConcurrentReloads checks that all commands which request a reload at the same time are answered,
// and that the config is loaded once. All get the error of a wrong config.
func TestConcurrentReloads(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Queues = ""
	a := s.Start("a")
	first, c := a.ReadConfig(), a.Dial()
	const asking = 4
	atOnce := func(text string) (answers [asking]kit.Output) {
		t.Helper()
		a.WriteConfig(text)
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() { answers[i] = kit.RunCLI(t, s.Dir, nil, "reload", "--socket", a.Socket) })
		}
		all.Wait()
		return answers
	}
	for n := range 5 {
		before := c.Must(kit.Msg{"op": "status"}).Generation
		for _, output := range atOnce(fmt.Sprintf("%s  q%d: {}\n", first, n)) {
			// Requests that arrive during the reload get its changes too.
			want := fmt.Sprintf("queues.q%d added\n", n)
			if output.Code != 0 || !strings.Contains(output.Stdout, want) && !strings.HasPrefix(output.Stdout, "nothing changed: ") {
				t.Errorf("%+v", output)
			}
		}
		if st := c.Must(kit.Msg{"op": "status"}); st.Generation != before+1 {
			t.Errorf("the generation was %d, and is %d", before, st.Generation)
		}
		c.Must(kit.Msg{"op": "enqueue", "queue": fmt.Sprintf("q%d", n)})
		for _, output := range atOnce(first + "  q: {timeuot: 1s}\n") {
			output.WantError(t, 2, "timeuot", "what ran before goes on")
		}
	}
}

// TestManySIGHUPs sends many SIGHUPs during work. The last config written before one runs, no
// job is lost or delivered twice, and no request fails.
func TestManySIGHUPs(t *testing.T) {
	t.Parallel()
	s, srv := kit.NewPostgresSite(t)
	r := &reloadRun{t: t, s: s, srv: srv, queues: map[string]bool{}, pool: 8, attempts: 20, secret: s.Dir + "/secret"}
	r.passwords()
	r.a = s.Sidecar("a")
	r.write(r.text())
	r.a.Start()
	r.admin = r.a.Dial()
	r.page = admin.At(t, r.adminSocket())
	goroutines, files := r.goroutines(), r.files()
	workers := newReloadWorkers(t, r.a.Socket, 16)
	workers.waitDone(100)
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
		r.a.Signal(syscall.SIGHUP)
		workers.waitDone(workers.acked() + 1)
	}
	r.queues["last"] = true
	r.write(r.text())
	for range storm { // all at once
		r.a.Signal(syscall.SIGHUP)
	}
	testwait.Until(t, "the last config runs", func() bool {
		return r.admin.Exchange(kit.Msg{"op": "stats", "queue": "last"}).Error == nil && r.status().ConfigError == ""
	})
	workers.waitDone(workers.acked() + 100)
	workers.stop()
	r.settleDown(files, goroutines)
	workers.checkCounts(r.admin.Stats("work"))
	kit.Figure(t, "%d SIGHUPs under 16 workers: %d generations, %d jobs, each delivered once", 2*storm, r.status().Generation, workers.acked())
}

// TestSIGHUPDuringStartAndEnd checks that a SIGHUP does not end serve while it waits for a database at
// its start, or for its workers at its end.
func TestSIGHUPDuringStartAndEnd(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // a server that never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s := kit.NewSite(t)
	s.Extra = "drain_timeout: 60s\n"
	a := s.Sidecar("a")
	text := a.ReadConfig()
	a.WriteConfig(strings.Replace(text, s.URL, "postgres://app@"+silent.Addr().String()+"/app", 1))
	a.Launch()
	asked, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	a.Signal(syscall.SIGHUP)
	a.WriteConfig(text)
	a.Signal(syscall.SIGHUP)
	asked.Close()
	silent.Close()
	testwait.Until(t, "it serves by the config that was written", func() bool {
		w, err := kit.DialWire(a.Socket)
		if err != nil {
			return !a.Alive()
		}
		defer w.Close()
		r, err := w.Call(kit.Msg{"op": "stats"})
		return err == nil && r.Error == nil
	})
	if !a.Alive() {
		t.Fatalf("it ended: %v", a.Status)
	}

	c := a.Dial()
	c.Enqueue("mail", 1)
	job := c.ClaimOne("mail")
	a.Signal(syscall.SIGTERM)
	testwait.Until(t, "it drains", func() bool {
		r := c.Exchange(kit.Msg{"op": "claim", "queue": "mail"})
		return r.Error != nil && r.Error.Code == "draining"
	})
	for range 20 {
		a.Signal(syscall.SIGHUP)
		c.Must(kit.Msg{"op": "ping"})
	}
	c.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	if code := a.WaitExit(); code != 0 {
		t.Errorf("it exited with %d (%v)", code, a.Status)
	}
}

// TestDatabaseMovesBackAndForth moves the database to another one and back, repeatedly, while jobs of both are
// claimed. Each is settled in its own database, whichever the config names.
func TestDatabaseMovesBackAndForth(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		s := kit.NewSite(t)
		backAndForth(t, s, strings.Replace(s.URL, "q.db", "other.db", 1))
	})
	t.Run("postgres", func(t *testing.T) {
		s, srv := kit.NewPostgresSite(t)
		if err := srv.Exec(t.Context(), "CREATE DATABASE other TEMPLATE template0"); err != nil {
			t.Fatal(err)
		}
		backAndForth(t, s, strings.Replace(s.URL, "/e2e", "/other", 1))
	})
}

// databaseMove is a sidecar whose database moves between two, and its worker.
type databaseMove struct {
	t     *testing.T
	a     *kit.Sidecar
	w     *kit.Conn
	texts [2]string    // one config for each
	held  [2][]kit.Job // jobs claimed in each
}

func backAndForth(t *testing.T, s *kit.Site, elsewhere string) {
	a := s.Start("a")
	m := &databaseMove{t: t, a: a, w: a.Dial(), texts: [2]string{a.ReadConfig(), strings.Replace(a.ReadConfig(), s.URL, elsewhere, 1)}}
	for n := range 8 {
		if n > 0 {
			m.switchTo(n % 2)
		}
		want := fmt.Sprintf("%d of %d", n/2, n%2)
		m.w.Must(kit.Msg{"op": "enqueue", "queue": "work", "payload": want})
		m.held[n%2] = append(m.held[n%2], m.claim(want, 1))
	}
	if st := m.w.Must(kit.Msg{"op": "status"}); len(st.Databases) != 2 {
		t.Errorf("the databases are %+v", st.Databases)
	}
	m.settleBoth()
	m.closeWorker()
	m.checkTimedLease()
}

// switchTo makes the config name that database.
func (d *databaseMove) switchTo(n int) {
	d.t.Helper()
	d.a.WriteConfig(d.texts[n])
	d.w.Must(kit.Msg{"op": "reload"})
}

// claim claims a job and checks its payload and attempt.
func (d *databaseMove) claim(payload string, attempt int) kit.Job {
	d.t.Helper()
	job := d.w.ClaimOne("work")
	if job.Payload != payload || job.Attempt != attempt {
		d.t.Errorf("claimed attempt %d of %q, want %d of %q", job.Attempt, job.Payload, attempt, payload)
	}
	return job
}

func (d *databaseMove) ack(leases ...string) {
	d.t.Helper()
	if r := d.w.Must(kit.Msg{"op": "ack", "leases": leases}); r.Acked != len(leases) || len(r.Lost) > 0 {
		d.t.Errorf("acked %d of %d, lost %v", r.Acked, len(leases), r.Lost)
	}
}

// waitClosed waits until the sidecar has closed one of the databases.
func (d *databaseMove) waitClosed() {
	d.t.Helper()
	testwait.Until(d.t, "a database is left", func() bool { return len(d.w.Must(kit.Msg{"op": "status"}).Databases) == 1 })
}

// wantEmpty checks that no job is left in the database that the config names.
func (d *databaseMove) wantEmpty() {
	d.t.Helper()
	if got := d.w.Stats("work"); got.Total() != 0 {
		d.t.Errorf("left: %+v", got)
	}
}

// settleBoth settles the jobs of both, while the config names the second one, and then the first.
func (d *databaseMove) settleBoth() {
	first, second, w := d.held[0], d.held[1], d.w
	w.Must(kit.Msg{"op": "extend", "leases": []string{first[0].Lease, second[0].Lease}})
	w.MustFail("bad_request", kit.Msg{"op": "ack", "lease": first[0].Lease, "enqueue": []kit.Msg{{"queue": "work"}}}) // in the other database
	d.ack(first[0].Lease, second[0].Lease)
	w.Must(kit.Msg{"op": "nack", "lease": first[1].Lease, "delay_ms": 0})
	w.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": first[1].Lease})
	other := d.a.Dial()
	other.Must(kit.Msg{"op": "extend", "lease": first[2].Lease, "bind": true})
	// A waiting claim gets the jobs of the database that the config names next.
	w.Post(kit.Msg{"op": "claim", "queue": "work", "wait_ms": kit.WaitMS()})
	d.a.CaughtUp()
	d.a.WriteConfig(d.texts[0])
	other.Must(kit.Msg{"op": "reload"})
	r := w.Next()
	if len(r.Jobs) != 1 || r.Jobs[0].ID != first[1].ID || r.Jobs[0].Attempt != 2 {
		d.t.Fatalf("the waiting claim got %+v", r)
	}
	d.ack(r.Jobs[0].Lease, second[1].Lease, second[2].Lease)
	w.Must(kit.Msg{"op": "nack", "lease": second[3].Lease, "delay_ms": 0, "snooze": true})
	d.waitClosed()
	other.Must(kit.Msg{"op": "ack", "lease": first[2].Lease})
}

// closeWorker checks that a worker which leaves frees its jobs in both.
func (d *databaseMove) closeWorker() {
	d.switchTo(1)
	d.claim(d.held[1][3].Payload, 1)
	if err := d.w.Close(); err != nil {
		d.t.Fatal(err)
	}
	d.w = d.a.Dial()
	d.ack(d.claim(d.held[1][3].Payload, 2).Lease)
	d.wantEmpty()
	d.switchTo(0)
	d.ack(d.claim(d.held[0][3].Payload, 2).Lease)
	d.wantEmpty()
}

// checkTimedLease checks that a timed lease keeps its database open, also after its worker has left.
func (d *databaseMove) checkTimedLease() {
	d.w.Must(kit.Msg{"op": "enqueue", "queue": "work", "payload": "timed"})
	timed := d.a.Dial()
	jobs := timed.Must(kit.Msg{"op": "claim", "queue": "work", "lease_ms": 3_600_000}).Jobs
	if len(jobs) != 1 {
		d.t.Fatalf("claimed %+v", jobs)
	}
	if err := timed.Close(); err != nil {
		d.t.Fatal(err)
	}
	d.switchTo(1)
	d.w.Must(kit.Msg{"op": "nack", "lease": jobs[0].Lease, "delay_ms": 0})
	d.waitClosed()
	d.w.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": jobs[0].Lease})
	d.switchTo(0)
	d.ack(d.claim("timed", 2).Lease)
	d.wantEmpty()
}
