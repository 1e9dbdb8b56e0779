package adopted

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestMissingRightOnJobs takes a right on qsidecar_jobs away, before a start and while the sidecar runs. It hands out no managed jobs whose
// acks would fail, names what to GRANT, and works again after the GRANT. A queue in an adopted table isn't affected.
func TestMissingRightOnJobs(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	db := databases.Owners(t, p.URL)
	db.Script("CREATE ROLE runner LOGIN; CREATE TABLE a (id bigserial PRIMARY KEY, state varchar(9) NOT NULL DEFAULT 'new', body varchar(99))")
	s.Queues = "  m: {}\n"
	first := s.Sidecar("owner") // it creates the tables
	first.Start()
	first.Kill()
	first.WaitExit()
	db.Script(`GRANT USAGE ON SCHEMA qsidecar, public TO runner; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA qsidecar TO runner;
		GRANT USAGE ON ALL SEQUENCES IN SCHEMA qsidecar, public TO runner; GRANT SELECT, INSERT, UPDATE, DELETE ON a TO runner;
		REVOKE DELETE ON qsidecar.qsidecar_jobs FROM runner`)
	s.URL = strings.Replace(p.URL, "postgres@", "runner@", 1)
	s.Queues = "  m: {}\n  a: {table: a, columns: {id: id, state: state, payload: body}, states: {ready: new, claimed: busy, done: done}}\n"
	sc := s.Sidecar("b")
	sc.Start()
	w, waits := sc.Dial(), sc.Dial()
	refused := func() {
		t.Helper()
		if e := w.MustFail("unavailable", kit.Msg{"op": "claim", "queue": "m"}); !strings.Contains(e.Message, "GRANT DELETE ON qsidecar.qsidecar_jobs TO \"runner\"") {
			t.Errorf("a claim: %s", e.Message)
		}
		if all := fmt.Sprintf("%+v", w.Must(kit.Msg{"op": "status"})); !strings.Contains(all, "GRANT DELETE ON qsidecar.qsidecar_jobs") {
			t.Errorf("status: %s", all)
		}
		w.Must(kit.Msg{"op": "enqueue", "queue": "a", "payload": "p"})
		w.Must(kit.Msg{"op": "ack", "lease": w.ClaimOne("a").Lease})
	}
	if n := sc.Events()["obstacle_found"]; n != 1 {
		t.Errorf("the log has %d obstacles:\n%s", n, sc.Log())
	}
	w.Must(kit.Msg{"op": "enqueue", "queue": "m", "payload": "1"})
	refused()
	waits.Post(kit.Msg{"op": "claim", "queue": "m", "wait_ms": 600_000})
	db.Script("GRANT DELETE ON qsidecar.qsidecar_jobs TO runner")
	w.Must(kit.Msg{"op": "reload"})
	held := waits.Next()
	if held.Error != nil || len(held.Jobs) != 1 {
		t.Fatalf("the waiting claim got %+v", held)
	}

	db.Script("REVOKE DELETE ON qsidecar.qsidecar_jobs FROM runner")
	ack := kit.Msg{"op": "ack", "lease": held.Jobs[0].Lease}
	for range 3 {
		if e := waits.MustFail("unavailable", ack); !strings.Contains(e.Message, "DELETE ON qsidecar.qsidecar_jobs") {
			t.Errorf("an ack: %s", e.Message)
		}
	}
	w.Must(kit.Msg{"op": "enqueue", "queue": "m", "payload": "2"})
	refused()
	db.Script("GRANT DELETE ON qsidecar.qsidecar_jobs TO runner")
	testwait.Until(t, "the ack is stored without a reload", func() bool { return waits.Exchange(ack).Error == nil })
	w.Must(kit.Msg{"op": "ack", "lease": w.ClaimOne("m").Lease})
	if n := sc.Events(); n["obstacle_found"] != 2 || n["obstacle_gone"] != 2 || n["request_failed"]+n["maintenance_failed"] > 0 {
		t.Errorf("the log has %v:\n%s", n, sc.Log())
	}
}
