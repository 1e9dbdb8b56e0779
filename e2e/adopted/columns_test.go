package adopted

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
)

// TestAdoptedColumns checks that workers of system E use its columns: results, causes, names,
// times, payloads of several columns and headers.
func TestAdoptedColumns(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	s.Queues = "  e:" + adopt.SystemE.Config + `
  parts:
    table: parts
    columns: {id: queue_item_id, payload: [parameters, user_id, urgent, share, raw, note], headers: [request_id, user_context], state: state,
              error: error_message, worker: worker_name, created_at: created_dt, finished_at: finished_dt, result: result}
    states: {ready: waiting, claimed: processing, done: done, dead: error}
`
	db := databases.Owners(t, p.URL)
	create, _, _ := strings.Cut(adopt.SystemE.DDL, "INSERT")
	db.Script(create + strings.ReplaceAll(create, "my_queue", "parts") +
		`ALTER TABLE parts ADD urgent boolean, ADD share numeric, ADD raw bytea, ADD note text;`)
	a := s.Start("a")
	w := a.Dial()
	w.Must(kit.Msg{"op": "hello", "worker": "w1"})
	row := func(id string) string {
		t.Helper()
		return db.Texts(`SELECT concat_ws('|', state, worker_name, error_message, result, finished_dt BETWEEN created_dt AND now()) FROM my_queue WHERE queue_item_id = $1::text::bigint`, id)[0]
	}
	is := func(what, id, want string) {
		t.Helper()
		if got := row(id); got != want {
			t.Errorf("%s: the row is %q, want %q", what, got, want)
		}
	}
	id := w.Must(kit.Msg{"op": "enqueue", "queue": "e", "payload": `{"b": 1,  "a": "ä"}`}).Job.ID
	is("enqueued", id, "waiting")
	job := w.ClaimOne("e")
	if job.ID != id || job.Payload != `{"a": "ä", "b": 1}` || job.Attempt != 1 {
		t.Errorf("claimed %+v", job)
	}
	is("claimed", id, "processing|w1")
	if got := w.MustFail("bad_request", kit.Msg{"op": "ack", "lease": job.Lease, "result": "no JSON"}); !strings.Contains(got.Message, "json") {
		t.Errorf("a result that the column cannot hold: %v", got)
	}
	w.Must(kit.Msg{"op": "nack", "lease": job.Lease, "error": "try\nagain", "delay_ms": 0})
	is("failed", id, "waiting|try\nagain")
	if job = w.ClaimOne("e"); job.Attempt != 2 || job.LastError != "try\nagain" {
		t.Errorf("claimed again: %+v", job)
	}
	w.Must(kit.Msg{"op": "nack", "lease": job.Lease, "snooze": true})
	is("given back", id, "waiting|try\nagain")
	job = w.ClaimOne("e")
	w.Must(kit.Msg{"op": "ack", "lease": job.Lease, "result": `{"ok":  true}`})
	is("done", id, `done|w1|{"ok": true}|t`)

	id = w.Must(kit.Msg{"op": "enqueue", "queue": "e", "payload": "2"}).Job.ID
	w.Must(kit.Msg{"op": "nack", "lease": w.ClaimOne("e").Lease, "error": "broken", "dead": true})
	is("dead", id, "error|w1|broken|t")
	if got := w.Must(kit.Msg{"op": "peek", "queue": "e", "ids": []string{id}}).Jobs; len(got) != 1 || got[0].State != "dead" || len(got[0].Errors) != 1 || got[0].Errors[0].Message != "broken" {
		t.Errorf("peek shows %+v", got)
	}
	w.MustFail("bad_request", kit.Msg{"op": "enqueue", "queue": "e", "payload": "no JSON"})
	partsAndHeaders(t, db, w)
}

// partsAndHeaders checks a payload of several columns, which is the JSON text of a map in both
// directions, and headers, each in its own column.
func partsAndHeaders(t *testing.T, db databases.OwnersDB, w *kit.Conn) {
	t.Helper()
	const request = "0b9d7c50-7f3e-4b07-8d2c-0d8c6a1b2c3d"
	db.Script(fmt.Sprintf(`INSERT INTO parts (parameters, user_id, urgent, share, raw, note, request_id, user_context)
		VALUES ('{"n": [1, 2]}', 9007199254740993, true, 1.50, '\x00ff', 'a<b>"ä"', '%s', '{"lang": "de"}');
		INSERT INTO parts (parameters, share) VALUES ('null', 'NaN');`, request))
	given := `{"parameters": {"n": [1, 2]}, "user_id": 9007199254740993, "urgent": true, "share": 1.50, "raw": "AP8=", "note": "a<b>\"ä\""}`
	w.Must(kit.Msg{"op": "enqueue", "queue": "parts", "payload": given, "headers": kit.Msg{"request_id": "1" + request[1:], "user_context": `{"lang": "fr"}`}})
	for i, want := range []string{
		`{"note":"a<b>\"ä\"","parameters":{"n":[1,2]},"raw":"AP8=","share":1.50,"urgent":true,"user_id":9007199254740993} map[request_id:` + request + ` user_context:{"lang": "de"}]`,
		`{"note":null,"parameters":null,"raw":null,"share":"NaN","urgent":null,"user_id":null} map[]`,
		`{"note":"a<b>\"ä\"","parameters":{"n":[1,2]},"raw":"AP8=","share":1.50,"urgent":true,"user_id":9007199254740993} map[request_id:1` + request[1:] + ` user_context:{"lang": "fr"}]`,
	} {
		job := w.ClaimOne("parts")
		if got := fmt.Sprint(job.Payload, " ", job.Headers); got != want {
			t.Errorf("the job %d is\n%s, want\n%s", i+1, got, want)
		}
		w.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	}
	for why, payload := range map[string]string{"no map": "[1]", "no column": `{"parameters": 1, "finished_dt": null}`, "no number": `{"parameters": 1, "user_id": "x"}`} {
		if got := w.MustFail("bad_request", kit.Msg{"op": "enqueue", "queue": "parts", "payload": payload}); got.Message == "" {
			t.Errorf("%s: %v", why, got)
		}
	}
}
