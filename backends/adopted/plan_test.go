package adopted_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
)

// TestTheAdvisedIndex: on each engine, the index that check advises serves the claim. The plan reads it
// and sorts nothing, and check has no more advice.
func TestTheAdvisedIndex(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		advisedIndex(t, func(ddl string, tables map[string]adopted.Table) (*kit, func(string)) {
			k := on.newKit(t, ddl, tables)
			return k, k.sql
		})
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		advisedIndex(t, func(ddl string, tables map[string]adopted.Table) (*kit, func(string)) {
			k := newSQLiteKit(t, ddl, tables)
			return k.kit, k.sql
		})
	})
}

// indexFindings are the findings of check about an index, and about the claim's plan.
func (k *kit) indexFindings(t *testing.T) (do, plan string) {
	t.Helper()
	found, err := k.Examine(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		switch {
		case f.Topic == "index":
			do = f.Fix
		case f.Topic == "plan" && strings.HasPrefix(f.Text, "queues.q:"):
			plan = f.Text
		}
	}
	return do, plan
}

func advisedIndex(t *testing.T, start func(ddl string, tables map[string]adopted.Table) (*kit, func(string))) {
	m := adopted.Table{
		Name: "jobs", OnAck: adopted.Delete, Order: []adopted.Ordering{{Column: "urgency", Descending: true}, {Column: "id"}}, Where: map[string]adopted.Value{"kind": {Text: "a"}},
		Columns: map[adopted.Role][]string{adopted.ID: {"id"}, adopted.State: {"state"}, adopted.Worker: {"who"}},
		States:  map[backends.State]adopted.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}},
	}
	k, sql := start("CREATE TABLE jobs (id int NOT NULL PRIMARY KEY, kind varchar(9) NOT NULL, state varchar(9) NOT NULL, urgency int NOT NULL, who varchar(9))", map[string]adopted.Table{"q": m})
	var rows []string
	for n := range 3_000 {
		rows = append(rows, fmt.Sprintf("(%d, '%c', '%s', %d)", n, "ab"[n%2], []string{"new", "busy", "gone"}[n/2%3], n%7))
	}
	sql("INSERT INTO jobs (id, kind, state, urgency) VALUES " + strings.Join(rows, ", "))
	do, plan := k.indexFindings(t)
	if !strings.HasPrefix(do, "CREATE INDEX ") || !strings.Contains(plan, ", and sorts what it read:\n") {
		t.Fatalf("without an index it says %q and %q", do, plan)
	}
	do = strings.Replace(do, " CONCURRENTLY", "", 1) // not in the kit's transaction
	sql(do)
	for _, analyze := range []string{"ANALYZE jobs", "ANALYZE TABLE jobs"} {
		if strings.Contains(do, "LOCK=NONE") == strings.Contains(analyze, "TABLE") {
			sql(analyze)
		}
	}
	var err error
	if k.Store, err = adopted.New(t.Context(), k.Store.Engine, map[string]adopted.Table{"q": m}); err != nil {
		t.Fatal(err)
	}
	after, plan := k.indexFindings(t)
	if reads := regexp.MustCompile(` by (jobs_[a-z_]*idx|waiting_jobs):\n`); after != "" || !reads.MatchString(plan) {
		t.Errorf("after %s it says %q and %q", do, after, plan)
	}
}
