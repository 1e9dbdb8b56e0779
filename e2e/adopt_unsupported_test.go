package e2e

import (
	"maps"
	"strings"
	"testing"
)

// mappings are queues of which each can do something else.
var mappings = `
  all:
    table: wide
    columns: {id: id, payload: payload, state: state, priority: priority, run_at: due, headers: [lang], result: answer, attempts: tries}
    states: {ready: a, claimed: b, done: c, dead: d}
  bare:
    table: wide
    columns: {id: id, state: state}
    states: {ready: a, claimed: b, done: c}
    where: {payload: none}
  needs:
    table: needs
    columns: {id: id, payload: payload, state: state}
    states: {ready: a, claimed: b, done: c}
  keys:
    table: keys
    columns: {id: [a, b], state: state}
    states: {ready: a, claimed: b, done: c}
`

// TestAdoptedUnsupported: what a mapping cannot do is answered unsupported, with the
// role that it lacks, and check has said so in the same words; all else is done.
func TestAdoptedUnsupported(t *testing.T) {
	s, p := newPostgresSite(t)
	s.queues = mappings
	db := owners(t, p.url)
	db.script(`CREATE TABLE wide (id serial PRIMARY KEY, payload text, state text, priority int NOT NULL DEFAULT 0, due timestamptz, lang text, answer text, tries int);
		CREATE TABLE needs (id serial PRIMARY KEY, payload text, state text, owner_id int NOT NULL);
		CREATE TABLE keys (a serial, b serial, state text, PRIMARY KEY (a, b));
		INSERT INTO wide (payload, state) VALUES ('none', 'a'), ('some', 'a');
		INSERT INTO needs (state, owner_id) VALUES ('a', 1);
		INSERT INTO keys (state) VALUES ('a');`)
	a := s.sidecar("a")
	listed := map[string][]string{} // by queue
	for line := range strings.Lines(a.checked(s.dir, 0, "--json").found(t, "fact")["unsupported"]) {
		queue, what, _ := strings.Cut(strings.TrimSuffix(line, " → \n"), ": ")
		queue = strings.TrimPrefix(queue, "queues.")
		listed[queue] = append(listed[queue], what)
	}
	a.start()
	w := a.dial()
	anew := func(more msg) func(string) msg { // an enqueue with something more
		return func(queue string) msg {
			req := msg{"op": "enqueue", "queue": queue}
			maps.Copy(req, more)
			return req
		}
	}
	const done, none = "", "-" // it is done; there is no role that would help
	for _, c := range []struct {
		what                   string
		req                    func(queue string) msg
		all, bare, needs, keys string // the role that is missing
	}{
		{"enqueue", anew(nil), done, done, "where", "id"},
		{"payload", anew(msg{"payload": "x"}), done, "payload", "where", "id"},
		{"priority", anew(msg{"priority": -1}), done, "priority", "where", "id"},
		{"delay", anew(msg{"delay_ms": 60_000}), done, "run_at", "where", "id"},
		{"run_at", anew(msg{"run_at": int64(4_000_000_000_000)}), done, "run_at", "where", "id"},
		{"headers", anew(msg{"headers": msg{"lang": "de"}}), done, "headers", "where", "id"},
		{"key", anew(msg{"key": "k"}), none, none, "where", "id"},
		{"max_attempts", anew(msg{"max_attempts": 2}), none, none, "where", "id"},
		{"timeout", anew(msg{"timeout_ms": 2000}), none, none, "where", "id"},
		{"result", func(queue string) msg {
			return msg{"op": "ack", "lease": w.claimOne(queue).Lease, "result": "r"}
		}, done, "result", "result", "result"},
		{"follow", func(queue string) msg {
			return msg{"op": "ack", "lease": w.claimOne("all").Lease, "enqueue": []msg{{"queue": queue, "priority": 5}}}
		}, done, "priority", "where", "id"},
		{"retry", func(queue string) msg { return msg{"op": "retry", "queue": queue, "all": true} }, done, done, done, done},
		{"purge", func(queue string) msg { return msg{"op": "purge", "queue": queue, "state": "done"} }, done, done, done, done},
		{"release", func(queue string) msg { return msg{"op": "release", "queue": queue, "ids": []string{"1"}} }, done, done, done, done},
	} {
		for queue, role := range map[string]string{"all": c.all, "bare": c.bare, "needs": c.needs, "keys": c.keys} {
			r := w.ask(c.req(queue))
			if role == done {
				if r.Error != nil {
					t.Errorf("%s in %s: %v", c.what, queue, r.Error)
				}
				continue
			}
			if r.Error == nil || r.Error.Code != "unsupported" || strings.Contains(r.Error.Message, "in the role \""+role+"\"") == (role == none) {
				t.Errorf("%s in %s: %+v, want that the role %s is missing", c.what, queue, r.Error, role)
				continue
			}
			found := false
			for _, what := range listed[queue] {
				found = found || what == r.Error.Message
			}
			if !found {
				t.Errorf("%s in %s: %q, and check lists\n%s", c.what, queue, r.Error.Message, strings.Join(listed[queue], "\n"))
			}
		}
	}
	for queue, n := range map[string]int{"all": 2, "bare": 7, "needs": 2, "keys": 2} {
		if len(listed[queue]) != n {
			t.Errorf("check lists %d things that %s cannot do, want %d:\n%s", len(listed[queue]), queue, n, strings.Join(listed[queue], "\n"))
		}
	}
}
