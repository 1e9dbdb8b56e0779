package main

import (
	"database/sql"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// findings parses the output of check --json.
func (r result) findings(t *testing.T) (all []findingLine) {
	t.Helper()
	for line := range strings.Lines(r.out) {
		var f findingLine
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if f.Severity == "" || f.Topic == "" || f.Text == "" || f.Fix == "" && f.Severity != "info" {
			t.Errorf("no finding to be read: %s", line)
		}
		all = append(all, f)
	}
	return all
}

// textsOf returns the texts of a severity by database and topic.
func textsOf(all []findingLine, severity backends.Severity) map[string]string {
	m := map[string]string{}
	for _, f := range all {
		if f.Severity == severity.String() {
			m[strings.TrimSpace(f.Database+" "+f.Topic)] += f.Text + "\n"
		}
	}
	return m
}

// TestCheckSeverities checks info, warnings and errors, and the exit code of each.
func TestCheckSeverities(t *testing.T) {
	h := newHost(t)
	h.must(0, "migrate")
	file := filepath.Join(h.dir, "state", "qsidecar", "qsidecar.db")
	h.run("check", "--strict").wantStdout(t, 0, ": ok\n", "info    plan: ", "info    schema: ")
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	r := h.run("check")
	r.wantStdout(t, 0, ": ok, with 1 warning\n  warning rights: every user of this host can write the file (mode 0666)\n          → chmod o-w "+file, "info    plan: ")
	if strings.Index(r.out, "warning ") > strings.Index(r.out, "info  ") {
		t.Errorf("what matters more comes first:\n%s", r.out)
	}
	h.run("check", "--strict").wantStdout(t, 1, "with 1 warning")
	all := h.run("check", "--json").findings(t)
	if got := textsOf(all, backends.SeverityWarning); len(got) != 1 || got["main rights"] == "" {
		t.Errorf("warnings as JSON: %v", got)
	}
	if got := textsOf(all, backends.SeverityInfo); got["main server"] == "" || got["main plan"] == "" {
		t.Errorf("info as JSON: %v", got)
	}
	if err := os.Truncate(file, 5000); err != nil {
		t.Fatal(err)
	}
	h.run("check").wantStdout(t, 1, "error  ", "is damaged")
	r = h.run("check", "--json")
	if got := textsOf(r.findings(t), backends.SeverityError); r.code != 1 || got["main integrity"] == "" {
		t.Errorf("%+v", r)
	}
}

// TestCheckReportsAllProblems checks that one run reports the errors of the config and of all
// databases that can be examined.
func TestCheckReportsAllProblems(t *testing.T) {
	h := newHost(t)
	port, err := local.FreePort() // nothing answers there
	if err != nil {
		t.Fatal(err)
	}
	addr := "127.0.0.1:" + port
	mine := t.TempDir()
	h.must(0, "migrate", "--database", "sqlite:"+filepath.Join(mine, "q.db"))
	file := h.file("q.yaml", `databases:
  gone: {url: "postgres://app:hunter2@`+addr+`/app"}
  here: {url: "sqlite:`+h.dir+`"}
  odd: {url: "oracle://x"}
  short: {url: "sqlite:`+h.dir+`/x.db", sidecar_timeout: 1ms}
  keyless: {url: "postgres://app@`+addr+`/app", password_file: `+h.dir+`/none}
  mine: {url: "sqlite:`+filepath.Join(mine, "q.db")+`"}
queues:
  a: {database: here, timeuot: 1m}
  b: {database: nowhere}
  fits-not: {database: mine, table: none, columns: {id: id}, on_ack: delete}
  unread: {database: mine, table: none, columns: {idd: id}, on_ack: delete}
`)
	r := h.run("check", "--config", file)
	r.wantStderr(t, 2, "q.yaml has 5 errors", `unknown key "timeuot"`, `no database "nowhere"`, `"oracle" is not a kind`, "sidecar_timeout: 1ms is outside", "databases.keyless: the database's password_file cannot be read")
	r.wantStdout(t, 2, "database gone: 1 error\n  error   server: ", "connection refused", "database here: sqlite", "it is a folder", "database keyless: not checked")
	if strings.Contains(r.out+r.err, "hunter2") {
		t.Errorf("it shows the password:\n%s%s", r.out, r.err)
	}
	for _, not := range []string{"odd", "short"} {
		if strings.Contains(r.out, "database "+not) {
			t.Errorf("it looked at %s:\n%s", not, r.out)
		}
	}
	r = h.run("check", "--config", file, "--json")
	got := textsOf(r.findings(t), backends.SeverityError)
	if r.code != 2 || strings.Count(got["config"], "\n") != 6 || !strings.Contains(got["config"], "q.yaml:9:23: unknown key") || got["gone server"] == "" || got["here file"] == "" {
		t.Errorf("%d, %v", r.code, got)
	}
	if fits := got["mine table"]; !strings.HasPrefix(fits, "queues.fits-not.table: there is no table none") || strings.Contains(fits, "unread") {
		t.Errorf("of the tables it prints %q", fits)
	}
	h.run("check", "--config", filepath.Join(h.dir, "none.yaml")).wantStderr(t, 2, "the config file cannot be read")
	if left, err := filepath.Glob(filepath.Join(h.dir, "*")); err != nil || len(left) != 1 {
		t.Errorf("check made %v, %v", left, err)
	}
}

// TestCheckDatabaseWithTwoNames checks one database under two names.
func TestCheckDatabaseWithTwoNames(t *testing.T) {
	h := newHost(t)
	file := h.file("q.yaml", `databases:
  a: {url: "sqlite:`+h.dir+`/q.db"}
  b: {url: "sqlite:`+h.dir+`/q.db"}
defaults: {database: a}
`)
	h.run("check", "--config", file).wantStdout(t, 0, "database a", "database b") // unknown until the file exists
	h.must(0, "migrate", "--config", file)
	h.run("check", "--config", file).wantStderr(t, 2, "are the same database")
}

// TestCheckSocketPaths checks that check reports the same problems of socket paths as serve, and
// creates nothing.
func TestCheckSocketPaths(t *testing.T) {
	h := newHost(t)
	open := filepath.Join(h.dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(h.dir, strings.Repeat("x", 120))
	file := h.file("c.yaml", `listen:
  - socket: `+filepath.Join(h.dir, "none", "yet", "s")+`
  - socket: `+filepath.Join(open, "s")+`
  - socket: `+long+`
admin: {listen: 0.0.0.0:0, access: off}
`)
	r := h.run("check", "--config", file)
	r.wantStdout(t, 1, "  error   socket: "+filepath.Join(open, "s")+": every user can write the folder "+open+" (mode 0777)", "\n          → chmod o-w it, or",
		"  error   socket: "+long+": the path has ", "\n          → choose a shorter one\n", "  warning admin: ")
	if strings.Contains(r.out, filepath.Join("none", "yet", "s")+": ") {
		t.Errorf("it reports a folder that serve creates:\n%s", r.out)
	}
	all := h.run("check", "--config", file, "--json").findings(t)
	if got := textsOf(all, backends.SeverityError)["socket"]; strings.Count(got, "\n") != 2 {
		t.Errorf("as JSON: %q", got)
	}
	if left, err := filepath.Glob(filepath.Join(h.dir, "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("check made %v, %v", left, err)
	}
	h.run("serve", "--config", file).wantStderr(t, 1, "every user can write the folder "+open)
}

// TestCheckAdoptedTableOnly checks a database that has an adopted table, and not yet the tables of the sidecar: the first check of
// anyone who adopts a table. The mapping is tried on the table's constraints too.
func TestCheckAdoptedTableOnly(t *testing.T) {
	h := newHost(t)
	file := filepath.Join(h.dir, "app.db")
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE pics (id integer PRIMARY KEY, picture text NOT NULL, worker text,
		state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'processing', 'done', 'error'))) STRICT;
		CREATE INDEX of_pics ON pics (state, id); INSERT INTO pics (picture) VALUES ('a')`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for claimed, want := range map[string]string{"processing": "", "running": "refuses each claim"} {
		config := h.file("c.yaml", "databases: {main: {url: 'sqlite:"+file+"'}}\nqueues:\n  pics:\n    table: pics\n    columns: {id: id, payload: picture, state: state, worker: worker}\n"+
			"    states: {ready: waiting, claimed: "+claimed+", done: done, dead: error}\n")
		r := h.run("check", "--config", config)
		if failed := r.code != 0; failed != (want != "") || !strings.Contains(r.out, want) || strings.Contains(r.out, "no such table") {
			t.Errorf("claimed as %s: exit code %d, %s%s\nwant %q", claimed, r.code, r.out, r.err, want)
		}
	}
}
