package adopted_test

import (
	"context"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// foreignFunctions create functions and operators that another role could have created: those of pg_catalog with the same arguments,
// and better matches for calls with arguments of any type, or of a domain or enum. Each counts its calls and fails. The sequence is in public,
// so that a rollback doesn't reset it.
const foreignFunctions = `
CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE SEQUENCE evil.calls; GRANT ALL ON SEQUENCE evil.calls TO PUBLIC;
CREATE TYPE public.job_state AS ENUM ('new', 'busy', 'done', 'dead');
CREATE SCHEMA qsidecar AUTHORIZATION {role};
CREATE DOMAIN qsidecar.name_for_test AS text;
DO $do$
DECLARE
	r record; body text; l text; x text; n int := 0;
BEGIN
	FOR r IN
		SELECT p.proname AS name, pg_catalog.oidvectortypes(p.proargtypes) AS args, CASE WHEN p.proretset THEN 'SETOF ' ELSE '' END || p.prorettype::regtype AS returns
		FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.provariadic = 0 AND p.prorettype::regtype::text NOT IN ('internal', 'record', 'cstring', 'trigger', 'event_trigger')
			AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) a JOIN pg_type t ON t.oid = a WHERE t.typtype = 'p') AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid = p.prorettype AND t.typtype = 'p' AND t.typname <> 'void')
	UNION ALL SELECT * FROM (VALUES
		('unnest', 'text[]', 'SETOF text'), ('unnest', 'bytea[]', 'SETOF bytea'), ('unnest', 'bigint[]', 'SETOF bigint'), ('unnest', 'integer[]', 'SETOF integer'), ('unnest', 'smallint[]', 'SETOF smallint'),
		('unnest', 'boolean[]', 'SETOF boolean'), ('unnest', 'timestamptz[]', 'SETOF timestamptz'), ('unnest', 'name[]', 'SETOF name'), ('unnest', 'oid[]', 'SETOF oid'),
		('array_agg', 'bigint', 'bigint[]'), ('array_agg', 'integer', 'integer[]'), ('array_agg', 'text', 'text[]'), ('array_agg', 'bytea', 'bytea[]'), ('array_agg', 'name', 'name[]'),
		('width_bucket', 'bigint, bigint[]', 'integer'), ('cardinality', 'bigint[]', 'integer'), ('cardinality', 'integer[]', 'integer'), ('count', 'bigint', 'bigint'), ('count', 'text', 'bigint'),
		('max', 'qsidecar.name_for_test', 'text'), ('octet_length', 'qsidecar.name_for_test', 'integer'), ('replace', 'varchar, text, text', 'text'), ('pg_column_size', 'jsonb', 'integer'),
		('format', 'text, text', 'text'), ('concat', 'text, text', 'text'), ('pg_typeof', 'text', 'regtype'), ('json_agg', 'text', 'json'), ('jsonb_object_agg', 'text, text', 'jsonb')) AS x
	LOOP
		body := format('BEGIN PERFORM pg_catalog.nextval(''evil.calls''); RAISE EXCEPTION USING MESSAGE = %L; END', 'another role''s function ran: ' || r.name || '(' || r.args || ')');
		EXECUTE format('CREATE OR REPLACE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', r.name, r.args, r.returns, body);
	END LOOP;
	FOR r IN
		SELECT DISTINCT o.oprname AS name, x.l, x.r, CASE WHEN o.oprname IN ('||', '+', '-', '*') THEN x.l ELSE 'boolean' END AS returns
		FROM pg_operator o CROSS JOIN (VALUES
			('text', 'qsidecar.name_for_test'), ('qsidecar.name_for_test', 'text'), ('varchar', 'varchar'), ('varchar', 'text'), ('text', 'varchar'), ('public.job_state', 'public.job_state'),
			('text', 'numeric'), ('text', 'bigint'), ('text', 'integer'), ('text', 'regclass'), ('text', 'double precision'), ('bigint', 'interval'), ('integer', 'interval'), ('bigint', 'numeric'), ('integer', 'numeric'),
			('numeric', 'bigint'), ('numeric', 'integer'), ('numeric', 'double precision'), ('smallint', 'numeric'), ('regclass', 'oid'), ('oid', 'regclass'), ('name', 'text'), ('name', 'varchar'), ('smallint', 'interval')) AS x (l, r)
		WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprname IN ('=', '<>', '<', '>', '<=', '>=', '||', '~', '+', '-', '*', '~~')
	UNION ALL
		SELECT o.oprname, o.oprleft::regtype::text, o.oprright::regtype::text, o.oprresult::regtype::text
		FROM pg_operator o JOIN pg_type a ON a.oid = o.oprleft AND a.typtype <> 'p' JOIN pg_type b ON b.oid = o.oprright AND b.typtype <> 'p' JOIN pg_type c ON c.oid = o.oprresult AND c.typtype <> 'p'
		WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprname <> '=>'
	LOOP
		CONTINUE WHEN EXISTS (SELECT FROM pg_operator o WHERE o.oprnamespace = 'evil'::regnamespace AND o.oprname = r.name AND o.oprleft = r.l::regtype AND o.oprright = r.r::regtype);
		n := n + 1;
		body := format('BEGIN PERFORM pg_catalog.nextval(''evil.calls''); RAISE EXCEPTION USING MESSAGE = %L; END', 'another role''s operator ran: ' || r.l || ' ' || r.name || ' ' || r.r);
		EXECUTE format('CREATE FUNCTION evil.operator_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L', n, r.l, r.r, r.returns, body);
		EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.operator_%s)', r.name, r.l, r.r, n);
	END LOOP;
END $do$;`

// forOwnTypes adds operators on the domain of the sidecar's tables.
const forOwnTypes = `DO $do$
DECLARE r record; n int := 0;
BEGIN
	FOR r IN SELECT o AS name, x.lt AS l, x.rt AS r FROM unnest('{=,<>,<,>,<=,>=,||,~}'::text[]) AS o CROSS JOIN (VALUES ('text', 'qsidecar.qsidecar_queue_name'), ('qsidecar.qsidecar_queue_name', 'text'), ('qsidecar.qsidecar_queue_name', 'qsidecar.qsidecar_queue_name')) AS x (lt, rt) LOOP
		n := n + 1;
		EXECUTE format('CREATE FUNCTION evil.own_%s(%s, %s) RETURNS boolean LANGUAGE plpgsql AS %L', n, r.l, r.r,
			format('BEGIN PERFORM pg_catalog.nextval(''evil.calls''); RAISE EXCEPTION USING MESSAGE = %L; END', 'another role''s operator ran: ' || r.l || ' ' || r.name || ' ' || r.r));
		EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.own_%s)', r.name, r.l, r.r, n);
	END LOOP;
END $do$`

// TestNoFunctionOfOthersRuns checks that functions and operators of other roles don't run as the sidecar's role, wherever they are in its
// search path: at the start, when the tables are created, in statements for managed and adopted queues, and in `qsidecar check`.
func TestNoFunctionOfOthersRuns(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"before pg_catalog": "evil, pg_catalog, public", "behind pg_catalog": "evil, public"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, c, database, role := onRole(t, foreignFunctions+"ALTER ROLE {role} IN DATABASE {database} SET search_path = "+path)
			calls := func(when string) {
				t.Helper()
				if n, err := h.rows("SELECT CASE WHEN is_called THEN last_value ELSE 0 END::text FROM evil.calls"); err != nil || n[0] != "0" {
					t.Errorf("%s: %v calls, want none, %v", when, n, err)
				}
			}
			calls("when the tables were created")
			if _, err := c.Exec(t.Context(), forOwnTypes); err != nil {
				t.Fatal(err)
			}
			h.set, h.fresh = func([]change) error { return nil }, h.fresh[1:] // with the tables that exist
			if _, err := h.run(nil); err != nil {
				t.Error(err)
			}
			calls("jobs")
			engine, err := h.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s, err := adopted.New(t.Context(), engine, map[string]mapping.Table{"a": adoptedA})
			if err != nil {
				t.Fatal(err)
			}
			closed(t, s)
			found, err := s.Examine(t.Context(), []backends.Policy{{Queue: "m", MaxAttempts: 3}})
			if err != nil {
				t.Error(err)
			}
			for _, f := range found {
				if strings.Contains(f.Text, "another role's") {
					t.Errorf("%s: %s", f.Topic, f.Text)
				}
			}
			calls("check")
			// The functions of the tables run as every program that stores or deletes jobs.
			producer := connect(t, urlOf(database))
			for _, sql := range []string{
				"SET search_path = " + path, "INSERT INTO qsidecar.qsidecar_jobs (queue, payload, run_at) VALUES ('m', 'x', '2100-01-01'), ('m', 'x', NULL)",
				"UPDATE qsidecar.qsidecar_jobs SET last_error = 'x', key = 'x'", "DELETE FROM qsidecar.qsidecar_jobs",
			} {
				if _, err := producer.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
					t.Errorf("%s as %s: %v", sql, role, err)
				}
			}
			calls("a producer")
		})
	}
}
