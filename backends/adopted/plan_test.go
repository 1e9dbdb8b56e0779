package adopted_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestTheAdvisedIndex: on each engine, the index that check advises serves the claim. The plan reads it
// and sorts nothing, and check has no more advice.
func TestTheAdvisedIndex(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) { advisedIndex(t, on.newKit) })
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		advisedIndex(t, newSQLiteKit)
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

func advisedIndex(t *testing.T, newKit func(t *testing.T, ddl string, tables map[string]mapping.Table) *kit) {
	m := mapping.Table{
		Name: "jobs", OnAck: mapping.Delete, Order: []mapping.Ordering{{Column: "urgency", Descending: true}, {Column: "id"}}, Where: map[string]mapping.Value{"kind": {Text: "a"}},
		Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Worker: {"who"}},
		States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}},
	}
	k := newKit(t, "CREATE TABLE jobs (id int NOT NULL PRIMARY KEY, kind varchar(9) NOT NULL, state varchar(9) NOT NULL, urgency int NOT NULL, who varchar(9))", map[string]mapping.Table{"q": m})
	var rows []string
	for n := range 3_000 {
		rows = append(rows, fmt.Sprintf("(%d, '%c', '%s', %d)", n, "ab"[n%2], []string{"new", "busy", "gone"}[n/2%3], n%7))
	}
	k.sql("INSERT INTO jobs (id, kind, state, urgency) VALUES " + strings.Join(rows, ", "))
	do, plan := k.indexFindings(t)
	if !strings.HasPrefix(do, "CREATE INDEX ") || !strings.Contains(plan, ", and sorts what it read:\n") {
		t.Fatalf("without an index it reports %q and %q", do, plan)
	}
	do = strings.Replace(do, " CONCURRENTLY", "", 1) // not in the kit's transaction
	k.sql(do)
	for _, analyze := range []string{"ANALYZE jobs", "ANALYZE TABLE jobs"} {
		if strings.Contains(do, "LOCK=NONE") == strings.Contains(analyze, "TABLE") {
			k.sql(analyze)
		}
	}
	var err error
	if k.Store, err = adopted.New(t.Context(), k.Store.Engine, map[string]mapping.Table{"q": m}); err != nil {
		t.Fatal(err)
	}
	after, plan := k.indexFindings(t)
	if reads := regexp.MustCompile(` by (jobs_[a-z_]*idx|waiting_jobs):\n`); after != "" || !reads.MatchString(plan) {
		t.Errorf("after %s it reports %q and %q", do, after, plan)
	}
}
