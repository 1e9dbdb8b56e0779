package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/protocol"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestMessages checks the exact error messages. $D stands for the test's directory.
func TestMessages(t *testing.T) {
	h := newHost(t)
	h.file("bad.yaml", "queues:\n  mail: {}\n  slow:\n    timeuot: 10m\n")
	h.file("letter.txt", strings.Repeat("Dear Sir or Madam\n", 500))
	h.file("two-lines", "sqlite:a\nsqlite:b\n")
	h.file("named.yaml", "databases: {main: {url: 'sqlite:x.db'}}\n")
	stale(t, filepath.Join(h.dir, "stale.sock"))
	h.file("plain.sock", "no socket")
	for _, row := range []struct {
		name string
		args string // $D is the directory; split at spaces
		code int
		want string
	}{
		{"no socket", "ping --socket $D/none.sock", 5,
			"no sidecar answers on $D/none.sock: start one with `qsidecar serve`, or set its path with --socket PATH or QSIDECAR_SOCKET"},
		{"no socket at any of the places", "stats", 5,
			"no sidecar answers on $D/run/qsidecar/qsidecar.sock or $D/system/qsidecar.sock: start one with `qsidecar serve`, or set its path with --socket PATH or QSIDECAR_SOCKET"},
		{"a stale socket", "enqueue q x --socket $D/stale.sock", 5,
			"no sidecar answers on $D/stale.sock: start one with `qsidecar serve`, or set its path with --socket PATH or QSIDECAR_SOCKET"},
		{"a socket in a file", "ping --socket $D/letter.txt/x", 5,
			"no sidecar answers on $D/letter.txt/x: start one with `qsidecar serve`, or set its path with --socket PATH or QSIDECAR_SOCKET"},
		{"a socket path that is too long", "ping --socket $D/" + strings.Repeat("x", 120), 5,
			"$D/" + strings.Repeat("x", 120) + " cannot be a sidecar's socket (invalid argument): name the one that `qsidecar serve` printed"},

		{"a wrong flag", "serve --colour", 2, "unknown flag: --colour\nRun `qsidecar serve --help` to see what it takes"},
		{"a wrong command", "enqeue q x", 2, "unknown command \"enqeue\" for \"qsidecar\"\n\nDid you mean this?\n\tenqueue\n\nRun `qsidecar --help` to see the commands"},
		{"a misspelt flag", "enqueue q x --dealy 5s", 2, "unknown flag: --dealy: did you mean --delay?\nRun `qsidecar enqueue --help` to see what it takes"},
		{"a flag of another program", "work q --concurrency 4 -- true", 2, "unknown flag: --concurrency: did you mean --jobs?\nRun `qsidecar work --help` to see what it takes"},
		{"a config without its flag", "serve c1.yaml", 2, "serve takes no arguments: did you mean --config c1.yaml?"},
		{"a negative delay", "enqueue q x --delay -5s", 2,
			"invalid argument \"-5s\" for \"--delay\" flag: -5s must not be negative\nRun `qsidecar enqueue --help` to see what it takes"},
		{"a priority out of range", "enqueue q x --priority 99999", 2, "--priority: 99999 is outside -32768 to 32767\nRun `qsidecar enqueue --help` to see what it takes"},
		{"a priority that is no number", "change q 1 --priority high", 2, "--priority: \"high\" is not a whole number\nRun `qsidecar change --help` to see what it takes"},
		{"a switch that is neither", "enqueue q x --text=maybe", 2, "--text: \"maybe\" is neither true nor false\nRun `qsidecar enqueue --help` to see what it takes"},
		{"a number without end", "claim q --max 99999999999999999999", 2, "--max: 99999999999999999999 is too large a number\nRun `qsidecar claim --help` to see what it takes"},
		{"a wrong time", "enqueue q x --run-at tomorrow", 2,
			"invalid argument \"tomorrow\" for \"--run-at\" flag: \"tomorrow\" is not a time: write it as 2027-01-31 18:30, or with a zone as 2027-01-31T18:30Z\nRun `qsidecar enqueue --help` to see what it takes"},
		{"two times", "enqueue q x --run-at 2027-01-31T18:30:00Z --delay 5s", 2, "--delay and --run-at exclude each other: leave one of them out"},
		{"no queue", "enqueue", 2,
			"enqueue takes a queue and at most one payload, and was given 0 arguments\nRun `qsidecar enqueue --help` to see more"},
		{"a payload of two words", "enqueue greet hello world", 2,
			"enqueue takes a queue and at most one payload, and was given 3 arguments: quote a payload that has spaces\nRun `qsidecar enqueue --help` to see more"},
		{"a queue too much", "pause a b", 2, "pause takes one queue, and was given 2 arguments\nRun `qsidecar pause --help` to see more"},
		{"a bare number as a duration", "enqueue q x --delay 10", 2,
			"invalid argument \"10\" for \"--delay\" flag: \"10\" is not a duration: write a duration as 10s, 5m, 2h, 7d or 1h30m\n" +
				"Run `qsidecar enqueue --help` to see what it takes"},
		{"a lease too short", "claim q --lease 10ms", 2,
			"invalid argument \"10ms\" for \"--lease\" flag: 10ms is outside 1s to 1d\nRun `qsidecar claim --help` to see what it takes"},
		{"a max out of range", "claim q --max 0", 2, "--max: 0 is outside 1 to 1000"},
		{"several jobs for eval", "claim q --max 2 --env", 2, "--env prints one job: leave --max out"},
		{"a header without =", "enqueue q x --header a", 2, "--header \"a\": write it as name=value"},
		{"a header twice", "enqueue q x --header a=1 --header a=2", 2, "--header \"a=2\": this name was given before"},
		{"max-attempts out of range", "enqueue q x --max-attempts 0", 2, "--max-attempts: 0 is outside 1 to 32767"},
		{"a key for lines", "enqueue q --lines --key k", 2,
			"--lines and --key do not go together: one key would make all but the first line a duplicate"},
		{"a payload for lines", "enqueue q x --lines", 2, "--lines reads the payloads from stdin: leave the PAYLOAD out"},
		{"one result for two", "ack 1.a 1.b --result x", 2, "--result goes with one lease, and there are 2"},
		{"dead and delayed", "nack 1.a --dead --delay 1s", 2, "--dead does not go with --delay or --snooze: a dead job is not tried again"},
		{"an unknown state", "peek q --state lost", 2, "--state: \"lost\" is not one of ready, blocked, scheduled, claimed, done or dead"},
		{"ids and a state", "peek q --ids 1 --state dead", 2, "--ids shows jobs in any state: leave --state and --after out"},
		{"a place in no queue", "dead --after 7", 2, "--after needs the queue of the job: name it"},
		{"purge of what", "purge q --yes", 2, "purge which jobs? Give --state ready, blocked, scheduled, done or dead"},
		{"purge of claimed jobs", "purge q --state claimed --yes", 2,
			"--state: claimed jobs are not purged: their workers have them; reclaim them first"},
		{"purge without yes", "purge q --state dead", 2, "this would delete every dead job of q, which cannot be undone: add --yes to do it"},
		{"delete without yes", "delete q 1 2", 2, "this would delete 2 jobs of q, which cannot be undone: add --yes to do it"},
		{"reclaim without yes", "reclaim q 1", 2, "this would take 1 job of q from their workers, which cannot be undone: add --yes to do it"},
		{"retry of what", "retry q", 2, "retry which jobs? Name their ids (see `qsidecar dead q`), or search with --error, --text and --header, or give --all"},
		{"two ways to retry", "retry q 1 --text x", 2, "ids, --all and a search exclude each other: give one of them"},
		{"two ways to delete", "delete q 1 --state dead --yes", 2, "ids and a search exclude each other: give one of them"},
		{"delete of what", "delete q --yes", 2, "delete which jobs? Name their ids, or search with --error, --text and --header; `qsidecar purge q` deletes every job of a state"},
		{"a search of claimed jobs to delete", "delete q --text x --state claimed --yes", 2, "--state: claimed jobs are not deleted: their workers have them; cancel them with --delete"},
		{"a view without a terminal", "top", 2, "top needs a terminal on stdin and stdout: use `qsidecar stats` or `qsidecar status` instead"},
		{"a view that is too quick", "top --interval 10ms", 2,
			"invalid argument \"10ms\" for \"--interval\" flag: 10ms is outside 100ms to 1h\nRun `qsidecar top --help` to see what it takes"},
		{"retry of all and some", "retry q 1 --all", 2, "--all means every dead job: leave the ids out, or --all"},

		{"a password in the command line", "serve --database postgres://app:hunter2@db/app", 2,
			"--database: a password in the command line is seen by every user of this host: put the URL into QSIDECAR_DATABASE, or into a file and give --database @FILE"},
		{"an address of no server", "serve --database sqlserver://app@db:x/app", 2, "--database: the port is not a number up to 65535. If it belongs to the password, the address cannot be read as a URL. In a user's name and a password / is written %2F, ? %3F, # %23, @ %40, % %25 and : %3A; or leave the password out, and name a file that holds it (password_file)"},
		{"no engine at all", "serve --database oracle://x", 2, "--database: \"oracle\" is not a kind of database: write sqlite:PATH, postgres://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE or sqlserver://USER@HOST?database=NAME"},
		{"a path without an engine", "serve --database /var/x.db", 2, "--database: a database is written sqlite:PATH, postgres://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE or sqlserver://USER@HOST?database=NAME"},
		{"no file of the URL", "serve --database @$D/none", 2, "the database's URL cannot be read: open $D/none: no such file or directory"},
		{"two URLs in the file", "serve --database @$D/two-lines", 2, "$D/two-lines should hold one line, the database's URL"},
		{"two words on the database", "serve --config $D/named.yaml --database sqlite:y", 2,
			"--database and `databases` in $D/named.yaml both name the database: leave one out, or read no config file with --config none"},
		{"a database that is a directory", "serve --database sqlite:$D", 1,
			"the database sqlite:$D cannot be opened: $D is a folder: name a database file in it, as $D/qsidecar.db"},
		{"a database in a file", "serve --database sqlite:$D/letter.txt/q.db", 1,
			"the database's directory $D/letter.txt is not a directory: name another path with --database sqlite:PATH or QSIDECAR_DATABASE"},
		{"a socket in the place of a file", "serve --socket $D/plain.sock --database sqlite:$D/q.db", 1,
			"socket $D/plain.sock: a file that isn't a socket is in the way: remove it, or choose another --socket"},
		{"a socket directory that is a file", "serve --socket $D/letter.txt/s --database sqlite:$D/q.db", 1,
			"the socket's directory $D/letter.txt is not a directory: give --socket PATH, or set QSIDECAR_SOCKET or XDG_RUNTIME_DIR"},

		{"an empty database", "serve --database=", 2, "--database is empty: give it a value, or leave it out for the default"},
		{"an empty config", "check --config=", 2, "--config is empty: give it a value, or leave it out for the default"},
		{"an empty socket", "ping --socket=", 2, "--socket is empty: give it a value, or leave it out for the default"},
		{"a socket as a URL", "ping --socket unix:///run/q", 2, "--socket: \"unix:///run/q\" is not a path: write /run/q (`qsidecar serve` prints the one that it serves)"},
		{"a socket as a URL for stdio", "stdio --socket tcp://h:1", 2, "--socket: \"tcp://h:1\" is a URL, and this must be the path of a Unix socket, such as /run/qsidecar/qsidecar.sock (`qsidecar serve` prints the one that it serves)"},
		{"a wrong queue for a table", "adopt t --queue .q --database sqlite:x", 2, "--queue: \".q\" is not a queue name: use A-Z a-z 0-9 . _ : / - and do not start with . or -"},
		{"tables of the future", "migrate --print --from 99 --database sqlite:x", 2, "--from 99: this program's tables have the version 1"},
		{"help for no command", "help enqeue", 2, "unknown command \"enqeue\" for \"qsidecar\"\n\nDid you mean this?\n\tenqueue\n\nRun `qsidecar --help` to see the commands"},
		{"completion of no shell", "completion fsh", 2, "unknown command \"fsh\" for \"qsidecar completion\": did you mean fish?\nRun `qsidecar completion --help` to see the commands"},

		{"a command of another program", "push mail x", 2, "unknown command \"push\" for \"qsidecar\"\n\nDid you mean this?\n\tenqueue\n\tpause\n\nRun `qsidecar --help` to see the commands"},
		{"an argument like a flag", "enqueue mail -5", 2, "unknown shorthand flag: '5' in -5: if -5 is an argument, write -- before it\nRun `qsidecar enqueue --help` to see what it takes"},
		{"an empty group", "enqueue mail x --group=", 2, "--group: the group must be text, and not empty: leave the flag out for none"},
		{"an id for a lease", "ack 17", 2, "\"17\" isn't a lease, maybe the id of a job: use the lease that `qsidecar claim` printed"},
		{"two ways to cancel", "cancel mail 1 --key k", 2, "ids, --key and a search exclude each other: give one of them"},
		{"no way to cancel", "cancel mail", 2, "cancel which jobs? Name their ids, or give --key, or search with --state, --error, --text and --header"},
		{"a database without its flag", "migrate postgres://app@db/app", 2,
			"migrate takes no arguments: did you mean --database? (Put a URL with a password into QSIDECAR_DATABASE, or into a file: --database @FILE)"},
		{"no file of schedules", "schedule apply $D/none.yaml", 2, "the file of schedules cannot be read: open $D/none.yaml: no such file or directory"},
		{"a table in no file", "adopt t --database sqlite:$D/none.db", 1, "reading what the table t is like: database unavailable: there is no file $D/none.db: unable to open database file (14)"},
		{"a socket that is a folder", "ping --socket $D", 2, "--socket: $D is a folder: name the socket in it, such as $D/qsidecar.sock"},
		{"a socket that is a file", "ping --socket $D/letter.txt", 2, "--socket: $D/letter.txt is a file, and not a socket: name the one that `qsidecar serve` printed"},
		{"a socket at home", "ping --socket ~/q.sock", 2, "--socket: \"~/q.sock\": ~ and variables aren't replaced here: write the whole path (`qsidecar serve` prints the one that it serves)"},
		{"a database at home", "serve --database sqlite:~/q.db", 2, "--database: sqlite: ~ isn't replaced here: write the whole path"},

		{"a port for a socket", "ping --socket 9464", 2, "--socket: \"9464\" is a port, and this must be the path of a Unix socket, such as /run/qsidecar/qsidecar.sock (`qsidecar serve` prints the one that it serves)"},
		{"a format of output", "stats --format json", 2, "unknown flag: --format: did you mean --json?\nRun `qsidecar stats --help` to see what it takes"},
		{"a queue as a flag", "dead --queue mail", 2, "unknown flag: --queue: the queue is an argument, not a flag\nRun `qsidecar dead --help` to see what it takes"},
		{"a payload in a file", "enqueue mail --file x.json", 2, "unknown flag: --file: the payload is an argument, or stdin as in < FILE\nRun `qsidecar enqueue --help` to see what it takes"},
		{"a port to serve", "serve --port 8080", 2, "unknown flag: --port: workers connect to --socket, and the web page and metrics are at admin.listen in the config\nRun `qsidecar serve --help` to see what it takes"},
		{"a tail that follows", "tail --follow", 2, "unknown flag: --follow: leave it out, tail always follows\nRun `qsidecar tail --help` to see what it takes"},
		{"a purge that is tried", "purge mail --dry-run", 2, "unknown flag: --dry-run: without --yes nothing is changed, and `qsidecar stats QUEUE` shows how many jobs there are\nRun `qsidecar purge --help` to see what it takes"},
		{"a concurrency as a limit", "limit mail --concurrency 5", 2, "unknown flag: --concurrency: did you mean --max-claimed?\nRun `qsidecar limit --help` to see what it takes"},
		{"the status of a queue", "status mail", 2, "status takes no arguments, and was given 1 argument: `qsidecar stats mail` shows a queue\nRun `qsidecar status --help` to see more"},
		{"a lease before the progress", "progress 1.a.b.c 5", 2, "\"1.a.b.c\" is not an integer from 0 on: a lease is named with --lease"},
		{"progress in percent", "progress 50%", 2, "\"50%\" is not an integer from 0 on: write it as DONE and TOTAL, such as 50 100"},

		{"no config file", "serve --config $D/none.yaml", 2, "the config file cannot be read: open $D/none.yaml: no such file or directory"},
		{"an unknown config key", "check --config $D/bad.yaml", 2,
			"$D/bad.yaml has 1 error\n" +
				"$D/bad.yaml:4:5: unknown key \"timeuot\": did you mean timeout?\n" +
				"     4 |     timeuot: …\n" +
				"       |     ^"},
	} {
		t.Run(row.name, func(t *testing.T) {
			args := strings.Fields(row.args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "$D", h.dir)
			}
			r := h.run(args...)
			got := strings.TrimSpace(strings.ReplaceAll(r.err, h.dir, "$D"))
			if want := "qsidecar: " + row.want; r.code != row.code || got != want {
				t.Errorf("qsidecar %s: exit code %d\n%s\nwant %d\n%s", row.args, r.code, got, row.code, want)
			}
			if r.out != "" {
				t.Errorf("on stdout it prints %q", r.out)
			}
		})
	}
}

// stale creates a socket on which nothing listens.
func stale(t *testing.T, path string) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantStderr checks the exit code of a run, and that stderr contains all words.
func (r result) wantStderr(t *testing.T, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d", r.code, code)
	}
	for _, w := range words {
		if !strings.Contains(r.err, w) {
			t.Errorf("it does not say %q:\n%s", w, r.err)
		}
	}
}

// wantStdout is wantStderr for stdout.
func (r result) wantStdout(t *testing.T, code int, words ...string) {
	t.Helper()
	result{code: r.code, err: r.out}.wantStderr(t, code, words...)
}

func TestDatabasePathIsNoDatabase(t *testing.T) {
	h := newHost(t)
	file := h.file("letter.txt", strings.Repeat("Dear Sir or Madam\n", 500))
	h.run("serve", "--database", "sqlite:"+file).wantStderr(t, 1, "sqlite:"+file, "cannot be opened", "not a database")
}

func TestNoPermission(t *testing.T) {
	h := newHost(t)
	if err := os.Chmod(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(h.dir, "closed.sock")
	listenUnix(t, socket, func(net.Conn) {})
	closed := filepath.Join(h.dir, "closed")
	if err := errors.Join(os.Chmod(socket, 0), os.Mkdir(closed, 0), os.WriteFile(filepath.Join(h.dir, "closed.db"), nil, 0)); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(closed, 0o700)
	shared := filepath.Join(h.dir, "shared.db")
	h.must(0, "migrate", "--database", "sqlite:"+shared)
	if err := errors.Join(os.WriteFile(shared+"-wal", nil, 0o600), os.Chmod(shared+"-wal", 0o400), os.Chmod(shared, 0o666)); err != nil { // those of another program
		t.Fatal(err)
	}
	asUnprivileged(t, func() {
		h.run("ping", "--socket", socket).wantStderr(t, 1, "no permission to connect to "+socket, "its mode is", "its group is", "join that group")
		h.run("stdio", "--socket", socket).wantStderr(t, 1, "no permission to connect to "+socket)
		h.run("ping", "--socket", filepath.Join(closed, "s")).wantStderr(t, 1, "no permission", "its directory is closed to this user")
		h.run("migrate", "--database", "sqlite:"+filepath.Join(h.dir, "closed.db")).wantStderr(t, 1, "closed.db belongs to ", ", mode 0, and this user may not write it", "chmod 2770 "+h.dir)
		h.run("migrate", "--database", "sqlite:"+shared).wantStderr(t, 1, "shared.db-wal belongs to ", ", mode 0400, and this user may not write it", "chmod 2770 "+h.dir)
		h.run("migrate", "--database", "sqlite:"+filepath.Join(closed, "x", "q.db")).wantStderr(t, 1, "permission denied", "--database", "QSIDECAR_DATABASE")
		h.run("check", "--database", "sqlite:"+filepath.Join(h.dir, "closed.db")).wantStdout(t, 1, "closed.db: 3 errors", "may not write", "cannot be read", "which belongs to ", "mode 0", "chmod 2770 "+h.dir)
		h.run("check", "--database", "sqlite:"+filepath.Join(closed, "x", "q.db")).wantStdout(t, 1, "permission denied", "name another file")
		h.run("serve", "--database", "sqlite:"+filepath.Join(closed, "q.db"), "--socket", filepath.Join(closed, "x", "s")).
			wantStderr(t, 1, "the socket's directory", "permission denied", "--socket", "XDG_RUNTIME_DIR")
	})
}

// TestClosedSocketIsPassedOver checks that commands try the next default path if the first is
// closed to them, and that the error lists what they tried.
func TestClosedSocketIsPassedOver(t *testing.T) {
	h := newHost(t)
	if err := errors.Join(os.Chmod(h.dir, 0o755), os.MkdirAll(filepath.Dir(h.socket()), 0o700)); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Dir(h.socket())
	defer os.Chmod(closed, 0o700)
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	asUnprivileged(t, func() {
		for _, command := range []string{"ping", "stdio"} {
			h.run(command).wantStderr(t, 1, "no permission to connect to "+h.socket(), "its directory is closed to this user",
				"no sidecar answers on "+h.systemSocket(), "--socket")
		}
	})
	if err := os.MkdirAll(filepath.Dir(h.systemSocket()), 0o755); err != nil {
		t.Fatal(err)
	}
	h.env["QSIDECAR_SOCKET"] = h.systemSocket()
	h.serve()
	delete(h.env, "QSIDECAR_SOCKET")
	if err := os.Chmod(h.systemSocket(), 0o666); err != nil {
		t.Fatal(err)
	}
	asUnprivileged(t, func() { h.run("ping").wantStdout(t, 0) })
}

// TestTwoServe checks that the second sidecar reports which process has the socket.
func TestTwoServe(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.run("serve").wantStderr(t, 1, h.socket(), "another sidecar", "pid", "--socket")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "q.yaml")
	if err := os.WriteFile(file, []byte("admin: {listen: "+taken.Addr().String()+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.run("serve", "--config", file).wantStderr(t, 1, h.socket(), "another sidecar", "pid", "--socket") // and not the port
	h.run("serve", "--config", file, "--socket", filepath.Join(t.TempDir(), "s")).wantStderr(t, 1, "address already in use", "choose another port")
}

// fakeSidecar answers hello itself, and everything else with the result of answer.
func fakeSidecar(t *testing.T, path string, answer func(req *protocol.Request) []*protocol.Reply) {
	t.Helper()
	listenUnix(t, path, func(c net.Conn) {
		c.SetDeadline(testwait.Deadline())
		in := protocol.NewReader(c, protocol.DefaultMaxFrame)
		for {
			body, codec, err := in.Next()
			if err != nil {
				return
			}
			var req protocol.Request
			if err := codec.DecodeRequest(body, protocol.NewLimits(protocol.DefaultMaxFrame), &req); err != nil {
				t.Errorf("the client sent what cannot be read: %v", err)
				return
			}
			answers := []*protocol.Reply{{ID: req.ID, OK: true, Hello: &protocol.HelloReply{Version: 1}}}
			if req.Op != protocol.OpHello {
				answers = answer(&req)
			}
			for _, rep := range answers {
				if _, err := c.Write(codec.AppendReply(nil, rep)); err != nil {
					return
				}
			}
		}
	})
}

// TestSignalEndsAWaitingClaim checks that a job which arrives with the signal is given back
// without counting the attempt.
func TestSignalEndsAWaitingClaim(t *testing.T) {
	h := newHost(t)
	socket := filepath.Join(h.dir, "s")
	waiting := make(chan protocol.RequestID, 1)
	back := make(chan protocol.Request, 1)
	var claim protocol.RequestID
	fakeSidecar(t, socket, func(req *protocol.Request) []*protocol.Reply {
		ok := &protocol.Reply{ID: req.ID, OK: true}
		switch req.Op {
		case protocol.OpClaim:
			claim = req.ID
			waiting <- claim
			return nil
		case protocol.OpCancelClaim:
			return []*protocol.Reply{{ID: claim, OK: true, Jobs: []protocol.Job{{ID: "1", Queue: "q", Lease: "1.x"}}}, ok}
		}
		back <- *req
		ok.Settled = &protocol.Settled{Verb: "nacked", Count: 1, Lost: []string{}}
		return []*protocol.Reply{ok}
	})
	r := h.start(strings.NewReader(""), "claim", "q", "--wait", "1h", "--socket", socket)
	<-waiting
	if code := r.stop(); code != exitInterrupted || r.out.String() != "" {
		t.Errorf("exit code %d, want %d: %s%s", code, exitInterrupted, r.out, r.errOut)
	}
	if got := r.errOut.String(); got != "qsidecar: interrupted by a signal\n" {
		t.Errorf("it prints %q", got)
	}
	if req := <-back; req.Op != protocol.OpNack || req.Leases[0] != "1.x" || !req.Snooze {
		t.Errorf("the job that came was given back with %+v", req)
	}
}

// TestSidecarsErrors checks the errors of a fake sidecar.
func TestSidecarsErrors(t *testing.T) {
	h := newHost(t)
	socket := filepath.Join(h.dir, "s")
	var answer *protocol.Error
	fakeSidecar(t, socket, func(req *protocol.Request) []*protocol.Reply {
		return []*protocol.Reply{{ID: req.ID, Error: answer}}
	})
	for code, want := range map[protocol.Code]int{
		protocol.CodeUnavailable: exitUnavailable, protocol.CodeUnknownOutcome: exitUnavailable,
		protocol.CodeBusy: exitUnavailable, protocol.CodeDraining: exitUnavailable,
		protocol.CodeBadRequest: exitUsage, protocol.CodeUnknownQueue: exitFailure,
		protocol.CodeForbidden: exitFailure, protocol.CodeInternal: exitFailure, protocol.CodeUnsupported: exitFailure,
	} {
		answer = protocol.Errorf(code, "the disk is full")
		r := h.run("enqueue", "q", "x", "--socket", socket)
		if r.code != want || r.err != "qsidecar: "+string(code)+": the disk is full\n" {
			t.Errorf("%s: exit code %d, want %d: %s", code, r.code, want, r.err)
		}
	}
}

// TestSecondSignalEndsTheReturnOfJobs checks a command whose sidecar stops answering.
func TestSecondSignalEndsTheReturnOfJobs(t *testing.T) {
	h := newHost(t)
	h.byeTimeout = time.Hour // only the signal can end it
	socket := filepath.Join(h.dir, "s")
	waiting := make(chan struct{}, 1)
	fakeSidecar(t, socket, func(req *protocol.Request) []*protocol.Reply {
		if req.Op == protocol.OpClaim {
			waiting <- struct{}{}
		}
		return nil
	})
	r := h.start(strings.NewReader(""), "claim", "q", "--wait", "1h", "--socket", socket)
	<-waiting
	r.signals <- os.Interrupt
	if code := r.stop(); code != exitInterrupted {
		t.Errorf("exit code %d, want %d: %s", code, exitInterrupted, r.errOut)
	}
}

// TestNoSidecarBehindTheSocket checks a socket of another program.
func TestNoSidecarBehindTheSocket(t *testing.T) {
	h := newHost(t)
	socket := filepath.Join(h.dir, "s")
	listenUnix(t, socket, func(c net.Conn) { c.Write([]byte("220 mail.example.com ESMTP\r\n")) })
	h.run("ping", "--socket", socket).wantStderr(t, 5, "no sidecar talks on "+socket)
}

// TestSidecarAtItsConnectionLimit checks a sidecar at its limit of connections.
func TestSidecarAtItsConnectionLimit(t *testing.T) {
	x := startWithoutWatch(t, one+"limits: {connections: 1}\n")
	c, err := net.Dial("unix", x.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("{\"op\":\"ping\"}\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil { // it is connected
		t.Fatal(err)
	}
	x.run("ping").wantStderr(t, 5, "the sidecar on "+x.socket()+" refused the connection: busy: the sidecar has 1 connections, which is its limit (limits.connections in its config)")
}
