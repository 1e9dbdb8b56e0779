package adopted_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// sleepers are DDL that makes changes of a wait for the test: those to the state that the table stuck has, or that remove rows
// if it has the state gone.
var sleepers = map[string]string{
	"PostgreSQL": `CREATE TABLE stuck (on_state text);
		CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF EXISTS (SELECT FROM stuck WHERE on_state = coalesce(NEW.state, 'gone')) THEN
				PERFORM set_config('application_name', 'stuck', true);
				WHILE EXISTS (SELECT FROM stuck WHERE on_state = coalesce(NEW.state, 'gone')) LOOP PERFORM pg_sleep(0.01); END LOOP;
				PERFORM set_config('application_name', '', true);
			END IF; RETURN coalesce(NEW, OLD); END $$;
		CREATE TRIGGER sleep BEFORE UPDATE OR DELETE OR INSERT ON a FOR EACH ROW EXECUTE FUNCTION sleep()`,
	"MySQL": `CREATE TABLE stuck (on_state varchar(9));
		CREATE TRIGGER sleep_update BEFORE UPDATE ON a FOR EACH ROW BEGIN IF EXISTS (SELECT 1 FROM stuck WHERE on_state = NEW.state) THEN DO GET_LOCK(database(), 1000); DO RELEASE_LOCK(database()); END IF; END;
		CREATE TRIGGER sleep_insert BEFORE INSERT ON a FOR EACH ROW BEGIN IF EXISTS (SELECT 1 FROM stuck WHERE on_state = NEW.state) THEN DO GET_LOCK(database(), 1000); DO RELEASE_LOCK(database()); END IF; END;
		CREATE TRIGGER sleep_delete BEFORE DELETE ON a FOR EACH ROW BEGIN IF EXISTS (SELECT 1 FROM stuck WHERE on_state = 'gone') THEN DO GET_LOCK(database(), 1000); DO RELEASE_LOCK(database()); END IF; END`,
}

// TestSlowTable shows that changes of one table that take long (a trigger waits until the end of the test) keep no other queue
// from working, and that they succeed when nothing is in their way any more.
func TestSlowTable(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		sleeper, ok := sleeperOf(product)
		if !ok {
			return
		}
		for _, what := range []string{"an ack", "a claim", "a new job"} {
			t.Run(what, func(t *testing.T) {
				ddl, tables := twoTables(product)
				k := start(ddl, tables)
				k.T = t
				k.sql(sleeper)
				k.endStuck(product)
				k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m"}, {Queue: "m"}}}, 0)
				a, b := k.one("a"), k.one("b")
				writes := []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m"}}}, backends.Ack{Leases: leases(b)}}
				claims := []backends.Claim{k.claimOf(1, "m"), k.claimOf(1, "b"), k.claimOf(1, "a", "m")}
				var slow backends.Write
				state := "busy"
				switch what {
				case "an ack":
					slow, state = backends.Ack{Leases: leases(a)}, "gone"
				case "a new job":
					slow, state = backends.Enqueue{Jobs: []backends.NewJob{{Queue: "a"}}}, "new"
				}
				k.sql("INSERT INTO stuck VALUES ('" + state + "')")
				end := k.holdSleepers(product)
				defer end()
				batch := backends.CommitContent{Sidecar: me, Writes: writes, Claims: claims}
				if slow != nil {
					batch.Writes = append(batch.Writes, slow)
				} else {
					batch.Claims = append(batch.Claims, k.claimOf(1, "a"))
				}
				for round := range 3 {
					res, err := k.Commit(t.Context(), batch)
					if err != nil {
						t.Fatalf("round %d: %v", round, err)
					}
					for i := range res.Writes {
						locked, isLocked := errors.AsType[*backends.LockedError](res.Writes[i].Err)
						if isSlow := i == 2; isLocked != isSlow || !isLocked && res.Writes[i].Err != nil {
							t.Errorf("round %d, write %d: %v %v", round, i, locked, res.Writes[i].Err)
						}
					}
					for i := range res.Claims[:3] {
						if res.Claims[i].Err != nil || len(res.Claims[i].Jobs) > 1 || len(res.Claims[i].Jobs) == 0 && i == 1 {
							t.Errorf("round %d, claim %d: %d jobs, %v", round, i, len(res.Claims[i].Jobs), res.Claims[i].Err)
						}
					}
					if slow == nil && !backends.Retryable(res.Claims[3].Err) {
						t.Errorf("round %d, the slow claim: %+v", round, res.Claims[3])
					}
					if !k.Slow("a") || k.Slow("b") {
						t.Errorf("round %d: slow are a: %v, b: %v", round, k.Slow("a"), k.Slow("b"))
					}
					batch.Writes[0], batch.Writes[1] = backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m"}, {Queue: "b"}}}, backends.Ack{Leases: leases(res.Claims[1].Jobs...)}
					batch.Claims = batch.Claims[:len(claims):len(claims)]
					for i, queues := range [][]string{{"m"}, {"b"}, {"a", "m"}} {
						batch.Claims[i] = k.claimOf(1, queues...)
					}
					if slow == nil {
						batch.Claims = append(batch.Claims, k.claimOf(1, "a"))
					}
				}
				// The caller tries it in a commit that delays no others, and it waits there until the trigger ends.
				alone := backends.CommitContent{WaitForLocks: true}
				if slow != nil {
					alone.Writes = []backends.Write{slow}
				} else {
					alone.Sidecar, alone.Claims = me, []backends.Claim{k.claimOf(1, "a")}
				}
				began := make(chan struct{})
				var waits sync.WaitGroup
				waits.Go(func() {
					close(began)
					end()
				})
				<-began
				testwait.Until(t, "it succeeds alone", func() bool {
					res, err := k.Commit(t.Context(), alone)
					if err != nil {
						t.Fatal(err)
					}
					if slow == nil {
						alone.Claims = []backends.Claim{k.claimOf(1, "a")}
						return res.Claims[0].Err == nil && len(res.Claims[0].Jobs) == 1
					}
					return res.Writes[0].Err == nil && len(res.Writes[0].Lost) == 0
				})
				waits.Wait()
				later := time.Now().Add(2 * time.Minute)
				k.SetClock(func() time.Time { return later })
				k.maintain(backends.Maintenance{})
				if k.Slow("a") || len(k.Obstacles()) > 0 {
					t.Errorf("later it is slow: %v, %v", k.Slow("a"), k.Obstacles())
				}
			})
		}
	})
}

// TestSlowTxQueue shows that the first slow statement of a queue whose claims are open transactions delays no other queue either: a claim
// ends, and a settle goes on beside the others. The claim of a job that is done isn't lost.
func TestSlowTxQueue(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		sleeper, ok := sleeperOf(on.name)
		if !ok {
			return
		}
		ddl, tables := twoTables(on.name)
		a := tables["a"]
		a.ClaimInTx, a.Deliveries = true, true
		a.Columns[mapping.Attempts] = []string{"attempts"}
		delete(a.States, backends.StateClaimed)
		tables["a"] = a
		k := on.newKit(t, ddl+"ALTER TABLE a ADD COLUMN attempts int NOT NULL DEFAULT 0", tables)
		k.sql(sleeper)
		k.endStuck(on.name)
		done := k.one("a")
		k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m"}, {Queue: "m"}}}, 0)
		k.sql("INSERT INTO stuck VALUES ('gone')")
		end := k.holdSleepers(on.name)
		defer end()
		ack := backends.Ack{Leases: leases(done)}
		for round := range 2 {
			res, err := k.Commit(t.Context(), backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(1, "m")}, Writes: []backends.Write{ack, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m"}}}}})
			if err != nil || res.Writes[1].Err != nil || len(res.Claims[0].Jobs) != 1 {
				t.Fatalf("round %d: %+v, %v", round, res, err)
			}
			if _, locked := errors.AsType[*backends.LockedError](res.Writes[0].Err); !locked || !k.Slow("a") {
				t.Errorf("round %d: a slow ack gets %+v, slow: %v", round, res.Writes[0], k.Slow("a"))
			}
		}
		var waits sync.WaitGroup
		waits.Go(end)
		res, err := k.Commit(t.Context(), backends.CommitContent{WaitForLocks: true, Writes: []backends.Write{ack}})
		if err != nil || res.Writes[0].Err != nil || len(res.Writes[0].Lost) > 0 {
			t.Errorf("the ack alone gets %+v, %v", res, err)
		}
		waits.Wait()
		k.write(ack, 1)
		k.wantRows("SELECT concat(count(*), '') FROM a", "5")

		later := time.Now().Add(2 * time.Minute)
		k.SetClock(func() time.Time { return later })
		k.maintain(backends.Maintenance{})
		k.sql("INSERT INTO stuck VALUES ('new')") // the count of deliveries
		again := k.holdSleepers(on.name)
		defer again()
		for round := range 2 {
			res, err := k.Commit(t.Context(), backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(1, "a"), k.claimOf(1, "b")}})
			if err != nil || !backends.Retryable(res.Claims[0].Err) || len(res.Claims[1].Jobs) != 1 || !k.Slow("a") {
				t.Errorf("round %d: claims get %+v, %v; slow: %v", round, res.Claims, err, k.Slow("a"))
			}
		}
		again()
		testwait.Until(t, "a job is claimed", func() bool {
			res, err := k.Commit(t.Context(), backends.CommitContent{Sidecar: me, WaitForLocks: true, Claims: []backends.Claim{k.claimOf(1, "a")}})
			return err == nil && len(res.Claims[0].Jobs) == 1
		})
	})
}

// sleeperOf returns the DDL of a product. SQLite has none: it has one writer, and no trigger that waits.
func sleeperOf(product string) (ddl string, ok bool) {
	if strings.HasPrefix(product, "Maria") {
		product = "MySQL"
	}
	ddl, ok = sleepers[strings.Fields(product)[0]]
	return ddl, ok
}

// holdSleepers makes the triggers wait until end is called, once or more.
func (k *kit) holdSleepers(product string) (end func()) {
	ending := "DELETE FROM stuck"
	if product != "PostgreSQL" {
		k.sql("DO GET_LOCK(database(), 1000)")
		ending = "DO RELEASE_LOCK(database())"
	}
	var once sync.Once
	return func() { once.Do(func() { k.sql(ending) }) }
}

// endStuck makes the Store take a statement for slow as soon as a trigger of holdSleepers waits in it, and no other one, however long
// it takes. Sessions in which a trigger waited before the statement began don't count.
func (k *kit) endStuck(product string) {
	query := "SELECT pid::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'stuck'"
	if product != "PostgreSQL" {
		query = "SELECT concat(id, '') FROM information_schema.processlist WHERE db = DATABASE() AND state = 'User lock'"
	}
	look := k.another()
	var mu sync.Mutex
	stuck := func() []string {
		mu.Lock()
		defer mu.Unlock()
		ids, err := look(query)
		if err != nil {
			k.Error(err)
		}
		return ids
	}
	var watches sync.WaitGroup
	k.Cleanup(watches.Wait)
	k.EndSlow(func(f func()) func() bool {
		before, ended := stuck(), make(chan struct{})
		var once sync.Once
		inTime := false
		watches.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ended:
					return
				case <-tick.C:
				}
				if slices.ContainsFunc(stuck(), func(id string) bool { return !slices.Contains(before, id) }) {
					once.Do(f)
					return
				}
			}
		})
		return func() bool {
			once.Do(func() { inTime = true; close(ended) })
			return inTime
		}
	})
}

// TestSlowGiveBack shows that a claim whose end takes long to store keeps no other from being taken back, and is taken back
// beside the maintenance.
func TestSlowGiveBack(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		sleeper, ok := sleeperOf(product)
		if !ok {
			return
		}
		k := start(twoTables(product))
		k.sql(sleeper)
		k.endStuck(product)
		claims := []backends.Claim{k.claimOf(1, "a"), k.claimOf(1, "b")}
		for i := range claims {
			claims[i].Slots[0].Lease = time.Millisecond
		}
		for _, c := range k.commit(backends.CommitContent{Sidecar: me, Claims: claims}).Claims {
			if len(c.Jobs) != 1 || c.Err != nil {
				t.Fatalf("%+v", c)
			}
		}
		k.sql("INSERT INTO stuck VALUES ('new')")
		end := k.holdSleepers(product)
		defer end()
		busy := func(table string) bool {
			n, err := k.rows("SELECT state FROM " + table + " WHERE state = 'busy'")
			if err != nil {
				t.Fatal(err)
			}
			return len(n) > 0
		}
		reaped := 0
		maintain := func() {
			r, err := k.Maintain(t.Context(), backends.Maintenance{Limit: 100})
			if err != nil {
				t.Fatal(err)
			}
			reaped += r.Reaped[backends.CauseLeaseEnded]
		}
		testwait.Until(t, "b's job is given back", func() bool { maintain(); return !busy("b") })
		for range 3 {
			maintain()
		}
		if !busy("a") || !k.Slow("a") || k.Slow("b") {
			t.Errorf("a's job is busy: %v; slow are a: %v, b: %v", busy("a"), k.Slow("a"), k.Slow("b"))
		}
		end()
		testwait.Until(t, "a's job is given back", func() bool { maintain(); return !busy("a") && reaped == 2 })
	})
}
