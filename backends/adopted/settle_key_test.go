package adopted_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// settleTable is a table whose where is only true of ready rows: a claim changes what its columns show.
func settleTable(onAck mapping.OnAck) mapping.Table {
	return mapping.Table{
		Name: "work", MaxAttempts: 3, OnAck: onAck, Archive: map[bool]string{true: "done_work"}[onAck == mapping.Archive],
		Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Worker: {"who"}, mapping.Error: {"why"}},
		States: map[backends.State]mapping.Value{
			backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}, backends.StateDone: {Text: "done"}, backends.StateDead: {Text: "dead"},
		},
		Where: map[string]mapping.Value{"is_available": {Text: "true"}},
	}
}

// TestSettleIgnoresWhere checks that each way to end or renew a claim works if the row no longer meets the mapping's where.
func TestSettleIgnoresWhere(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		for _, available := range []string{"generated", "changed"} {
			for name, onAck := range map[string]mapping.OnAck{"update": mapping.Update, "delete": mapping.Delete, "archive": mapping.Archive} {
				t.Run(available+"/"+name, func(t *testing.T) {
					column := "boolean GENERATED ALWAYS AS (state = 'new') STORED"
					if available == "changed" {
						column = "boolean NOT NULL DEFAULT true"
					}
					ddl := "CREATE TABLE work (id int NOT NULL PRIMARY KEY, state varchar(9) NOT NULL DEFAULT 'new', who varchar(20), why varchar(90), is_available " + column + ");"
					ddl += "CREATE TABLE done_work (id int, state varchar(9));"
					for id := 1; id <= 9; id++ {
						ddl += fmt.Sprintf("INSERT INTO work (id) VALUES (%d);", id)
					}
					k := start(ddl, map[string]mapping.Table{"q": settleTable(onAck)})
					jobs := k.claim("q", 9)
					if len(jobs) != 9 {
						t.Fatalf("%d jobs, want 9", len(jobs))
					}
					if available == "changed" {
						k.sql("UPDATE work SET is_available = false")
					}
					k.write(backends.Extend{Leases: leases(jobs...), Lease: time.Hour}, 0)
					k.write(backends.Extend{Leases: leases(jobs[8]), Bind: me, Worker: "other"}, 0)
					k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
					k.write(backends.Ack{Leases: leases(jobs[1], jobs[2])}, 0)
					k.write(backends.Nack{Leases: leases(jobs[3], jobs[4]), Error: "no", HasDelay: true}, 0)
					k.write(backends.Nack{Leases: leases(jobs[5]), Dead: true}, 0)
					k.write(backends.Release{Leases: leases(jobs[6]), Uncounted: true}, 0)
					k.command(backends.Command{Kind: backends.Reclaim, IDs: []string{jobs[7].ID}}, 1)
					k.sql("UPDATE " + ownTable(product, "qsidecar_leases") + " SET due_at = 1, lease_ms = 1 WHERE token_sidecar IS NOT NULL")
					if r := k.maintain(backends.Maintenance{Prune: true}); r.Reaped[backends.CauseLeaseEnded] != 1 {
						t.Errorf("maintenance took back %v, want one lease that ended", r.Reaped)
					}
					want := []string{"4 new no", "5 new no", "6 dead nacked", "7 new", "8 new", "9 new"}
					if onAck == mapping.Update {
						want = append([]string{"1 done", "2 done", "3 done"}, want...)
					}
					k.wantRows("SELECT concat_ws(' ', id, state, why) FROM work ORDER BY id", want...)
					if onAck == mapping.Archive {
						k.wantRows("SELECT concat_ws(' ', id, state) FROM done_work ORDER BY id", "1 done", "2 done", "3 done")
					}
					k.wantRows("SELECT concat_ws(' ', item, attempts) FROM "+ownTable(product, "qsidecar_leases")+" WHERE attempts > 0 ORDER BY item", "4 1", "5 1", "6 1", "9 1")
				})
			}
		}
	})
}

// ownTable is the name of one of the sidecar's tables in SQL of tests.
func ownTable(product, name string) string {
	if product == "PostgreSQL" {
		return "qsidecar." + name
	}
	return name
}

// TestSettleTakesTheKeysIndex checks that the server finds the rows of claims and settles by the index of their key. By another
// index, or in the whole table, it meets rows that other workers have locked, and waits for them.
func TestSettleTakesTheKeysIndex(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		for _, key := range []string{"PRIMARY KEY (region, grp, seq)", "UNIQUE (region, grp, seq)", "PRIMARY KEY (seq)"} {
			for _, inTx := range []bool{false, true} {
				if inTx && product == "SQLite" {
					continue
				}
				for _, rows := range []int{4, 4000} {
					if rows == 4 && (product == "PostgreSQL" || product == "SQLite") {
						continue // the others read a small table whole, and lock only what meets all conditions
					}
					t.Run(fmt.Sprint(key, inTx, rows), func(t *testing.T) {
						k, insert := keyedKit(t, start, key, inTx, rows)
						settlePlans(t, product, k, insert)
					})
				}
			}
		}
	})
}

// txRecorder is an engine that shows the statements of its transactions before they run.
type txRecorder struct {
	backends.Engine
	mu  sync.Mutex // open transactions are settled at the same time
	see func(st *backends.Statement)
}

func (t *txRecorder) CommitWith(ctx context.Context, b backends.CommitContent, hooks backends.TxHooks) (backends.Results, error) {
	return t.Engine.CommitWith(ctx, b, t.recorded(hooks))
}

// OpenTx implements backends.TxClaimer.
func (t *txRecorder) OpenTx(ctx context.Context, idle time.Duration) (backends.OpenTx, error) {
	tx, err := t.Engine.(backends.TxClaimer).OpenTx(ctx, idle)
	return recordedTx{tx, t}, err
}

func (t *txRecorder) NoOpenTx() error { return t.Engine.(backends.TxClaimer).NoOpenTx() }

type recordedTx struct {
	backends.OpenTx
	r *txRecorder
}

func (r recordedTx) Do(ctx context.Context, all ...*backends.Statement) error {
	return recordedSQL{r.OpenTx, r.r}.Do(ctx, all...)
}

func (r recordedTx) CommitWith(ctx context.Context, b backends.CommitContent, hooks backends.TxHooks) (backends.Results, error) {
	return r.OpenTx.CommitWith(ctx, b, r.r.recorded(hooks))
}

func (t *txRecorder) recorded(hooks backends.TxHooks) backends.TxHooks {
	before, after := hooks.Before, hooks.After
	if before != nil {
		hooks.Before = func(ctx context.Context, sql backends.SQL, b *backends.CommitContent) error {
			return before(ctx, recordedSQL{sql, t}, b)
		}
	}
	if after != nil {
		hooks.After = func(ctx context.Context, sql backends.SQL, res *backends.Results) error {
			return after(ctx, recordedSQL{sql, t}, res)
		}
	}
	return hooks
}

type recordedSQL struct {
	backends.SQL
	r *txRecorder
}

func (r recordedSQL) Do(ctx context.Context, all ...*backends.Statement) error {
	r.r.mu.Lock()
	for _, st := range all {
		r.r.see(st)
	}
	r.r.mu.Unlock()
	return r.SQL.Do(ctx, all...)
}

// keyedKit is a table with the key, beside indexes of all other columns that a settle compares.
func keyedKit(t *testing.T, start func(ddl string, tables map[string]mapping.Table) *kit, key string, inTx bool, rows int) (k *kit, insert string) {
	t.Helper()
	m := mapping.Table{
		Name: "events", ClaimInTx: inTx, MaxAttempts: 3, OnAck: mapping.Delete, Where: map[string]mapping.Value{"kind": {Text: "mail"}},
		Columns: map[mapping.Role][]string{mapping.ID: {"region", "grp", "seq"}, mapping.State: {"state"}, mapping.Error: {"why"}},
		States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}},
	}
	if strings.HasSuffix(key, "(seq)") {
		m.Columns[mapping.ID] = []string{"seq"}
	}
	if !inTx {
		m.States[backends.StateClaimed] = mapping.Value{Text: "busy"}
		m.Columns[mapping.Worker] = []string{"who"}
	}
	ddl := "CREATE TABLE events (region varchar(5) NOT NULL, grp varchar(5) NOT NULL, seq int NOT NULL, kind varchar(5) NOT NULL, state varchar(9) NOT NULL, why varchar(90), who varchar(20), " + key + ");"
	for _, column := range []string{"region", "grp", "kind", "state", "who"} {
		ddl += "CREATE INDEX by_" + column + " ON events (" + column + ");"
	}
	var all []string
	for i := range rows {
		all = append(all, fmt.Sprintf("('eu', 'g%[1]d', %[2]d, 'mail', '%[3]s')", i/2, i, map[bool]string{true: "new", false: "busy"}[i < 4]))
	}
	insert = "INSERT INTO events (region, grp, seq, kind, state) VALUES " + strings.Join(all, ", ")
	k = start(ddl+insert, map[string]mapping.Table{"q": m})
	k.table = m
	return k, insert
}

// settlePlans explains the statements that find rows by their keys.
func settlePlans(t *testing.T, product string, k *kit, rows string) {
	t.Helper()
	switch product {
	case "PostgreSQL", "SQLite":
		k.sql("ANALYZE events")
	default:
		k.sql("ANALYZE TABLE events")
	}
	var doing string
	ran := map[string][]*backends.Statement{}
	engine := &txRecorder{Engine: k.Store.Engine, see: func(st *backends.Statement) {
		if doing != "" && strings.Contains(st.Text, "events") && !strings.Contains(st.Text, "LIMIT") { // else it's about a lease, or searches for jobs
			ran[doing] = append(ran[doing], &backends.Statement{Text: st.Text, Args: st.Args})
		}
	}}
	var err error
	if k.Store, err = adopted.New(t.Context(), engine, map[string]mapping.Table{"q": k.table}); err != nil {
		t.Fatal(err)
	}
	closed(t, k.Store)
	check := func(what string, run func()) {
		doing = what
		run()
		doing = ""
	}
	var jobs []backends.Job
	check("claim", func() { jobs = k.claim("q", 4) })
	if len(jobs) != 4 {
		t.Fatalf("%d jobs, want 4", len(jobs))
	}
	if !k.ClaimsInTx("q") {
		check("extend", func() { k.write(backends.Extend{Leases: leases(jobs[0]), Bind: me, Worker: "v"}, 0) })
	}
	check("nack", func() { k.write(backends.Nack{Leases: leases(jobs[0]), Error: "no", HasDelay: true}, 0) })
	check("ack", func() { k.write(backends.Ack{Leases: leases(jobs[1])}, 0) })
	check("acks", func() { k.write(backends.Ack{Leases: leases(jobs[2], jobs[3])}, 0) })
	jobs = k.claim("q", 1)
	check("release", func() { k.write(backends.Release{Leases: leases(jobs...), Uncounted: true}, 0) })
	check("delete", func() { k.command(backends.Command{Kind: backends.Delete, IDs: []string{jobs[0].ID}}, 1) })
	k.sql("DELETE FROM events") // a server can read a row by its key when it plans
	k.sql(rows)
	info, err := engine.Describe(t.Context(), "", "events")
	if err != nil {
		t.Fatal(err)
	}
	for what, all := range ran {
		for _, st := range all {
			p, err := engine.Explain(t.Context(), st, info)
			if err != nil {
				t.Fatalf("%s: %v", st.Text, err)
			}
			plan := strings.Join(p.Lines, "\n")
			if strings.Contains(plan, "reading const tables") {
				continue // MySQL read the row by its key
			}
			if len(rows) < 1000 && strings.Contains(st.Text, "SKIP LOCKED") {
				continue // it waits for no row
			}
			if strings.HasPrefix(p.Index, "by_") || p.Index == "" || p.Whole {
				t.Errorf("%s reads the table by %q:\n%s\n%s", what, p.Index, st.Text, plan)
			}
		}
	}
}

// TestSettleWithoutTheKeysIndex checks that settles go on if the table's owner gives the key's index another name.
func TestSettleWithoutTheKeysIndex(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		for _, inTx := range []bool{false, true} {
			t.Run(fmt.Sprint(inTx), func(t *testing.T) {
				k, _ := keyedKit(t, func(ddl string, tables map[string]mapping.Table) *kit { return on.newKit(t, ddl, tables) }, "CONSTRAINT the_key UNIQUE (region, grp, seq)", inTx, 4)
				if k.c == nil {
					k.sql("ALTER TABLE events RENAME INDEX the_key TO other")
				} else {
					k.sql("ALTER INDEX the_key RENAME TO other")
				}
				jobs := k.claim("q", 3)
				k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
				k.write(backends.Nack{Leases: leases(jobs[1:]...), Error: "no", HasDelay: true}, 0)
				k.wantRows("SELECT concat_ws(' ', seq, state, why) FROM events ORDER BY seq", "1 new no", "2 new no", "3 new")
			})
		}
	})
}
