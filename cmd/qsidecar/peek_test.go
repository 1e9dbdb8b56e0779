package main

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite" // to create a table of another application
)

// TestDeadAndShow checks the list of dead jobs and the details of a job, in managed and
// adopted tables.
func TestDeadAndShow(t *testing.T) {
	h := newHost(t)
	db, err := sql.Open("sqlite", filepath.Join(h.dir, "app.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`CREATE TABLE orders (id integer PRIMARY KEY, state text, body text, done_at datetime);
		INSERT INTO orders VALUES (1, 'waiting', 'an order', NULL)`); err != nil {
		t.Fatal(err)
	}
	h.serve("--config", h.file("c.yaml", strings.ReplaceAll(`
databases: {main: {url: "sqlite:$D/app.db"}}
queues:
  "*": {}
  orders:
    table: orders
    columns: {id: id, payload: body, state: state, finished_at: done_at}
    states: {ready: waiting, claimed: taken, done: done, dead: failed}
`, "$D", h.dir)))
	if out := h.must(0, "dead"); out != "no job is dead\n" {
		t.Errorf("dead prints %q at first", out)
	}
	id := strings.TrimSpace(h.must(0, "enqueue", "mail", "to: ada\nfrom: \x1b[31mbob", "--raw", "--key", "k1", "--header", "lang=en"))
	h.must(0, "nack", h.claim("mail").Lease, "--error", "421 try\nagain", "--delay", "0")
	h.must(0, "nack", h.claim("mail").Lease, "--dead", "--error", "no route")
	for _, command := range [][]string{{"peek", "orders"}, {"peek", "orders", "--json"}, {"show", "1", "--queue", "orders"}} {
		if out := h.must(0, command...); strings.Contains(out, "enqueued") || strings.Contains(out, "h ") {
			t.Errorf("%v shows a time for a job without one:\n%s", command, out)
		}
	}
	h.must(0, "nack", h.claim("orders").Lease, "--dead", "--error", "out of paper")

	lines := strings.Split(strings.TrimSpace(h.must(0, "dead")), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "QUEUE") {
		t.Fatalf("dead shows\n%s", strings.Join(lines, "\n"))
	}
	for i, want := range []string{"mail " + id + " 2/20 T nacked no route", "orders 1 1/20 T nacked out of paper"} {
		got := strings.Fields(lines[i+1])
		if len(got) > 3 && strings.Count(got[3], ":") == 2 && strings.HasSuffix(got[3], "Z") {
			got[3] = "T"
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("dead shows %q, want %q", text, want)
		}
	}
	if out := h.must(0, "dead", "orders"); strings.Contains(out, "mail") || !strings.Contains(out, "out of paper") {
		t.Errorf("dead of one queue shows\n%s", out)
	}
	if out := h.must(0, "peek", "--state", "dead", "--json"); strings.Count(out, "\n") != 2 {
		t.Errorf("peek without a queue shows\n%s", out)
	}

	out := h.must(0, "show", id, "--queue", "mail")
	for _, want := range []string{"\nqueue        mail\n", "\nstate        dead\n", "\nattempt      2/20\n", "\nkey          k1\n", "\nheader       lang: en\n", "\nfinished     20",
		"\npayload      to: ada\n             from: \uFFFD[31mbob\n", "attempt 1 at 20", "\n             421 try\n             again\n", "attempt 2 at 20", "\n             no route\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("show lacks %q:\n%s", want, out)
		}
	}
	if out := h.must(0, "show", "1"); id != "1" || !strings.Contains(out, "queue        mail\n") || !strings.Contains(out, "queue        orders\n") || !strings.Contains(out, "an order") {
		t.Errorf("show of an id that two jobs have:\n%s", out)
	}
	if r := h.run("show", "4711", "--json"); r.code != exitFailure || !strings.HasPrefix(r.err, `{"ok":false,"error":{"code":"failed","message":"no job has the id 4711`) {
		t.Errorf("show of a missing job in JSON: %+v", r)
	}
	if r := h.run("release", "q", "--json"); r.code != exitUsage || !strings.HasPrefix(r.err, `{"ok":false,"error":{"code":"bad_request"`) {
		t.Errorf("an old command in JSON: %+v", r)
	}
	later := strings.TrimSpace(h.must(0, "enqueue", "mail", "later"))
	h.must(0, "nack", h.claim("mail").Lease, "--dead", "--error", "no route yet")
	for want, args := range map[string][]string{
		later + " " + id: {"dead", "mail"}, id: {"dead", "mail", "--after", later}, id + " " + later: {"peek", "mail", "--state", "dead"},
	} {
		var ids []string
		for _, line := range strings.Split(strings.TrimSpace(h.must(0, args...)), "\n")[1:] {
			ids = append(ids, strings.Fields(line)[1])
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%q lists %s, want %s", args, got, want)
		}
	}
	if r := h.run("show", "4711"); r.code != exitFailure || !strings.Contains(r.err, "no job has the id 4711") {
		t.Errorf("show of no job: %+v", r)
	}
}

// TestPeekSearches searches a queue with the flags of peek.
func TestPeekSearches(t *testing.T) {
	h := newHost(t)
	h.serve("--config", h.file("c.yaml", strings.ReplaceAll("databases: {main: {url: \"sqlite:$D/q.db\"}}\nqueues: {\"*\": {}}\n", "$D", h.dir)))
	h.must(0, "enqueue", "mail", "to: ada", "--raw", "--key", "k1", "--header", "lang=en")
	h.must(0, "enqueue", "mail", "to: bob", "--raw", "--header", "lang=en", "--header", "tenant=blue")
	for want, args := range map[string][]string{
		"to: ada": {"--key", "k1"}, "to: bob": {"--text", "bob"}, "to: bob ": {"--header", "lang=en", "--header", "tenant=blue"}, "to: ada ": {"--key", "k1", "--state", "ready"},
	} {
		if out := h.must(0, append([]string{"peek", "mail"}, args...)...); strings.Count(out, "\n") != 2 || !strings.Contains(out, strings.TrimSpace(want)) {
			t.Errorf("%q shows\n%s", args, out)
		}
	}
	if out := h.must(0, "peek", "mail", "--text", "none"); out != "no such jobs\n" {
		t.Errorf("a search without a match shows\n%s", out)
	}
	if r := h.run("peek", "mail", "--text", "to", "--max", "1"); r.code != 0 || !strings.HasPrefix(r.err, "1 job read, and there are more: go on with --after ") {
		t.Errorf("a search with more to read: %+v", r)
	}
	for _, args := range [][]string{{"--text", "x"}, {"mail", "--text", "x", "--ids", "1"}, {"mail", "--header", "x"}} {
		if r := h.run(append([]string{"peek"}, args...)...); r.code != exitUsage {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

// TestChange changes the priority and the time of jobs.
func TestChange(t *testing.T) {
	h := newHost(t)
	h.serve("--config", h.file("c.yaml", strings.ReplaceAll("databases: {main: {url: \"sqlite:$D/q.db\"}}\nqueues: {\"*\": {}}\n", "$D", h.dir)))
	h.must(0, "enqueue", "mail", "first")
	id := strings.TrimSpace(h.must(0, "enqueue", "mail", "second", "--delay", "1h"))
	if out := h.must(0, "change", "mail", id, "--priority", "5", "--delay", "0"); out != "changed 1 job\n" {
		t.Errorf("change prints %q", out)
	}
	if j := h.claim("mail"); j.ID != id || j.Priority != 5 {
		t.Errorf("claimed %+v", j)
	}
	if out := h.must(1, "change", "mail", id, "--priority", "0"); out != "" {
		t.Errorf("change of a claimed job prints %q", out)
	}
	for _, args := range [][]string{{"change", "mail", id}, {"change", "mail", "--priority", "1"}, {"change", "mail", id, "--priority", "40000"}} {
		if r := h.run(args...); r.code != exitUsage {
			t.Errorf("%q: %+v", args, r)
		}
	}
}
