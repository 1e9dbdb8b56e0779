package network

import (
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// pairOf returns a site whose database is on a primary with a streaming standby.
func pairOf(t *testing.T) (s *kit.Site, primary, standby *testserver.Postgres) {
	t.Helper()
	stops := func(p *testserver.Postgres) {
		t.Cleanup(func() {
			if err := p.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	var err error
	if primary, err = testserver.StartPostgres(t.Context(), testserver.NewestPostgres, testserver.Options{Own: true, Durable: true}); err != nil {
		t.Fatal(err)
	}
	stops(primary)
	if err := primary.Exec(t.Context(), "CREATE DATABASE e2e TEMPLATE template0"); err != nil {
		t.Fatal(err)
	}
	if standby, err = primary.Standby(t.Context()); err != nil {
		t.Fatal(err)
	}
	stops(standby)
	return kit.NewSite(t), primary, standby
}

// socketsOf returns the directory of a server's socket.
func socketsOf(t *testing.T, p *testserver.Postgres) string {
	t.Helper()
	u, err := url.Parse(p.Admin())
	if err != nil {
		t.Fatal(err)
	}
	return u.Query().Get("host")
}

// answer returns the first column of a query's only row.
func answer[T any](t *testing.T, p *testserver.Postgres, sql string, args ...any) (v T) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), strings.Replace(p.Admin(), "/postgres?", "/e2e?", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if err := c.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestPostgresFailover checks a primary that dies during work and a standby that is promoted later.
// Each sidecar reaches the servers in another way. No settle fails, and no job is lost or processed
// twice.
func TestPostgresFailover(t *testing.T) {
	t.Parallel()
	s, primary, standby := pairOf(t)
	f := &failover{T: t, site: s}
	hosts := func(all ...*testserver.Postgres) string {
		var dirs []string
		for _, p := range all {
			dirs = append(dirs, socketsOf(t, p))
		}
		return "postgres://postgres@/e2e?host=" + strings.Join(dirs, ",")
	}
	socket := func(p *testserver.Postgres) string { return filepath.Join(socketsOf(t, p), ".s.PGSQL.5432") }
	soon, late := newSwallower(t, "unix", socket(primary)), newSwallower(t, "unix", socket(primary))
	at := func(r *blackHole) string {
		return "postgres://postgres@" + r.ln.Addr().String() + "/e2e?sslmode=disable"
	}
	f.start(map[string]string{
		"order":  hosts(primary, standby),
		"swap":   hosts(standby, primary),
		"any":    hosts(standby, primary) + "&target_session_attrs=any",
		"write":  hosts(standby, primary) + "&target_session_attrs=read-write",
		"first":  hosts(primary, standby) + "&target_session_attrs=primary",
		"prefer": hosts(standby, primary) + "&target_session_attrs=prefer-standby",
		"soon":   at(soon), // an address that moves before the promotion
		"late":   at(late), // and one that moves after it
	})
	lsn := answer[string](t, primary, "SELECT pg_current_wal_insert_lsn()::text")
	testwait.Until(t, "the standby has replayed", func() bool {
		return answer[bool](t, standby, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", lsn)
	})
	if err := primary.Crash(); err != nil {
		t.Fatal(err)
	}
	soon.moveTo("unix", socket(standby))
	f.settle()
	s.URL = hosts(standby, primary)
	f.begin("this server is a standby")
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	late.moveTo("unix", socket(standby))
	f.check(func() int { return answer[int](t, standby, "SELECT count(*) FROM qsidecar.qsidecar_jobs") })
}

// failover is the sidecars and their workers while a server is replaced.
type failover struct {
	*testing.T
	site *kit.Site
	ways []*failoverPath
	born *kit.Sidecar // started while there was no primary
}

// failoverPath is a sidecar with a worker of the Go client, and jobs that the test itself holds.
type failoverPath struct {
	name    string
	sc      *kit.Sidecar
	worker  *clientlib.Worker
	settles []kit.Msg
	posted  []*kit.Conn
	waits   *kit.Conn
}

// perPath is how many jobs each worker holds, and how many are ready behind them.
const perPath = 8

// start starts a sidecar for each URL, by name, and claims jobs.
func (f *failover) start(urls map[string]string) {
	f.Helper()
	f.site.SidecarTimeout = 5 * time.Minute // longer than a failover takes on a busy machine
	names := make([]string, 0, len(urls))
	for name := range urls {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		f.site.URL = urls[name]
		w := &failoverPath{name: name, sc: f.site.Start(name)}
		f.ways = append(f.ways, w)
		c := w.sc.Dial()
		for i := range perPath {
			c.Put("long-"+name, fmt.Sprint(i))
		}
		w.worker = clientlib.GoWorker(f.T, w.sc, "WORKER_QUEUES=long-"+name)
		w.worker.Start()
		w.worker.DoneAtLeast(perPath)
		c.Enqueue("raw-"+name, 3)
		for _, op := range []string{"ack", "nack", "extend"} {
			conn := w.sc.Dial()
			job := conn.ClaimOne("raw-" + name)
			w.posted = append(w.posted, conn)
			m := kit.Msg{"op": op, "lease": job.Lease}
			if op == "extend" {
				m = kit.Msg{"op": op, "leases": []string{job.Lease}, "bind": true}
			}
			w.settles = append(w.settles, m)
			c.WaitDelivered(job)
		}
		for i := range perPath { // not claimed when the server dies
			c.Put("long-"+name, fmt.Sprint(perPath+i))
		}
		w.waits = w.sc.Dial()
		w.waits.Post(kit.Msg{"op": "claim", "queue": "none-" + name, "wait_ms": 600_000})
	}
}

// settle lets the workers finish their jobs, and settles the test's jobs, while no server accepts
// writes.
func (f *failover) settle() {
	f.Helper()
	for _, w := range f.ways {
		w.worker.OpenGate()
	}
	var producers []*kit.Conn
	for _, w := range f.ways {
		for i, m := range w.settles {
			w.posted[i].Post(m)
		}
		w.sc.CaughtUp()
		c := w.sc.Dial()
		c.Post(kit.Msg{"op": "enqueue", "queue": "raw-" + w.name})
		producers = append(producers, c)
	}
	for _, c := range producers { // after the settles, which are repeated for longer
		c.WantError("unavailable", "an enqueue without a primary", c.Next())
	}
}

// begin starts a sidecar while no server accepts writes. check must report why.
func (f *failover) begin(says string) {
	f.Helper()
	f.born = f.site.Start("born")
	f.born.Dial().MustFail("unavailable", kit.Msg{"op": "enqueue", "queue": "born"})
	if r := kit.RunCLI(f.T, f.site.Dir, nil, "check", "--config", f.born.ConfigFile); r.Code != 1 || !strings.Contains(r.Stdout, says) {
		f.Errorf("check ends with %d and prints\n%s", r.Code, r.Stdout)
	}
}

// check returns when all jobs are done. left counts the rows of the job table.
func (f *failover) check(left func() int) {
	f.Helper()
	began := kit.Monotonic()
	for _, w := range f.ways {
		for i, c := range w.posted {
			if r := c.Next(); r.Error != nil || r.Acked+r.Nacked+r.Extended != 1 || len(r.Lost) > 0 {
				f.Errorf("%s: %v, sent while there was no primary: %+v, %v", w.name, w.settles[i]["op"], r, r.Error)
			}
		}
		w.posted[2].Must(kit.Msg{"op": "ack", "leases": w.settles[2]["leases"]})
	}
	settled := kit.Since(began)
	for _, w := range f.ways {
		w.worker.WaitEmpty("long-" + w.name)
		w.worker.Terminate()
		done, lines := w.worker.Done()
		if len(done) != 2*perPath || len(lines) != 2*perPath {
			f.Errorf("%s: %d of %d jobs were done, in %d runs: %q", w.name, len(done), 2*perPath, len(lines), lines)
		}
		for _, line := range lines {
			if !strings.HasSuffix(line, " 1") {
				f.Errorf("%s: a job and its attempt: %s, want 1", w.name, line)
			}
		}
		c := w.sc.Dial()
		c.Put("none-"+w.name, "x")
		if r := w.waits.Next(); r.Error != nil || len(r.Jobs) != 1 {
			f.Errorf("%s: a claim that waited through it all: %d jobs, %v", w.name, len(r.Jobs), r.Error)
		} else {
			w.waits.Must(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease})
		}
		if n := strings.Count(w.sc.Log(), "event=database_joined"); n != 1 {
			f.Errorf("%s joined the database %d times, want once: its leases are good", w.name, n)
		}
	}
	c := f.born.Dial()
	testwait.Until(f, "the sidecar that was started without a primary has the new one", func() bool {
		return c.Exchange(kit.Msg{"op": "stats", "queue": "born"}).Error == nil
	})
	c.Put("born", "x")
	c.Must(kit.Msg{"op": "ack", "lease": c.ClaimOne("born").Lease})
	if n := left(); n != len(f.ways) {
		f.Errorf("%d jobs are left, want the %d that were nacked", n, len(f.ways))
	}
	kit.Figure(f, "%d sidecars settled what was sent without a primary within %v of the promotion", len(f.ways), settled.Round(time.Millisecond))
}
