package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestAdoptedColumns: what workers of system E give and get goes through its
// columns: results, causes, names, times, payloads of several columns and headers.
func TestAdoptedColumns(t *testing.T) {
	s, p := newPostgresSite(t)
	s.queues = "  e:" + systemE.config + `
  parts:
    table: parts
    columns: {id: queue_item_id, payload: [parameters, user_id, urgent, share, raw, note], headers: [request_id, user_context], state: state,
              error: error_message, worker: worker_name, created_at: created_dt, finished_at: finished_dt, result: result}
    states: {ready: waiting, claimed: processing, done: done, dead: error}
`
	db := owners(t, p.url)
	create, _, _ := strings.Cut(systemE.ddl, "INSERT")
	db.script(create + strings.ReplaceAll(create, "my_queue", "parts") +
		`ALTER TABLE parts ADD urgent boolean, ADD share numeric, ADD raw bytea, ADD note text;`)
	a := s.started("a")
	w := a.dial()
	w.must(msg{"op": "hello", "worker": "w1"})
	row := func(id string) string {
		t.Helper()
		return db.texts(`SELECT concat_ws('|', state, worker_name, error_message, result, finished_dt BETWEEN created_dt AND now()) FROM my_queue WHERE queue_item_id = $1::text::bigint`, id)[0]
	}
	is := func(what, id, want string) {
		t.Helper()
		if got := row(id); got != want {
			t.Errorf("%s: the row is %q, want %q", what, got, want)
		}
	}
	id := w.must(msg{"op": "enqueue", "queue": "e", "payload": `{"b": 1,  "a": "ä"}`}).Job.ID
	is("enqueued", id, "waiting")
	job := w.claimOne("e")
	if job.ID != id || job.Payload != `{"a": "ä", "b": 1}` || job.Attempt != 1 {
		t.Errorf("claimed %+v", job)
	}
	is("claimed", id, "processing|w1")
	if got := w.refused("bad_request", msg{"op": "ack", "lease": job.Lease, "result": "no JSON"}); !strings.Contains(got.Message, "json") {
		t.Errorf("a result that the column cannot hold: %v", got)
	}
	w.must(msg{"op": "nack", "lease": job.Lease, "error": "try\nagain", "delay_ms": 0})
	is("failed", id, "waiting|try\nagain")
	if job = w.claimOne("e"); job.Attempt != 2 || job.LastError != "try\nagain" {
		t.Errorf("claimed again: %+v", job)
	}
	w.must(msg{"op": "nack", "lease": job.Lease, "charge": false})
	is("given back", id, "waiting|try\nagain")
	job = w.claimOne("e")
	w.must(msg{"op": "ack", "lease": job.Lease, "result": `{"ok":  true}`})
	is("done", id, `done|w1|{"ok": true}|t`)

	id = w.must(msg{"op": "enqueue", "queue": "e", "payload": "2"}).Job.ID
	w.must(msg{"op": "nack", "lease": w.claimOne("e").Lease, "error": "broken", "dead": true})
	is("dead", id, "error|w1|broken|t")
	if got := w.must(msg{"op": "peek", "queue": "e", "ids": []string{id}}).Jobs; len(got) != 1 || got[0].State != "dead" || len(got[0].Errors) != 1 || got[0].Errors[0].Message != "broken" {
		t.Errorf("peek shows %+v", got)
	}
	w.refused("bad_request", msg{"op": "enqueue", "queue": "e", "payload": "no JSON"})
	partsAndHeaders(t, db, w)
}

// partsAndHeaders: a payload of several columns is the JSON text of a map, both ways;
// headers are columns, each under its name.
func partsAndHeaders(t *testing.T, db ownersDB, w *conn) {
	t.Helper()
	const request = "0b9d7c50-7f3e-4b07-8d2c-0d8c6a1b2c3d"
	db.script(fmt.Sprintf(`INSERT INTO parts (parameters, user_id, urgent, share, raw, note, request_id, user_context)
		VALUES ('{"n": [1, 2]}', 9007199254740993, true, 1.50, '\x00ff', 'a<b>"ä"', '%s', '{"lang": "de"}');
		INSERT INTO parts (parameters, share) VALUES ('null', 'NaN');`, request))
	given := `{"parameters": {"n": [1, 2]}, "user_id": 9007199254740993, "urgent": true, "share": 1.50, "raw": "AP8=", "note": "a<b>\"ä\""}`
	w.must(msg{"op": "enqueue", "queue": "parts", "payload": given, "headers": msg{"request_id": "1" + request[1:], "user_context": `{"lang": "fr"}`}})
	for i, want := range []string{
		`{"note":"a<b>\"ä\"","parameters":{"n":[1,2]},"raw":"AP8=","share":1.50,"urgent":true,"user_id":9007199254740993} map[request_id:` + request + ` user_context:{"lang": "de"}]`,
		`{"note":null,"parameters":null,"raw":null,"share":"NaN","urgent":null,"user_id":null} map[]`,
		`{"note":"a<b>\"ä\"","parameters":{"n":[1,2]},"raw":"AP8=","share":1.50,"urgent":true,"user_id":9007199254740993} map[request_id:1` + request[1:] + ` user_context:{"lang": "fr"}]`,
	} {
		job := w.claimOne("parts")
		if got := fmt.Sprint(job.Payload, " ", job.Headers); got != want {
			t.Errorf("the job %d is\n%s, want\n%s", i+1, got, want)
		}
		w.must(msg{"op": "ack", "lease": job.Lease})
	}
	for why, payload := range map[string]string{"no map": "[1]", "no column": `{"parameters": 1, "finished_dt": null}`, "no number": `{"parameters": 1, "user_id": "x"}`} {
		if got := w.refused("bad_request", msg{"op": "enqueue", "queue": "parts", "payload": payload}); got.Message == "" {
			t.Errorf("%s: %v", why, got)
		}
	}
}
