package adopted

import (
	"maps"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
)

// mappings are queues with different roles.
var mappings = `
  all:
    table: wide
    columns: {id: id, payload: payload, state: state, priority: priority, run_at: due, headers: [lang], result: answer, attempts: tries, max_attempts: most}
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

// TestAdoptedUnsupported checks that an operation without its role in the mapping is unsupported
// and names the role, as check did before. All other operations work.
func TestAdoptedUnsupported(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	s.Queues = mappings
	db := databases.Owners(t, p.URL)
	db.Script(`CREATE TABLE wide (id serial PRIMARY KEY, payload text, state text, priority int NOT NULL DEFAULT 0, due timestamptz, lang text, answer text, tries int, most int);
		CREATE TABLE needs (id serial PRIMARY KEY, payload text, state text, owner_id int NOT NULL);
		CREATE TABLE keys (a serial, b serial, state text, PRIMARY KEY (a, b));
		INSERT INTO wide (payload, state) VALUES ('none', 'a'), ('some', 'a');
		INSERT INTO needs (state, owner_id) VALUES ('a', 1);
		INSERT INTO keys (state) VALUES ('a');`)
	a := s.Sidecar("a")
	listed := map[string][]string{} // by queue
	for line := range strings.Lines(a.Check(s.Dir, 0, "--json").Problems(t, "info")["unsupported"]) {
		queue, what, _ := strings.Cut(strings.TrimSuffix(line, " → \n"), ": ")
		queue = strings.TrimPrefix(queue, "queues.")
		listed[queue] = append(listed[queue], what)
	}
	a.Start()
	w := a.Dial()
	enqueueWith := func(more kit.Msg) func(string) kit.Msg { // an enqueue with an additional field
		return func(queue string) kit.Msg {
			req := kit.Msg{"op": "enqueue", "queue": queue}
			maps.Copy(req, more)
			return req
		}
	}
	const done, none, value = "", "-", "where" // done: it works; none: no role supports it; value: the row needs one more
	for _, c := range []struct {
		what                   string
		req                    func(queue string) kit.Msg
		all, bare, needs, keys string // the missing role
	}{
		{"enqueue", enqueueWith(nil), done, done, value, "id"},
		{"payload", enqueueWith(kit.Msg{"payload": "x"}), done, "payload", value, "id"},
		{"priority", enqueueWith(kit.Msg{"priority": -1}), done, "priority", value, "id"},
		{"delay", enqueueWith(kit.Msg{"delay_ms": 60_000}), done, "run_at", value, "id"},
		{"run_at", enqueueWith(kit.Msg{"run_at": int64(4_000_000_000_000)}), done, "run_at", value, "id"},
		{"headers", enqueueWith(kit.Msg{"headers": kit.Msg{"lang": "de"}}), done, "headers", value, "id"},
		{"key", enqueueWith(kit.Msg{"key": "k"}), none, none, value, "id"},
		{"max_attempts", enqueueWith(kit.Msg{"max_attempts": 2}), done, "max_attempts", value, "id"},
		{"timeout", enqueueWith(kit.Msg{"timeout_ms": 2000}), none, none, value, "id"},
		{"result", func(queue string) kit.Msg {
			return kit.Msg{"op": "ack", "lease": w.ClaimOne(queue).Lease, "result": "r"}
		}, done, "result", "result", "result"},
		{"follow", func(queue string) kit.Msg {
			return kit.Msg{"op": "ack", "lease": w.ClaimOne("all").Lease, "enqueue": []kit.Msg{{"queue": queue, "priority": 5}}}
		}, done, "priority", value, "id"},
		{"retry", func(queue string) kit.Msg { return kit.Msg{"op": "retry", "queue": queue, "all": true} }, done, done, done, done},
		{"newest", func(queue string) kit.Msg {
			return kit.Msg{"op": "peek", "queue": queue, "state": "done", "newest": true}
		}, none, none, none, none},
		{"purge", func(queue string) kit.Msg { return kit.Msg{"op": "purge", "queue": queue, "state": "done"} }, done, done, done, done},
		{"reclaim", func(queue string) kit.Msg { return kit.Msg{"op": "reclaim", "queue": queue, "ids": []string{"1"}} }, done, done, done, done},
	} {
		for queue, role := range map[string]string{"all": c.all, "bare": c.bare, "needs": c.needs, "keys": c.keys} {
			r := w.Exchange(c.req(queue))
			if role == done {
				if r.Error != nil {
					t.Errorf("%s in %s: %v", c.what, queue, r.Error)
				}
				continue
			}
			missing := "in the role \"" + role + "\""
			if role == value {
				missing = "the column owner_id needs a value: give it a default in the table, a value in `where`"
			}
			if r.Error == nil || r.Error.Code != "unsupported" || strings.Contains(r.Error.Message, missing) == (role == none) {
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
	db.Script("ALTER TABLE needs ALTER owner_id SET DEFAULT 1")
	w.Must(kit.Msg{"op": "reload"})
	w.Must(kit.Msg{"op": "enqueue", "queue": "needs"})
	for queue, n := range map[string]int{"all": 3, "bare": 9, "needs": 3, "keys": 3} {
		if len(listed[queue]) != n {
			t.Errorf("check lists %d things that %s cannot do, want %d:\n%s", len(listed[queue]), queue, n, strings.Join(listed[queue], "\n"))
		}
	}
}
