package diagnose

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/plan"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
)

// list runs a query and returns the values of its only column.
func list[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[T])
}

// checkRights finds the rights that `migrate --print` grants and this role lacks.
func (e *examination) checkRights(ctx context.Context, tx pgx.Tx) error {
	lacking, err := list[string](ctx, tx, `
		SELECT string_agg(p.name, ', ' ORDER BY p.n) || ' ON ' || c.oid::regclass
		FROM pg_class c CROSS JOIN unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) WITH ORDINALITY AS p (name, n)
		WHERE c.relnamespace = to_regnamespace($1) AND c.relname = ANY($2) AND NOT has_table_privilege(c.oid, p.name)
			AND (c.relname <> 'qsidecar_meta' OR p.name = 'SELECT')
		GROUP BY c.oid
		UNION ALL
		SELECT 'USAGE ON SEQUENCE ' || c.oid::regclass FROM pg_class c
		WHERE c.relnamespace = to_regnamespace($1) AND c.relname = ANY($3) AND CASE c.relkind WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') END
		UNION ALL
		SELECT 'EXECUTE ON FUNCTION ' || p.oid::regprocedure FROM pg_proc p
		WHERE p.pronamespace = to_regnamespace($1) AND p.proname = ANY($4) AND p.prorettype <> 'trigger'::regtype AND NOT has_function_privilege(p.oid, 'EXECUTE')
		ORDER BY 1`, migrate.QuoteName(e.Schema), e.names("TABLE"), e.names("SEQUENCE"), e.names("FUNCTION"))
	if err != nil {
		return err
	}
	if len(lacking) == 0 {
		e.AddInfo("rights", fmt.Sprintf("role %s has all that a sidecar needs on its tables", e.role))
		return nil
	}
	role := migrate.QuoteName(e.role)
	e.AddError("rights", fmt.Sprintf("role %s lacks %s", e.role, strings.Join(lacking, "; ")),
		fmt.Sprintf("GRANT %s TO %s; (`qsidecar migrate --print` ends with all that it needs)", strings.Join(lacking, " TO "+role+"; GRANT "), role))
	return nil
}

// checkRowSecurity finds policies that hide jobs from this role.
func (e *examination) checkRowSecurity(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `SELECT oid::regclass::text, row_security_active(oid) FROM pg_class
		WHERE relnamespace = to_regnamespace($1) AND relname = ANY($2) AND relrowsecurity ORDER BY relname`, migrate.QuoteName(e.Schema), e.names("TABLE"))
	if err != nil {
		return err
	}
	var table string
	var active bool
	_, err = pgx.ForEachRow(rows, []any{&table, &active}, func() error {
		if !active {
			e.AddInfo("security", fmt.Sprintf("%s has row level security, which does not hold for role %s", table, e.role))
			return nil
		}
		e.AddError("security", fmt.Sprintf("row level security of %s hides rows from role %s: the sidecar would not see their jobs", table, e.role),
			fmt.Sprintf("ALTER ROLE %s BYPASSRLS, or ALTER TABLE %s DISABLE ROW LEVEL SECURITY", migrate.QuoteName(e.role), table))
		return nil
	})
	return err
}

// checkSequence finds a sequence that is behind the ids, as after a switch to another server by logical replication. A sidecar that
// connects repairs it. It also finds one that gives numbers in another order than sessions ask for them: docs/claims-miss-no-job.md.
func (e *examination) checkSequence(ctx context.Context, tx pgx.Tx) error {
	unordered, err := list[string](ctx, tx, `SELECT format('CACHE %s, INCREMENT %s', seqcache, seqincrement) FROM pg_sequence
		WHERE seqrelid = to_regclass($1) AND (seqcache > 1 OR seqincrement < 1)`, migrate.QuoteName(e.Schema)+".qsidecar_sequence")
	if err != nil {
		return err
	}
	if len(unordered) > 0 {
		e.AddError("sequence", fmt.Sprintf("the sequence %s.qsidecar_sequence has %s: a job can get a smaller position than jobs that were claimed before it, and no claim finds it", e.Schema, unordered[0]),
			fmt.Sprintf("ALTER SEQUENCE %s.qsidecar_sequence CACHE 1 INCREMENT 1; then end the sessions that insert jobs, because they keep the numbers that they cached, and restart the sidecars", migrate.QuoteName(e.Schema)))
	}
	last, err := list[int64](ctx, tx, e.engine.BehindSQL())
	if err == nil && len(last) > 0 {
		e.AddError("sequence", fmt.Sprintf("the sequence %s.qsidecar_sequence is at %d, and jobs or keys have later ids: inserts of jobs fail or reuse ids", e.Schema, last[0]),
			e.engine.RepairSQL()+"; or restart a sidecar whose role has UPDATE on the sequence")
	}
	return err
}

// checkTriggers checks that the sidecar's triggers exist. It also finds the triggers and rules
// of others, which run with each change.
func (e *examination) checkTriggers(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `SELECT t.tgname, c.oid::regclass::text, t.tgenabled IN ('D', 'R') FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
		WHERE NOT t.tgisinternal AND c.relnamespace = to_regnamespace($1) AND c.relname = ANY($2)
		UNION ALL
		SELECT r.rulename, c.oid::regclass::text, r.ev_enabled IN ('D', 'R') FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
		WHERE c.relnamespace = to_regnamespace($1) AND c.relname = ANY($2) ORDER BY 1`, migrate.QuoteName(e.Schema), e.names("TABLE"))
	if err != nil {
		return err
	}
	missing := e.names("TRIGGER")
	var name, table string
	var off bool
	if _, err = pgx.ForEachRow(rows, []any{&name, &table, &off}, func() error {
		i := slices.Index(missing, name)
		switch {
		case i < 0 && !off:
			e.ForeignTrigger(fmt.Sprintf("the trigger or rule %s on %s", name, table), "raises an error or passes a row over, that change is refused", "a CHECK")
		case i >= 0 && off:
			e.AddError("triggers", fmt.Sprintf("the sidecar's trigger %s on %s is disabled", name, table),
				fmt.Sprintf("ALTER TABLE %s ENABLE TRIGGER %s", table, name))
		}
		if i >= 0 {
			missing = slices.Delete(missing, i, i+1)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, name := range missing {
		e.AddError("triggers", fmt.Sprintf("the sidecar's trigger %s is missing", name), "create it again, from what `qsidecar migrate --print` prints")
	}
	return nil
}

// checkOverdue finds jobs that maintenance had to change long ago.
func (e *examination) checkOverdue(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, migrate.In(e.Schema, `WITH ended AS (
			(SELECT id, queue FROM {s}.qsidecar_jobs WHERE due_at IS NOT NULL AND due_at < {s}.qsidecar_now() - interval '1 min' LIMIT $1)
			UNION
			(SELECT id, queue FROM {s}.qsidecar_jobs j WHERE state = 'claimed' AND lease_ms IS NULL AND owner <> 0
				AND claimed_at < {s}.qsidecar_now() - interval '1 min'
				AND NOT EXISTS (SELECT FROM {s}.qsidecar_sidecars h WHERE h.sidecar = j.owner AND NOT h.dead) LIMIT $1)
		), due AS (
			SELECT id, queue FROM {s}.qsidecar_jobs WHERE state = 'scheduled' AND run_at < {s}.qsidecar_now() - interval '1 min' LIMIT $1
		)
		SELECT queue::text, 'claimed', count(*), min(id)::text FROM ended GROUP BY queue
		UNION ALL SELECT queue::text, 'scheduled', count(*), min(id)::text FROM due GROUP BY queue ORDER BY 1, 2`), checks.MostOverdue)
	if err != nil {
		return err
	}
	var queue, state, example string
	var jobs int64
	_, err = pgx.ForEachRow(rows, []any{&queue, &state, &jobs, &example}, func() error {
		e.Overdue(queue, state, jobs, example)
		return nil
	})
	return err
}

// checkIndexes checks that the sidecar's indexes exist and are valid.
func (e *examination) checkIndexes(ctx context.Context, tx pgx.Tx) error {
	whole, err := list[string](ctx, tx, `SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE c.relnamespace = to_regnamespace($1) AND i.indisvalid AND i.indisready`, migrate.QuoteName(e.Schema))
	if err != nil {
		return err
	}
	for _, name := range e.names("INDEX") {
		if slices.Contains(whole, name) {
			continue
		}
		sql := regexp.MustCompile(`CREATE INDEX ` + name + `\s[^;]*`).FindString(migrate.Fresh(e.Version))
		sql = strings.Join(strings.Fields(migrate.In(e.Schema, sql)), " ")
		e.AddError("indexes", fmt.Sprintf("the index %s is missing or invalid: the cost of what it serves grows with the table", name),
			fmt.Sprintf("DROP INDEX IF EXISTS %s.%s; %s", migrate.QuoteName(e.Schema), name, strings.Replace(sql, "INDEX", "INDEX CONCURRENTLY", 1)))
	}
	return nil
}

// lookalikesSQL finds functions and operators of other roles with the names of PostgreSQL's own, in the schemas $1. Those of superusers and of
// extensions are meant to be there.
const lookalikesSQL = `
WITH other AS (SELECT r.oid, r.rolname FROM pg_roles r JOIN pg_roles own ON own.rolname = current_user WHERE NOT r.rolsuper AND r.oid <> own.oid
	AND NOT EXISTS (SELECT FROM pg_auth_members m WHERE m.roleid = r.oid AND m.member = own.oid))
SELECT x.text || ' of role ' || r.rolname FROM (
	SELECT p.oid::regprocedure::text AS text, p.proowner AS owner, p.pronamespace AS schema, p.oid, 'pg_proc'::regclass AS class FROM pg_proc p
	WHERE EXISTS (SELECT FROM pg_proc own WHERE own.pronamespace = 'pg_catalog'::regnamespace AND own.proname = p.proname)
	UNION ALL
	SELECT o.oid::regoperator::text, o.oprowner, o.oprnamespace, o.oid, 'pg_operator'::regclass FROM pg_operator o
	WHERE EXISTS (SELECT FROM pg_operator own WHERE own.oprnamespace = 'pg_catalog'::regnamespace AND own.oprname = o.oprname)
) x JOIN other r ON r.oid = x.owner JOIN pg_namespace n ON n.oid = x.schema AND n.nspname = ANY($1::text[]) AND n.nspname <> 'pg_catalog'
WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = x.class AND d.objid = x.oid AND d.deptype = 'e')
ORDER BY x.text LIMIT 10`

// checkSearchPath reports what could run instead of PostgreSQL's own functions. The sidecar's statements don't look there, but triggers of
// adopted tables and programs that share the role's path do.
func (e *examination) checkSearchPath(ctx context.Context) error {
	path, err := e.engine.SearchPath(ctx)
	if err != nil {
		return err
	}
	var all []string
	err = e.transaction(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		all, err = list[string](ctx, tx, lookalikesSQL, path)
		return err
	})
	if len(all) > 0 {
		e.AddWarning("security", "the search path of this role has functions or operators with names of PostgreSQL's own: "+strings.Join(all, ", ")+
			". A trigger or another program can run them by mistake; the sidecar's own statements don't",
			"drop those that no program needs, and let only roles that you trust create objects there: REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	}
	return err
}

// checkClaim reports which statement claims jobs, and checks its plan.
func (e *examination) checkClaim(ctx context.Context, tx pgx.Tx) error {
	e.AddInfo("claim", "claims are one statement with FOR UPDATE SKIP LOCKED, which every PostgreSQL since 9.5 has")
	faults, unused, err := e.planFaults(ctx, tx)
	if err != nil {
		return err
	}
	if len(faults) == 0 && !unused {
		when := "a plan made once for all arguments"
		if e.Pooled {
			when = "planned each time"
		}
		e.AddInfo("plan", "the claim reads the index qsidecar_ready in the queue's order and stops at its LIMIT: no sort, no walk through the table ("+when+")")
		return nil
	}
	if unused {
		faults = append(faults, "no use of the index qsidecar_ready")
	}
	slices.Sort(faults)
	e.AddError("plan", "the claim's plan has "+strings.Join(slices.Compact(faults), ", ")+": each claim costs more the larger the table is",
		"check that the indexes exist, and VACUUM ANALYZE the table")
	return nil
}

// planFaults finds faults in the plans of the queues' claims, as the server plans them for a
// sidecar. unused is true if a plan does not use the index of ready jobs.
func (e *examination) planFaults(ctx context.Context, tx pgx.Tx) (faults []string, unused bool, err error) {
	queues := []backends.Policy{{Queue: "any", MaxAttempts: 20}}
	if slices.ContainsFunc(e.queues, func(p backends.Policy) bool { return p.LIFO }) {
		queues = append(queues, backends.Policy{Queue: "any", MaxAttempts: 20, LIFO: true})
	}
	for _, queue := range queues {
		for _, q := range e.engine.ClaimStatements(queue) {
			p, err := e.planOf(ctx, tx, q)
			if err != nil {
				return nil, false, err
			}
			faults = append(faults, p.Faults()...)
			unused = unused || !p.Uses("qsidecar_ready")
		}
	}
	return faults, unused, nil
}

// planOf returns the plan of a statement. It is the generic plan if the sidecar prepares
// statements in its sessions, or else the plan for these arguments.
func (e *examination) planOf(ctx context.Context, tx pgx.Tx, q *pgx.QueuedQuery) (*plan.Node, error) {
	if e.Pooled {
		return plan.With(ctx, tx, q.SQL, append([]any{pgx.QueryExecModeDescribeExec}, q.Arguments...)...)
	}
	return plan.Generic(ctx, tx.Conn(), q.SQL)
}
