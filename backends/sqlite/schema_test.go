package sqlite

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/sqlite/migrate"
)

// shell runs SQL on a database file without a Store.
func shell(t *testing.T, path, sql string) {
	t.Helper()
	if _, _, err := prepare(path); err != nil {
		t.Fatal(err)
	}
	c, err := connect(path, "busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.once(sql); err != nil {
		t.Error(err)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
}

func TestBadInsertsAreRejected(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	for _, columns := range []string{
		`queue) VALUES (NULL`, `queue) VALUES (''`, `queue) VALUES ('a b'`, `queue) VALUES ('.hidden'`,
		`queue) VALUES ('-x'`, `queue) VALUES ('ü'`, `queue) VALUES (x'6162'`, `queue) VALUES ('a' || char(0) || 'b'`,
		`queue) VALUES (printf('%.129d', 0)`, `payload) VALUES ('no queue'`,
		`queue, payload) VALUES ('q', NULL`,
		`queue, priority) VALUES ('q', 32768`, `queue, priority) VALUES ('q', -32769`, `queue, priority) VALUES ('q', 1.5`,
		`queue, priority) VALUES ('q', 'high'`, `queue, priority) VALUES ('q', NULL`,
		`queue, max_attempts) VALUES ('q', 0`, `queue, max_attempts) VALUES ('q', 32768`, `queue, max_attempts) VALUES ('q', 'x'`,
		`queue, headers) VALUES ('q', 'no json'`, `queue, headers) VALUES ('q', '[1]'`, `queue, headers) VALUES ('q', '"text"'`,
		`queue, run_at) VALUES ('q', 'tomorrow'`, `queue, run_at) VALUES ('q', 1.5`, `queue, run_at) VALUES ('q', x'00'`,
		`queue, run_at) VALUES ('q', strftime('%s') + 60`, `queue, start_before) VALUES ('q', strftime('%s') + 60`,
		`queue, run_at) VALUES ('q', 1800000000`, `queue, start_before) VALUES ('q', 1800000000`,
		`id, queue) VALUES (-1, 'q'`,
	} {
		sql := `INSERT INTO qsidecar_jobs (` + columns + `)`
		if err := exec(t, s, sql); err == nil {
			t.Errorf("accepted: %s", sql)
		} else if !strings.Contains(err.Error(), "constraint") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if n := ready(t, s); n != 0 {
		t.Errorf("%d ready", n)
	}
	for columns, rule := range map[string]string{
		`queue, headers) VALUES ('q', 'no json')`: "headers: use a JSON object with texts as values",
		`queue, run_at) VALUES ('q', 'tomorrow')`: "run_at: milliseconds since 1970, or UTC as 2030-01-31 08:00:00",
		`queue, priority) VALUES ('q', 99999)`:    "priority: use a number from -32768 to 32767",
		`queue, state) VALUES ('q', 'claimed')`:   "state: leave it out",
		`queue) VALUES ('my queue')`:              "use A-Z a-z 0-9 . _ : / - and do not start with . or -",
	} {
		if err := exec(t, s, `INSERT INTO qsidecar_jobs (`+columns); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("%v does not name the rule %s", err, rule)
		}
	}
}

func TestLaterInsertsGoBehind(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	insert := func(payload string) {
		if err := exec(t, s, `INSERT INTO qsidecar_jobs (queue, payload) VALUES ('q', '`+payload+`')`); err != nil {
			t.Fatal(err)
		}
	}
	insert("a")
	insert("b")
	j := claim(t, s, 1, "q", 1)
	if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{
		backends.Nack{Leases: []backends.Lease{{Job: j[0].ID, Token: j[0].Token}}, HasDelay: true},
	}}); err != nil {
		t.Fatal(err)
	}
	insert("c")
	if err := exec(t, s, `DELETE FROM qsidecar_jobs WHERE CAST(payload AS TEXT) = 'c'`); err != nil {
		t.Fatal(err)
	}
	insert("d")
	var got []string
	ids := map[string]bool{}
	for _, j := range claim(t, s, 1, "q", 9) {
		got = append(got, string(j.Payload))
		ids[j.ID] = true
	}
	if strings.Join(got, "") != "bad" || len(ids) != 3 {
		t.Errorf("the order was %v, want b, a, d", got)
	}
}

func TestARowDeletedByHand(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	put := func() backends.Stored {
		r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Key: "k", KeyTTL: 1 << 40}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Writes[0].Stored[0]
	}
	first := put()
	j := claim(t, s, 1, "q", 1)[0]
	lease := []backends.Lease{{Job: j.ID, Token: j.Token}}
	if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{
		backends.Nack{Leases: lease, HasDelay: true, Error: "e"},
	}}); err != nil {
		t.Fatal(err)
	}
	if err := exec(t, s, `DELETE FROM qsidecar_jobs`); err != nil {
		t.Fatal(err)
	}
	if again := put(); !again.Duplicate || again.ID != first.ID || again.State != backends.StateDeleted {
		t.Errorf("its key answers %+v", again)
	}
	if err := exec(t, s, `CREATE TABLE t (n CHECK (n = 0)); INSERT INTO t SELECT count(*) FROM qsidecar_failures`); err != nil {
		t.Errorf("its failures are left: %v", err)
	}
}

func TestTheSchemaByHand(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "jobs.db")
	shell(t, path, migrate.SQL(0))
	s := open(t, path)
	if _, err := s.Commit(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	again := open(t, path)
	if s.Info().Database != again.Info().Database || len(s.Info().Database) != 11 {
		t.Errorf("%q and %q", s.Info().Database, again.Info().Database)
	}
}

func TestSchemasThatAreNotOurs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "newer.db")
	if err := open(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	shell(t, path, `UPDATE qsidecar_meta SET version = 7`)
	if err := open(t, path).Close(); err != nil { // newer, but still usable by this program
		t.Fatal(err)
	}
	shell(t, path, `UPDATE qsidecar_meta SET min_program = 6`)
	fails(t, path, "newer qsidecar", "generation 6", "upgrade")

	foreign := filepath.Join(t.TempDir(), "foreign.db")
	shell(t, foreign, `CREATE TABLE qsidecar_jobs (x)`)
	fails(t, foreign, "qsidecar_jobs", "not created by qsidecar")

	utf16 := filepath.Join(t.TempDir(), "utf16.db")
	shell(t, utf16, `PRAGMA encoding = 'UTF-16'; CREATE TABLE x (y)`)
	fails(t, utf16, "encoding")
}

func TestBesideOtherTables(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	shell(t, path, `CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO orders DEFAULT VALUES`)
	s := open(t, path)
	// In the application's own transaction: the job does not exist before the commit, nor after a rollback.
	shell(t, path, `BEGIN; INSERT INTO orders DEFAULT VALUES; INSERT INTO qsidecar_jobs (queue) VALUES ('q'); ROLLBACK`)
	if n := ready(t, s); n != 0 {
		t.Errorf("%d ready after a rollback", n)
	}
	shell(t, path, `BEGIN; INSERT INTO orders DEFAULT VALUES; INSERT INTO qsidecar_jobs (queue) SELECT 'q' FROM orders; COMMIT`)
	if n := len(claim(t, s, 1, "q", 9)); n != 2 {
		t.Errorf("%d given, want 2", n)
	}
}

// nextVersion is a migration that follows the latest one: a column and an index. Programs of migrate.Latest can run beside
// a program that has it.
const nextVersion = `
ALTER TABLE qsidecar_sidecars ADD COLUMN test_note TEXT;
CREATE INDEX qsidecar_test_index ON qsidecar_failures (at, cause);
`

// openNext opens a file with a program of the next version.
func openNext(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Path: path, later: []string{nextVersion}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// shape returns the definitions of everything that migrations create, without comments,
// spaces and quotes.
func shape(t *testing.T, s *Store) (all []string) {
	t.Helper()
	if err := s.writer.query(t.Context(), `SELECT type || ' ' || name || ' on ' || tbl_name || ': ' || coalesce(sql, '') FROM sqlite_master WHERE name LIKE '%qsidecar%'
		UNION ALL SELECT 'version ' || version || ' for ' || min_program FROM qsidecar_meta ORDER BY 1`, func(r row) error {
		text := regexp.MustCompile(`--.*`).ReplaceAllString(r.text(0), "")
		text = strings.Join(strings.Fields(strings.ReplaceAll(text, `"`, "")), " ")
		all = append(all, strings.NewReplacer(" ,", ",", " )", ")").Replace(text)) // ADD COLUMN keeps the end of the line before the comma
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestMigration: all paths to the next version create the same tables and keep the rows, and this version works beside it.
func TestMigration(t *testing.T) {
	t.Parallel()
	want := shape(t, openNext(t, filepath.Join(t.TempDir(), "fresh.db")))
	for by, upgrade := range map[string]func(path string){
		"start": func(string) {},
		"hand": func(path string) {
			shell(t, path, "BEGIN IMMEDIATE;"+nextVersion+"UPDATE qsidecar_meta SET version = version + 1; COMMIT")
		},
	} {
		path := filepath.Join(t.TempDir(), by+".db")
		backendtest.CheckNeighbours(t, open(t, path), func() backends.Backend {
			upgrade(path)
			return openNext(t, path)
		})
		if diff := cmp.Diff(want, shape(t, openNext(t, path))); diff != "" {
			t.Errorf("by %s (-fresh +this):\n%s", by, diff)
		}
	}
}

// TestAFailedMigration: a migration that fails changes nothing, and its error names the version.
func TestAFailedMigration(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	before := shape(t, s)
	if _, err := Open(t.Context(), Options{Path: s.path, later: []string{nextVersion, "SELECT nothing"}}); err == nil || !strings.Contains(err.Error(), "to version 3") {
		t.Errorf("%v, want it to name the version", err)
	}
	if diff := cmp.Diff(before, shape(t, s)); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}
