package metrics

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/admin"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestDepthsOfSeveralSidecars checks three sidecars on one PostgreSQL. One of them exports the
// queue depths, and queries the server at most every 15 s, however often all are scraped. When it
// is killed, another one takes over within sidecar_timeout.
func TestDepthsOfSeveralSidecars(t *testing.T) {
	t.Parallel()
	s, srv := kit.NewPostgresSite(t)
	s.SidecarTimeout = 20 * time.Second // longer than a busy machine delays a heartbeat
	began := kit.Monotonic()
	if err := srv.Exec(t.Context(), "ALTER SYSTEM SET log_statement = 'all'", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	var all []*kit.Sidecar
	var admins []*admin.Listener
	for i := range 3 {
		place := filepath.Join(s.Dir, fmt.Sprintf("admin%d.sock", i))
		s.Extra = "admin: {listen: " + place + "}\n"
		all, admins = append(all, s.Start(fmt.Sprintf("s%d", i))), append(admins, admin.At(t, place))
	}
	all[0].Dial().Enqueue("q", 7)
	// tellers returns the sidecars that export the depths. It scrapes all that run.
	tellers := func() (who []int) {
		for i, a := range admins {
			if !all[i].Alive() {
				continue
			}
			if v, ok := a.Scrape().Series[`qsidecar_queue_jobs{database="main",queue="q",state="ready"}`]; ok {
				who = append(who, i)
				if v != 7 {
					t.Errorf("sidecar %d exports %v ready jobs, want 7", i, v)
				}
			}
		}
		if len(who) > 1 {
			t.Fatalf("sidecars %v export the depths, want one of them", who)
		}
		return who
	}
	testwait.Until(t, "one exports the depths", func() bool { return len(tellers()) == 1 })
	first := tellers()[0]
	for range 30 {
		if who := tellers(); len(who) != 1 || who[0] != first {
			t.Fatalf("%v export the depths, and before it was %d", who, first)
		}
	}
	reads := 0.0
	for _, a := range admins {
		reads += a.Scrape().Series[`qsidecar_queue_stats_reads_total{database="main"}`]
	}
	most := 1 + int(kit.Since(began)/(15*time.Second))                                                                   // once in 15 s, however long all of this took
	if n := strings.Count(srv.Log(), "SELECT queue FROM \"qsidecar\".qsidecar_queues WHERE paused"); n < 1 || n > most { // postgres's queuesPausedSQL
		t.Errorf("the server was asked for all queues %d times, want %d at most", n, most)
	}
	if int(reads) < 1 || int(reads) > most {
		t.Errorf("the depths were read %v times, want %d at most", reads, most)
	}

	killed := kit.Monotonic()
	all[first].Kill()
	testwait.Until(t, "another one exports the depths", func() bool { return len(tellers()) == 1 })
	took := kit.Since(killed)
	kit.Figure(t, "the depths were exported by another sidecar %.1f s after the first was killed; sidecar_timeout %v", took.Seconds(), s.SidecarTimeout)
	text := admins[tellers()[0]].Scrape().Text
	if n := strings.Count(text, "qsidecar_queue_jobs{"); n != 6 {
		t.Errorf("%d series of depths, want one for each state:\n%s", n, text)
	}
}

// TestHealthWhileTheDatabaseIsDown checks that /readyz names the unreachable database, but not its
// address. Everything else works.
func TestHealthWhileTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	s, srv := kit.NewPostgresSite(t)
	s.SidecarTimeout = 20 * time.Second // longer than a busy machine delays a heartbeat
	place := filepath.Join(s.Dir, "admin.sock")
	s.Extra = "admin: {listen: " + place + "}\n"
	s.Start("a")
	adm := admin.At(t, place)
	ready := func() bool { code, _ := adm.Get("/readyz"); return code == 200 }
	testwait.Until(t, "it is ready", ready)
	if err := srv.Halt(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it is not ready", func() bool { return !ready() })
	var body string
	testwait.Until(t, "it reports why", func() bool {
		_, body = adm.Get("/readyz")
		return strings.Contains(body, "not reachable")
	})
	if !strings.Contains(body, "database main: not reachable") || strings.Contains(body, srv.Addr) || strings.Contains(body, "postgres") {
		t.Errorf("/readyz returns %q", body)
	}
	for _, path := range []string{"/healthz", "/startupz"} {
		if code, body := adm.Get(path); code != 200 {
			t.Errorf("%s without a database: %d %s", path, code, body)
		}
	}
	e := adm.Scrape()
	if e.Series[`qsidecar_database_reachable{database="main"}`] != 0 || e.Series[`qsidecar_heartbeat_failures_total{database="main"}`] == 0 {
		t.Errorf("the metrics do not tell that it is away:\n%s", e.Text)
	}
	for series := range e.Series {
		if strings.HasPrefix(series, "qsidecar_queue_jobs") {
			t.Errorf("it exports depths of a database that it does not reach: %s", series)
		}
	}
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it is ready again", ready)
}
