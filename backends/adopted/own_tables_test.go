package adopted_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// ownTables are the tables of the sidecar, and what can't be done while another session has locked one.
var ownTables = []struct {
	table              string
	noWrites, noClaims bool // of managed queues
	noLeases           bool // no settles of adopted jobs
	noAdoptedClaims    bool
	reaps              bool // maintenance reaps without it
	notEachTime        bool // maintenance doesn't need it each time, so that the lock is found later, or never
}{
	{table: "qsidecar_jobs", noWrites: true, noClaims: true},
	{table: "qsidecar_keys", notEachTime: true},
	{table: "qsidecar_failures", notEachTime: true},
	{table: "qsidecar_queues", noClaims: true, noAdoptedClaims: true, reaps: true},
	{table: "qsidecar_sidecars", noClaims: true, noAdoptedClaims: true},
	{table: "qsidecar_leases", noLeases: true, noAdoptedClaims: true},
	{table: "qsidecar_schedules"},
	{table: "qsidecar_cancelled"},
	{table: "qsidecar_pending", notEachTime: true},
}

// TestLockedOwnTable shows that what doesn't need a table of the sidecar continues while another session has locked it: claims and
// settles of adopted and of managed queues, reaping, delayed jobs and the search for new rows. What waits for the lock ends, what needs
// the table gets an error that names it, and all works again after it.
func TestLockedOwnTable(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		for _, x := range ownTables {
			t.Run(x.table, func(t *testing.T) {
				ddl, tables := twoTables(on.name)
				k := on.newKit(t, ddl, tables)
				k.findLocksSoon()
				k.write(backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "m"}}, 9)}, 0)
				k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "later", Delay: time.Millisecond}}}, 0)
				ended := k.claimOf(1, "b")
				ended.Slots[0].Lease = time.Millisecond
				k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{ended}})
				held, managed := k.one("b"), k.one("m")
				k.sql(lockOf(on.name, x.table))

				stuck := make(chan error, 1)
				go func() { // as a commit loop of the bridge
					_, err := k.Commit(t.Context(), backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(1, "m")}, Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m"}}}}})
					stuck <- err
				}()
				r, err := k.Maintain(t.Context(), backends.Maintenance{Waiting: []string{"a", "b", "m"}, Limit: 100, Prune: true})
				if reaps := !x.noAdoptedClaims || x.reaps; err != nil || !x.noAdoptedClaims && !slices.Contains(r.Ready, "b") || reaps && r.Reaped[backends.CauseLeaseEnded] != 1 {
					t.Errorf("maintenance: %+v, %v", r, err)
				}
				if !x.noClaims && r.Promoted != 1 {
					t.Errorf("maintenance made %d delayed jobs ready", r.Promoted)
				}
				if err := <-stuck; err != nil && !backends.Retryable(err) && backends.LockedTable(err) != x.table {
					t.Errorf("the commit that waited: %v", err)
				}
				all := k.Obstacles()
				if !x.notEachTime && len(all) != 1 || len(all) > 1 {
					t.Errorf("obstacles %+v", all)
				}
				if len(all) == 1 && (all[0].Table != x.table || all[0].Queue != "" || !strings.Contains(all[0].Err.Error(), "locked the whole table "+x.table)) {
					t.Errorf("obstacles %+v", all)
				}
				names := func(what string, err error) {
					t.Helper()
					if !backends.Retryable(err) || !strings.Contains(err.Error(), x.table) {
						t.Errorf("%s: %v", what, err)
					}
				}
				works := func(what string, err error) {
					t.Helper()
					if err != nil {
						t.Errorf("%s: %v", what, err)
					}
				}
				wants := func(fails bool, what string, err error) {
					t.Helper()
					if fails {
						names(what, err)
					} else {
						works(what, err)
					}
				}
				for range 2 {
					res, err := k.as(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{k.claimOf(1, "b"), k.claimOf(1, "m"), k.claimOf(2, "m", "a")}, Writes: []backends.Write{
						backends.Ack{Leases: leases(held)}, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "b"}}}, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m"}}}, backends.Ack{Leases: leases(managed)},
					}})
					if err != nil {
						t.Fatal(err)
					}
					wants(x.noLeases, "ack of b", res.Writes[0].Err)
					wants(false, "new job of b", res.Writes[1].Err)
					if x.table != "qsidecar_queues" || res.Writes[2].Err == nil { // MySQL needs it for a queue that is new to the connection
						wants(x.noWrites, "new job of m", res.Writes[2].Err)
					} else {
						names("new job of m", res.Writes[2].Err)
					}
					wants(x.noWrites, "ack of m", res.Writes[3].Err)
					wants(x.noAdoptedClaims, "claim of b", res.Claims[0].Err)
					wants(x.noClaims, "claim of m", res.Claims[1].Err)
					wants(x.noClaims && x.noAdoptedClaims, "claim of both", res.Claims[2].Err)
					if jobs := res.Claims[2].Jobs; !x.noClaims && !x.noAdoptedClaims && len(jobs) != 2 {
						t.Errorf("claim of both: %d jobs", len(jobs))
					}
					if jobs := res.Claims[0].Jobs; len(jobs) > 0 {
						held = jobs[0]
					}
					if jobs := res.Claims[1].Jobs; len(jobs) > 0 {
						managed = jobs[0]
					}
					if x.noLeases || x.noWrites || x.noClaims {
						break // the second ack would be of a lost lease
					}
				}
				if x.noLeases {
					_, err := k.Commit(t.Context(), backends.CommitContent{WaitForLocks: true, Writes: []backends.Write{backends.Ack{Leases: leases(held)}}})
					names("an ack alone", err)
				}
				if x.noWrites {
					_, err := k.Commit(t.Context(), backends.CommitContent{WaitForLocks: true, Writes: []backends.Write{backends.Ack{Leases: leases(managed)}}})
					names("a managed ack alone", err)
				}
				k.sql(unlock(on.name))
				if r := k.maintain(backends.Maintenance{Waiting: []string{"m"}}); len(k.Obstacles()) > 0 {
					t.Errorf("after the lock: %+v, obstacles %v", r, k.Obstacles())
				}
				if r := k.maintain(backends.Maintenance{Waiting: []string{"m"}}); !slices.Contains(r.Ready, "m") {
					t.Errorf("after the lock: %+v", r)
				}
				if x.noLeases {
					k.write(backends.Ack{Leases: leases(held)}, 0)
				}
				if x.noWrites {
					k.write(backends.Ack{Leases: leases(managed)}, 0)
				}
				if jobs := k.claim("m", 1); len(jobs) != 1 {
					t.Errorf("after the lock: %d jobs", len(jobs))
				}
				k.one("b")
			})
		}
	})
}

// findLocksSoon makes maintenance find locked tables without a delay.
func (k *kit) findLocksSoon() {
	k.Engine.(interface{ SetTablePatience(time.Duration) }).SetTablePatience(10 * time.Millisecond)
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

// TestBrokenPendingTable shows that without the table of pending jobs only the claim that has one can't end.
func TestBrokenPendingTable(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		k := start(twoTables(product))
		table := "qsidecar_pending"
		if product == "PostgreSQL" {
			table = "qsidecar." + table
		}
		keyed := func(payload string) backends.Enqueue {
			return backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m", Key: "k", Payload: []byte(payload), OnConflict: backends.ConflictReplace}}}
		}
		k.write(keyed("first"), 0)
		k.write(backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "m"}}, 3)}, 0)
		claim := k.claimOf(4, "m")
		for i := range claim.Slots {
			claim.Slots[i].Lease = time.Millisecond
		}
		claimed := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{claim}}).Claims[0].Jobs
		k.write(keyed("second"), 0)
		k.sql("ALTER TABLE " + table + " RENAME TO away")
		settled := slices.IndexFunc(claimed, func(j backends.Job) bool { return j.Key == "" })
		k.write(backends.Ack{Leases: leases(claimed[settled])}, 0)
		reaped := 0
		for range 2 {
			r, _ := k.Maintain(t.Context(), backends.Maintenance{Limit: 100})
			reaped += r.Reaped[backends.CauseLeaseEnded]
		}
		if reaped != 2 {
			t.Errorf("%d claims are taken back, want the two without a pending job", reaped)
		}
		k.sql("ALTER TABLE " + strings.TrimSuffix(table, "qsidecar_pending") + "away RENAME TO qsidecar_pending")
		k.write(backends.Ack{Leases: leases(claimed[slices.IndexFunc(claimed, func(j backends.Job) bool { return j.Key == "k" })])}, 0)
		if jobs := k.claim("m", 9); !slices.ContainsFunc(jobs, func(j backends.Job) bool { return string(j.Payload) == "second" }) {
			t.Errorf("%d jobs afterwards, and the pending one is missing", len(jobs))
		}
	})
}
