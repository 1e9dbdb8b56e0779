package adopted_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestLockedOwnTable shows that adopted queues continue while another session has locked a table of the sidecar itself: claims,
// settles, reaping and the search for new rows. What waits for the lock ends, and managed queues work again after it.
func TestLockedOwnTable(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		for _, table := range []string{"qsidecar_jobs", "qsidecar_keys", "qsidecar_failures"} {
			t.Run(table, func(t *testing.T) {
				ddl, tables := twoTables(on.name)
				k := on.newKit(t, ddl, tables)
				k.write(backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "m"}}, 5)}, 0)
				ended := k.claimOf(1, "b")
				ended.Slots[0].Lease = time.Millisecond
				k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{ended}})
				held := k.one("b")
				k.sql(lockOf(on.name, table))
				jobs := table == "qsidecar_jobs"

				stuck := make(chan error, 1)
				go func() { // as a commit loop of the bridge
					_, err := k.Commit(t.Context(), backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(1, "m")}, Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m"}}}}})
					stuck <- err
				}()
				r, err := k.Maintain(t.Context(), backends.Maintenance{Waiting: []string{"a", "b", "m"}, Limit: 100, Prune: true})
				if err != nil || !slices.Contains(r.Ready, "b") || r.Reaped[backends.CauseLeaseEnded] != 1 {
					t.Errorf("maintenance: %+v, %v", r, err)
				}
				if err := <-stuck; jobs && !backends.Retryable(err) {
					t.Errorf("the commit that waited: %v", err)
				}
				all := k.Obstacles()
				if jobs && len(all) != 1 || len(all) > 1 { // maintenance doesn't need the others each time
					t.Errorf("obstacles %+v", all)
				}
				if len(all) == 1 && (all[0].Table != table || all[0].Queue != "" || !strings.Contains(all[0].Err.Error(), "locked the whole table "+table)) {
					t.Errorf("obstacles %+v", all)
				}
				for range 2 {
					res, err := k.as(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(1, "b"), k.claimOf(1, "m"), k.claimOf(2, "m", "a")}, Writes: []backends.Write{
						backends.Ack{Leases: leases(held)}, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "b"}}}, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m"}}},
					}})
					if err != nil {
						t.Fatal(err)
					}
					if len(res.Claims[0].Jobs) != 1 || res.Writes[0].Err != nil || len(res.Writes[0].Lost) > 0 || res.Writes[1].Err != nil {
						t.Errorf("of b: %+v", res)
					}
					if jobs && (!backends.Retryable(res.Claims[1].Err) || !backends.Retryable(res.Writes[2].Err) || res.Claims[2].Err != nil || len(res.Claims[2].Jobs) != 2) {
						t.Errorf("of m: %+v", res)
					}
					held = res.Claims[0].Jobs[0]
				}
				k.sql(unlock(on.name))
				now := time.Now().Add(time.Hour)
				k.ObstacleSet().Now = func() time.Time { return now }
				if r := k.maintain(backends.Maintenance{Waiting: []string{"m"}}); !slices.Contains(r.Ready, "m") {
					t.Errorf("after the lock: %+v", r)
				}
				if jobs := k.claim("m", 1); len(jobs) != 1 || len(k.Obstacles()) > 0 {
					t.Errorf("after the lock: %d jobs, obstacles %v", len(jobs), k.Obstacles())
				}
			})
		}
	})
}

// lockOf locks a table of the sidecar in the session of kit.sql.
func lockOf(product, table string) string {
	if product == "PostgreSQL" {
		return "BEGIN; LOCK TABLE qsidecar." + table + " IN ACCESS EXCLUSIVE MODE"
	}
	return "LOCK TABLES " + table + " WRITE"
}

func unlock(product string) string {
	if product == "PostgreSQL" {
		return "ROLLBACK"
	}
	return "UNLOCK TABLES"
}

// TestBrokenOwnTable shows the same for a table that is gone, as far as adopted queues don't need it.
func TestBrokenOwnTable(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		for _, table := range []string{"qsidecar_jobs", "qsidecar_keys", "qsidecar_failures"} {
			t.Run(table, func(t *testing.T) {
				k := start(twoTables(product))
				k.T = t
				k.write(backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "m"}}, 5)}, 0)
				ended := k.claimOf(1, "b")
				ended.Slots[0].Lease = time.Millisecond
				k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{ended}})
				held := k.one("b")
				schema := ""
				if product == "PostgreSQL" {
					schema = "qsidecar."
				}
				k.sql("ALTER TABLE " + schema + table + " RENAME TO away")
				r, _ := k.Maintain(t.Context(), backends.Maintenance{Waiting: []string{"a", "b", "m"}, Limit: 100, Prune: true})
				if !slices.Contains(r.Ready, "b") || r.Reaped[backends.CauseLeaseEnded] != 1 {
					t.Errorf("maintenance: %+v", r)
				}
				for _, b := range []backends.CommitContent{
					{Writes: []backends.Write{backends.Ack{Leases: leases(held)}}}, {Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "b"}}}}},
				} {
					if res, err := k.Commit(t.Context(), b); err != nil || res.Writes[0].Err != nil || len(res.Writes[0].Lost) > 0 {
						t.Errorf("%T: %v, %+v", b.Writes[0], err, res)
					}
				}
				res, err := k.Commit(t.Context(), backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(6, "m", "a")}})
				if err != nil || res.Claims[0].Err != nil || len(res.Claims[0].Jobs) != 6 {
					t.Errorf("a claim of both: %v, %+v", err, res)
				}
				k.sql("ALTER TABLE " + schema + "away RENAME TO " + table)
				if jobs := k.claim("m", 1); table == "qsidecar_jobs" && len(jobs) != 1 {
					t.Errorf("afterwards %d jobs", len(jobs))
				}
			})
		}
	})
}
