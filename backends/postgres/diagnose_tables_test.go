package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres"
	"github.com/qsidecar/qsidecar/backends/postgres/diagnose"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

var (
	everywhere = postgres.Everywhere
	open       = postgres.OpenStore
	filled     = postgres.Filled
	exec       = postgres.Exec
	must       = postgres.Must
	as         = postgres.As
	poolers    = postgres.Poolers
)

func examine(t *testing.T, s *postgres.Store, queues []backends.Policy, th diagnose.Thresholds) ([]backends.Finding, error) {
	x := diagnose.New(s)
	x.Thresholds = th
	return x.Examine(t.Context(), queues)
}

// want is a finding whose text and fix contain these words.
type want struct {
	grade    backends.Severity
	topic    string
	text, do string
}

func (w want) is(f backends.Finding) bool {
	return f.Severity == w.grade && f.Topic == w.topic && strings.Contains(f.Text, w.text) && strings.Contains(f.Fix, w.do)
}

// examined checks the database. It fails if the check changed anything, or if a finding has no
// text or no fix.
func examined(t *testing.T, o postgres.Options, th diagnose.Thresholds) []backends.Finding {
	t.Helper()
	o.ReadOnly = true
	admin, err := pgx.ParseConfig(o.URL)
	if err != nil {
		t.Fatal(err)
	}
	before := allOf(t, admin)
	s := open(t, o)
	found, err := examine(t, s, []backends.Policy{{Queue: "a"}, {Queue: "b", LIFO: true}}, th)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, allOf(t, admin)); diff != "" {
		t.Errorf("Examine changed something (-before +after):\n%s", diff)
	}
	for _, f := range found {
		if f.Topic == "" || f.Text == "" || f.Severity != backends.SeverityInfo && f.Fix == "" || strings.Contains(f.Text+f.Fix, "%!") {
			t.Errorf("no finding to be read: %+v", f)
		}
	}
	return found
}

// allOf returns everything that a check could change in a database: the definition and the rows
// of each relation.
func allOf(t *testing.T, config *pgx.ConnConfig) map[string]string {
	t.Helper()
	config = config.Copy()
	config.User, config.Password = "postgres", ""       // this role reads everything
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // the server can be a pooler
	c, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	rows, err := c.Query(t.Context(), `
		SELECT c.oid::regclass::text, (to_jsonb(c) - 'reltuples' - 'relpages' - 'relallvisible' - 'relallfrozen' - 'relfrozenxid' - 'relminmxid')::text || CASE WHEN c.relkind IN ('r', 'S') AND (c.relpersistence = 'p' OR NOT pg_is_in_recovery()) -- a standby has no others
			THEN query_to_xml('SELECT * FROM ' || c.oid::regclass || CASE c.relkind WHEN 'r' THEN ' ORDER BY 1 LIMIT 100' ELSE '' END, true, true, '')::text ELSE '' END
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname !~ '^pg_|^information_schema$'
		UNION ALL SELECT 'settings of ' || setrole || ' in ' || setdatabase, setconfig::text FROM pg_db_role_setting
			WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
		UNION ALL SELECT 'schemas', string_agg(nspname, ' ' ORDER BY nspname) FROM pg_namespace WHERE nspname !~ '^pg_'`)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	var name, what string
	if _, err := pgx.ForEachRow(rows, []any{&name, &what}, func() error { all[name] = what; return nil }); err != nil {
		t.Fatal(err)
	}
	if all["schemas"] == "" {
		t.Fatalf("the fingerprint shows nothing: %v", all)
	}
	return all
}

// has fails if a finding of `wanted` is missing, or if there is another problem.
func has(t *testing.T, found []backends.Finding, wanted ...want) {
	t.Helper()
	used := make([]bool, len(found))
	for _, w := range wanted {
		ok := false
		for i, f := range found {
			if w.is(f) {
				ok, used[i] = true, true
			}
		}
		if !ok {
			t.Errorf("not found: %v %s %q, do %q, in\n%s", w.grade, w.topic, w.text, w.do, listed(found))
		}
	}
	for i, f := range found {
		if f.Severity == backends.SeverityError && !used[i] {
			t.Errorf("not expected: %+v", f)
		}
	}
}

func listed(found []backends.Finding) string {
	var b strings.Builder
	for _, f := range found {
		fmt.Fprintf(&b, "  %v %s: %s → %s\n", f.Severity, f.Topic, f.Text, f.Fix)
	}
	return b.String()
}

// runner creates a role that runs a sidecar. It drops the role after the databases that grant
// it rights.
func runner(t *testing.T, p *testserver.Postgres, name string) string {
	t.Helper()
	if err := p.Exec(t.Context(), "CREATE ROLE "+name+" LOGIN"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Exec(context.Background(), "DROP ROLE "+name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// tables creates the tables, and grants the role the rights of a sidecar.
func tables(t *testing.T, url, role string) {
	t.Helper()
	open(t, postgres.Options{URL: url})
	must(t, url, fmt.Sprintf(`GRANT USAGE ON SCHEMA qsidecar TO %[1]s; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA qsidecar TO %[1]s;
		GRANT USAGE ON ALL SEQUENCES IN SCHEMA qsidecar TO %[1]s`, role))
}

// TestExamineSearchPath: a function or operator of another role that a call in the role's search path can run is reported. Those of an
// extension, of the role itself, and with names of their own aren't.
func TestExamineSearchPath(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		role, other := runner(t, p, "pathed"), runner(t, p, "mallory")
		url := filled(t, p)
		tables(t, url, role)
		must(t, url, fmt.Sprintf(`GRANT CREATE ON SCHEMA public TO %[1]s, %[2]s;
			SET ROLE %[2]s; CREATE FUNCTION unnest(text[]) RETURNS SETOF text LANGUAGE sql AS 'SELECT NULL'; CREATE FUNCTION my_own() RETURNS int LANGUAGE sql AS 'SELECT 1';
			CREATE FUNCTION same(text, int) RETURNS boolean LANGUAGE sql AS 'SELECT true'; CREATE OPERATOR = (LEFTARG = text, RIGHTARG = int, FUNCTION = same);
			SET ROLE %[1]s; CREATE FUNCTION max(int, text) RETURNS int LANGUAGE sql AS 'SELECT 1'`, role, other))
		found := examined(t, postgres.Options{URL: as(t, url, role)}, diagnose.DefaultThresholds())
		has(t, found, want{backends.SeverityWarning, "security", "=(text,integer) of role mallory, public.unnest(text[]) of role mallory. A trigger", "REVOKE CREATE"})
	})
}

// TestExamineHealthy checks a healthy database as a role that has only the rights of a
// sidecar.
func TestExamineHealthy(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		role := runner(t, p, "healthy")
		url := filled(t, p)
		tables(t, url, role)
		patient := diagnose.DefaultThresholds()
		patient.Clock = time.Hour // this machine can stall between two readings of the clocks
		found := examined(t, postgres.Options{URL: as(t, url, role)}, patient)
		has(t, found,
			want{backends.SeverityInfo, "server", "PostgreSQL " + p.Version, ""},
			want{backends.SeverityInfo, "server", "as role healthy", ""},
			want{backends.SeverityInfo, "schema", fmt.Sprintf("of version %d", migrate.Latest), ""},
			want{backends.SeverityInfo, "rights", "all that a sidecar needs", ""},
			want{backends.SeverityInfo, "claim", "SKIP LOCKED", ""},
			want{backends.SeverityInfo, "plan", "made once for all arguments", ""},
			want{backends.SeverityInfo, "isolation", "read committed", ""},
			want{backends.SeverityInfo, "transactions", "GRANT pg_read_all_stats TO \"healthy\"", ""},
			want{backends.SeverityInfo, "vacuum", "rows", ""},
			want{backends.SeverityInfo, "connections", "max_connections leaves ", ""},
			want{backends.SeverityInfo, "clock", "differ by", ""},
			// The tests' servers are configured for speed.
			want{backends.SeverityWarning, "durability", "fsync is off", "fsync = on"},
			want{backends.SeverityWarning, "durability", "full_page_writes is off", "full_page_writes = on"},
			want{backends.SeverityWarning, "durability", "synchronous_commit is off", "ALTER ROLE \"healthy\""})
		for _, f := range found {
			if f.Severity == backends.SeverityWarning && f.Topic != "durability" {
				t.Errorf("not expected: %+v", f)
			}
		}
	})
}

// TestExamineNoTables: without tables, the findings name the missing rights.
func TestExamineNoTables(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		role := runner(t, p, "tableless")
		url := p.Database(t)
		has(t, examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds()), want{backends.SeverityInfo, "schema", "the tables are missing in schema \"qsidecar\": serve or `qsidecar migrate` will create them", ""})
		o := postgres.Options{URL: as(t, url, role)}
		has(t, examined(t, o, diagnose.DefaultThresholds()), want{backends.SeverityError, "schema", "are missing in schema \"qsidecar\", and role tableless has no right to create them", "migrate --print"})
		tables(t, url, role)
		must(t, url, "REVOKE ALL ON SCHEMA qsidecar FROM "+role)
		has(t, examined(t, o, diagnose.DefaultThresholds()), want{backends.SeverityError, "rights", "has no right to use the schema", "GRANT USAGE ON SCHEMA \"qsidecar\" TO \"tableless\""})
		must(t, url, "GRANT USAGE ON SCHEMA qsidecar TO tableless; REVOKE ALL ON ALL TABLES IN SCHEMA qsidecar FROM tableless")
		has(t, examined(t, o, diagnose.DefaultThresholds()), want{backends.SeverityError, "rights", "has no right to read \"qsidecar\".qsidecar_meta", "GRANT SELECT"})
		must(t, url, "GRANT SELECT ON qsidecar.qsidecar_meta TO tableless; GRANT SELECT, INSERT ON qsidecar.qsidecar_jobs TO tableless; REVOKE ALL ON SEQUENCE qsidecar.qsidecar_sequence FROM tableless")
		has(t, examined(t, o, diagnose.DefaultThresholds()),
			want{backends.SeverityError, "rights", "lacks SELECT, INSERT, UPDATE, DELETE ON qsidecar.qsidecar_admissions", "GRANT UPDATE, DELETE ON qsidecar.qsidecar_jobs TO \"tableless\""},
			want{backends.SeverityError, "rights", "USAGE ON SEQUENCE qsidecar.qsidecar_sequence", "GRANT USAGE ON SEQUENCE qsidecar.qsidecar_sequence TO \"tableless\""})
		// The proposed fix works.
		for _, f := range examined(t, o, diagnose.DefaultThresholds()) {
			if f.Topic == "rights" {
				must(t, url, strings.Split(f.Fix, " (`")[0])
			}
		}
		has(t, examined(t, o, diagnose.DefaultThresholds()), want{backends.SeverityInfo, "rights", "all that a sidecar needs", ""})
		must(t, url, "UPDATE qsidecar.qsidecar_meta SET version = 99")
		has(t, examined(t, o, diagnose.DefaultThresholds()), want{backends.SeverityInfo, "schema", "are of version 99, which is newer than this program's", ""})
		must(t, url, "UPDATE qsidecar.qsidecar_meta SET min_program = 99")
		has(t, examined(t, o, diagnose.DefaultThresholds()), want{backends.SeverityError, "schema", "upgrade this program", ""})
		must(t, url, "DELETE FROM qsidecar.qsidecar_meta")
		has(t, examined(t, o, diagnose.DefaultThresholds()), want{backends.SeverityError, "schema", "is empty", ""})
	})
}

// TestExamineTables breaks everything that the tables need at once.
func TestExamineTables(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		role := runner(t, p, "fenced")
		url := filled(t, p)
		tables(t, url, role)
		must(t, url, `
			DROP INDEX qsidecar.qsidecar_ready;
			UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'qsidecar.qsidecar_due'::regclass;
			ALTER TABLE qsidecar.qsidecar_jobs DISABLE TRIGGER qsidecar_plain_insert, SET (autovacuum_enabled = off);
			DROP TRIGGER qsidecar_row_deleted ON qsidecar.qsidecar_jobs;
			CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
			CREATE TRIGGER watch BEFORE INSERT ON qsidecar.qsidecar_jobs FOR EACH ROW EXECUTE FUNCTION watch();
			CREATE RULE deaf AS ON INSERT TO qsidecar.qsidecar_failures DO INSTEAD NOTHING;
			ALTER TABLE qsidecar.qsidecar_keys SET UNLOGGED;
			ALTER TABLE qsidecar.qsidecar_jobs ENABLE ROW LEVEL SECURITY`)
		found := examined(t, postgres.Options{URL: as(t, url, role)}, diagnose.DefaultThresholds())
		has(t, found,
			want{backends.SeverityError, "indexes", "the index qsidecar_ready is missing", "CREATE INDEX CONCURRENTLY qsidecar_ready ON \"qsidecar\".qsidecar_jobs"},
			want{backends.SeverityError, "indexes", "the index qsidecar_due is missing or invalid", "DROP INDEX IF EXISTS \"qsidecar\".qsidecar_due"},
			want{backends.SeverityError, "plan", "no use of the index qsidecar_ready", "check that the indexes exist"},
			want{backends.SeverityError, "triggers", "qsidecar_plain_insert on qsidecar.qsidecar_jobs is disabled", "ENABLE TRIGGER qsidecar_plain_insert"},
			want{backends.SeverityError, "triggers", "qsidecar_row_deleted is missing", "migrate --print"},
			want{backends.SeverityWarning, "triggers", "trigger or rule watch on qsidecar.qsidecar_jobs", ""},
			want{backends.SeverityWarning, "triggers", "trigger or rule deaf on qsidecar.qsidecar_failures", ""},
			want{backends.SeverityError, "durability", "qsidecar.qsidecar_keys is an unlogged table", "SET LOGGED"},
			want{backends.SeverityError, "security", "row level security of qsidecar.qsidecar_jobs hides rows from role fenced", "BYPASSRLS"},
			want{backends.SeverityWarning, "vacuum", "autovacuum is switched off", "RESET (autovacuum_enabled)"})
		has(t, examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds()), // row security doesn't apply to the owner
			want{backends.SeverityInfo, "security", "does not hold for role postgres", ""},
			want{backends.SeverityError, "indexes", "", ""}, want{backends.SeverityError, "plan", "", ""},
			want{backends.SeverityError, "triggers", "", ""}, want{backends.SeverityError, "durability", "", ""})
		for _, f := range found { // the proposed fix of the indexes works
			if f.Topic == "indexes" {
				for sql := range strings.SplitSeq(f.Fix, "; ") {
					must(t, url, sql)
				}
			}
		}
		has(t, examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds()), want{backends.SeverityInfo, "plan", "reads the index qsidecar_ready", ""},
			want{backends.SeverityError, "triggers", "", ""}, want{backends.SeverityError, "durability", "", ""})
	})
}

// TestExamineSequenceOrder: check finds a sequence of which each session caches numbers, or that counts down, and its fix works.
func TestExamineSequenceOrder(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		for _, change := range []string{"CACHE 20", "INCREMENT -1 MINVALUE 1 MAXVALUE 1000000"} {
			must(t, url, "ALTER SEQUENCE qsidecar.qsidecar_sequence "+change)
			found := examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds())
			has(t, found, want{backends.SeverityError, "sequence", "no claim finds it", "ALTER SEQUENCE \"qsidecar\".qsidecar_sequence CACHE 1"})
			for _, f := range found {
				if f.Topic == "sequence" {
					must(t, url, strings.Split(f.Fix, ";")[0])
				}
			}
			has(t, examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds()))
		}
	})
}

// TestExamineSequence: check finds a sequence that is behind the ids, and its fix works.
func TestExamineSequence(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		must(t, url, `INSERT INTO qsidecar.qsidecar_keys (queue, key, job, expires_at, state) VALUES ('q', 'gone', 1040, now() + interval '1 day', 'done')`)
		found := examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds())
		has(t, found, want{backends.SeverityError, "sequence", "later ids", "setval"})
		for _, f := range found {
			if f.Topic == "sequence" {
				must(t, url, strings.Split(f.Fix, ";")[0])
			}
		}
		has(t, examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds()))
	})
}
