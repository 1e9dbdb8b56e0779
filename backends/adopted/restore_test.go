package adopted_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestGiveBackRestores: columns that a claim overwrites have their values again when the job is given back, in every way.
// The application's own code needs them: a worker can be the job's class, and a start time the planned one.
func TestGiveBackRestores(t *testing.T) {
	ended := func(k *kit, _ backends.Job) {
		k.sql("UPDATE " + k.own() + "qsidecar_leases SET due_at = 1")
		k.maintain(backends.Maintenance{})
	}
	ways := []struct {
		name  string
		lease time.Duration
		back  func(k *kit, job backends.Job)
	}{
		{"nack", 0, func(k *kit, job backends.Job) {
			k.write(backends.Nack{Leases: leases(job), Error: "no", HasDelay: true}, 0)
		}},
		{"snooze", 0, func(k *kit, job backends.Job) {
			k.write(backends.Nack{Leases: leases(job), Snooze: true, HasDelay: true}, 0)
		}},
		{"release", 0, func(k *kit, job backends.Job) { k.write(backends.Release{Leases: leases(job), Uncounted: true}, 0) }},
		{"reap", time.Hour, ended},
		{"reap after an extend", time.Hour, func(k *kit, job backends.Job) {
			k.write(backends.Extend{Leases: leases(job), Lease: time.Minute}, 0)
			ended(k, job)
		}},
		{"lost sidecar", 0, func(k *kit, job backends.Job) {
			k.sql("UPDATE " + k.own() + "qsidecar_sidecars SET dead = true")
			k.maintain(backends.Maintenance{})
		}},
		{"reclaim", 0, func(k *kit, job backends.Job) {
			k.command(backends.Command{Kind: backends.Reclaim, IDs: []string{job.ID}}, 1)
		}},
		{"dead and retry", 0, func(k *kit, job backends.Job) {
			k.write(backends.Nack{Leases: leases(job), Dead: true, Error: "no"}, 0)
			k.maintain(backends.Maintenance{Prune: true})
			k.command(backends.Command{Kind: backends.Retry, IDs: []string{job.ID}}, 1)
		}},
	}
	m := mapping.Table{
		Name: "jobs", MaxAttempts: 9,
		Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Worker: {"worker"}, mapping.ClaimedAt: {"started_at"}},
		States: map[backends.State]mapping.Value{
			backends.StateReady: {Text: "waiting"}, backends.StateClaimed: {Text: "running"}, backends.StateDone: {Text: "done"}, backends.StateDead: {Text: "failed"},
		},
		Token: &mapping.Token{Column: "batch", From: 900, To: 999},
	}
	onEachEngine(t, func(t *testing.T, on *product) {
		for _, way := range ways {
			for name, dead := range map[string]bool{"with a state dead": true, "without": false} {
				t.Run(way.name+" "+name, func(t *testing.T) {
					t.Parallel()
					m := m
					if !dead {
						m.States = map[backends.State]mapping.Value{
							backends.StateReady: {Text: "waiting"}, backends.StateClaimed: {Text: "running"}, backends.StateDone: {Text: "done"},
						}
					}
					k := on.newKit(t, fmt.Sprintf(`CREATE TABLE jobs (id int PRIMARY KEY, state varchar(9) NOT NULL, worker varchar(40), started_at %s, batch int, tries int NOT NULL DEFAULT 0);
						INSERT INTO jobs (id, state, worker, started_at, batch) VALUES (1, 'waiting', 'Mail''s "Worker"', '2026-01-02 03:04:05', 17), (2, 'waiting', NULL, NULL, NULL), (3, 'waiting', '', NULL, 0)`,
						on.zoneless), map[string]mapping.Table{"q": m})
					if on.name == "SQLite" {
						k.sql("UPDATE jobs SET started_at = '2026-01-02T03:04:05.678Z' WHERE id = 1")
					}
					const all = "SELECT concat_ws('|', id, state, coalesce(worker, 'NULL'), coalesce(batch, -1), started_at) FROM jobs ORDER BY id"
					before, err := k.rows(all)
					if err != nil {
						t.Fatal(err)
					}
					for range before {
						c := backends.Claim{Queues: []backends.Policy{policy("q")}, Slots: []backends.Slot{k.slot(way.lease)}}
						jobs := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}).Claims[0].Jobs
						if len(jobs) != 1 {
							t.Fatalf("%+v", jobs)
						}
						k.wantRows("SELECT concat_ws('|', state, worker, CASE WHEN batch BETWEEN 900 AND 999 THEN 'ours' END) FROM jobs WHERE id = "+jobs[0].ID, "running|w|ours")
						if way.back(k, jobs[0]); way.name == "lost sidecar" {
							break
						}
						k.sql("UPDATE jobs SET state = 'seen' WHERE id = " + jobs[0].ID)
					}
					k.sql("UPDATE jobs SET state = 'waiting' WHERE state = 'seen'")
					k.wantRows(all, before...)
				})
			}
		}
	})
}

// own is the prefix of the sidecar's tables.
func (k *kit) own() string {
	if k.c != nil {
		return "qsidecar."
	}
	return ""
}
