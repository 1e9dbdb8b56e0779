package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
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
	if text := sc.shown(); strings.Contains(text, "not reached yet") || strings.Count(text, "postgres 18") != 1 {
		t.Errorf("status says\n%s", text)
	}
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
