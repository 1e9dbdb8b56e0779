package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

var connectionLimit = regexp.MustCompile(`the sidecar has (\d+) connections, which is its limit`)

// firstLine returns the first line that a sidecar sends on a new connection.
func firstLine(t *testing.T, socket string) (line string, hangUp func()) {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(testwait.Deadline()); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("{\"op\":\"ping\"}\n")) // a refused connection is closed already
	line, _ = bufio.NewReader(c).ReadString('\n')
	return line, func() { c.Close() }
}

// findConnectionLimit returns the sidecar's limit of connections. It opens that many and closes
// them.
func findConnectionLimit(t *testing.T, socket string) (limit string) {
	t.Helper()
	var open []func()
	for range 10 {
		line, end := firstLine(t, socket)
		open = append(open, end)
		if m := connectionLimit.FindStringSubmatch(line); m != nil {
			limit = m[1]
			break
		}
	}
	for _, end := range open {
		end()
	}
	testwait.Until(t, "the connections have ended", func() bool {
		line, end := firstLine(t, socket)
		defer end()
		return strings.Contains(line, `"ok":true`)
	})
	return limit
}

// TestReloadIsAllOrNothing changes every kind of setting at once: queues, limits, databases,
// permissions, the admin listener and the log. A config with one fault changes none of them,
// whatever the fault is. The same config without the fault changes all.
func TestReloadIsAllOrNothing(t *testing.T) {
	h := newHost(t)
	h.poll, h.noEvents = time.Hour, true
	before := "queues: {one: {}}\nlimits: {connections: 5}\n"
	x := &reloading{host: h, file: h.file("c.yaml", before)}
	x.r = h.serve("--config", x.file)
	x.must(0, "enqueue", "one", "in the first database")
	admin := filepath.Join(h.dir, "admin.sock")
	after := func(database, listen, fault string) string {
		return fmt.Sprintf(`queues: {one: {database: a}, two: {database: a}}
limits: {connections: 4}
admin: {listen: %s}
log: {level: debug}
databases: {a: {url: 'sqlite:%s/a.db'}%s}
listen: [{socket: %s, allow: [{ops: [enqueue, stats, status, claim, reload, ping, nack, hello, bye]}]}%s]
%s`, admin, h.dir, database, h.socket(), listen, fault)
	}
	for fault, text := range map[string]string{
		"a second database that cannot be opened": after(", b: {url: 'sqlite:"+x.file+"/x.db'}", "", ""),
		"a socket's path that a file has":         after("", ", {socket: "+x.file+"}", ""),
		"a key that there is not":                 after("", "", "nonsense: 1\n"),
		"brackets in each other":                  after("", "", "nonsense: "+strings.Repeat("[", 100_000)+"\n"),
		"an admin listener at a path that is taken": strings.Replace(after("", "", ""), "admin: {listen: "+admin+"}",
			"admin: {listen: "+x.file+"}", 1),
	} {
		x.write(x.file, text)
		if r := x.run("reload"); r.code == 0 {
			t.Errorf("%s: the reload went well: %s", fault, r.out)
		}
		if x.run("enqueue", "two", "x").code == 0 {
			t.Errorf("%s: the new queue is there", fault)
		}
		if n := findConnectionLimit(t, h.socket()); n != "5" {
			t.Errorf("%s: %q connections are taken, want 5 as before", fault, n)
		}
		if _, err := os.Stat(admin); err == nil {
			t.Errorf("%s: the new admin listener is there", fault)
		}
		if r := x.run("peek", "one"); r.code != 0 || !strings.Contains(r.out, "in the first database") {
			t.Errorf("%s: the queue is not in its database, or the permissions changed: %+v", fault, r)
		}
		if strings.Contains(x.r.errOut.String(), "level=DEBUG") {
			t.Errorf("%s: the log's level changed", fault)
		}
	}
	x.write(x.file, after("", "", ""))
	x.must(0, "reload")
	x.must(0, "enqueue", "two", "x")
	if n := findConnectionLimit(t, h.socket()); n != "4" {
		t.Errorf("%q connections are taken after the reload, want 4", n)
	}
	if r := x.run("peek", "one"); r.code == 0 || !strings.Contains(r.err, "forbidden") {
		t.Errorf("the new permissions are not kept to: %+v", r)
	}
	if out := x.must(0, "stats", "one"); !strings.Contains(out, "one") || x.run("claim", "one").code != exitNoJob {
		t.Errorf("the queue did not move to its new database: %s", out)
	}
	wantPage(t, admin, "/healthz", 200, "ok")
}

// TestAllowInTheConfig checks the rules of a socket by operation and by queue.
func TestAllowInTheConfig(t *testing.T) {
	h := newHost(t)
	free := filepath.Join(h.dir, "free.sock")
	h.serve("--config", h.file("c.yaml", fmt.Sprintf(`queues: {one: {}, two: {}}
listen:
  - {socket: %s, allow: [{ops: [enqueue], queues: [one]}, {users: [4000000000]}]}
  - {socket: %s}
`, h.socket(), free)))
	h.must(0, "enqueue", "one", "x")
	for _, args := range [][]string{{"enqueue", "two", "x"}, {"claim", "one"}, {"peek", "one"}, {"purge", "one", "--state", "ready", "--yes"}} {
		if r := h.run(args...); r.code != exitFailure || !strings.Contains(r.err, "forbidden") {
			t.Errorf("%v: %+v, want forbidden", args, r)
		}
		if r := h.run(append(args, "--socket", free)...); r.code != 0 {
			t.Errorf("%v at the socket without rules: %+v", args, r)
		}
	}
}

// TestNoPasswordInTheLog runs a sidecar at level debug, with a password wherever the
// config can hold one, and with unreachable databases. It reloads with other passwords. No log line,
// reply or page shows a password.
func TestNoPasswordInTheLog(t *testing.T) {
	h := newHost(t)
	h.openTimeout, h.poll, h.noEvents = time.Millisecond, time.Hour, true
	h.env["SECRET"] = "hunter2-by-environment"
	secret := h.file("secret", "hunter2-in-a-file\n")
	admin := filepath.Join(h.dir, "admin.sock")
	at := "127.0.0.1:1" // refuses connections
	text := func(word string) string {
		return fmt.Sprintf(`log: {level: debug}
admin: {listen: %[1]s}
databases:
  a: {url: "postgres://app:%[2]s@%[3]s/app"}
  b: {url: "mysql://app:%[2]s@%[3]s/app"}
  c: {url: "sqlserver://app:%[2]s@%[3]s?database=app"}
  d: {url: "postgres://app@%[3]s/app", password_file: %[4]s}
  e: {url: "postgres://app:${SECRET}@127.0.0.1:1/app"}
  f: {url: "mysql://app@127.0.0.1:1/app", password_file: %[4]s}
queues: {"*": {database: a}}
`, admin, word, at, secret)
	}
	x := &reloading{host: h, file: h.file("c.yaml", text("hunter2"))}
	x.r = h.serve("--config", x.file)
	shown := x.run("status").out + x.run("stats").err + x.run("reload").out
	for _, word := range []string{"hunter2-another", "hunter2-another: '"} {
		x.write(x.file, text(word))
		r := x.run("reload")
		shown += r.out + r.err
	}
	for _, page := range []string{"/metrics", "/readyz", "/config", "/status", "/"} {
		if _, body, err := get(admin, page); err == nil {
			shown += body
		}
	}
	x.r.stop()
	shown += x.r.out.String() + x.r.errOut.String()
	if !strings.Contains(shown, "level=DEBUG") && !strings.Contains(shown, "generation") {
		t.Errorf("nothing was logged:\n%s", shown)
	}
	for line := range strings.Lines(shown) {
		if strings.Contains(line, "hunter2") {
			t.Errorf("a password is shown: %s", line)
		}
	}
}
