package adopted_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

const systemB = `CREATE TABLE worker_queue (id %s PRIMARY KEY, command text NOT NULL, is_done boolean NOT NULL DEFAULT false, failure_count smallint NOT NULL DEFAULT 0);
INSERT INTO worker_queue (command) VALUES ('one'), ('two'), ('three')`

// rowsB are the rows of system B.
const rowsB = `SELECT concat_ws('|', id, CASE WHEN is_done THEN 'done' ELSE 'open' END, failure_count) FROM worker_queue ORDER BY id`

// unlockedB are the rows that the table's own consumers would find.
const unlockedB = `SELECT concat(id, '') FROM worker_queue WHERE failure_count < 3 AND is_done = FALSE ORDER BY id FOR UPDATE SKIP LOCKED`

func tableB() mapping.Table {
	return mapping.Table{
		Name: "worker_queue", ClaimInTx: true, MaxAttempts: 3,
		Columns: map[mapping.Role][]string{
			mapping.ID: {"id"}, mapping.Payload: {"command"}, mapping.State: {"is_done"}, mapping.Attempts: {"failure_count"},
		},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "false"}, backends.StateDone: {Text: "true"}},
	}
}

func kitB(t *testing.T, on *product) *kit {
	t.Helper()
	return on.newKit(t, on.systemB, map[string]mapping.Table{"b": tableB()})
}

// TestTxClaim: a claim shows only by the lock of its row. Each way to end it leaves the row as the table's
// own consumers would.
func TestTxClaim(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := kitB(t, on)
		jobs := k.claim("b", 2)
		if len(jobs) != 2 || jobs[0].ID != "1" || string(jobs[1].Payload) != "two" || jobs[0].Attempt != 1 || jobs[1].Fence <= jobs[0].Fence || !k.InTx(jobs[0].Lease()) {
			t.Fatalf("%+v", jobs)
		}
		k.wantRows(rowsB, "1|open|0", "2|open|0", "3|open|0")
		k.wantRows(unlockedB, "3")
		k.wantRows("SELECT item FROM " + on.own + "qsidecar_leases")
		if held, err := k.ClaimedBy(t.Context(), me, "", 10); err != nil || len(held) != 2 {
			t.Errorf("%+v %v", held, err)
		}
		k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
		k.write(backends.Ack{Leases: leases(jobs[0])}, 1)
		if r := k.write(backends.Nack{Leases: leases(jobs[1]), Error: "no luck", HasDelay: true}, 0); !slices.Contains(r.MadeReady, "b") {
			t.Errorf("%+v", r)
		}
		k.wantRows(rowsB, "1|done|0", "2|open|1", "3|open|0")
		again := k.one("b")
		if again.ID != "2" || again.Attempt != 2 || again.LastError != "no luck" || again.Fence <= jobs[1].Fence {
			t.Errorf("%+v", again)
		}
		k.write(backends.Release{Leases: leases(again), Uncounted: true}, 0)
		k.wantRows(rowsB, "1|done|0", "2|open|1", "3|open|0")
		again = k.one("b")
		k.write(backends.Release{Leases: leases(again), Cause: backends.CauseDisconnected}, 0)
		k.wantRows(rowsB, "1|done|0", "2|open|2", "3|open|0")
		k.write(backends.Nack{Leases: leases(k.one("b")), Error: "the last"}, 0)
		k.wantRows(rowsB, "1|done|0", "2|open|3", "3|open|0")
		if views, err := k.Peek(t.Context(), backends.Peek{Queue: "b", State: backends.StateDead, Max: 5}); err != nil || len(views) != 1 || len(views[0].Failures) != 3 {
			t.Errorf("%+v %v", views, err)
		}
		k.write(backends.Ack{Leases: leases(k.one("b"))}, 0)
		if more := k.claim("b", 1); len(more) > 0 {
			t.Errorf("%+v", more)
		}
		k.wantRows(rowsB, "1|done|0", "2|open|3", "3|done|0")
	})
}

// terminateHeld has the server end the connections that hold that many rows.
func (k *kit) terminateHeld(n int) {
	k.Helper()
	if k.c != nil {
		k.sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`)
		return
	}
	testwait.Until(k, "the connections that hold rows are found", func() bool {
		var kind, name, status string
		if err := k.conn.QueryRowContext(k.Context(), "SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err != nil {
			k.Fatal(err)
		}
		ours, err := texts(k.Context(), k.conn, "SELECT id FROM "+testserver.MySQLSessions+" WHERE db = DATABASE()")
		if err != nil {
			k.Fatal(err)
		}
		var all []string
		for _, m := range activeTransaction.FindAllStringSubmatch(status, -1) {
			if slices.Contains(ours, m[1]) {
				all = append(all, m[1])
			}
		}
		if len(all) < n {
			return false
		}
		for _, id := range all {
			k.sql("KILL " + id)
		}
		return true
	})
}

// activeTransaction finds the connections of open transactions.
var activeTransaction = regexp.MustCompile(`(?s)---TRANSACTION \d+, ACTIVE.*?thread id (\d+)`)

// unlocked waits until the table's own consumers find these rows.
func (k *kit) unlocked(want string) {
	k.Helper()
	testwait.Until(k, "unlocked: "+want, func() bool {
		got, err := k.rows(unlockedB)
		if err != nil {
			k.Fatal(err)
		}
		return strings.Join(got, " ") == want
	})
}

// TestTxClaimTimes: the times of a nack and of the jobs of an ack begin when the worker asks for them, not when the transaction with its claim began.
func TestTxClaimTimes(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		withTime := tableB()
		withTime.Columns[mapping.RunAt] = []string{"run_at"}
		for name, of := range map[string]struct {
			sql   string
			table mapping.Table
		}{
			"in the lease":   {on.systemB, tableB()},
			"in the job row": {on.systemB + "; ALTER TABLE worker_queue ADD run_at " + on.zoneless, withTime},
		} {
			t.Run(name, func(t *testing.T) {
				k := on.newKit(t, of.sql, map[string]mapping.Table{"b": of.table})
				jobs := k.claim("b", 2)
				asked := time.Now().Truncate(time.Second).Add(time.Second) // a column can have whole seconds
				testwait.Until(t, "the clock shows the next second", func() bool { return time.Since(asked) >= 0 })
				k.write(backends.Nack{Leases: leases(jobs[0]), Delay: time.Hour, HasDelay: true}, 0)
				k.write(backends.Ack{Leases: leases(jobs[1]), Enqueue: []backends.NewJob{{Queue: "plain", Delay: time.Hour}, {Queue: "plain"}}}, 0)
				if early := asked.Sub(k.one("plain").EnqueuedAt); early > 0 {
					t.Errorf("plain: a job was enqueued %v too early", early)
				}
				for _, queue := range []string{"b", "plain"} {
					views, err := k.Peek(t.Context(), backends.Peek{Queue: queue, State: backends.StateScheduled, Max: 5})
					if err != nil || len(views) != 1 {
						t.Fatalf("%s: %+v %v", queue, views, err)
					}
					if early := asked.Add(time.Hour).Sub(views[0].RunAt); early > 0 {
						t.Errorf("%s: the job is due %v too early", queue, early)
					}
				}
			})
		}
	})
}
