package adopted

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestOutageOfOneAdoptedTable breaks one of two adopted tables while claims wait on all queues. The others get their jobs,
// errors name the table and the column, the log has one line, and everything works again without a restart.
func TestOutageOfOneAdoptedTable(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		s, _ := kit.NewPostgresSite(t)
		outageOfOneTable(t, s, "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		outageOfOneTable(t, kit.NewSite(t), "integer PRIMARY KEY AUTOINCREMENT")
	})
	t.Run("MySQL", func(t *testing.T) {
		onMySQLTables(t, []testserver.Kind{testserver.MySQL97, testserver.MariaDB1011}, func(t *testing.T, _ testserver.Kind, p *databases.MySQL) {
			s := kit.NewSite(t)
			s.URL = tables(p).Database(t)
			outageOfOneTable(t, s, "bigint AUTO_INCREMENT PRIMARY KEY")
		})
	})
}

func outageOfOneTable(t *testing.T, s *kit.Site, id string) {
	sc := s.Sidecar("a")
	if s.URL == "" || strings.HasPrefix(s.URL, "sqlite:") {
		s.Queues = "  plain: {}\n"
		sc.Start() // it creates the file
		sc.Kill()
		sc.WaitExit()
	}
	db := databases.Owners(t, s.URL)
	s.Queues = "  m: {}\n"
	for _, name := range []string{"a", "b"} {
		if _, err := db.Exec(fmt.Sprintf("CREATE TABLE %s (id %s, state varchar(9) NOT NULL DEFAULT 'new', body varchar(99))", name, id)); err != nil {
			t.Fatal(err)
		}
		s.Queues += fmt.Sprintf("  %s: {table: %[1]s, columns: {id: id, state: state, payload: body}, states: {ready: new, claimed: busy, done: done}}\n", name)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := db.Exec(sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	sc = s.Sidecar("b")
	sc.Start()
	holds := sc.Dial()
	exec("INSERT INTO a (body) VALUES ('held')")
	held := holds.ClaimOne("a")

	exec("ALTER TABLE a RENAME COLUMN state TO status")
	waits := sc.Dial()
	waits.Post(kit.Msg{"op": "claim", "queue": "a", "wait_ms": 600_000})
	both := sc.Dial()
	for i := range 5 {
		for _, queues := range [][]string{{"m"}, {"b"}, {"a", "b"}, {"a", "m"}} {
			last := queues[len(queues)-1]
			if last == "b" {
				exec("INSERT INTO b (body) VALUES ('x')")
			} else {
				both.Must(kit.Msg{"op": "enqueue", "queue": "m", "payload": fmt.Sprint(i), "delay_ms": 1})
			}
			r := both.Must(kit.Msg{"op": "claim", "queues": queues, "wait_ms": 600_000})
			if len(r.Jobs) != 1 {
				t.Fatalf("a claim of %v got %d jobs", queues, len(r.Jobs))
			}
			both.Must(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease})
		}
	}
	for op, req := range map[string]kit.Msg{
		"ack": {"op": "ack", "lease": held.Lease}, "claim": {"op": "claim", "queue": "a"}, "enqueue": {"op": "enqueue", "queue": "a", "payload": "p"}, "peek": {"op": "peek", "queue": "a"},
	} {
		e := holds.MustFail("unavailable", req)
		if !strings.Contains(e.Message, "the queue a is unavailable: its table a ") || !strings.Contains(e.Message, "state") {
			t.Errorf("%s: %s", op, e.Message)
		}
	}
	if stats := both.Must(kit.Msg{"op": "stats"}).Queues; len(stats) == 0 {
		t.Error("no statistics")
	}
	if n := sc.Events(); n["obstacle_found"] != 1 || n["adopted_claim_failed"]+n["claim_failed"]+n["write_failed"]+n["request_failed"]+n["maintenance_failed"] > 0 {
		t.Errorf("the log about the outage has %v:\n%s", n, sc.Log())
	}

	exec("ALTER TABLE a RENAME COLUMN status TO state")
	exec("INSERT INTO a (body) VALUES ('next')")
	if r := waits.Next(); r.Error != nil || len(r.Jobs) != 1 {
		t.Errorf("the waiting claim got %+v", r)
	}
	testwait.Until(t, "the held job is settled", func() bool {
		r := holds.Exchange(kit.Msg{"op": "ack", "lease": held.Lease})
		if r.Error != nil && r.Error.Code != "unavailable" {
			t.Fatalf("%+v", r.Error)
		}
		return r.Error == nil
	})
	testwait.Until(t, "a job is stored", func() bool {
		return holds.Exchange(kit.Msg{"op": "enqueue", "queue": "a", "payload": "p"}).Error == nil
	})
}
