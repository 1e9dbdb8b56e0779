package adopted_test

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/backendtest/cost"
)

// TestCost checks how many round trips the claim path of an adopted table takes, or transactions of SQLite, and how many
// statements about the table and its leases.
func TestCost(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		checkCost(t, on.newKit, "serial", map[string]cost.Cost{
			"enqueue of 1": {2, 1}, "claim of 1": {4, 5}, "ack of 1": {4, 4}, "nack of 1": {4, 4}, "ack and claim of 1": {7, 9},
			"enqueue of 100": {2, 100}, "claim of 100": {4, 9}, "ack of 100": {4, 5}, "nack of 100": {4, 104}, "ack and claim of 100": {7, 14},
			"idle claim": {2, 1},
		})
	})
	t.Run("SQLite", func(t *testing.T) { // without a lock of the row before a settle
		t.Parallel()
		checkCost(t, newSQLiteKit, "integer", map[string]cost.Cost{
			"enqueue of 1": {1, 1}, "claim of 1": {1, 5}, "ack of 1": {1, 3}, "nack of 1": {1, 3}, "ack and claim of 1": {1, 8},
			"enqueue of 100": {1, 100}, "claim of 100": {1, 9}, "ack of 100": {1, 4}, "nack of 100": {1, 103}, "ack and claim of 100": {1, 13},
			"idle claim": {1, 1},
		})
	})
}

func checkCost(t *testing.T, newKit func(t *testing.T, ddl string, tables map[string]mapping.Table) *kit, id string, want map[string]cost.Cost) {
	t.Helper()
	table := func(name string) mapping.Table {
		return mapping.Table{
			Name:    name,
			Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.Payload: {"payload"}, mapping.State: {"state"}, mapping.RunAt: {"run_at"}, mapping.Error: {"error"}},
			States: map[backends.State]mapping.Value{
				backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}, backends.StateDone: {Text: "done"}, backends.StateDead: {Text: "dead"},
			},
		}
	}
	columns := "(id " + id + " PRIMARY KEY, payload text, state varchar(9), run_at timestamp NULL, error text);"
	k := newKit(t, "CREATE TABLE jobs"+columns+"CREATE INDEX by_state ON jobs (state, id); CREATE TABLE none"+columns, map[string]mapping.Table{"q": table("jobs"), "idle": table("none")})
	e := &counted{Engine: k.Engine}
	k.Engine = e
	cost.Check(t, k.Store, func() cost.Cost { return cost.Cost{int(k.Usage().RoundTrips.Count), e.statements} }, want)
}
