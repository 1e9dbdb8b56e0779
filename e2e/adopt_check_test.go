package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestAdoptedOverTheSocket: what a mapping can do, what it cannot, and what check
// and serve say of it.
func TestAdoptedOverTheSocket(t *testing.T) {
	s, p := newPostgresSite(t)
	s.queues = "  mail: {}\n  e:" + systemE.config
	for _, sql := range strings.SplitAfter(fmt.Sprintf(systemE.ddl, 3), ";") {
		p.query(p.url, sql)
	}
	a := s.sidecar("a")
	early := a.checked(s.dir, 0, "--json") // before there are tables of the sidecar's own
	if got := early.found(t, "fact"); !strings.Contains(got["table"], "by the column worker_name alone") || !strings.Contains(early.out, "the queue e lives in the table") || got["table"] == "" {
		t.Errorf("check says %s", early.out)
	}
	a.start()
	w := a.dial()
	id := w.must(msg{"op": "enqueue", "queue": "e", "payload": `{"n": 4}`}).Job.ID
	for _, c := range []struct {
		req  msg
		role string
	}{
		{msg{"op": "enqueue", "queue": "e", "payload": "{}", "priority": 1}, `"priority"`},
		{msg{"op": "enqueue", "queue": "e", "payload": "{}", "delay_ms": 1}, `"run_at"`},
		{msg{"op": "enqueue", "queue": "e", "payload": "{}", "key": "k"}, "key"},
	} {
		r, err := w.call(c.req)
		if err != nil || r.Error == nil || r.Error.Code != "unsupported" || !strings.Contains(r.Error.Message, c.role) {
			t.Errorf("%v: %+v, %v", c.req, r.Error, err)
		}
	}
	first := w.claimOne("e")
	w.must(msg{"op": "ack", "lease": first.Lease, "result": `{"ok":1}`, "enqueue": []msg{{"queue": "mail", "payload": "next"}, {"queue": "e", "payload": "5"}}})
	second := w.claimOne("e")
	w.must(msg{"op": "nack", "lease": second.Lease, "error": "no luck", "dead": true})
	w.claimOne("e")
	got := map[string]wireStat{}
	for _, q := range w.must(msg{"op": "stats"}).Queues {
		got[q.Queue] = q
	}
	if q := got["e"]; id != "4" || q.Ready != 2 || q.Claimed != 1 || q.Done != 1 || q.Dead != 1 || got["mail"].Ready != 1 {
		t.Errorf("stats %+v, id %s", got, id)
	}
	if rows := p.query(p.url, systemE.rows+" ORDER BY queue_item_id"); !strings.HasPrefix(strings.Join(rows, ","), "1 done qsidecar f,2 error qsidecar f,3 processing qsidecar f,4 waiting f") {
		t.Errorf("the rows are %q", rows)
	}
	for _, job := range w.must(msg{"op": "peek", "queue": "e", "state": "dead"}).Jobs {
		if job.ID != second.ID || job.Payload != `{"n": 2}` || len(job.Errors) != 1 || job.Errors[0].Message != "no luck" {
			t.Errorf("peek shows %+v", job)
		}
	}
	for op, req := range map[string]msg{"retry": {"all": true}, "release": {"ids": []string{"3"}}, "purge": {"state": "done"}} {
		req["op"], req["queue"] = op, "e"
		if r := w.must(req); r.Count != 1 {
			t.Errorf("%s: %+v", op, r)
		}
	}
	if q := w.stat("e"); q.Ready != 4 || q.total() != 4 {
		t.Errorf("after that: %+v", q)
	}

	wrong := s.sidecar("wrong")
	text, err := os.ReadFile(wrong.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(wrong.config, []byte(strings.Replace(string(text), "payload: parameters", "payload: params", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := wrong.checked(s.dir, 1, "--json").found(t, "problem"); !strings.Contains(got["table"], "queues.e.columns.payload: the table has no column params") {
		t.Errorf("check finds %v", got)
	}
	wrong.launch()
	if code := wrong.exit(patience); code != 2 || !strings.Contains(wrong.readLog(), "queues.e.columns.payload: the table has no column params") {
		t.Errorf("serve exits with %d and says %s", code, wrong.readLog())
	}
}
