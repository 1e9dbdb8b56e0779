package adopted_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// cancel cancels jobs of q and checks which it left.
func (k *kit) cancel(c backends.Command, want int64, left ...backends.JobState) (ended []backends.Token) {
	k.Helper()
	var got []backends.JobState
	c.Kind, c.Unchanged = backends.Cancel, func(jobs []backends.JobState) { got = jobs }
	c.Ended = func(claims []backends.Token) { ended = append(ended, claims...) }
	k.command(c, want)
	if !slices.Equal(got, left) {
		k.Errorf("cancel of %v left %+v, want %+v", c.IDs, got, left)
	}
	return ended
}

// TestCancel cancels rows in each state, on each engine: of sidecars, of the table's own consumers, and twice.
func TestCancel(t *testing.T) {
	t.Parallel()
	for _, on := range append(slices.Clone(products), &product{name: "SQLite", newKit: newSQLiteKit}) {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			table := mapping.Table{
				Name: "q", Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Error: {"error"}}, MaxAttempts: 3,
				States: map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}, backends.StateDead: {Text: "3"}},
			}
			k := on.newKit(t, `CREATE TABLE q (id int NOT NULL PRIMARY KEY, state int NOT NULL, error varchar(100))`, map[string]mapping.Table{"q": table})
			k.sql("INSERT INTO q (id, state) VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0)")
			jobs := k.claim("q", 4)
			k.write(backends.Nack{Leases: leases(jobs[1]), Error: "later", Delay: time.Hour, HasDelay: true}, 0)
			k.write(backends.Nack{Leases: leases(jobs[2]), Error: "no", Dead: true}, 0)
			k.write(backends.Ack{Leases: leases(jobs[3])}, 0)
			k.sql("INSERT INTO q (id, state) VALUES (6, 1)") // by one of its own consumers
			all := backends.Command{IDs: []string{"1", "2", "3", "4", "5", "6", "99", "1"}}
			left := []backends.JobState{{ID: "3", State: backends.StateDead}, {ID: "4", State: backends.StateDone}, {ID: "6", State: backends.StateClaimed}, {ID: "99", State: backends.StateDeleted}}
			if ended := k.cancel(all, 3, left...); !slices.Equal(ended, []backends.Token{jobs[0].Token}) {
				t.Errorf("the claims %v ended, want %v", ended, jobs[0].Token)
			}
			k.wantRows("SELECT concat(id, ' ', state, ' ', coalesce(error, '')) FROM q ORDER BY id",
				"1 3 cancelled by an operator", "2 3 cancelled by an operator", "3 3 no", "4 2 ", "5 3 cancelled by an operator", "6 1 ")
			for _, id := range []string{"1", "2", "5"} {
				v, err := k.Peek(t.Context(), backends.Peek{Queue: "q", IDs: []string{id}, Max: 1})
				if err != nil || len(v) != 1 || v[0].State != backends.StateDead || len(v[0].Failures) == 0 || v[0].Failures[len(v[0].Failures)-1].Cause != backends.CauseCancelled {
					t.Errorf("job %s: %+v, %v", id, v, err)
				}
			}
			if got, err := k.Cancelled(t.Context(), jobs[0].Token.Sidecar); err != nil || !slices.Equal(got, []backends.Token{jobs[0].Token}) {
				t.Errorf("the owner finds %v, %v", got, err)
			}
			k.write(backends.Ack{Leases: leases(jobs[0])}, 1)
			if jobs := k.claim("q", 9); len(jobs) > 0 {
				t.Errorf("claimed %+v", jobs)
			}
			k.cancel(all, 3, left...) // again
			k.command(backends.Command{Kind: backends.Retry, IDs: []string{"1", "5"}}, 2)
			again := k.claim("q", 9)
			if len(again) != 2 {
				t.Fatalf("claimed %+v after the retry", again)
			}
			k.sql("INSERT INTO q (id, state) VALUES (7, 0)")
			k.cancel(backends.Command{IDs: []string{"1", "2", "3", "7"}, Remove: true}, 3, backends.JobState{ID: "3", State: backends.StateDead})
			k.wantRows("SELECT id FROM q ORDER BY id", "3", "4", "5", "6")
			k.write(backends.Ack{Leases: leases(again...)}, 1)
			k.command(backends.Command{Kind: backends.Delete, IDs: []string{"3", "6", "77"}, Unchanged: func(got []backends.JobState) {
				if want := []backends.JobState{{ID: "6", State: backends.StateClaimed}, {ID: "77", State: backends.StateDeleted}}; !slices.Equal(got, want) {
					t.Errorf("delete left %+v, want %+v", got, want)
				}
			}}, 1)
		})
	}
}

// TestCancelWithoutAColumn checks what a table can't do that shows no dead jobs.
func TestCancelWithoutAColumn(t *testing.T) {
	t.Parallel()
	table := mapping.Table{
		Name: "q", Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}}, MaxAttempts: 3,
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}},
	}
	k := newKit(t, `CREATE TABLE q (id int PRIMARY KEY, state int NOT NULL); INSERT INTO q VALUES (1, 0), (2, 0)`, map[string]mapping.Table{"q": table})
	k.claim("q", 1)
	_, _, err := k.Command(t.Context(), backends.Command{Kind: backends.Cancel, Queue: "q", IDs: []string{"1", "2"}})
	if u, ok := errors.AsType[*backends.UnsupportedError](err); !ok || u.Role != string(mapping.FailedAt) {
		t.Errorf("%v", err)
	}
	k.cancel(backends.Command{IDs: []string{"1", "2"}, Remove: true}, 2)
	k.wantRows("SELECT id FROM q")
}

// TestCancelInTransactions checks that a waiting row of a queue with claims in transactions can be cancelled, and a claimed one can't,
// whichever host has it.
func TestCancelInTransactions(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := kitB(t, on)
		k.claim("b", 1)
		for _, ids := range [][]string{{"1"}, {"3", "1"}} {
			_, _, err := k.Command(t.Context(), backends.Command{Kind: backends.Cancel, Queue: "b", IDs: ids, Remove: true})
			if u, ok := errors.AsType[*backends.UnsupportedError](err); !ok || !u.InTx {
				t.Errorf("%v: %v", ids, err)
			}
		}
		k.command(backends.Command{Kind: backends.Cancel, Queue: "b", IDs: []string{"2"}, Remove: true}, 1)
	})
}
