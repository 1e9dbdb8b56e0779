package adopted_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/postgres"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// twoTables are the queues a and b in tables of the same names. The queue m is managed.
func twoTables(product string) (ddl string, tables map[string]mapping.Table) {
	tables = map[string]mapping.Table{}
	for _, name := range []string{"a", "b"} {
		ddl += fmt.Sprintf("CREATE TABLE %s (id %s, state varchar(9) NOT NULL DEFAULT 'new', body varchar(99));", name, serial(product))
		ddl += fmt.Sprintf("INSERT INTO %s (body) VALUES ('1'), ('2'), ('3'), ('4'), ('5'), ('6');", name)
		tables[name] = mapping.Table{
			Name: name, MaxAttempts: 3, OnAck: mapping.Delete,
			Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Payload: {"body"}},
			States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}, backends.StateDead: {Text: "dead"}},
		}
	}
	return ddl, tables
}

// claimOf is a claim of n jobs of the queues.
func (k *kit) claimOf(n int, queues ...string) backends.Claim {
	c := backends.Claim{MaxBytes: 1 << 20, MaxPayload: 1 << 20}
	for _, queue := range queues {
		c.Queues = append(c.Queues, policy(queue))
	}
	for range n {
		c.Slots = append(c.Slots, k.slot(0))
	}
	return c
}

// as commits the writes and claims as the bridge does: it tries a write alone that is set aside.
func (k *kit) as(b backends.CommitContent) (res backends.Results, err error) {
	k.Helper()
	if res, err = k.Commit(k.Context(), b); err != nil {
		return res, err
	}
	for i := range res.Writes {
		if _, locked := errors.AsType[*backends.LockedError](res.Writes[i].Err); locked {
			one, err := k.Commit(k.Context(), backends.CommitContent{Writes: b.Writes[i : i+1], WaitForLocks: true})
			if err != nil {
				one.Writes = []backends.WriteResult{{Err: err}}
			}
			res.Writes[i] = one.Writes[0]
		}
	}
	return res, nil
}

// outage is something that an owner does to the table a, and its end.
type outage struct {
	name, begin, end string
	products         string // those that it is tried on; empty: all
	settles          bool   // settles need nothing of what is gone
	names            string // what the error names besides the table
}

var outages = []outage{
	{name: "renamed column", begin: "ALTER TABLE a RENAME COLUMN state TO status", end: "ALTER TABLE a RENAME COLUMN status TO state", names: "state"},
	{name: "renamed table", begin: "ALTER TABLE a RENAME TO aa", end: "ALTER TABLE aa RENAME TO a"},
	{name: "dropped column", begin: "ALTER TABLE a DROP COLUMN body", end: "ALTER TABLE a ADD COLUMN body varchar(99)", names: "body", settles: true},
	{name: "changed type", products: "PostgreSQL", begin: "ALTER TABLE a ALTER state DROP DEFAULT, ALTER state TYPE int USING 0", end: "ALTER TABLE a ALTER state TYPE varchar(9) USING CASE WHEN id = 1 THEN 'busy' ELSE 'new' END, ALTER state SET DEFAULT 'new'", names: "state"},
	{name: "a view", begin: "ALTER TABLE a RENAME TO aa; CREATE VIEW a AS SELECT id, state AS status, body FROM aa", end: "DROP VIEW a; ALTER TABLE aa RENAME TO a"},
	{name: "locked", products: "PostgreSQL", begin: "BEGIN; LOCK TABLE a IN ACCESS EXCLUSIVE MODE", end: "ROLLBACK"},
	{name: "locked", products: "MySQL MariaDB", begin: "LOCK TABLES a WRITE", end: "UNLOCK TABLES"},
}

// TestOutageOfOneTable shows that what an owner does to one table affects no other queue: claims, settles, new jobs,
// due jobs and statistics of the others continue, and the error for the one names it. It works again without a restart.
func TestOutageOfOneTable(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		for _, o := range outages {
			if o.products != "" && !slices.ContainsFunc(strings.Fields(o.products), func(p string) bool { return strings.HasPrefix(strings.ToLower(product), strings.ToLower(p)) }) {
				continue
			}
			t.Run(o.name, func(t *testing.T) {
				k := start(twoTables(product))
				k.T = t
				held := k.one("a")
				k.write(backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "m"}}, 9)}, 0)
				k.sql(o.begin)
				ended := false
				defer func() {
					if !ended {
						k.sql(o.end)
					}
				}()
				if o.settles {
					k.write(backends.Ack{Leases: leases(held)}, 0)
					held = backends.Job{}
				}
				for round := range 3 {
					k.othersGoOn(round, held)
				}
				res, err := k.as(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(1, "a")}})
				if err != nil {
					t.Fatal(err)
				}
				if err := res.Claims[0].Err; err == nil || !backends.Retryable(err) || !strings.Contains(err.Error(), "queue a") || !strings.Contains(err.Error(), "table") || !strings.Contains(err.Error(), o.names) {
					t.Errorf("a claim of a: %v", err)
				}
				k.sql(o.end)
				ended = true
				now := time.Now().Add(time.Hour)
				k.ObstacleSet().Now = func() time.Time { return now }
				testwait.Until(t, "the held job is settled", func() bool {
					k.maintain(backends.Maintenance{Waiting: []string{"a"}})
					if o.settles {
						return true
					}
					res, err := k.as(backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leases(held)}}})
					if err != nil {
						t.Fatal(err)
					}
					if len(res.Writes[0].Lost) > 0 {
						t.Fatalf("the lease is lost")
					}
					return res.Writes[0].Err == nil
				})
				testwait.Until(t, "a claim gets a job", func() bool {
					k.maintain(backends.Maintenance{Waiting: []string{"a"}})
					res, err := k.as(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(1, "a", "b")}})
					if err != nil {
						t.Fatal(err)
					}
					return len(res.Claims[0].Jobs) == 1 && res.Claims[0].Jobs[0].Queue == "a"
				})
			})
		}
	})
}

// othersGoOn checks that the other queues work while one that is alone with its trouble has a held job.
func (k *kit) othersGoOn(round int, held backends.Job) {
	k.Helper()
	writes := []backends.Write{
		backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m", Delay: time.Hour}}},
		backends.Enqueue{Jobs: []backends.NewJob{{Queue: "b", Payload: []byte("new")}}},
	}
	if held.ID != "" {
		writes = append(writes, backends.Ack{Leases: leases(held)})
	}
	res, err := k.as(backends.CommitContent{Sidecar: me, Writes: writes, Claims: []backends.Claim{k.claimOf(1, "a"), k.claimOf(1, "m"), k.claimOf(1, "b"), k.claimOf(1, "a", "b"), k.claimOf(1, "a", "m")}})
	if err != nil {
		k.Errorf("round %d: the commit of all queues: %v", round, err)
		return
	}
	for i := range res.Writes {
		if err := res.Writes[i].Err; (err != nil) != (i == 2) || len(res.Writes[i].Lost) > 0 {
			k.Errorf("round %d, write %d: %v, lost %v", round, i, err, res.Writes[i].Lost)
		}
	}
	var jobs []backends.Job
	for i := range res.Claims {
		if jobs = append(jobs, res.Claims[i].Jobs...); i > 0 && (res.Claims[i].Err != nil || len(res.Claims[i].Jobs) != 1) {
			k.Errorf("round %d, claim %d: %d jobs, %v", round, i, len(res.Claims[i].Jobs), res.Claims[i].Err)
		}
	}
	if round > 0 && !backends.Retryable(res.Claims[0].Err) {
		k.Errorf("round %d, a claim of a: %v", round, res.Claims[0].Err)
	}
	res, err = k.as(backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leases(jobs...)}}})
	if err != nil || res.Writes[0].Err != nil || len(res.Writes[0].Lost) > 0 {
		k.Errorf("round %d, acks of the others: %v %+v", round, err, res.Writes)
	}
	r, err := k.Maintain(k.Context(), backends.Maintenance{Waiting: []string{"a", "b", "m"}, Limit: 100, Prune: round == 2})
	if err != nil || !slices.Contains(r.Ready, "b") || !slices.Contains(r.Ready, "m") {
		k.Errorf("round %d, maintenance: ready %v, %v", round, r.Ready, err)
	}
	stats, err := k.Stats(k.Context(), "")
	if err != nil || !slices.ContainsFunc(stats, func(s backends.QueueStats) bool { return s.Queue == "b" && s.Ready > 0 }) {
		k.Errorf("round %d, statistics: %+v %v", round, stats, err)
	}
}

// refusals are DDL that refuses the claims of some rows of a.
var refusals = map[string]string{
	"PostgreSQL": `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.state = 'busy' AND NEW.body LIKE 'bad%' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON a FOR EACH ROW EXECUTE FUNCTION refuse()`,
	"silent": `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.state = 'busy' AND NEW.body LIKE 'bad%' THEN RETURN NULL; END IF; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON a FOR EACH ROW EXECUTE FUNCTION refuse()`,
	"conflict of PostgreSQL": `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.state = 'busy' AND NEW.body LIKE 'bad%' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON a FOR EACH ROW EXECUTE FUNCTION refuse()`,
	"conflict of MySQL": `CREATE TRIGGER refuse BEFORE UPDATE ON a FOR EACH ROW BEGIN IF NEW.state = 'busy' AND NEW.body LIKE 'bad%' THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'not this one'; END IF; END`,
	"SQLite":            `CREATE TRIGGER refuse BEFORE UPDATE ON a WHEN NEW.state = 'busy' AND NEW.body LIKE 'bad%' BEGIN SELECT raise(ABORT, 'not this one'); END`,
	"MySQL":             `CREATE TRIGGER refuse BEFORE UPDATE ON a FOR EACH ROW BEGIN IF NEW.state = 'busy' AND NEW.body LIKE 'bad%' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF; END`,
}

// TestRowsThatCantBeClaimed shows that rows whose claim the database refuses keep no other row and no other queue from
// being claimed, however many they are, and that they are claimed when the obstacle is gone.
func TestRowsThatCantBeClaimed(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		kinds := []string{product}
		switch product {
		case "PostgreSQL":
			kinds = append(kinds, "silent", "conflict of PostgreSQL")
		case "SQLite":
		default:
			kinds = []string{"MySQL", "conflict of MySQL"}
		}
		for _, kind := range kinds {
			for _, bad := range []int{1, 25} {
				if bad > 1 && strings.HasPrefix(kind, "conflict") {
					continue // each is tried several times
				}
				t.Run(fmt.Sprint(kind, bad), func(t *testing.T) {
					k := start(twoTables(product))
					k.T = t
					k.sql("DELETE FROM a")
					k.sql("INSERT INTO a (body) VALUES ('good 1')" + strings.Repeat(", ('bad')", bad) + ", ('good 2'), ('good 3')")
					k.sql(refusals[kind])
					k.write(backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "m"}}, 9)}, 0)
					got := map[string]bool{}
					var jobs []backends.Job
					for n := 0; len(got) < 3; n++ {
						if n > bad+3 {
							t.Fatalf("claimed only %v", got)
						}
						res, err := k.as(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(4, "a"), k.claimOf(1, "b"), k.claimOf(1, "m")}})
						if err != nil {
							t.Fatal(err)
						}
						if n == 0 {
							for i := range res.Claims {
								if res.Claims[i].Err != nil || i > 0 && len(res.Claims[i].Jobs) != 1 {
									t.Errorf("claim %d: %d jobs, %v", i, len(res.Claims[i].Jobs), res.Claims[i].Err)
								}
							}
						}
						for _, j := range res.Claims[0].Jobs {
							got[string(j.Payload)] = true
							jobs = append(jobs, j)
						}
					}
					if jobs := k.claim("a", 9); len(jobs) > 0 {
						t.Errorf("%d refused rows were claimed", len(jobs))
					}
					k.sql("DROP TRIGGER refuse" + map[bool]string{true: " ON a"}[product == "PostgreSQL"])
					r := k.write(backends.Ack{Leases: leases(jobs...)}, 0)
					if !slices.Contains(r.MadeReady, "a") {
						t.Errorf("the settle made %v ready", r.MadeReady)
					}
					claimed := 0
					testwait.Until(t, "the refused rows are claimed", func() bool {
						claimed += len(k.claim("a", 9))
						return claimed == bad
					})
				})
			}
		}
	})
}

// TestUnreadableRow shows that a row that can't be read keeps no other from being claimed: its priority is out of the range
// of every number that the program handles, or its time is.
func TestUnreadableRow(t *testing.T) {
	t.Parallel()
	ddl, tables := twoTables("PostgreSQL")
	m := tables["a"]
	m.Columns[mapping.CreatedAt] = []string{"made"}
	tables["a"] = m
	k := newKit(t, ddl+"ALTER TABLE a ADD COLUMN made timestamptz DEFAULT now(); UPDATE a SET made = 'infinity' WHERE id = 2", tables)
	res := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(9, "a"), k.claimOf(1, "b")}})
	if len(res.Claims[0].Jobs) < 5 || len(res.Claims[1].Jobs) != 1 {
		t.Errorf("claimed %d of a and %d of b: %v; obstacles %v", len(res.Claims[0].Jobs), len(res.Claims[1].Jobs), res.Claims[0].Err, k.Obstacles())
	}
}

// TestRefusedRowOfTxClaims shows that a row that can't be delivered keeps no other from being claimed in an open transaction,
// and that a locked table stops no other queue.
func TestRefusedRowOfTxClaims(t *testing.T) {
	m := tableB()
	m.Deliveries = true
	onEach(t, func(t *testing.T, on *product) {
		ddl, tables := twoTables(on.name)
		tables["q"] = m
		k := on.newKit(t, on.systemB+";"+ddl, tables)
		trigger := "CREATE TRIGGER refuse BEFORE UPDATE ON worker_queue FOR EACH ROW BEGIN IF NEW.command = 'one' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF; END"
		if on.name == "PostgreSQL" {
			trigger = `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.command = 'one' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$;
				CREATE TRIGGER refuse BEFORE UPDATE ON worker_queue FOR EACH ROW EXECUTE FUNCTION refuse()`
		}
		k.sql(trigger)
		jobs := k.claim("q", 3)
		if len(jobs) != 2 || string(jobs[0].Payload) != "two" {
			t.Fatalf("claimed %+v", jobs)
		}
		if all := k.Obstacles(); len(all) != 1 || all[0].Job != "1" || all[0].Table != "worker_queue" {
			t.Errorf("obstacles %+v", all)
		}
		k.write(backends.Ack{Leases: leases(jobs...)}, 0)
		k.sql("DROP TRIGGER refuse" + map[bool]string{true: " ON worker_queue"}[on.name == "PostgreSQL"])
		now := time.Now().Add(time.Hour)
		k.ObstacleSet().Now = func() time.Time { return now }
		testwait.Until(t, "the refused row is claimed", func() bool { return len(k.claim("q", 1)) == 1 })
	})
}

// TestTableThatIsMissingAtTheStart shows that a Store opens without a table, serves the other queues, and serves this one when its
// table is there.
func TestTableThatIsMissingAtTheStart(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		ddl, tables := twoTables(product)
		k := start(ddl, map[string]mapping.Table{})
		k.sql("ALTER TABLE a RENAME TO aa")
		engine := k.reopen()
		s, err := adopted.Open(t.Context(), engine, tables)
		if err != nil {
			t.Fatal(errors.Join(err, engine.Close()))
		}
		closed(t, s)
		k.Store = s
		k.write(backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "m"}}, 9)}, 0)
		for round := range 2 {
			k.othersGoOn(round, backends.Job{})
		}
		res := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(1, "a")}})
		if err := res.Claims[0].Err; !backends.Retryable(err) || !strings.Contains(err.Error(), "queues.a.table: there is no table a") {
			t.Errorf("a claim of a: %v", err)
		}
		if _, err := k.as(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "a"}}}}}); err != nil {
			t.Errorf("a new job: %v", err)
		}
		k.sql("ALTER TABLE aa RENAME TO a")
		now := time.Now().Add(time.Hour)
		k.ObstacleSet().Now = func() time.Time { return now }
		k.maintain(backends.Maintenance{})
		if jobs := k.claim("a", 9); len(jobs) != 6 || len(k.Obstacles()) > 0 {
			t.Errorf("%d jobs, obstacles %v", len(jobs), k.Obstacles())
		}
	})
}

// TestRefusedLease shows that a row whose lease the database refuses, beside one that is too large, keeps no other from being
// claimed.
func TestRefusedLease(t *testing.T) {
	t.Parallel()
	k := newKit(t, "CREATE TABLE unused (id int PRIMARY KEY)", nil)
	ddl, tables := twoTables("PostgreSQL")
	k.sql(ddl)
	k.sql(`UPDATE a SET body = repeat('x', 99) WHERE id = 1;
		ALTER TABLE qsidecar.qsidecar_leases ADD CONSTRAINT not_two CHECK (queue <> 'a' OR item <> '2')`)
	t.Cleanup(func() { // another test gets the database
		if _, err := k.c.Exec(context.Background(), "ALTER TABLE qsidecar.qsidecar_leases DROP CONSTRAINT not_two"); err != nil {
			t.Error(err)
		}
	})
	k.Store = k.reopened(tables)
	c := k.claimOf(4, "a")
	c.MaxPayload = 50
	res := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c, k.claimOf(1, "b")}})
	var ids []string
	for _, j := range res.Claims[0].Jobs {
		ids = append(ids, j.ID)
	}
	if fmt.Sprint(ids) != "[3 4 5 6]" || len(res.Claims[1].Jobs) != 1 {
		t.Errorf("claimed %v and %d of b; obstacles %v", ids, len(res.Claims[1].Jobs), k.Obstacles())
	}
}

// TestRevokedRight shows that a right that the login lost on one table affects no other queue.
func TestRevokedRight(t *testing.T) {
	t.Parallel()
	k := newKit(t, "CREATE TABLE unused (id int PRIMARY KEY)", nil)
	ddl, tables := twoTables("PostgreSQL")
	k.sql(ddl)
	for name, m := range tables {
		m.Schema = "public"
		tables[name] = m
	}
	var db string
	if err := k.c.QueryRow(t.Context(), "SELECT current_database()").Scan(&db); err != nil {
		t.Fatal(err)
	}
	role := "reader_" + db
	k.sql(fmt.Sprintf("CREATE ROLE %q LOGIN; GRANT ALL ON SCHEMA qsidecar TO %[1]q; GRANT ALL ON ALL TABLES IN SCHEMA qsidecar TO %[1]q; GRANT ALL ON ALL SEQUENCES IN SCHEMA qsidecar TO %[1]q;"+
		"GRANT USAGE ON SCHEMA public TO %[1]q; GRANT ALL ON a, b TO %[1]q; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO %[1]q", role))
	t.Cleanup(func() {
		if _, err := k.c.Exec(context.Background(), fmt.Sprintf("DROP OWNED BY %q; DROP ROLE %[1]q", role)); err != nil {
			t.Error(err)
		}
	})
	config := k.c.Config()
	engine, err := postgres.Open(t.Context(), postgres.Options{URL: fmt.Sprintf("postgres://%s@/%s?host=%s&port=%d", role, db, config.Host, config.Port)})
	if err != nil {
		t.Fatal(err)
	}
	if k.Store, err = adopted.New(t.Context(), pgdiagnose.New(engine), tables); err != nil {
		t.Fatal(errors.Join(err, engine.Close()))
	}
	closed(t, k.Store)
	k.write(backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "m"}}, 20)}, 0)
	held := k.one("a")
	for _, right := range []string{"SELECT", "UPDATE", "INSERT"} {
		k.sql(fmt.Sprintf("REVOKE %s ON a FROM %q", right, role))
		if right == "INSERT" {
			res, err := k.as(backends.CommitContent{Writes: []backends.Write{
				backends.Enqueue{Jobs: []backends.NewJob{{Queue: "a"}}}, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "b"}}}, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m"}}},
			}})
			if err != nil || !backends.Retryable(res.Writes[0].Err) || res.Writes[1].Err != nil || res.Writes[2].Err != nil {
				t.Errorf("new jobs: %v, %+v", err, res)
			}
		} else {
			for round := range 2 {
				k.othersGoOn(round, backends.Job{})
			}
		}
		k.sql(fmt.Sprintf("GRANT %s ON a TO %q", right, role))
		now := time.Now().Add(time.Hour)
		k.ObstacleSet().Now = func() time.Time { return now }
		if right == "INSERT" { // a write that comes before the check must not put it off
			_, _ = k.as(backends.CommitContent{WaitForLocks: true, Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "a"}}}}})
		}
		k.maintain(backends.Maintenance{})
		if jobs := k.claim("a", 1); len(jobs) != 1 {
			t.Errorf("after %s came back: %d jobs, obstacles %v", right, len(jobs), k.Obstacles())
		}
		if res, err := k.as(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "a"}}}}}); err != nil || res.Writes[0].Err != nil {
			t.Errorf("a new job after %s came back: %v, %+v", right, err, res)
		}
		k.ObstacleSet().Now = nil
	}
	k.write(backends.Ack{Leases: leases(held)}, 0)
}

// TestQueriesOfALockedTable shows that no query waits for a table that its owner has locked, however often it met the lock: after an
// error the driver prepares a statement again, and the server waits for the lock then, too.
func TestQueriesOfALockedTable(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, "CREATE TABLE locked (id int PRIMARY KEY)", nil)
		lock, unlock := "BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE", "ROLLBACK"
		if on.name != "PostgreSQL" {
			lock, unlock = "LOCK TABLES locked WRITE", "UNLOCK TABLES"
		}
		ctx := testwait.Context(t)
		query := &backends.Statement{Text: "SELECT count(*) FROM " + map[bool]string{true: "public."}[on.name == "PostgreSQL"] + "locked"}
		for range 8 { // each connection of the pool prepares it
			if err := k.Query(ctx, query); err != nil {
				t.Fatal(err)
			}
		}
		k.sql(lock)
		for n := range 8 {
			var locked *backends.LockedError
			if err := k.Query(ctx, query); !errors.As(err, &locked) {
				t.Fatalf("query %d: %v, want a LockedError", n+1, err)
			}
		}
		k.sql(unlock)
		if err := k.Query(ctx, query); err != nil {
			t.Error(err)
		}
	})
}
