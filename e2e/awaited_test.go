package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestDatabaseAwayAtTheStart: a sidecar starts beside a database that does not run. It
// serves, says so, calls no lease lost, and gives out jobs as soon as the database is there.
func TestDatabaseAwayAtTheStart(t *testing.T) {
	t.Parallel()
	s, srv := newPostgresSite(t)
	place := filepath.Join(s.dir, "admin.sock")
	s.extra = "admin: {listen: " + place + "}\n"
	sc := s.started("a")
	worker := sc.dial()
	worker.enqueueN("mail", 2)
	held := worker.claimOne("mail")
	sc.signal(syscall.SIGTERM)
	eventually(t, patience, "it stops", func() bool { return strings.Contains(sc.readLog(), "stopping") })
	sc.signal(syscall.SIGTERM) // what is held outlives it
	if code := sc.exit(patience); code != 0 {
		t.Fatalf("it exited with %d", code)
	}
	if err := srv.Halt(); err != nil {
		t.Fatal(err)
	}

	sc.start()
	adm := adminAt(t, place)
	for path, want := range map[string]int{"/startupz": 200, "/healthz": 200, "/readyz": 503} {
		if code, body := adm.get(path); code != want {
			t.Errorf("%s without a database: %d %s", path, code, body)
		}
	}
	c := sc.dial()
	c.must(msg{"op": "ping"})
	c.refused("unavailable", msg{"op": "ack", "lease": held.Lease})
	c.refused("unavailable", msg{"op": "extend", "leases": []string{held.Lease}, "bind": true})
	c.refused("unavailable", msg{"op": "stats"})
	waits := sc.dial()
	waits.post(msg{"op": "claim", "queue": "mail", "wait_ms": 600_000})
	if text := sc.shown(); !strings.Contains(text, "not reached yet") || !strings.Contains(text, "the database cannot be opened") {
		t.Errorf("status says\n%s", text)
	}
	// A reload that has nothing to do with the database is taken.
	config, err := os.ReadFile(sc.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sc.config, append(config, "  extra: {}\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "the reload", func() bool { return strings.Contains(sc.readLog(), "the config was reloaded") })

	comeBack(t, srv)
	if r := waits.next(); r.Error != nil || len(r.Jobs) != 1 {
		t.Errorf("the claim that waited for the database: %d jobs, %v", len(r.Jobs), r.Error)
	}
	c.must(msg{"op": "ack", "lease": held.Lease})
	eventually(t, patience, "it is ready", func() bool { code, _ := adm.get("/readyz"); return code == 200 })
	eventually(t, patience, "status has the database, and nothing in its place any more", func() bool {
		text := sc.shown()
		return !strings.Contains(text, "not reached yet") && strings.Count(text, "postgres 18") == 1
	})
	if !sc.alive() {
		t.Error("it ended")
	}
}

// shown is what `qsidecar status` says.
func (sc *sidecar) shown() string {
	sc.t.Helper()
	text, err := exec.Command(binary, "status", "--socket", sc.socket).Output()
	if err != nil {
		sc.t.Fatal(err)
	}
	return string(text)
}

// TestDeniedAtTheStart: a database that does not let the sidecar in is an error at once.
func TestDeniedAtTheStart(t *testing.T) {
	t.Parallel()
	s, _ := newPostgresSite(t)
	s.url = strings.Replace(s.url, "/e2e?", "/nosuch?", 1)
	sc := s.sidecar("a")
	sc.launch()
	if code := sc.exit(patience); code != 1 {
		t.Errorf("it exited with %d", code)
	}
	if log := sc.readLog(); !strings.Contains(log, "nosuch") {
		t.Errorf("it said %q", log)
	}
}

// TestMigrationThatTakesLong: where the tables of a database take longer than a start waits
// for, as when another sidecar is at them, the sockets are served, and the jobs as soon as
// the tables are there.
func TestMigrationThatTakesLong(t *testing.T) {
	t.Parallel()
	s, srv := newPostgresSite(t)
	place := filepath.Join(s.dir, "admin.sock")
	s.extra = "admin: {listen: " + place + "}\n"
	other, err := pgx.Connect(t.Context(), srv.url)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	const lock = "(x'7173696465636172'::bigint)" // of postgres's schemaLock
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_lock"+lock); err != nil {
		t.Fatal(err)
	}

	sc := s.started("a") // after the time that a start waits
	adm := adminAt(t, place)
	if code, body := adm.get("/startupz"); code != 200 {
		t.Errorf("/startupz: %d %s", code, body)
	}
	if code, body := adm.get("/readyz"); code != 503 || !strings.Contains(body, "main: not reached yet") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	c := sc.dial()
	c.refused("unavailable", msg{"op": "stats"})
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_unlock"+lock); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "it is ready", func() bool { code, _ := adm.get("/readyz"); return code == 200 })
	c.enqueueN("q", 1)
	c.claimOne("q")
}
