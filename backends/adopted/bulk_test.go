package adopted_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestTogether: jobs that are settled in one commit are settled independently, although one
// statement changes many rows. Only those whose rows no longer show their claims are lost.
func TestTogether(t *testing.T) {
	deletes := tableE()
	deletes.OnAck = mapping.Delete
	tables := map[string]mapping.Table{"e": tableE(), "deletes": deletes}
	onEach(t, func(t *testing.T, on *product) {
		together(on.newKit(t, on.systemE, tables), on)
	})
	together(newSQLiteKit(t, sqliteSystemE, tables), &product{})
}

// sqliteSystemE is the table of system E on SQLite.
const sqliteSystemE = `CREATE TABLE my_queue (queue_item_id integer PRIMARY KEY, state text NOT NULL DEFAULT 'waiting', parameters text,
	created_dt datetime NOT NULL DEFAULT CURRENT_TIMESTAMP, finished_dt datetime, error_message text, worker_name text, result text)`

func together(k *kit, on *product) {
	ack := func(l []backends.Lease) backends.Write { return backends.Ack{Leases: l} }
	settled := func(queue, left string, alike bool, verb func(l []backends.Lease) backends.Write) {
		k.Helper()
		k.settleTogether(on, queue, left, alike, verb)
	}
	settled("e", "done", false, ack)
	settled("e", "done", true, ack)
	settled("deletes", "", false, ack)
	settled("e", "waiting", false, func(l []backends.Lease) backends.Write {
		return backends.Nack{Leases: l, Error: "no luck", HasDelay: true}
	})
	settled("e", "error", true, func(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, Dead: true} })
}

// settleTogether claims 13 jobs, changes the rows of three, and settles all in one commit. left is
// the state of the settled ones; empty: they are deleted.
func (k *kit) settleTogether(on *product, queue, left string, alike bool, verb func(l []backends.Lease) backends.Write) {
	k.Helper()
	k.sql("DELETE FROM my_queue; INSERT INTO my_queue (parameters) VALUES ('1')" + strings.Repeat(", ('2')", 12))
	claim := backends.Claim{Queues: []backends.Policy{policy(queue)}}
	for i := range 13 {
		s := k.slot(0)
		if !alike {
			s.Worker = fmt.Sprint("w", i%8)
		}
		claim.Slots = append(claim.Slots, s)
	}
	jobs := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{claim}}).Claims[0].Jobs
	if len(jobs) != 13 {
		k.Fatalf("%d jobs", len(jobs))
	}
	var shown []string
	for i, j := range jobs {
		shown = append(shown, j.ID+" processing "+claim.Slots[i].Worker)
	}
	k.wantRows("SELECT concat_ws(' ', queue_item_id, state, worker_name) FROM my_queue ORDER BY queue_item_id", shown...)
	// One row has another worker's name, one a similar name, and one is deleted.
	k.sql("UPDATE my_queue SET worker_name = 'own' WHERE queue_item_id = " + jobs[1].ID +
		"; UPDATE my_queue SET worker_name = 'W" + claim.Slots[4].Worker[1:] + "' WHERE queue_item_id = " + jobs[4].ID + "; DELETE FROM my_queue WHERE queue_item_id = " + jobs[8].ID)
	var writes []backends.Write
	for _, j := range jobs[:11] {
		writes = append(writes, verb(leases(j)))
	}
	var lost, rows []string
	for i, r := range k.commit(backends.CommitContent{Writes: append(writes, verb(leases(jobs[11:]...)))}).Writes {
		if len(r.Lost) > 0 {
			lost = append(lost, strconv.Itoa(i))
		} else if freed := left == "waiting"; freed != slices.Equal(r.MadeReady, []string{queue}) {
			k.Errorf("the queues %v are freed", r.MadeReady)
		}
	}
	if want := []string{"1", "4", "8"}; !slices.Equal(lost, want) {
		k.Errorf("%s: %v are lost, want %v", left, lost, want)
	}
	for i, j := range jobs {
		switch {
		case i == 1 || i == 4:
			rows = append(rows, j.ID+" processing")
		case i != 8 && left != "":
			rows = append(rows, j.ID+" "+left)
		}
	}
	k.wantRows("SELECT concat_ws(' ', queue_item_id, state) FROM my_queue ORDER BY queue_item_id", rows...)
	k.wantRows("SELECT item FROM " + on.own + "qsidecar_leases WHERE token_sidecar IS NOT NULL")
}

// TestDelaysTogether checks that jobs of one commit keep their own delays.
func TestDelaysTogether(t *testing.T) {
	m := mapping.Table{
		Name: "timed", MaxAttempts: 9, Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.RunAt: {"run_at"}},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}, backends.StateDone: {Text: "done"}},
	}
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		k := start("CREATE TABLE timed (id int NOT NULL PRIMARY KEY, state varchar(9) NOT NULL, run_at "+zoneless(product)+"); INSERT INTO timed VALUES (1, 'new', NULL), (2, 'new', NULL), (3, 'new', NULL)",
			map[string]mapping.Table{"q": m})
		var b backends.CommitContent
		for _, j := range k.claim("q", 3) {
			hours, err := strconv.Atoi(j.ID)
			if err != nil {
				t.Fatal(err)
			}
			b.Writes = append(b.Writes, backends.Nack{Leases: leases(j), HasDelay: true, Delay: time.Duration(hours) * time.Hour})
		}
		k.commit(b)
		views, err := k.Peek(t.Context(), backends.Peek{Queue: "q", State: backends.StateScheduled, Max: 9})
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range views {
			if after := v.RunAt.Sub(views[0].RunAt); v.ID != fmt.Sprint(i+1) || after.Round(time.Hour) != time.Duration(i)*time.Hour {
				t.Errorf("the job %s is due %v after the first one", v.ID, after)
			}
		}
		if len(views) != 3 {
			t.Errorf("%d jobs wait", len(views))
		}
	})
}
