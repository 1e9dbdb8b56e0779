package adopted_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// onEvery is onEach, and SQLite.
func onEvery(t *testing.T, f func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit)) {
	onEach(t, func(t *testing.T, on *product) {
		f(t, on.name, func(ddl string, tables map[string]mapping.Table) *kit { return on.newKit(t, ddl, tables) })
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		f(t, "SQLite", func(ddl string, tables map[string]mapping.Table) *kit { return newSQLiteKit(t, ddl, tables) })
	})
}

// TestOwnLimit: a row's own limit of attempts holds, with attempts in the row and without. The queue's
// limit holds for NULL and for numbers that aren't valid limits.
func TestOwnLimit(t *testing.T) {
	m := mapping.Table{
		Name: "limited", MaxAttempts: 3, OnAck: mapping.Delete,
		Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Attempts: {"tries"}, mapping.OwnLimit: {"max_attempts"}},
		States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}},
	}
	remembered := m
	remembered.Name = "remembered"
	remembered.Columns = map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.OwnLimit: {"max_attempts"}}
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		ddl := ""
		for _, name := range []string{"limited", "remembered"} {
			ddl += fmt.Sprintf(`CREATE TABLE %s (id int PRIMARY KEY, state varchar(5) NOT NULL DEFAULT 'new', tries int NOT NULL DEFAULT 0, max_attempts bigint);
				INSERT INTO %[1]s (id, max_attempts) VALUES (1, 1), (2, NULL), (3, 5), (4, 0), (5, -2), (6, 100000);`, name)
		}
		k := start(ddl, map[string]mapping.Table{"q": m, "remembered": remembered})
		if product == "SQLite" {
			k.sql("UPDATE limited SET max_attempts = 'none' WHERE id = 5; UPDATE limited SET max_attempts = '3.0' WHERE id = 2")
		}
		for _, queue := range []string{"q", "remembered"} {
			for attempt := 1; attempt <= 7; attempt++ {
				jobs := k.claim(queue, 9)
				var got []string
				for _, j := range jobs {
					got = append(got, fmt.Sprint(j.ID, ":", j.Attempt, "/", j.MaxAttempts))
				}
				want := "1:1/1 2:1/3 3:1/5 4:1/3 5:1/3 6:1/32767"
				switch {
				case attempt > 5:
					want = fmt.Sprintf("6:%d/32767", attempt)
				case attempt > 3:
					want = fmt.Sprintf("3:%d/5 6:%[1]d/32767", attempt)
				case attempt > 1:
					want = fmt.Sprintf("2:%d/3 3:%[1]d/5 4:%[1]d/3 5:%[1]d/3 6:%[1]d/32767", attempt)
				}
				if product == "SQLite" && queue == "q" {
					want = strings.ReplaceAll(want, "5:"+fmt.Sprint(attempt)+"/3", "5:"+fmt.Sprint(attempt)+"/32767")
					if attempt > 3 {
						want = strings.ReplaceAll(want, "6:", fmt.Sprintf("5:%d/32767 6:", attempt))
					}
				}
				if strings.Join(got, " ") != want {
					t.Fatalf("%s, attempt %d: %v, want %s", queue, attempt, got, want)
				}
				k.write(backends.Nack{Leases: leases(jobs...), HasDelay: true}, 0)
			}
		}
		dead := "1:dead:1 2:dead:3 3:dead:5 4:dead:3 "
		if product != "SQLite" {
			dead += "5:dead:3 "
		}
		if views := k.peek(backends.Peek{State: backends.StateDead, Max: 9}, dead); len(views) > 2 && (views[0].MaxAttempts != 1 || views[1].MaxAttempts != 3) {
			t.Errorf("%+v", views)
		}
		k.command(backends.Command{Kind: backends.Retry, Queue: "q", IDs: []string{"1"}}, 1)
		if j := k.one("q"); j.ID != "1" || j.MaxAttempts != 1 {
			t.Errorf("%+v", j)
		}
	})
}

// TestOwnLimitOfANewJob: an enqueue's max_attempts goes into the column.
func TestOwnLimitOfANewJob(t *testing.T) {
	m := mapping.Table{
		Name: "limited", MaxAttempts: 4, OnAck: mapping.Delete,
		Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.ClaimedAt: {"locked_at"}, mapping.OwnLimit: {"max_attempts"}},
	}
	bare := m
	bare.Columns = map[mapping.Role][]string{mapping.ID: {"id"}, mapping.ClaimedAt: {"locked_at"}}
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		k := start(fmt.Sprintf("CREATE TABLE limited (id %s, locked_at %s NULL, max_attempts smallint NOT NULL)", serial(product), zoneless(product)), map[string]mapping.Table{"q": m, "bare": bare})
		k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", MaxAttempts: 7}, {Queue: "q"}}}, 0)
		k.wantRows("SELECT concat_ws('|', id, max_attempts) FROM limited ORDER BY id", "1|7", "2|4")
		var u *backends.UnsupportedError
		if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "bare", MaxAttempts: 2}}}}}); !errors.As(err, &u) {
			t.Errorf("%v", err)
		}
		if jobs := k.claim("q", 2); len(jobs) != 2 || jobs[0].MaxAttempts != 7 || jobs[1].MaxAttempts != 4 || len(k.claim("q", 2)) > 0 {
			t.Errorf("%+v", jobs)
		}
	})
}

// zoneless is a time that names no zone.
func zoneless(product string) string {
	if product == "PostgreSQL" {
		return "timestamp"
	}
	return "datetime"
}

// TestOwnLimitOfTxClaims is TestOwnLimit with held jobs.
func TestOwnLimitOfTxClaims(t *testing.T) {
	m := tableB()
	m.Columns[mapping.OwnLimit] = []string{"most"}
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, on.systemB, nil)
		k.sql("ALTER TABLE worker_queue ADD COLUMN most int NULL")
		k.sql("DELETE FROM worker_queue")
		k.sql("INSERT INTO worker_queue (command, most) VALUES ('a', 1), ('b', NULL), ('c', 5)")
		k.Store = k.reopened(map[string]mapping.Table{"q": m})
		var got []string
		for {
			jobs := k.claim("q", 1)
			if len(jobs) == 0 {
				break
			}
			got = append(got, fmt.Sprintf("%s%d/%d", jobs[0].Payload, jobs[0].Attempt, jobs[0].MaxAttempts))
			k.write(backends.Nack{Leases: leases(jobs...), HasDelay: true}, 0)
		}
		if want := "a1/1 b1/3 b2/3 b3/3 c1/5 c2/5 c3/5 c4/5 c5/5"; strings.Join(got, " ") != want {
			t.Errorf("%v, want %s", got, want)
		}
	})
}
