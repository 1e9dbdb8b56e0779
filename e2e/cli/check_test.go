package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestCheckPostgres checks the report and exit code of check: without tables, beside a running
// sidecar, with a warning, with an error, and without a server.
func TestCheckPostgres(t *testing.T) {
	s, srv := kit.NewPostgresSite(t)
	a := s.Sidecar("a")
	tables := func() string {
		return strings.Join(srv.Query(srv.URL, "SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace('qsidecar') ORDER BY 1"), " ")
	}

	fresh := a.Check(s.Dir, 0, "--json", "--strict")
	if got := fresh.Problems(t, "info"); !strings.Contains(got["schema"], "the tables are missing") || !strings.Contains(got["durability"], "is on disk") {
		t.Errorf("before the first start: %s", fresh.Stdout)
	}
	if tables() != "" {
		t.Errorf("check created %s", tables())
	}

	a.Start()
	w := a.Dial()
	w.Enqueue("q", 3)
	before := tables()
	healthy := a.Check(s.Dir, 0, "--json", "--strict")
	got := healthy.Problems(t, "info")
	for topic, words := range map[string]string{"schema": " exist, of version", "plan": "qsidecar_ready", "connections": "open under its name by now: ", "rights": "all that a sidecar needs"} {
		if !strings.Contains(got[topic], words) {
			t.Errorf("%s is not reported as %q:\n%s", topic, words, healthy.Stdout)
		}
	}
	if text := a.Check(s.Dir, 0); !strings.Contains(text.Stdout, "config "+a.ConfigFile+": ok\ndatabase main: postgres 1") || !strings.Contains(text.Stdout, "socket: "+a.Socket) {
		t.Errorf("the text output is %s", text.Stdout)
	}
	if after := tables(); after != before {
		t.Errorf("check changed %s to %s", before, after)
	}
	if got := w.ClaimOne("q"); got.Attempt != 1 {
		t.Errorf("beside the checks: %+v", got)
	}

	checkFaults(t, s, srv, a)
	checkServerDown(t, s, srv, a)
}

// checkFaults checks advice, and a problem of a running sidecar.
func checkFaults(t *testing.T, s *kit.Site, srv *databases.Postgres, a *kit.Sidecar) {
	if err := srv.Exec(t.Context(), "ALTER DATABASE e2e SET synchronous_commit = off"); err != nil {
		t.Fatal(err)
	}
	weak := a.Check(s.Dir, 0, "--json")
	if got := weak.Problems(t, "warning"); !strings.Contains(got["durability"], "synchronous_commit is off") || len(got) != 1 {
		t.Errorf("with synchronous_commit off: %s", weak.Stdout)
	}
	a.Check(s.Dir, 1, "--strict")

	srv.Query(srv.URL, "DROP INDEX qsidecar.qsidecar_ready")
	broken := a.Check(s.Dir, 1, "--json")
	if got := broken.Problems(t, "error"); len(got) != 2 || !strings.Contains(got["indexes"], "CREATE INDEX CONCURRENTLY qsidecar_ready") || !strings.Contains(got["plan"], "qsidecar_ready") {
		t.Errorf("without the index: %s", broken.Stdout)
	}
}

// checkServerDown checks a server that is down, and one whose config is also wrong.
func checkServerDown(t *testing.T, s *kit.Site, srv *databases.Postgres, a *kit.Sidecar) {
	if err := srv.Halt(); err != nil {
		t.Fatal(err)
	}
	gone := a.Check(s.Dir, 1, "--json")
	if got := gone.Problems(t, "error"); !strings.Contains(got["server"], srv.Name) || gone.Stderr != "" {
		t.Errorf("without the server: %+v", gone)
	}
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.ConfigFile, []byte("databases: {main: {url: \""+srv.URL+"\"}}\nqeues: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	wrong := a.Check(s.Dir, 2, "--json")
	wrong.WantError(t, 2, "qeues")
	if got := wrong.Problems(t, "error"); !strings.Contains(got["config"], ":2:1: unknown key \"qeues\"") || got["indexes"] == "" {
		t.Errorf("with a wrong key too: %s", wrong.Stdout)
	}
}

// TestCheckSQLite checks a file that a sidecar has open, and a path without a file.
func TestCheckSQLite(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Sidecar("a")
	list := func() string {
		names, err := filepath.Glob(filepath.Join(s.Dir, "q.db*"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(names, " ")
	}
	fresh := a.Check(s.Dir, 0, "--json", "--strict")
	if got := fresh.Problems(t, "info"); !strings.Contains(got["schema"], "there is no file yet") || list() != "" {
		t.Errorf("before the first start: %s; there is %q", fresh.Stdout, list())
	}
	a.Start()
	a.Dial().Enqueue("q", 1)
	beside := a.Check(s.Dir, 0, "--json", "--strict")
	if got := beside.Problems(t, "info"); !strings.Contains(got["locks"], "(qsidecar)") || !strings.Contains(got["integrity"], "finds no damage") {
		t.Errorf("beside the sidecar: %s", beside.Stdout)
	}
	if got := a.Dial().ClaimOne("q"); got.Attempt != 1 {
		t.Errorf("after the check: %+v", got)
	}
}

// TestCheckPackets checks that MySQL's packet size is compared with this config's largest payload,
// not with the default.
func TestCheckPackets(t *testing.T) {
	s, _, err := kit.NewMySQLSite(t, testserver.MariaDB1011)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Sidecar("a").Check(s.Dir, 0, "--json").Problems(t, "warning")["packets"]; got != "" {
		t.Errorf("with the default max_frame: %s", got)
	}
	s.Extra = "max_frame: 32MiB\n"
	if got := s.Sidecar("b").Check(s.Dir, 0, "--json").Problems(t, "warning")["packets"]; !strings.Contains(got, "max_allowed_packet") {
		t.Errorf("no advice with max_frame 32MiB: %q", got)
	}
}
