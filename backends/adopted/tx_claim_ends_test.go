package adopted_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestTxClaimLosesItsConnection: a lost connection ends the lock and the claim. A settle of the job gets
// lease_lost, and the job no longer counts as claimed.
func TestTxClaimLosesItsConnection(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		for name, w := range map[string]func(l []backends.Lease) backends.Write{
			"ack":  func(l []backends.Lease) backends.Write { return backends.Ack{Leases: l} },
			"nack": func(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, Error: "x"} },
			"release": func(l []backends.Lease) backends.Write {
				return backends.Release{Leases: l, Cause: backends.CauseDisconnected}
			},
			"enqueue": func(l []backends.Lease) backends.Write {
				return backends.Ack{Leases: l, Enqueue: []backends.NewJob{{Queue: "plain"}, {Queue: "b", Payload: []byte("y")}}}
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				k := kitB(t, on)
				lost := k.claim("b", 2)
				k.terminateHeld(2)
				k.unlocked("1 2 3")
				k.write(w(leases(lost[0])), 1)
				k.wantRows(rowsB, "1|open|0", "2|open|0", "3|open|0")
				testwait.Until(k, "the heartbeat finds out that the other one is lost", func() bool {
					k.heartbeat(me, backends.HeartbeatRenew, sidecarTimeout)
					held, err := k.ClaimedBy(t.Context(), me, "", 10)
					if err != nil {
						t.Fatal(err)
					}
					return len(held) == 0
				})
				if k.InTx(lost[1].Lease()) {
					t.Error("the claim is still open")
				}
				again := k.claim("b", 3)
				if len(again) != 3 || again[0].Attempt != 1 || again[0].Fence <= lost[0].Fence {
					t.Errorf("%+v", again)
				}
				k.write(backends.Ack{Leases: leases(lost...)}, 2)
				k.write(backends.Ack{Leases: leases(again...)}, 0)
				k.wantRows(rowsB, "1|done|0", "2|done|0", "3|done|0")
			})
		}
	})
}

// TestMaxTxClaims: each held job has a connection, and their number is limited. A queue that a claim found
// no connection for is reported when one is free.
func TestMaxTxClaims(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := kitB(t, on)
		k.SetMaxTransactions(2)
		jobs := k.claim("b", 3)
		if len(jobs) != 2 || len(k.claim("b", 1)) > 0 {
			t.Fatalf("%+v", jobs)
		}
		if r := k.maintain(backends.Maintenance{}); len(r.MadeReady) > 0 {
			t.Errorf("there is no room, and freed is %v", r.MadeReady)
		}
		if r := k.write(backends.Ack{Leases: leases(jobs[0])}, 0); !slices.Equal(r.MadeReady, []string{"b"}) {
			t.Errorf("%+v", r)
		}
		third := k.one("b")
		if r := k.write(backends.Ack{Leases: leases(jobs[1])}, 0); len(r.MadeReady) > 0 {
			t.Errorf("nothing waits for a free connection: %+v", r)
		}
		if k.claim("b", 1); len(k.claim("b", 1)) > 0 {
			t.Error("there is no fourth job")
		}
		k.write(backends.Release{Leases: leases(third), Uncounted: true}, 0)
		k.wantRows(rowsB, "1|done|0", "2|done|0", "3|open|0")
	})
}

// TestTxClaimEndsWithTheSidecar: a new identity and the last heartbeat roll held transactions back.
func TestTxClaimEndsWithTheSidecar(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := kitB(t, on)
		k.claim("b", 1)
		k.heartbeat(me, backends.HeartbeatRenew, sidecarTimeout)
		k.wantRows(unlockedB, "2", "3")
		k.heartbeat(me+1, backends.HeartbeatJoin, sidecarTimeout)
		k.wantRows(unlockedB, "1", "2", "3")
		k.claim("b", 2)
		k.heartbeat(me, backends.HeartbeatLeave, sidecarTimeout)
		k.wantRows(unlockedB, "1", "2", "3")
		last := k.claim("b", 2)
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		k.unlocked("1 2 3")
		if k.InTx(last[0].Lease()) {
			t.Error("a closed one holds")
		}
		k.wantRows(rowsB, "1|open|0", "2|open|0", "3|open|0")
	})
}

// TestTxClaimSurvivesAReload: a Store that succeeds another one shares its held jobs. The other one closes when
// its connections have no jobs.
func TestTxClaimSurvivesAReload(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := kitB(t, on)
		jobs := k.claim("b", 2)
		next := k.reopened(map[string]mapping.Table{"other": tableB()})
		next.Succeed(k.Store)
		next.SetMaxTransactions(3)
		old, last := make(chan error), k.Store
		go func() { old <- last.Close() }()
		k.Store = next
		if held, err := k.ClaimedBy(t.Context(), me, "", 10); err != nil || len(held) != 2 {
			t.Errorf("%+v %v", held, err)
		}
		k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
		third := k.one("other")
		select {
		case err := <-old:
			t.Fatalf("it is closed (%v), and holds a job", err)
		default:
		}
		k.write(backends.Nack{Leases: leases(jobs[1]), HasDelay: true}, 0)
		if err := <-old; err != nil {
			t.Error(err)
		}
		k.write(backends.Ack{Leases: leases(third)}, 0)
		k.wantRows(rowsB, "1|done|0", "2|open|1", "3|done|0")
		k.one("other")
	})
}

// TestTxClaimAfterAFailedReload: a Store that was to succeed another one and is closed again leaves the
// other one unchanged, also its limit.
func TestTxClaimAfterAFailedReload(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := kitB(t, on)
		k.SetMaxTransactions(2)
		first := k.one("b")
		next := k.reopened(map[string]mapping.Table{"b": tableB()})
		next.SetMaxTransactions(1)
		next.Succeed(k.Store)
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
		second := k.one("b")
		k.write(backends.Ack{Leases: leases(first, second)}, 0)
		k.wantRows(rowsB, "1|done|0", "2|done|0", "3|open|0")
	})
}

// TestTxClaimWithOtherWrites: jobs that come with an ack are stored in the held transaction. One claim can name
// queues of different kinds.
func TestTxClaimWithOtherWrites(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := kitB(t, on)
		k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "plain", Payload: []byte("p")}}}, 0)
		c := backends.Claim{Queues: []backends.Policy{policy("b"), policy("plain")}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
		for range 5 {
			c.Slots = append(c.Slots, k.slot(0))
		}
		jobs := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}).Claims[0].Jobs
		if len(jobs) != 4 || jobs[3].Queue != "plain" {
			t.Fatalf("%+v", jobs)
		}
		r := k.commit(backends.CommitContent{Sidecar: me, Writes: []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{{Queue: "b", Payload: []byte("four")}}},
			backends.Ack{Leases: leases(jobs[1:]...)},
			backends.Ack{Leases: leases(jobs[0]), Enqueue: []backends.NewJob{{Queue: "plain"}, {Queue: "b", Payload: []byte("five")}}},
		}})
		for i, w := range r.Writes {
			if w.Err != nil || len(w.Lost) > 0 || len(w.Stored) != []int{1, 0, 2}[i] {
				t.Errorf("%+v", w)
			}
		}
		k.wantRows(rowsB, "1|done|0", "2|done|0", "3|done|0", "4|open|0", "5|open|0")
		if len(k.claim("plain", 5)) != 1 {
			t.Error("what was enqueued with the ack is not there")
		}
		k.write(backends.Enqueue{}, 0)
	})
}

// TestTxClaimRefused: a settle that the database refuses leaves the job held. A released job is free in
// any case.
func TestTxClaimRefused(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, strings.Replace(on.systemB, "smallint NOT NULL DEFAULT 0", "smallint NOT NULL DEFAULT 0, CHECK (command <> 'one' OR NOT is_done AND failure_count = 0)", 1),
			map[string]mapping.Table{"b": tableB()})
		jobs := k.claim("b", 2)
		var unsupported *backends.UnsupportedError
		k.unsupported(jobs[0])
		r := k.commit(backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leases(jobs...)}}}).Writes[0]
		if !backends.IsRefused(r.Err) {
			t.Errorf("%+v", r)
		}
		k.wantRows(rowsB, "1|open|0", "2|done|0", "3|open|0")
		k.wantRows(unlockedB, "3")
		k.unsupported(jobs[0])
		k.write(backends.Release{Leases: leases(jobs[0]), Owner: me + 1, Uncounted: true}, 1) // the claim has another owner
		k.wantRows(unlockedB, "3")
		k.write(backends.Release{Leases: leases(jobs[0]), Cause: backends.CauseDisconnected}, 0)
		k.wantRows(unlockedB, "1", "3")
		c := backends.Claim{Queues: []backends.Policy{policy("b")}, Slots: []backends.Slot{k.slot(time.Hour)}}
		if r := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}).Claims[0]; !errors.As(r.Err, &unsupported) {
			t.Errorf("a timed lease: %+v", r)
		}
	})
}

// unsupported checks that an unsupported write changes nothing.
func (k *kit) unsupported(job backends.Job) {
	k.Helper()
	var unsupported *backends.UnsupportedError
	for _, w := range []backends.Write{
		backends.Ack{Leases: leases(job), Result: []byte("x")}, backends.Extend{Leases: leases(job)}, backends.Extend{Leases: leases(job), Bind: me},
	} {
		if r := k.commit(backends.CommitContent{Writes: []backends.Write{w}}).Writes[0]; !errors.As(r.Err, &unsupported) || len(r.Lost) > 0 {
			k.Errorf("%T: %+v", w, r)
		}
	}
}

// TestTxClaimTooLong: a run that exceeds its time is a failed attempt.
func TestTxClaimTooLong(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := kitB(t, on)
		p := policy("b")
		p.Timeout = time.Millisecond
		c := backends.Claim{Queues: []backends.Policy{p}, Slots: []backends.Slot{k.slot(0)}}
		late := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}).Claims[0].Jobs
		testwait.Until(k, "its time is over", func() bool {
			return k.maintain(backends.Maintenance{}).Reaped[backends.CauseTimedOut] == 1
		})
		k.write(backends.Ack{Leases: leases(late...)}, 1)
		k.wantRows(rowsB, "1|open|1", "2|open|0", "3|open|0")
		k.sql("UPDATE " + on.own + "qsidecar_leases SET not_before = NULL")
		if j := k.one("b"); j.ID != "1" || j.Attempt != 2 {
			t.Errorf("%+v", j)
		}
	})
}

// TestTxClaimQueries: jobs that are held here count and show as claimed, and an operator can reclaim them.
func TestTxClaimQueries(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := kitB(t, on)
		jobs := k.claim("b", 2)
		stats, err := k.Stats(t.Context(), "b")
		if err != nil || len(stats) != 1 || stats[0].Claimed != 2 || stats[0].Ready != 1 || stats[0].OldestClaimed <= 0 {
			t.Errorf("%+v %v", stats, err)
		}
		for state, want := range map[backends.State]string{backends.StateClaimed: "1 2", backends.StateReady: "3", backends.StateDone: ""} {
			views, err := k.Peek(t.Context(), backends.Peek{Queue: "b", State: state, Max: 5})
			var got []string
			for _, v := range views {
				got = append(got, v.ID)
			}
			if err != nil || strings.Join(got, " ") != want {
				t.Errorf("%s: %v %v, want %s", state, got, err, want)
			}
		}
		views, err := k.Peek(t.Context(), backends.Peek{Queue: "b", State: backends.StateClaimed, After: "1", Max: 5})
		if err != nil || len(views) != 1 || views[0].Worker != "w" || views[0].State != backends.StateClaimed || views[0].ClaimedAt.IsZero() {
			t.Errorf("%+v %v", views, err)
		}
		do := func(c backends.Command, want int64) {
			t.Helper()
			c.Queue = "b"
			if n, _, err := k.Command(t.Context(), c); err != nil || n != want {
				t.Errorf("%+v: %d %v, want %d", c, n, err, want)
			}
		}
		do(backends.Command{Kind: backends.Delete, IDs: []string{"1", "3"}}, 1)
		do(backends.Command{Kind: backends.Reclaim, IDs: []string{"1", "9"}}, 1)
		k.write(backends.Ack{Leases: leases(jobs...)}, 1)
		do(backends.Command{Kind: backends.Purge, State: backends.StateDone}, 1)
		k.wantRows(rowsB, "1|open|0")
	})
}

// TestTxClaimTables: jobs of the smallest table can be held, with an archive, and of a table that counts
// deliveries.
func TestTxClaimTables(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		bare := mapping.Table{Name: "bare", ClaimInTx: true, OnAck: mapping.Delete, Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.Payload: {"p"}}}
		moved := bare
		moved.OnAck, moved.Archive = mapping.Archive, "old"
		counted := tableB()
		counted.Deliveries = true
		k := on.newKit(t, on.systemB+`; CREATE TABLE bare (id int PRIMARY KEY, p text); CREATE TABLE old (id int, p text);
			INSERT INTO bare VALUES (1, 'x'), (2, 'y')`, map[string]mapping.Table{"bare": bare, "moved": moved, "counted": counted})
		job := k.one("bare")
		k.write(backends.Nack{Leases: leases(job), HasDelay: true}, 0)
		if job = k.one("bare"); job.ID != "1" || job.Attempt != 2 {
			t.Errorf("%+v", job)
		}
		k.write(backends.Ack{Leases: leases(job)}, 0)
		k.write(backends.Ack{Leases: leases(k.one("moved"))}, 0)
		k.wantRows("SELECT p FROM bare")
		k.wantRows("SELECT concat(id, p) FROM old", "2y")
		k.wantRows("SELECT item FROM " + on.own + "qsidecar_leases")
		one := k.one("counted")
		k.write(backends.Release{Leases: leases(one), Uncounted: true}, 0)
		k.wantRows(rowsB, "1|open|0", "2|open|0", "3|open|0")
		two := k.claim("counted", 2)
		k.write(backends.Nack{Leases: leases(two[0]), HasDelay: true}, 0)
		k.write(backends.Ack{Leases: leases(two[1])}, 0)
		k.wantRows(rowsB, "1|open|1", "2|done|1", "3|open|0")
	})
}

// TestTxClaimMisfits: a mapping cannot have columns for what only the lock of a row shows.
func TestTxClaimMisfits(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, fmt.Sprintf("%s; CREATE TABLE more (id int PRIMARY KEY, state text, who varchar(20), at %s, pid int)", on.systemB, on.zoneless), nil)
		_, wrong, err := adopted.Check(t.Context(), k.Engine, map[string]mapping.Table{"q": {
			Name: "more", ClaimInTx: true, OnAck: mapping.Delete, StuckAfter: time.Hour, Token: &mapping.Token{Column: "pid", From: 1, To: 1},
			Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Worker: {"who"}, mapping.ClaimedAt: {"at"}},
			States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "r"}, backends.StateClaimed: {Text: "c"}},
		}})
		var keys []string
		for _, m := range wrong {
			keys = append(keys, strings.TrimPrefix(m.Key, "queues.q."))
		}
		slices.Sort(keys)
		if want := "columns.claimed_at columns.worker states.claimed stuck_after token.column"; err != nil || strings.Join(keys, " ") != want {
			t.Errorf("%v %v, want %s", keys, err, want)
		}
	})
}

// TestSQLiteHasNoTxClaims: SQLite has one writer, and refuses claim_mode: transaction.
func TestSQLiteHasNoTxClaims(t *testing.T) {
	t.Parallel()
	k := newSQLiteKit(t, `CREATE TABLE worker_queue (id INTEGER PRIMARY KEY, command TEXT, is_done BOOLEAN, failure_count INT)`, nil)
	claimed := tableB()
	claimed.States = map[backends.State]mapping.Value{backends.StateClaimed: {Text: "2"}} // right without the claim_mode
	_, wrong, err := adopted.Check(t.Context(), k.Engine, map[string]mapping.Table{"b": claimed})
	if err != nil || len(wrong) != 1 || wrong[0].Key != "queues.b.claim_mode" || !strings.Contains(wrong[0].Text, "sqlite") {
		t.Errorf("%v %v", wrong, err)
	}
}

// TestTxClaimLostAgainAndAgain: a job whose transaction can't last uses up its attempts, and isn't always on its first one. The
// first loss in a row is free, because a failover ends all transactions.
func TestTxClaimLostAgainAndAgain(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		for _, deliveries := range []bool{false, true} {
			t.Run(fmt.Sprintf("deliveries %v", deliveries), func(t *testing.T) {
				table := tableB()
				table.Deliveries = deliveries
				k := on.newKit(t, on.systemB, map[string]mapping.Table{"b": table})
				lose := func(attempt int) {
					t.Helper()
					job := k.one("b")
					if job.ID != "1" || job.Attempt != attempt {
						t.Fatalf("job %s, attempt %d, want job 1, attempt %d", job.ID, job.Attempt, attempt)
					}
					k.terminateHeld(1)
					k.unlocked("1 2 3")
					k.write(backends.Nack{Leases: leases(job)}, 1)
				}
				lose(1)
				if r := k.maintain(backends.Maintenance{}); r.Reaped[backends.CauseTxLost] != 1 {
					t.Errorf("the first loss is not reported: %+v", r)
				}
				lose(1)
				lose(2)
				if r := k.maintain(backends.Maintenance{}); len(r.Reaped) > 0 {
					t.Errorf("a loss that the next claim reports: %+v", r)
				}
				r := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{{Queues: []backends.Policy{policy("b")}, Slots: []backends.Slot{k.slot(0)}, MaxBytes: 1 << 20}}})
				if jobs := r.Claims[0].Jobs; len(jobs) != 1 || jobs[0].ID != "2" {
					t.Errorf("claimed %+v, want job 2: the first one waits for its back-off", jobs)
				}
				if got := r.Claims[0].Failed; len(got) != 1 || got[0].Cause != backends.CauseTxLost || got[0].Jobs != 1 {
					t.Errorf("the loss is not counted: %+v", got)
				}
				k.wantRows(rowsB, "1|open|2", "2|open|0", "3|open|0")
			})
		}
	})
}
