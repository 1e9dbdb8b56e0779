package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDepthsOfSeveralSidecars: of three sidecars on one PostgreSQL one tells the depths, and asks
// the server for them at most every 15 s, however often all are asked; when it is killed another
// one does within the host lease.
func TestDepthsOfSeveralSidecars(t *testing.T) {
	t.Parallel()
	s, srv := newPostgresSite(t)
	s.hostLease = 6 * time.Second
	if err := srv.Exec(t.Context(), "ALTER SYSTEM SET log_statement = 'all'", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	var all []*sidecar
	var admins []*admin
	for i := range 3 {
		place := filepath.Join(s.dir, fmt.Sprintf("admin%d.sock", i))
		s.extra = "admin: {listen: " + place + "}\n"
		all, admins = append(all, s.started(fmt.Sprintf("s%d", i))), append(admins, adminAt(t, place))
	}
	all[0].dial().enqueueN("q", 7)
	// Whoever tells them, once all are asked all the while. Of those who are dead nothing is asked.
	tellers := func() (who []int) {
		for i, a := range admins {
			if !all[i].alive() {
				continue
			}
			if v, ok := a.scrape().series[`qsidecar_queue_jobs{database="main",queue="q",state="ready"}`]; ok {
				who = append(who, i)
				if v != 7 {
					t.Errorf("sidecar %d tells %v ready jobs, want 7", i, v)
				}
			}
		}
		if len(who) > 1 {
			t.Fatalf("sidecars %v tell the depths, want one of them", who)
		}
		return who
	}
	eventually(t, patience, "one tells the depths", func() bool { return len(tellers()) == 1 })
	first := tellers()[0]
	for range 30 {
		if who := tellers(); len(who) != 1 || who[0] != first {
			t.Fatalf("%v tell the depths, and before it was %d", who, first)
		}
	}
	reads := 0.0
	for _, a := range admins {
		reads += a.scrape().series[`qsidecar_depths_reads_total{database="main"}`]
	}
	if n := strings.Count(srv.Log(), "UNION SELECT queue FROM f WHERE queue IS NOT NULL"); n != 1 { // of postgres's queuesSQL
		t.Errorf("the server was asked for all queues %d times, want once", n)
	}
	if reads != 1 {
		t.Errorf("the depths were read %v times, want once in the first 15 s", reads)
	}

	killed := time.Now()
	all[first].kill()
	eventually(t, patience, "another one tells the depths", func() bool { return len(tellers()) == 1 })
	took := time.Since(killed)
	if took > 10*s.hostLease { // how long it takes on a quiet machine is printed
		t.Errorf("it took %v until another one told the depths, want at most %v", took, s.hostLease)
	}
	figure(t, "the depths were told by another sidecar %.1f s after the first was killed; host_lease %v", took.Seconds(), s.hostLease)
	text := admins[tellers()[0]].scrape().text
	if n := strings.Count(text, "qsidecar_queue_jobs{"); n != 5 {
		t.Errorf("%d series of depths, want one for each state:\n%s", n, text)
	}
}

// TestHealthWhileTheDatabaseIsAway: /readyz says which database cannot be reached, and not where it is; all else goes on.
func TestHealthWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	s, srv := newPostgresSite(t)
	s.hostLease = 2 * time.Second
	place := filepath.Join(s.dir, "admin.sock")
	s.extra = "admin: {listen: " + place + "}\n"
	s.started("a")
	adm := adminAt(t, place)
	ready := func() bool { code, _ := adm.get("/readyz"); return code == 200 }
	eventually(t, patience, "it is ready", ready)
	if err := srv.Halt(); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "it is not ready", func() bool { return !ready() })
	_, body := adm.get("/readyz")
	if !strings.Contains(body, "database main: not reachable") || strings.Contains(body, srv.addr) || strings.Contains(body, "postgres") {
		t.Errorf("/readyz says %q", body)
	}
	for _, path := range []string{"/healthz", "/startupz"} {
		if code, body := adm.get(path); code != 200 {
			t.Errorf("%s without a database: %d %s", path, code, body)
		}
	}
	e := adm.scrape()
	if e.series[`qsidecar_database_reachable{database="main"}`] != 0 || e.series[`qsidecar_beat_failures_total{database="main"}`] == 0 {
		t.Errorf("the metrics do not tell that it is away:\n%s", e.text)
	}
	for series := range e.series {
		if strings.HasPrefix(series, "qsidecar_queue_jobs") {
			t.Errorf("it tells depths of a database that it does not reach: %s", series)
		}
	}
	if err := srv.Go(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "it is ready again", ready)
}
