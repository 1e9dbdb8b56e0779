package adopted_test

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
)

// TestMarkedBesideAState: a state that has no value for rows that are being worked on, beside
// a column that is NULL in those that are not.
func TestMarkedBesideAState(t *testing.T) {
	m := adopted.Table{
		Name: "marked", MaxAttempts: 3,
		Columns: map[adopted.Role][]string{adopted.ID: {"id"}, adopted.State: {"is_done"}},
		States:  map[backends.State]adopted.Value{backends.StateReady: {Text: "false"}, backends.StateDone: {Text: "true"}},
		Token:   &adopted.Token{Column: "pid", From: 7, To: 7},
	}
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, "CREATE TABLE marked (id int PRIMARY KEY, is_done boolean NOT NULL DEFAULT false, pid int); INSERT INTO marked (id) VALUES (1), (2)",
			map[string]adopted.Table{"q": m})
		first := k.one("q")
		second := k.one("q")
		if first.ID != "1" || second.ID != "2" || len(k.claim("q", 2)) > 0 {
			t.Fatalf("%+v, %+v", first, second)
		}
		k.write(backends.Ack{Leases: leases(first)}, 0)
		k.shows("SELECT concat_ws('|', id, CASE WHEN is_done THEN 't' ELSE 'f' END, pid) FROM marked ORDER BY id", "1|t|7", "2|f|7")
		k.peek(backends.Peek{State: backends.StateClaimed, Max: 9}, "2:claimed:1 ")
		k.write(backends.Nack{Leases: leases(second), HasDelay: true}, 0)
		k.peek(backends.Peek{State: backends.StateReady, Max: 9}, "2:ready:1 ")
	})
}
