package adopted_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// sqliteProduct is SQLite, as far as tests of heads need it.
var sqliteProduct = &product{name: "SQLite", newKit: newSQLiteKit, zoneless: "datetime"}

// onEachAndSQLite is onEach, and on SQLite.
func onEachAndSQLite(t *testing.T, f func(t *testing.T, on *product)) {
	onEach(t, f)
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		f(t, sqliteProduct)
	})
}

// headOrders are orders of claims: of one direction, of two, backwards, and by texts whose case the index can ignore.
var headOrders = []string{"made_at, id", "urgency DESC, made_at, id", "made_at DESC, id DESC", "id", "urgency, id DESC"}

// headTable is a table without columns for back-offs and dead jobs.
func headTable(name, order string) mapping.Table {
	m := mapping.Table{
		Name: name, OnAck: mapping.Delete, MaxAttempts: 3,
		Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Worker: {"who"}, mapping.CreatedAt: {"made_at"}},
		States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}},
	}
	for part := range strings.SplitSeq(order, ", ") {
		column, descending := strings.CutSuffix(part, " DESC")
		m.Order = append(m.Order, mapping.Ordering{Column: column, Descending: descending})
	}
	return m
}

// headDDL creates such a table with rows, and the index that serves the order.
func headDDL(on *product, name, order string, rows int, null string) string {
	text := "varchar(20)"
	switch on.name {
	case "SQLite":
		text = "text COLLATE NOCASE"
	case "PostgreSQL":
	default:
		text = "varchar(20) CHARACTER SET latin1"
	}
	ddl := fmt.Sprintf("CREATE TABLE %s (id %s NOT NULL PRIMARY KEY, state varchar(9) NOT NULL, urgency int %s, made_at %s %[3]s, who varchar(9)); CREATE INDEX %[1]s_waiting ON %[1]s (state, %[5]s);",
		name, text, null, on.zoneless, order)
	var values []string
	for i := range rows {
		made, urgency := fmt.Sprintf("'2026-01-02 03:%02d:%02d'", i/7/60, i/7%60), strconv.Itoa(i%5)
		if null == "NULL" && i%3 == 0 {
			urgency = "NULL"
		}
		if null == "NULL" && i%4 == 0 {
			made = "NULL"
		}
		values = append(values, fmt.Sprintf("('%05dé%c', 'new', %s, %s)", i, "kK"[i%2], urgency, made))
	}
	return ddl + "INSERT INTO " + name + " (id, state, urgency, made_at) VALUES " + strings.Join(values, ", ") + ";"
}

// counted counts the statements that package adopted runs, and what the claims of an engine read.
type counted struct {
	backends.Engine
	statements int
	query      string // for the rows that the transaction or its session has read; empty: the rows of the ranges are counted
	scans      []*backends.Statement
	read       int64
}

func (c *counted) Usage() backends.Usage { return c.Engine.(backends.Metered).Usage() }

func (c *counted) CommitWith(ctx context.Context, b backends.CommitContent, also backends.TxHooks) (backends.Results, error) {
	if before := also.Before; before != nil {
		also.Before = func(ctx context.Context, sql backends.SQL, b *backends.CommitContent) error {
			return before(ctx, recorded{sql, c}, b)
		}
	}
	if after := also.After; after != nil {
		also.After = func(ctx context.Context, sql backends.SQL, r *backends.Results) error {
			before, err := c.total(ctx, sql)
			if err != nil {
				return err
			}
			c.scans = nil
			if err := after(ctx, recorded{sql, c}, r); err != nil {
				return err
			}
			all, err := c.total(ctx, sql)
			c.read = all - before
			return err
		}
	}
	return c.Engine.CommitWith(ctx, b, also)
}

func (c *counted) total(ctx context.Context, sql backends.SQL) (n int64, err error) {
	if c.query == "" {
		return 0, nil
	}
	return n, sql.Do(ctx, &backends.Statement{Text: c.query, Row: func(cells [][]byte) error {
		one, err := strconv.ParseInt(string(cells[0]), 10, 64)
		n += one
		return err
	}})
}

// recorded counts statements, and notes the scans for jobs to claim.
type recorded struct {
	backends.SQL
	e *counted
}

func (r recorded) Do(ctx context.Context, all ...*backends.Statement) error {
	r.e.statements += len(all)
	for _, st := range all {
		if strings.Contains(st.Text, "ORDER BY") {
			r.e.scans = append(r.e.scans, &backends.Statement{Text: st.Text, Args: st.Args})
		}
	}
	return r.SQL.Do(ctx, all...)
}

// onCounted has the kit's Store count.
func (k *kit) onCounted(on *product, tables map[string]mapping.Table) *counted {
	k.Helper()
	e := &counted{Engine: k.reopen(), query: "SELECT variable_value FROM /*M! information_schema.session_status */ /*!80000 performance_schema.session_status */ WHERE variable_name LIKE 'Handler_read%'"}
	switch on.name {
	case "PostgreSQL":
		e.query = "SELECT sum(coalesce(idx_tup_fetch, 0) + seq_tup_read)::text FROM pg_stat_xact_user_tables"
	case "SQLite":
		e.query = ""
	}
	s, err := adopted.New(k.Context(), e, tables)
	if err != nil {
		k.Fatal(err)
	}
	closed(k.T, s)
	k.Store = s
	return e
}

// TestBlockedHead shows that only the first of the claims at one time reads the dead jobs at the head of its queue. The others read
// as many rows behind many of them as behind few, and claim the other jobs in their order.
func TestBlockedHead(t *testing.T) {
	onEachAndSQLite(t, func(t *testing.T, on *product) {
		const few, many, rows = 5, 300, 500
		ddl, tables, blocked := "", map[string]mapping.Table{}, map[string]int{}
		for i, order := range headOrders {
			for _, n := range []int{few, many} {
				name := fmt.Sprintf("q%d_%d", i, n)
				ddl += headDDL(on, name, order, rows, "NOT NULL")
				tables[name], blocked[name] = headTable(name, order), n
			}
		}
		k := on.newKit(t, ddl, tables)
		e := k.onCounted(on, tables)
		at := time.Now()
		k.SetClock(func() time.Time { return at })
		k.blockHeads(on, blocked)
		for i, order := range headOrders {
			var most [2]int64
			for j, n := range []int{few, many} {
				name := fmt.Sprintf("q%d_%d", i, n)
				all, err := k.rows("SELECT id FROM " + name + " ORDER BY " + order)
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for c := range 8 {
					got = append(got, k.one(name).ID)
					if c == 0 && e.query != "" && e.read < int64(n) {
						t.Fatalf("order by %s: a scan from the beginning read %d rows behind %d dead jobs", order, e.read, n)
					}
					if c > 0 {
						most[j] = max(most[j], e.read)
						k.scansFromARow(on, e, order)
					}
				}
				for len(got) < rows-n {
					jobs := k.claim(name, 37)
					if len(jobs) == 0 {
						break
					}
					for _, job := range jobs {
						got = append(got, job.ID)
					}
				}
				if !slices.Equal(got, all[n:]) {
					t.Errorf("order by %s: the jobs behind %d dead ones came in the order %q, want %q", order, n, got, all[n:])
				}
			}
			if most[1] > most[0]+8 {
				t.Errorf("order by %s: behind %d dead jobs a claim reads up to %d rows, behind %d up to %d", order, few, most[0], many, most[1])
			}
		}
	})
}

// blockHeads buries the first jobs of the queues.
func (k *kit) blockHeads(on *product, blocked map[string]int) {
	k.Helper()
	const never = "9223372036854775807"
	id := 1_000_000
	for name, n := range blocked {
		items, err := k.rows(fmt.Sprintf("SELECT id FROM %s ORDER BY %s LIMIT %d", name, headOrders[name[1]-'0'], n))
		if err != nil {
			k.Fatal(err)
		}
		var values []string
		for _, item := range items {
			id++
			values = append(values, fmt.Sprintf("(%d, '%s', '%s', 1, 1, 0, %s, 1, 0, 0, 0)", id, name, item, never))
		}
		k.sql("INSERT INTO " + on.own + "qsidecar_leases (id, queue, item, fence, attempts, losses, not_before, claim_max, backoff_ms, backoff_max_ms, changed_at) VALUES " + strings.Join(values, ", "))
	}
	for name := range blocked {
		k.sql(map[string]string{"PostgreSQL": "ANALYZE ", "SQLite": "ANALYZE "}[on.name] + map[bool]string{true: "ANALYZE TABLE "}[on.own == "" && on.name != "SQLite"] + name)
	}
}

// sqliteRange is a range of an index in a plan of SQLite.
var sqliteRange = regexp.MustCompile(`_waiting \(state=\?.*[<>]`)

// scansFromARow checks the plans of the last claim's scans on SQLite, which doesn't count what it reads.
func (k *kit) scansFromARow(on *product, e *counted, order string) {
	k.Helper()
	if on.name != "SQLite" {
		return
	}
	for _, st := range e.scans {
		plan, err := e.Explain(k.Context(), st, backends.TableInfo{})
		if err != nil {
			k.Fatal(err)
		}
		if text := strings.Join(plan.Lines, "\n"); !sqliteRange.MatchString(text) || strings.Contains(text, "TEMP B-TREE") {
			k.Fatalf("order by %s: a scan from a row has the plan\n%s\n%s", order, text, st.Text)
		}
	}
}

// TestHeadWithNulls shows that rows with NULL in a column of the order are claimed, too.
func TestHeadWithNulls(t *testing.T) {
	onEachAndSQLite(t, func(t *testing.T, on *product) {
		ddl, tables := "", map[string]mapping.Table{}
		for i, order := range headOrders {
			name := fmt.Sprintf("q%d", i)
			ddl += headDDL(on, name, order, 30, "NULL")
			tables[name] = headTable(name, order)
		}
		k := on.newKit(t, ddl, tables)
		at := time.Now()
		k.SetClock(func() time.Time { return at })
		for name := range tables {
			got := map[string]bool{}
			for range 30 {
				got[k.one(name).ID] = true
			}
			if jobs := k.claim(name, 1); len(got) != 30 || len(jobs) > 0 {
				t.Errorf("%s: %d of 30 jobs, and then %+v", name, len(got), jobs)
			}
		}
	})
}

// TestBeforeTheHead shows that a job before the row where claims start is claimed at once if this Store made it ready, and otherwise
// with the next scan from the beginning: after a second, or if there are too few others.
func TestBeforeTheHead(t *testing.T) {
	onEachAndSQLite(t, func(t *testing.T, on *product) {
		tables := map[string]mapping.Table{"q": headTable("q", headOrders[0])}
		k := on.newKit(t, headDDL(on, "q", headOrders[0], 40, "NOT NULL"), tables)
		at := time.Now()
		k.SetClock(func() time.Time { return at })
		id := func(i int) string { return fmt.Sprintf("%05dé%c", i, "kK"[i%2]) }
		next := func(what string, want ...int) (jobs []backends.Job) {
			t.Helper()
			jobs = k.claim("q", len(want))
			var got, ids []string
			for _, job := range jobs {
				got = append(got, job.ID)
			}
			for _, i := range want {
				ids = append(ids, id(i))
			}
			if !slices.Equal(got, ids) {
				t.Fatalf("%s: claimed %q, want %q", what, got, ids)
			}
			return jobs
		}
		jobs := next("at first", 0, 1, 2, 3, 4, 5)
		next("from a row on", 6)

		k.write(backends.Nack{Leases: leases(jobs[2]), HasDelay: true}, 0)
		next("after a nack", 2, 7)
		both := k.commit(backends.CommitContent{Sidecar: me, Writes: []backends.Write{backends.Nack{Leases: leases(jobs[1]), HasDelay: true}}, Claims: []backends.Claim{{
			Queues: []backends.Policy{policy("q")}, Slots: []backends.Slot{k.slot(0)}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}}})
		if got := both.Claims[0].Jobs; len(got) != 1 || got[0].ID != id(1) {
			t.Errorf("a claim in one commit with a nack: %+v", got)
		}
		k.write(backends.Release{Leases: leases(jobs[3]), Uncounted: true}, 0)
		next("after a release", 3, 8)
		k.write(backends.Nack{Leases: leases(jobs[4]), Dead: true}, 0)
		next("after a death", 9)
		k.command(backends.Command{Kind: backends.Retry, All: true}, 1)
		next("after a retry", 4, 10)
		k.command(backends.Command{Kind: backends.Reclaim, IDs: []string{id(5)}}, 1)
		jobs = next("after a reclaim", 5, 11)
		next("from a row on", 12)

		k.write(backends.Nack{Leases: leases(jobs[0]), HasDelay: true, Delay: 300 * time.Millisecond}, 0)
		k.sql("UPDATE " + on.own + "qsidecar_leases SET not_before = 1 WHERE item = '" + jobs[0].ID + "'")
		next("before the end of a back-off", 13)
		at = at.Add(500 * time.Millisecond)
		next("after the end of a back-off", 5, 14)

		k.sql("UPDATE q SET state = 'new', who = NULL WHERE id = '" + id(0) + "'")
		k.sql("INSERT INTO q (id, state, urgency, made_at) VALUES ('" + id(99) + "', 'new', 0, '2026-01-01 00:00:00')")
		next("less than a second after another program's change", 15)
		at = at.Add(time.Second)
		next("a second after it", 99, 0, 16)

		next("from a row on", 17)
		k.sql("UPDATE q SET state = 'new', who = NULL WHERE id = '" + id(6) + "'")
		next("with enough others", 18)
		last := []int{6}
		for i := 19; i < 40; i++ {
			last = append(last, i)
		}
		next("with too few others", last...)
		if more := k.claim("q", 1); len(more) > 0 {
			t.Errorf("%+v", more)
		}
	})
}
