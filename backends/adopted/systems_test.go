package adopted_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

var systemE = products[0].systemE

func tableE() mapping.Table {
	return mapping.Table{
		Name: "my_queue",
		Columns: map[mapping.Role][]string{
			mapping.ID: {"queue_item_id"}, mapping.Payload: {"parameters"}, mapping.State: {"state"}, mapping.Error: {"error_message"},
			mapping.Worker: {"worker_name"}, mapping.CreatedAt: {"created_dt"}, mapping.FinishedAt: {"finished_dt"}, mapping.Result: {"result"},
		},
		States: map[backends.State]mapping.Value{
			backends.StateReady: {Text: "waiting"}, backends.StateClaimed: {Text: "processing"}, backends.StateDone: {Text: "done"}, backends.StateDead: {Text: "error"},
		},
	}
}

func TestClaimAndAck(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
		jobs := k.claim("e", 2)
		if len(jobs) != 2 || jobs[0].ID != "1" || string(jobs[0].Payload) != `{"n": 1}` || jobs[1].Attempt != 1 || jobs[0].Queue != "e" || jobs[1].Fence <= jobs[0].Fence {
			t.Fatalf("%+v", jobs)
		}
		k.wantRows(on.rowsE, "1|processing|w|f", "2|processing|w|f", "3|waiting|f")
		k.write(backends.Ack{Leases: leases(jobs[0]), Result: []byte(`{"ok": true}`)}, 0)
		k.write(backends.Ack{Leases: leases(jobs...)}, 1)
		k.wantRows(on.rowsE, `1|done|w|{"ok": true}|t`, "2|done|w|t", "3|waiting|f")
		k.wantRows("SELECT item FROM " + on.own + "qsidecar_leases")
		if more := k.claim("e", 5); len(more) != 1 || more[0].ID != "3" {
			t.Errorf("%+v", more)
		}
	})
}

// TestFailures: a failed job is tried again after the back-off while attempts are left, although the
// table has no column for either.
func TestFailures(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
		k.sql("DELETE FROM my_queue WHERE queue_item_id > 1")
		first := k.one("e")
		if r := k.write(backends.Nack{Leases: leases(first), Error: "no luck", HasDelay: true}, 0); len(r.MadeReady) != 1 || r.MadeReady[0] != "e" {
			t.Errorf("%+v", r)
		}
		k.wantRows(on.rowsE, "1|waiting|no luck|f")
		second := k.one("e")
		if second.Attempt != 2 || second.LastError != "no luck" || second.Fence <= first.Fence {
			t.Errorf("%+v", second)
		}
		k.write(backends.Release{Leases: leases(second), Uncounted: true}, 0)
		second = k.one("e")
		if second.Attempt != 2 {
			t.Errorf("%+v", second)
		}
		k.write(backends.Nack{Leases: leases(second), Error: "again"}, 0) // tried again in an hour
		if jobs := k.claim("e", 1); len(jobs) != 0 {
			t.Errorf("its back-off is not over: %+v", jobs)
		}
		if r := k.maintain(backends.Maintenance{Waiting: []string{"e"}}); len(r.Ready) != 0 {
			t.Errorf("%+v", r)
		}
		k.sql("UPDATE " + on.own + "qsidecar_leases SET not_before = 1")
		if r := k.maintain(backends.Maintenance{Waiting: []string{"e"}}); len(r.Ready) != 1 {
			t.Errorf("%+v", r)
		}
		k.write(backends.Nack{Leases: leases(k.one("e")), Error: "the last"}, 0)
		k.wantRows(on.rowsE, "1|error|w|the last|t")
	})
}

// TestOthersRows: a settle changes no row that no longer shows the claim.
func TestOthersRows(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		for name, verb := range map[string]func(l []backends.Lease) backends.Write{
			"ack":     func(l []backends.Lease) backends.Write { return backends.Ack{Leases: l} },
			"nack":    func(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, Error: "x"} },
			"dead":    func(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, Dead: true} },
			"release": func(l []backends.Lease) backends.Write { return backends.Release{Leases: l, Uncounted: true} },
			"extend":  func(l []backends.Lease) backends.Write { return backends.Extend{Leases: l} },
			"bind":    func(l []backends.Lease) backends.Write { return backends.Extend{Leases: l, Bind: me, Worker: "v"} },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
				stale, mine := k.one("e"), k.one("e")
				// The table's own cleaner, and then one of its own consumers.
				k.sql("UPDATE my_queue SET state = 'waiting', worker_name = NULL WHERE queue_item_id = 1")
				k.sql("UPDATE my_queue SET state = 'processing', worker_name = 'own' WHERE queue_item_id = 1")
				k.write(verb(leases(stale)), 1)
				k.wantRows(on.rowsE+" LIMIT 1", "1|processing|own|f")
				k.wantRows("SELECT item FROM "+on.own+"qsidecar_leases", mine.ID)
				k.write(verb(leases(mine)), 0)
			})
		}
	})
}

// TestTakenBack: maintenance takes back claims whose leases ended, and those of lost sidecars.
func TestTakenBack(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
		timed := backends.Claim{Queues: []backends.Policy{policy("e")}, Slots: []backends.Slot{k.slot(time.Hour)}}
		ended := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{timed}}).Claims[0].Jobs[0]
		const dead backends.Identity = 7
		k.heartbeat(dead, backends.HeartbeatJoin, sidecarTimeout)
		c := backends.Claim{Queues: []backends.Policy{policy("e")}, Slots: []backends.Slot{{Token: backends.Token{Sidecar: dead, Number: 1}}}}
		lost := k.commit(backends.CommitContent{Sidecar: dead, Claims: []backends.Claim{c}}).Claims[0].Jobs[0]
		held, err := k.ClaimedBy(t.Context(), dead, "", 10)
		if err != nil || len(held) != 1 || held[0].Lease != lost.Lease() || held[0].Queue != "e" {
			t.Fatalf("%+v, %v", held, err)
		}
		kept := k.one("e")
		if r := k.maintain(backends.Maintenance{}); len(r.Reaped)+len(r.MadeReady) != 0 || r.Next <= 0 {
			t.Errorf("nothing was due: %+v", r)
		}
		k.sql("UPDATE " + on.own + "qsidecar_leases SET due_at = 1 WHERE due_at IS NOT NULL; UPDATE " + on.own + "qsidecar_sidecars SET dead = true WHERE sidecar = 7")
		r := k.maintain(backends.Maintenance{})
		if r.Reaped[backends.CauseLeaseEnded] != 1 || r.Reaped[backends.CauseSidecarLost] != 1 || fmt.Sprint(r.MadeReady) != "[e]" {
			t.Errorf("%+v", r)
		}
		k.wantRows(on.rowsE, "1|waiting|f", "2|waiting|f", "3|processing|w|f")
		k.write(backends.Ack{Leases: leases(ended, lost, kept)}, 2)
	})
}

// TestEmptyHanded: a claim of a paused queue, or by a lost sidecar, gets no jobs.
func TestEmptyHanded(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
		if _, _, err := k.Command(t.Context(), backends.Command{Kind: backends.Pause, Queue: "e"}); err != nil {
			t.Fatal(err)
		}
		if jobs := k.claim("e", 1); len(jobs) != 0 {
			t.Errorf("%+v", jobs)
		}
		if _, _, err := k.Command(t.Context(), backends.Command{Kind: backends.Resume, Queue: "e"}); err != nil {
			t.Fatal(err)
		}
		k.sql("UPDATE " + on.own + "qsidecar_sidecars SET dead = true")
		c := backends.Claim{Queues: []backends.Policy{policy("e")}, Slots: []backends.Slot{k.slot(0)}}
		if _, err := k.Commit(t.Context(), backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}); !errors.Is(err, backends.ErrEvicted) {
			t.Errorf("%v", err)
		}
		k.wantRows(on.rowsE, "1|waiting|f", "2|waiting|f", "3|waiting|f")
	})
}

// TestLockedRow: a program that keeps a row locked delays only its job.
func TestLockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
		first, second := k.one("e"), k.one("e")
		k.sql("BEGIN; SELECT 1 FROM my_queue WHERE queue_item_id = 1 FOR UPDATE")
		var locked *backends.LockedError
		both := []backends.Write{backends.Ack{Leases: leases(first)}, backends.Ack{Leases: leases(second)}}
		r := k.commit(backends.CommitContent{Writes: append(both, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "managed"}}})})
		if err := r.Writes[0].Err; !errors.As(err, &locked) || backends.Retryable(err) {
			t.Errorf("the ack of the locked row: %v", err)
		}
		if r.Writes[1].Err != nil || len(r.Writes[1].Lost) > 0 || len(r.Writes[2].Stored) != 1 {
			t.Errorf("beside it: %+v", r.Writes[1:])
		}
		k.write(both[1], 1) // it was committed
		if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: both[:1], WaitForLocks: true}); !errors.As(err, &locked) || backends.Retryable(err) {
			t.Errorf("alone: %v", err)
		}
		third := k.one("e")
		k.sqlElsewhere("UPDATE " + on.own + "qsidecar_leases SET due_at = 1")
		if r := k.maintain(backends.Maintenance{}); r.Reaped[backends.CauseLeaseEnded] != 1 {
			t.Errorf("%+v", r)
		}
		k.write(backends.Ack{Leases: leases(third)}, 1)
		k.sql("COMMIT")
		k.write(both[0], 0)
	})
}

// TestExtendOfALockedRow: a lease can be renewed while the worker's own transaction, or another program,
// has the row locked. The row does not change.
func TestExtendOfALockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
		first := k.one("e")
		k.sql("BEGIN; SELECT 1 FROM my_queue WHERE queue_item_id = 1 FOR UPDATE")
		k.write(backends.Extend{Leases: leases(first), Lease: time.Minute}, 0)
		k.write(backends.Extend{Leases: leases(first)}, 0)
		k.sql("COMMIT")
	})
}

// TestOrder: claims find the oldest first, with numbers in numeric order; or the newest first; or by the
// columns of order.
func TestOrder(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		lifo, columns := tableE(), tableE()
		lifo.LIFO = true
		columns.Order = []mapping.Ordering{{Column: "user_id"}, {Column: "queue_item_id", Descending: true}}
		for name, c := range map[string]struct {
			m    mapping.Table
			want string
		}{
			"fifo":    {tableE(), "1 2 3 4 5 6 7 8 9 10 11 12 "},
			"lifo":    {lifo, "12 11 10 9 8 7 6 5 4 3 2 1 "},
			"columns": {columns, "12 9 6 3 10 7 4 1 11 8 5 2 "},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				k := on.newKit(t, on.systemE+"; INSERT INTO my_queue (parameters) VALUES ('4'), ('5'), ('6'), ('7'), ('8'), ('9'), ('10'), ('11'), ('12'); UPDATE my_queue SET created_dt = now(), user_id = queue_item_id % 3",
					map[string]mapping.Table{"e": c.m})
				got := ""
				for len(got) < len(c.want) {
					jobs := k.claim("e", 5)
					if len(jobs) == 0 {
						break
					}
					for _, j := range jobs {
						got += j.ID + " "
					}
				}
				if got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
		}
	})
}

// TestCleanerResets: the table's own cleaner makes a row ready that a worker still has. The next claim
// of it is valid, and the attempt before counts.
func TestCleanerResets(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
		k.sql("DELETE FROM my_queue WHERE queue_item_id > 1")
		before := k.one("e")
		k.sql("UPDATE my_queue SET state = 'waiting', worker_name = NULL")
		now := k.one("e")
		if now.Attempt != 2 || now.Fence <= before.Fence {
			t.Errorf("%+v after %+v", now, before)
		}
		k.write(backends.Ack{Leases: leases(before)}, 1)
		k.write(backends.Extend{Leases: leases(now), Lease: time.Hour}, 0)
		k.write(backends.Ack{Leases: leases(now)}, 0)
		k.wantRows(on.rowsE, "1|done|w|t")
	})
}

// TestForgotten: leases are deleted after the rows of their jobs are, or after others finished these.
func TestForgotten(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
		k.write(backends.Nack{Leases: leases(k.claim("e", 3)...), Error: "x"}, 0)
		k.sql("DELETE FROM my_queue WHERE queue_item_id = 1; UPDATE my_queue SET state = 'done' WHERE queue_item_id = 2")
		if r := k.maintain(backends.Maintenance{Prune: true}); r.Pruned != 2 {
			t.Errorf("%+v", r)
		}
		k.wantRows("SELECT item FROM "+on.own+"qsidecar_leases", "3")
	})
}

// TestStuck: with stuck_after, rows that the table's own consumers left behind become ready again, but not
// those that sidecars claimed.
func TestStuck(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		m := tableE()
		m.Columns[mapping.ClaimedAt], m.StuckAfter = []string{"started"}, time.Hour
		k := on.newKit(t, on.systemE+"; ALTER TABLE my_queue ADD started timestamp NULL", map[string]mapping.Table{"e": m})
		mine := k.one("e")
		k.sql("UPDATE my_queue SET state = 'processing', worker_name = 'own', started = localtimestamp - interval '61' minute WHERE queue_item_id = 2")
		k.sql("UPDATE my_queue SET state = 'processing', worker_name = 'own', started = localtimestamp - interval '59' minute WHERE queue_item_id = 3")
		k.sql("UPDATE my_queue SET started = started - interval '2' hour WHERE queue_item_id = 1")
		if r := k.maintain(backends.Maintenance{}); fmt.Sprint(r.MadeReady) != "[e]" {
			t.Errorf("%+v", r)
		}
		k.wantRows(on.rowsE, "1|processing|w|f", "2|waiting|f", "3|processing|own|f")
		k.write(backends.Ack{Leases: leases(mine)}, 1) // the row no longer shows the claim
	})
}

// TestJitterOfAdoptedJobs: a jitter of −1 leaves nothing of a back-off of an hour, wherever the batch is split.
func TestJitterOfAdoptedJobs(t *testing.T) {
	none := func(string) float64 { return -1 }
	settled := func(k *kit, queue string, beside ...backends.Write) {
		k.Helper()
		nack := backends.Nack{Leases: leases(k.one(queue)), Error: "x"}
		k.commit(backends.CommitContent{Writes: append(beside, nack), Jitter: none})
		job := k.one(queue)
		if job.Attempt != 2 {
			k.Fatalf("%+v", job)
		}
		k.write(backends.Nack{Leases: leases(job)}, 0)
		for _, next := range k.claim(queue, 3) {
			if next.ID == job.ID {
				k.Errorf("the back-off without jitter is over: %+v", next)
			}
		}
	}
	onEach(t, func(t *testing.T, on *product) {
		t.Run("alone", func(t *testing.T) {
			k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
			settled(k, "e")
		})
		t.Run("beside a locked row", func(t *testing.T) {
			k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
			first := k.one("e")
			k.sql("BEGIN; SELECT 1 FROM my_queue WHERE queue_item_id = 1 FOR UPDATE")
			settled(k, "e", backends.Ack{Leases: leases(first)})
			k.sql("COMMIT")
		})
		t.Run("in a transaction", func(t *testing.T) {
			settled(kitB(t, on), "b")
		})
		t.Run("reaped", func(t *testing.T) {
			k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()})
			for range 2 { // after the first loss there is no back-off
				job := k.one("e")
				k.sql("UPDATE " + on.own + "qsidecar_leases SET due_at = 1 WHERE token_sidecar IS NOT NULL")
				if r := k.maintain(backends.Maintenance{Jitter: none}); r.Reaped[backends.CauseLeaseEnded] != 1 {
					t.Fatalf("%+v", r)
				}
				if next := k.one("e"); next.ID != job.ID {
					t.Fatalf("%+v, want job %s again", next, job.ID)
				} else {
					k.write(backends.Release{Leases: leases(next), Uncounted: true}, 0)
				}
			}
		})
	})
}

// TestLastAttemptOfAnAdoptedJobIsAlone: the lease has the losses, whether the claim marks the row or locks it.
func TestLastAttemptOfAnAdoptedJobIsAlone(t *testing.T) {
	none := func(string) float64 { return -1 }
	onEach(t, func(t *testing.T, on *product) {
		for queue, k := range map[string]*kit{"e": on.newKit(t, on.systemE, map[string]mapping.Table{"e": tableE()}), "b": kitB(t, on)} {
			for _, nacked := range []bool{false, true} {
				var last backends.Job
				for attempt := range 3 {
					last = k.one(queue)
					if want := attempt == 2 && !nacked; last.Alone != want || last.Attempt != attempt+1 {
						t.Errorf("queue %s: %+v, want attempt %d, alone %v", queue, last, attempt+1, want)
					}
					var w backends.Write = backends.Release{Leases: leases(last), Cause: backends.CauseDisconnected}
					if nacked {
						w = backends.Nack{Leases: leases(last)}
					}
					if attempt < 2 {
						k.commit(backends.CommitContent{Writes: []backends.Write{w}, Jitter: none})
					}
				}
				k.write(backends.Ack{Leases: leases(last)}, 0)
			}
		}
	})
}
