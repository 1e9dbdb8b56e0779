package adopted_test

import (
	"fmt"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestCounts: the attempts column counts failures, which settles write, or deliveries, which claims
// write. At the limit a job is dead, whether the sidecar or an own consumer counted.
func TestCounts(t *testing.T) {
	ddl, tables := "", map[string]mapping.Table{}
	for _, deliveries := range []bool{false, true} {
		for _, dead := range []bool{false, true} {
			for i, column := range []string{"smallint NOT NULL DEFAULT 0", "int NULL"} {
				kind := stateKind{ready: "new", claimed: "busy", done: "done"}
				if dead {
					kind.dead = "dead"
				}
				name := fmt.Sprintf("c%d_%t_%t", i, deliveries, dead)
				m := kind.table(name)
				m.Columns[mapping.Attempts], m.Deliveries, m.MaxAttempts = []string{"failure_count"}, deliveries, 3
				tables[name] = m
				ddl += fmt.Sprintf("CREATE TABLE %s (id int PRIMARY KEY, state varchar(10), failure_count %s); INSERT INTO %[1]s (id, state) VALUES (1, 'new'), (2, 'new'), (3, 'new');", name, column)
			}
		}
	}
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, ddl, tables)
		for name, m := range tables {
			k.counts(name, m)
		}
	})
	k := newSQLiteKit(t, ddl, tables)
	for name, m := range tables {
		k.counts(name, m)
	}
}

func (k *kit) counts(queue string, m mapping.Table) {
	k.Helper()
	_, deadState := m.States[backends.StateDead]
	rows := func(what string, want ...string) {
		k.Helper()
		before := k.Failed()
		k.wantRows("SELECT concat_ws(' ', id, state, coalesce(failure_count, 0)) FROM "+queue+" ORDER BY id", want...)
		if k.Failed() && !before {
			k.Errorf("that was %s, %s", queue, what)
		}
	}
	count := func(failures, deliveries int) int { // the column's value
		if m.Deliveries {
			return deliveries
		}
		return failures
	}
	row := func(id int, state string, failures, deliveries int) string {
		return fmt.Sprint(id, " ", state, " ", count(failures, deliveries))
	}
	jobs := k.claim(queue, 3)
	rows("claimed", row(1, "busy", 0, 1), row(2, "busy", 0, 1), row(3, "busy", 0, 1))
	k.write(backends.Nack{Leases: leases(jobs[0]), HasDelay: true}, 0)
	k.write(backends.Release{Leases: leases(jobs[1]), Uncounted: true}, 0)
	k.write(backends.Ack{Leases: leases(jobs[2])}, 0)
	rows("a nack, a release and an ack", row(1, "new", 1, 1), row(2, "new", 0, 0), row(3, "done", 0, 1))

	// The table's own consumers count, too: they have tried the second job twice.
	k.sql("UPDATE " + queue + " SET failure_count = 2 WHERE id = 2")
	for i, job := range k.claim(queue, 3) {
		if want := []int{2, 3}[i]; job.Attempt != want || job.MaxAttempts != 3 {
			k.Errorf("%s: %+v, want its attempt %d of 3", queue, job, want)
		}
		k.write(backends.Nack{Leases: leases(job), HasDelay: true}, 0)
	}
	last := "new" // with all attempts used it is still dead
	if deadState {
		last = "dead"
	}
	rows("the last attempt of one", row(1, "new", 2, 2), row(2, last, 3, 3), row(3, "done", 0, 1))
	k.sql("UPDATE " + queue + " SET failure_count = 3 WHERE id = 1") // one of its own consumers failed: the job is dead, although its state does not show it
	if more := k.claim(queue, 3); len(more) > 0 {
		k.Errorf("%s: beyond the limit there are %+v", queue, more)
	}
	dead, err := k.Peek(k.Context(), backends.Peek{Queue: queue, State: backends.StateDead, Max: 10})
	if err != nil || len(dead) != 2 {
		k.Errorf("%s: %d are dead, %v, want 2", queue, len(dead), err)
	}
	if n, _, err := k.Command(k.Context(), backends.Command{Kind: backends.Retry, Queue: queue, IDs: []string{"2"}}); n != 1 || err != nil {
		k.Errorf("%s: %d are retried, %v", queue, n, err)
	}
	rows("a retry", row(1, "new", 3, 3), row(2, "new", 0, 0), row(3, "done", 0, 1))
	if again := k.claim(queue, 3); len(again) != 1 || again[0].ID != "2" || again[0].Attempt != 1 {
		k.Errorf("%s: after the retry %+v", queue, again)
	}
}
