package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// found is what check --json says of a grade: the texts by topic.
func (s said) found(t testing.TB, grade string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(s.out) {
		var f struct{ Database, Grade, Topic, Text, Do string }
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if f.Grade == grade {
			all[f.Topic] += f.Text + " → " + f.Do + "\n"
		}
	}
	return all
}

// checked runs check and compares its exit code.
func (sc *sidecar) checked(dir string, code int, args ...string) said {
	sc.t.Helper()
	s := cli(sc.t, dir, nil, append([]string{"check", "--config", sc.config}, args...)...)
	if s.code != code {
		sc.t.Errorf("check %v exits with %d, want %d:\n%s%s", args, s.code, code, s.out, s.diag)
	}
	return s
}

// TestCheckPostgres: what check says, and with which exit code, of a server
// without tables, beside a sidecar at work, with advice, with a problem, and gone.
func TestCheckPostgres(t *testing.T) {
	s, srv := newPostgresSite(t)
	a := s.sidecar("a")
	tables := func() string {
		return strings.Join(srv.query(srv.url, "SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace('qsidecar') ORDER BY 1"), " ")
	}

	fresh := a.checked(s.dir, 0, "--json", "--strict")
	if got := fresh.found(t, "fact"); !strings.Contains(got["schema"], "the tables are missing") || !strings.Contains(got["durability"], "is on disk") {
		t.Errorf("before the first start: %s", fresh.out)
	}
	if tables() != "" {
		t.Errorf("check made %s", tables())
	}

	a.start()
	w := a.dial()
	w.enqueueN("q", 3)
	before := tables()
	healthy := a.checked(s.dir, 0, "--json", "--strict")
	got := healthy.found(t, "fact")
	for topic, words := range map[string]string{"schema": "are there", "plan": "qsidecar_ready", "connections": "open under its name by now: ", "rights": "all that a sidecar needs"} {
		if !strings.Contains(got[topic], words) {
			t.Errorf("%s is not told as %q:\n%s", topic, words, healthy.out)
		}
	}
	if text := a.checked(s.dir, 0); !strings.Contains(text.out, "config "+a.config+": ok\ndatabase main: postgres 1") || !strings.Contains(text.out, "socket: "+a.socket) {
		t.Errorf("for people it says %s", text.out)
	}
	if after := tables(); after != before {
		t.Errorf("check made of %s this: %s", before, after)
	}
	if got := w.claimOne("q"); got.Attempt != 1 {
		t.Errorf("beside the checks: %+v", got)
	}

	checkFaults(t, s, srv, a)
	checkGone(t, s, srv, a)
}

// checkFaults: advice, and a problem that a sidecar at work has.
func checkFaults(t *testing.T, s *site, srv *server, a *sidecar) {
	if err := srv.Exec(t.Context(), "ALTER DATABASE e2e SET synchronous_commit = off"); err != nil {
		t.Fatal(err)
	}
	weak := a.checked(s.dir, 0, "--json")
	if got := weak.found(t, "advice"); !strings.Contains(got["durability"], "synchronous_commit is off") || len(got) != 1 {
		t.Errorf("with synchronous_commit off: %s", weak.out)
	}
	a.checked(s.dir, 1, "--strict")

	srv.query(srv.url, "DROP INDEX qsidecar.qsidecar_ready")
	broken := a.checked(s.dir, 1, "--json")
	if got := broken.found(t, "problem"); len(got) != 2 || !strings.Contains(got["indexes"], "CREATE INDEX CONCURRENTLY qsidecar_ready") || !strings.Contains(got["plan"], "qsidecar_ready") {
		t.Errorf("without the index: %s", broken.out)
	}
}

// checkGone: a server that is gone, and one whose config is wrong besides.
func checkGone(t *testing.T, s *site, srv *server, a *sidecar) {
	if err := srv.Halt(); err != nil {
		t.Fatal(err)
	}
	gone := a.checked(s.dir, 1, "--json")
	if got := gone.found(t, "problem"); !strings.Contains(got["server"], srv.database) || gone.diag != "" {
		t.Errorf("without the server: %+v", gone)
	}
	if err := srv.Go(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.config, []byte("databases: {main: {url: \""+srv.url+"\"}}\nqeues: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	wrong := a.checked(s.dir, 2, "--json")
	wrong.tells(t, 2, "qeues")
	if got := wrong.found(t, "problem"); !strings.Contains(got["config"], ":2:1: unknown key \"qeues\"") || got["indexes"] == "" {
		t.Errorf("with a wrong key too: %s", wrong.out)
	}
}

// TestCheckSQLite: beside a sidecar that has the file open, and of a place where
// nothing is yet.
func TestCheckSQLite(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.sidecar("a")
	list := func() string {
		names, err := filepath.Glob(filepath.Join(s.dir, "q.db*"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(names, " ")
	}
	fresh := a.checked(s.dir, 0, "--json", "--strict")
	if got := fresh.found(t, "fact"); !strings.Contains(got["schema"], "there is no file yet") || list() != "" {
		t.Errorf("before the first start: %s; there is %q", fresh.out, list())
	}
	a.start()
	a.dial().enqueueN("q", 1)
	beside := a.checked(s.dir, 0, "--json", "--strict")
	if got := beside.found(t, "fact"); !strings.Contains(got["locks"], "(qsidecar)") || !strings.Contains(got["integrity"], "is whole") {
		t.Errorf("beside the sidecar: %s", beside.out)
	}
	if got := a.dial().claimOne("q"); got.Attempt != 1 {
		t.Errorf("after the check: %+v", got)
	}
}

// TestCheckPackets: what MySQL's packets can hold is held against this config's
// largest payload, and not against the default.
func TestCheckPackets(t *testing.T) {
	s, _, err := newMySQLSite(t, testserver.MariaDB1011)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.sidecar("a").checked(s.dir, 0, "--json").found(t, "advice")["packets"]; got != "" {
		t.Errorf("with the default max_frame: %s", got)
	}
	s.extra = "max_frame: 32MiB\n"
	if got := s.sidecar("b").checked(s.dir, 0, "--json").found(t, "advice")["packets"]; !strings.Contains(got, "max_allowed_packet") {
		t.Errorf("with max_frame 32MiB no advice is given: %q", got)
	}
}
