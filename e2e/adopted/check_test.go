package adopted

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestAdoptedOperations checks what a mapping supports, what it does not, and the reports of
// check and serve.
func TestAdoptedOperations(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	s.Queues = "  mail: {}\n  e:" + adopt.SystemE.Config
	for _, sql := range strings.SplitAfter(fmt.Sprintf(adopt.SystemE.DDL, 3), ";") {
		p.Query(p.URL, sql)
	}
	a := s.Sidecar("a")
	early := a.Check(s.Dir, 0, "--json") // before the sidecar has created its own tables
	if got := early.Problems(t, "info"); !strings.Contains(got["table"], "only the column worker_name distinguishes claims") || !strings.Contains(early.Stdout, "the queue e lives in the table") || got["table"] == "" {
		t.Errorf("check reports %s", early.Stdout)
	}
	a.Start()
	w := a.Dial()
	id := w.Must(kit.Msg{"op": "enqueue", "queue": "e", "payload": `{"n": 4}`}).Job.ID
	for _, c := range []struct {
		req  kit.Msg
		role string
	}{
		{kit.Msg{"op": "enqueue", "queue": "e", "payload": "{}", "priority": 1}, `"priority"`},
		{kit.Msg{"op": "enqueue", "queue": "e", "payload": "{}", "delay_ms": 1}, `"run_at"`},
		{kit.Msg{"op": "enqueue", "queue": "e", "payload": "{}", "key": "k"}, "key"},
	} {
		r, err := w.Call(c.req)
		if err != nil || r.Error == nil || r.Error.Code != "unsupported" || !strings.Contains(r.Error.Message, c.role) {
			t.Errorf("%v: %+v, %v", c.req, r.Error, err)
		}
	}
	first := w.ClaimOne("e")
	w.Must(kit.Msg{"op": "ack", "lease": first.Lease, "result": `{"ok":1}`, "enqueue": []kit.Msg{{"queue": "mail", "payload": "next"}, {"queue": "e", "payload": "5"}}})
	second := w.ClaimOne("e")
	w.Must(kit.Msg{"op": "nack", "lease": second.Lease, "error": "no luck", "dead": true})
	w.ClaimOne("e")
	got := map[string]kit.QueueStats{}
	for _, q := range w.Must(kit.Msg{"op": "stats"}).Queues {
		got[q.Queue] = q
	}
	if q := got["e"]; id != "4" || q.Ready != 2 || q.Claimed != 1 || q.Done != 1 || q.Dead != 1 || got["mail"].Ready != 1 {
		t.Errorf("stats %+v, id %s", got, id)
	}
	if rows := p.Query(p.URL, adopt.SystemE.Rows+" ORDER BY queue_item_id"); !strings.HasPrefix(strings.Join(rows, ","), "1 done qsidecar f,2 error qsidecar f,3 processing qsidecar f,4 waiting f") {
		t.Errorf("the rows are %q", rows)
	}
	for _, job := range w.Must(kit.Msg{"op": "peek", "queue": "e", "state": "dead"}).Jobs {
		if job.ID != second.ID || job.Payload != `{"n": 2}` || len(job.Errors) != 1 || job.Errors[0].Message != "no luck" {
			t.Errorf("peek shows %+v", job)
		}
	}
	for op, req := range map[string]kit.Msg{"retry": {"all": true}, "reclaim": {"ids": []string{"3"}}, "purge": {"state": "done"}} {
		req["op"], req["queue"] = op, "e"
		if r := w.Must(req); r.Count != 1 {
			t.Errorf("%s: %+v", op, r)
		}
	}
	if q := w.Stats("e"); q.Ready != 4 || q.Total() != 4 {
		t.Errorf("after that: %+v", q)
	}

	wrong := s.Sidecar("wrong")
	text, err := os.ReadFile(wrong.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(wrong.ConfigFile, []byte(strings.Replace(string(text), "payload: parameters", "payload: params", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := wrong.Check(s.Dir, 1, "--json").Problems(t, "error"); !strings.Contains(got["table"], "queues.e.columns.payload: the table has no column params") {
		t.Errorf("check finds %v", got)
	}
	wrong.Start() // it serves the other queues
	testwait.Until(t, "serve logs what doesn't fit", func() bool {
		return strings.Contains(wrong.Log(), "queues.e.columns.payload: the table has no column params")
	})
}
