package postgres

import (
	"context"
	"encoding/json"
	"math"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/plan"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// all returns the statements that read or write the tables, by name.
func (s *statements) all() map[string]string {
	m := map[string]string{}
	for i, v := 0, reflect.ValueOf(*s); i < v.NumField(); i++ {
		name := v.Type().Field(i).Name
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			m[name] = f.String()
		case reflect.Map:
			for _, k := range f.MapKeys() {
				m[name+" "+k.String()] = f.MapIndex(k).String()
			}
		}
	}
	// The last ones are of tables with one row, and repairs.
	for _, name := range []string{"begin", "beginRead", "unsynced", "unsyncedClaim", "epoch", "newEpoch", "plainEpoch", "otherEpoch", "repair", "draw"} {
		delete(m, name)
	}
	return m
}

// TestPlans fails if a statement would scan a whole table, join it, or sort
// rows that an index has in order, because its cost would grow with the table. Statistics of
// an empty table, or of a table that was empty at its last ANALYZE, must not change the plans.
func TestPlans(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		s := open(t, Options{URL: url})
		checkPlans(t, s, "empty")
		must(t, url, "VACUUM ANALYZE")
		checkPlans(t, s, "known to be empty")
		must(t, url, `ALTER TABLE qsidecar.qsidecar_jobs SET (autovacuum_enabled = false);
			INSERT INTO qsidecar.qsidecar_jobs (queue, state, run_at, finished_at, prune_at, due_at, owner, token_sidecar, token_number, claimed_at)
			SELECT 'q', s, CASE s WHEN 'scheduled' THEN now() + interval '1 day' END, f, f, CASE s WHEN 'claimed' THEN now() END,
				CASE s WHEN 'claimed' THEN 1 END, CASE s WHEN 'claimed' THEN 1 END, CASE s WHEN 'claimed' THEN n END, CASE s WHEN 'claimed' THEN now() END
			FROM generate_series(1, 2000) n CROSS JOIN unnest('{ready,scheduled,claimed,done,dead}'::text[]) s
			CROSS JOIN LATERAL (SELECT CASE WHEN s IN ('done', 'dead') THEN now() END AS f) AS f`)
		checkPlans(t, s, "full, and believed to be empty")
		must(t, url, "VACUUM ANALYZE")
		checkPlans(t, s, "full")
	})
}

func checkPlans(t *testing.T, s *Store, when string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), s.o.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	if err := s.prepareSession(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for name, sql := range s.sql.all() {
		root, err := plan.Generic(t.Context(), c, sql)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, fault := range root.Faults() {
			t.Errorf("%s, the tables are %s: %s\n%s", name, when, fault, root.Text("  "))
		}
	}
}

// TestPlanFaults: the faults that TestPlans checks for are detected.
func TestPlanFaults(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		c, err := pgx.Connect(t.Context(), s.o.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.WithoutCancel(t.Context()))
		if err := s.prepareSession(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{
			`SELECT 1 FROM {s}.qsidecar_jobs WHERE worker = $1::text`,
			`SELECT 1 FROM {s}.qsidecar_jobs WHERE state = 'ready' AND queue = $1 ORDER BY enqueued_at LIMIT 1`,
			`SELECT 1 FROM {s}.qsidecar_jobs WHERE state = 'ready' AND queue = $1 ORDER BY priority DESC, position DESC LIMIT 1`,
			`SELECT 1 FROM unnest($1::bigint[]) x JOIN {s}.qsidecar_jobs j ON j.id = x`,
			`SELECT count(*) FROM {s}.qsidecar_jobs WHERE state = 'ready'`,
			`DELETE FROM {s}.qsidecar_failures WHERE attempt = $1`,
		} {
			root, err := plan.Generic(t.Context(), c, in(s.o.Schema, sql))
			if err != nil {
				t.Fatal(err)
			}
			if len(root.Faults()) == 0 {
				t.Errorf("no fault is found in %s\n%s", sql, root.Text("  "))
			}
		}
	})
}

// TestBacklogCostsNothing counts the pages that a claim and the maintenance scan of an idle
// sidecar read. A backlog of 10,000 ready jobs, as many scheduled and as many dead ones must
// not add any. A scan of any of them would read hundreds.
func TestBacklogCostsNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		s := open(t, Options{URL: url})
		fill(t, s, 20)
		before := pagesOfAClaim(t, s)
		must(t, url, `INSERT INTO qsidecar.qsidecar_jobs (queue, state, run_at, finished_at)
			SELECT 'q', s, CASE s WHEN 'scheduled' THEN now() + interval '1 day' END, CASE s WHEN 'dead' THEN now() END
			FROM generate_series(1, 10000) n CROSS JOIN unnest('{ready,scheduled,dead}'::text[]) s`)
		after := pagesOfAClaim(t, s)
		t.Logf("a claim and a look read %d pages, and %d with the backlog", before, after)
		if after > before+before/2+50 {
			t.Errorf("a claim and a look read %d pages, and %d with the backlog", before, after)
		}
	})
}

// TestSearchForGroupsStepsOverTheirJobs counts the pages that a search for groups reads, beside one group with many blocked jobs, while the
// server's statistics are those of an empty table.
func TestSearchForGroupsStepsOverTheirJobs(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		s := open(t, Options{URL: url})
		must(t, url, "VACUUM ANALYZE")
		must(t, url, `ALTER TABLE qsidecar.qsidecar_jobs SET (autovacuum_enabled = false);
			INSERT INTO qsidecar.qsidecar_jobs (queue, group_name, group_noticed) SELECT 'q', g, r FROM unnest('{a,b,c}'::text[]) g CROSS JOIN unnest('{t,null}'::boolean[]) r;
			INSERT INTO qsidecar.qsidecar_admissions (queue, group_name) SELECT 'q', g FROM unnest('{a,b,c}'::text[]) g`)
		search := func() int64 { return pages(t, s, s.sql.findGroups, "", "", 500, "", "", 500, "", "", 20) }
		before := search()
		must(t, url, `INSERT INTO qsidecar.qsidecar_jobs (queue, group_name, group_noticed) SELECT 'q', 'b', r FROM generate_series(1, 10000) CROSS JOIN unnest('{t,null}'::boolean[]) r;
			INSERT INTO qsidecar.qsidecar_admissions (queue, group_name) SELECT 'q', 'b' FROM generate_series(1, 10000)`)
		after := search()
		t.Logf("a search reads %d pages, and %d with the backlog", before, after)
		if after > before+before/2+50 {
			t.Errorf("a search reads %d pages, and %d with the backlog", before, after)
		}
	})
}

func pagesOfAClaim(t *testing.T, s *Store) int64 {
	t.Helper()
	q := s.claimStatement(claimBatch(1, 10, 0).Claims[0].Queues[0], 10, true)
	return pages(t, s, q.SQL, q.Arguments...) +
		pages(t, s, s.sql.look, true, true, []string{"q"}, []int32{1}, []int32{cursor.Beginning.Urgency}, []int64{0}, []int32{cursor.End.Urgency}, []int64{math.MaxInt64}, []string{"q"}, nil, false, nil, int64(1), int64(core.ManagedSchedules)) +
		pages(t, s, s.sql.lookKeys, nil)
}

// pages returns how many pages a statement reads. It rolls the statement back.
func pages(t *testing.T, s *Store, sql string, args ...any) int64 {
	t.Helper()
	c, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	var text []byte
	if err := tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var pgErr []struct {
		Plan struct {
			Hit  int64 `json:"Shared Hit Blocks"`
			Read int64 `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(text, &pgErr); err != nil {
		t.Fatal(err)
	}
	n := pgErr[0].Plan.Hit + pgErr[0].Plan.Read
	if n == 0 {
		t.Fatalf("EXPLAIN counted no pages: %s", text)
	}
	return n
}

func beat(t testing.TB, s *Store, sidecar backends.Identity) {
	t.Helper()
	if _, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: sidecar, Timeout: 3600e9}); err != nil {
		t.Fatal(err)
	}
}

// take claims up to n jobs of queue "q" with tokens from `from` on.
func take(t testing.TB, s *Store, sidecar backends.Identity, n int, from uint64) []backends.Job {
	t.Helper()
	r, err := s.Commit(t.Context(), claimBatch(sidecar, n, from))
	if err != nil {
		t.Fatal(err)
	}
	return r.Claims[0].Jobs
}

func claimBatch(sidecar backends.Identity, n int, from uint64) backends.CommitContent {
	c := backends.Claim{Queues: []backends.Policy{{Queue: "q", MaxAttempts: 20, RetainDead: 3600e9}}, MaxBytes: 1 << 22, MaxPayload: 1 << 22}
	for i := range n {
		c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Sidecar: sidecar, Number: from + uint64(i)}, Worker: "w"})
	}
	return backends.CommitContent{Sidecar: sidecar, Claims: []backends.Claim{c}}
}
