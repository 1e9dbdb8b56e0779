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

// refuseTwo are triggers that refuse each change of the row 2 of the table a.
func refuseTwo(product string) string {
	switch product {
	case "PostgreSQL":
		return `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF OLD.body = '2' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN coalesce(NEW, OLD); END $$;
			CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON a FOR EACH ROW EXECUTE FUNCTION refuse()`
	case "SQLite":
		return `CREATE TRIGGER refuse_update BEFORE UPDATE ON a WHEN OLD.body = '2' BEGIN SELECT RAISE(ABORT, 'not this one'); END;
			CREATE TRIGGER refuse_delete BEFORE DELETE ON a WHEN OLD.body = '2' BEGIN SELECT RAISE(ABORT, 'not this one'); END`
	}
	const trigger = "CREATE TRIGGER refuse_%s BEFORE %[1]s ON a FOR EACH ROW BEGIN IF OLD.body = '2' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF; END;"
	return fmt.Sprintf(trigger, "UPDATE") + fmt.Sprintf(trigger, "DELETE")
}

// TestCommandBesideRefusedRow shows that a command changes all rows but one that the database refuses, which the error names.
func TestCommandBesideRefusedRow(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		ddl, tables := twoTables(product)
		a := tables["a"]
		a.Columns[mapping.Priority] = []string{"urgency"}
		tables["a"] = a
		k := start(ddl+"ALTER TABLE a ADD COLUMN urgency int NOT NULL DEFAULT 0", tables)
		k.sql(refuseTwo(product))
		ids, priority := []string{"1", "2", "3"}, int16(5)
		for _, x := range []struct {
			before string // SQL
			backends.Command
			want int64
		}{
			{"", backends.Command{Kind: backends.Change, IDs: ids, Priority: &priority}, 2},
			{"", backends.Command{Kind: backends.Cancel, IDs: ids}, 2},
			{"UPDATE a SET state = 'dead' WHERE body <> '2'", backends.Command{Kind: backends.Retry, IDs: []string{"1", "3"}}, 2},
			{"", backends.Command{Kind: backends.Delete, IDs: ids}, 2},
			{"UPDATE a SET state = 'new' WHERE body <> '2'", backends.Command{Kind: backends.Purge, State: backends.StateReady}, 3},
		} {
			if x.before != "" {
				k.sql(x.before)
			}
			x.Queue = "a"
			n, _, err := k.Command(t.Context(), x.Command)
			if x.Kind == backends.Retry { // nothing is in the way of these
				if n != x.want || err != nil {
					t.Errorf("retry: %d, %v", n, err)
				}
				continue
			}
			if n != x.want || !backends.IsRefused(err) || !strings.Contains(err.Error(), "job 2:") || !strings.Contains(err.Error(), "not this one") {
				t.Errorf("a command of the kind %d: %d, %v", x.Kind, n, err)
			}
		}
		k.wantRows("SELECT body FROM a", "2")
	})
}
