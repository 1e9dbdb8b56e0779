package adopted_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestCommandOnAllJobs checks that a retry of all dead jobs retries each once, and ends, though they die again while it
// runs.
func TestCommandOnAllJobs(t *testing.T) {
	t.Parallel()
	for _, on := range append(slices.Clone(products), &product{name: "SQLite", newKit: newSQLiteKit}) {
		for _, key := range [][]string{{"a"}, {"a", "b"}} {
			t.Run(on.name+"/"+strings.Join(key, ","), func(t *testing.T) {
				t.Parallel()
				commandOnAll(t, on, key)
			})
		}
	}
}

func commandOnAll(t *testing.T, on *product, key []string) {
	const n, most = 2500, 50 // jobs, and the batches after which they die again
	k := on.newKit(t, "CREATE TABLE q (a varchar(20) NOT NULL, b int NOT NULL, state int NOT NULL, retried int NOT NULL DEFAULT 0, PRIMARY KEY ("+strings.Join(key, ", ")+"))",
		map[string]mapping.Table{"q": {
			Name: "q", Columns: map[mapping.Role][]string{mapping.ID: key, mapping.State: {"state"}}, MaxAttempts: 3,
			States: map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}, backends.StateDead: {Text: "3"}},
		}})
	rows := make([]string, n)
	for i := range rows {
		rows[i] = fmt.Sprintf("('%06d', %d, 3)", i/len(key), i)
	}
	k.sql("INSERT INTO q (a, b, state) VALUES " + strings.Join(rows, ", "))
	batches := 0
	k.command(backends.Command{Kind: backends.Retry, All: true, Progress: func() {
		if batches++; batches <= most {
			k.sql("UPDATE q SET retried = retried + 1, state = 3 WHERE state = 0")
		}
	}}, n)
	k.wantRows("SELECT concat('job ', b, ' was retried ', retried, ' times') FROM q WHERE retried <> 1 ORDER BY b LIMIT 1")
	k.command(backends.Command{Kind: backends.Purge, State: backends.StateDead}, n)
}
