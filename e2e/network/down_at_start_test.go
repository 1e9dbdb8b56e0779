package network

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/admin"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestDatabaseDownAtTheStart starts a sidecar without a running database. It serves, reports the
// outage, reports no lease as lost, and delivers jobs as soon as the database runs.
func TestDatabaseDownAtTheStart(t *testing.T) {
	t.Parallel()
	s, srv := kit.NewPostgresSite(t)
	place := filepath.Join(s.Dir, "admin.sock")
	s.Extra = "admin: {listen: " + place + "}\n"
	sc := s.Start("a")
	worker := sc.Dial()
	worker.Enqueue("mail", 2)
	held := worker.ClaimOne("mail")
	sc.Signal(syscall.SIGTERM)
	testwait.Until(t, "it stops", func() bool { return strings.Contains(sc.Log(), "event=stopping") })
	sc.Signal(syscall.SIGTERM) // claimed jobs stay claimed
	if code := sc.WaitExit(); code != 0 {
		t.Fatalf("it exited with %d", code)
	}
	if err := srv.Halt(); err != nil {
		t.Fatal(err)
	}

	sc.Start()
	adm := admin.At(t, place)
	for path, want := range map[string]int{"/startupz": 200, "/healthz": 200, "/readyz": 503} {
		if code, body := adm.Get(path); code != want {
			t.Errorf("%s without a database: %d %s", path, code, body)
		}
	}
	c := sc.Dial()
	c.Must(kit.Msg{"op": "ping"})
	c.MustFail("unavailable", kit.Msg{"op": "ack", "lease": held.Lease})
	c.MustFail("unavailable", kit.Msg{"op": "extend", "leases": []string{held.Lease}, "bind": true})
	c.MustFail("unavailable", kit.Msg{"op": "stats"})
	waits := sc.Dial()
	waits.Post(kit.Msg{"op": "claim", "queue": "mail", "wait_ms": 600_000})
	if text := shown(sc); !strings.Contains(text, "not reached yet") || !strings.Contains(text, "the database cannot be opened") {
		t.Errorf("status prints\n%s", text)
	}
	// A reload that does not concern the database works.
	config, err := os.ReadFile(sc.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sc.ConfigFile, append(config, "  extra: {}\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the reload", func() bool { return strings.Contains(sc.Log(), "event=config_reloaded") })

	restartServer(t, srv)
	if r := waits.Next(); r.Error != nil || len(r.Jobs) != 1 {
		t.Errorf("the claim that waited for the database: %d jobs, %v", len(r.Jobs), r.Error)
	}
	c.Must(kit.Msg{"op": "ack", "lease": held.Lease})
	testwait.Until(t, "it is ready", func() bool { code, _ := adm.Get("/readyz"); return code == 200 })
	testwait.Until(t, "status has the database, and nothing in its place any more", func() bool {
		text := shown(sc)
		return !strings.Contains(text, "not reached yet") && strings.Count(text, "postgres 18") == 1
	})
	if !sc.Alive() {
		t.Error("it ended")
	}
}

// shown returns the output of `qsidecar status`.
func shown(sc *kit.Sidecar) string {
	sc.T.Helper()
	text, err := exec.Command(kit.Binary, "status", "--socket", sc.Socket).Output()
	if err != nil {
		sc.T.Fatal(err)
	}
	return string(text)
}

// TestDeniedAtTheStart checks that a database which denies access is an error at once.
func TestDeniedAtTheStart(t *testing.T) {
	t.Parallel()
	s, _ := kit.NewPostgresSite(t)
	s.URL = strings.Replace(s.URL, "/e2e?", "/nosuch?", 1)
	sc := s.Sidecar("a")
	sc.Launch()
	if code := sc.WaitExit(); code != 1 {
		t.Errorf("it exited with %d", code)
	}
	if log := sc.Log(); !strings.Contains(log, "nosuch") {
		t.Errorf("it printed %q", log)
	}
}

// TestMigrationThatTakesLong checks a database whose tables take longer than a start waits for
// them, for example because another sidecar migrates them. The sockets are served at once, and jobs
// as soon as the tables are ready.
func TestMigrationThatTakesLong(t *testing.T) {
	t.Parallel()
	s, srv := kit.NewPostgresSite(t)
	place := filepath.Join(s.Dir, "admin.sock")
	s.Extra = "admin: {listen: " + place + "}\n"
	other, err := pgx.Connect(t.Context(), srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	const lock = "(x'7173696465636172'::bigint)" // postgres's schemaLock
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_lock"+lock); err != nil {
		t.Fatal(err)
	}

	sc := s.Start("a") // after the time that a start waits
	adm := admin.At(t, place)
	if code, body := adm.Get("/startupz"); code != 200 {
		t.Errorf("/startupz: %d %s", code, body)
	}
	if code, body := adm.Get("/readyz"); code != 503 || !strings.Contains(body, "main: not reached yet") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	c := sc.Dial()
	c.MustFail("unavailable", kit.Msg{"op": "stats"})
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_unlock"+lock); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it is ready", func() bool { code, _ := adm.Get("/readyz"); return code == 200 })
	c.Enqueue("q", 1)
	c.ClaimOne("q")
}
