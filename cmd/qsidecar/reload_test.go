package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// reloading is a sidecar with a config file that changes.
type reloading struct {
	*host
	file string
	r    *running
}

// startWatching starts a sidecar that notices changes by events alone or, if noEvents is set, by polling
// alone.
func startWatching(t *testing.T, noEvents bool, config string) *reloading {
	h := newHost(t)
	h.poll, h.noEvents = time.Hour, noEvents
	if noEvents {
		h.poll = 20 * time.Millisecond
	}
	x := &reloading{host: h, file: h.file("c.yaml", config)}
	x.r = h.serve("--config", x.file)
	return x
}

// startWithoutWatch starts a sidecar that reads its files only on request.
func startWithoutWatch(t *testing.T, config string) *reloading {
	h := newHost(t)
	h.poll, h.noEvents = time.Hour, true
	x := &reloading{host: h, file: h.file("c.yaml", config)}
	x.r = h.serve("--config", x.file)
	return x
}

// waitForQueue waits until the sidecar has a queue of that name, or hasn't.
func (r *reloading) waitForQueue(queue string, want bool) {
	r.t.Helper()
	testwait.Until(r.t, "the queue "+queue+" is known or not", func() bool {
		code := r.run("stats", queue).code
		return (code == 0) == want
	})
}

func (r *reloading) write(path, text string) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *reloading) move(from, to string) {
	r.t.Helper()
	if err := os.Rename(from, to); err != nil {
		r.t.Fatal(err)
	}
}

func (r *reloading) link(target, path string) {
	r.t.Helper()
	if err := os.Symlink(target, path); err != nil {
		r.t.Fatal(err)
	}
}

const one, two, three = "queues: {one: {}}\n", "queues: {two: {}}\n", "queues: {three: {}}\n"

func TestReloadWhenTheFileIsWritten(t *testing.T) {
	for _, noEvents := range []bool{false, true} {
		x := startWatching(t, noEvents, one)
		x.waitForQueue("one", true)
		x.write(x.file, two)
		x.waitForQueue("two", true)
		x.waitForQueue("one", false)
		x.write(x.file+".new", three)
		x.move(x.file+".new", x.file)
		x.waitForQueue("three", true)
		if err := os.Remove(x.file); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "the missing file is reported", func() bool { return x.status().ConfigError != "" })
		x.waitForQueue("three", true)
		x.write(x.file, one)
		x.waitForQueue("one", true)
		testwait.Until(t, "status shows it", func() bool { // shortly after the queue exists
			st := x.status()
			return st.ConfigError == "" && st.Generation == 4
		})
	}
}

// TestReloadInABusyFolder checks that other writes in the folder, such as to a log, don't
// delay a reload.
func TestReloadInABusyFolder(t *testing.T) {
	x := startWatching(t, false, one)
	busy, err := os.Create(filepath.Join(x.dir, "busy"))
	if err != nil {
		t.Fatal(err)
	}
	var writing sync.WaitGroup
	defer writing.Wait()
	stop := make(chan struct{})
	defer close(stop)
	writing.Go(func() {
		defer busy.Close()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := busy.WriteAt([]byte("x"), 0); err != nil {
				t.Error(err)
				return
			}
		}
	})
	x.write(x.file, two)
	x.waitForQueue("two", true)
	x.write(x.file, "queues: {one: {max_attempts: 0}}\n")
	testwait.Until(t, "the error is reported", func() bool { return x.status().ConfigError != "" })
	x.write(x.file, three)
	x.waitForQueue("three", true)
}

// TestReloadOfAConfigMap repeats what a kubelet does: it swaps a link `..data` to a folder
// by a rename, and the files are links through it. No event names the file.
func TestReloadOfAConfigMap(t *testing.T) {
	h := newHost(t)
	h.poll = time.Hour
	x := &reloading{host: h}
	dir := filepath.Join(h.dir, "volume")
	at := func(elem ...string) string { return filepath.Join(append([]string{dir}, elem...)...) }
	version := func(name, text string) {
		if err := os.MkdirAll(at(name), 0o755); err != nil {
			t.Fatal(err)
		}
		x.write(at(name, "c.yaml"), text)
	}
	version("..1", one)
	x.link("..1", at("..data"))
	x.link("..data/c.yaml", at("c.yaml"))
	x.r = h.serve("--config", at("c.yaml"))
	x.waitForQueue("one", true)
	for name, step := range map[string]struct{ text, queue string }{"..2": {two, "two"}} {
		version(name, step.text)
		x.link(name, at("..data_tmp"))
		x.move(at("..data_tmp"), at("..data"))
		if err := os.RemoveAll(at("..1")); err != nil {
			t.Fatal(err)
		}
		x.waitForQueue(step.queue, true)
	}
}

func TestReloadOfInvalidConfigs(t *testing.T) {
	x := startWatching(t, false, one)
	for _, step := range []struct{ text, want string }{
		{"queues: {one: {}, two: {max_attempts: 0}}\n", "queues.two.max_attempts: 0 is outside 1 to 32767"},
		{"queues: {one: {}\n", "c.yaml:1:"},
		{"", "the config file is empty"},
		{one + "databases: {main: {url: 'sqlite:" + x.file + "/x.db'}}\n", "database"},
		{"queues: {one: {database: a}}\ndatabases: {a: {url: 'sqlite:" + x.dir + "/a.db'}, b: {url: 'sqlite:" + x.file + "/x.db'}}\n", "databases.b: the database's directory"},
		{one + "databases: {a: {url: 'postgres://app@localhost/x', password_file: " + x.dir + "/none}}\n", "databases.a.password_file cannot be read: open " + x.dir + "/none: no such file"},
		{one + "listen: [{socket: " + filepath.Join(x.dir, "c.yaml") + "}]\n", "a file that isn't a socket is in the way"},
	} {
		x.write(x.file, step.text)
		r := x.run("reload")
		if r.code != exitFailure && r.code != exitUsage || !strings.Contains(r.err, step.want) || !strings.Contains(r.err, "what ran before goes on") {
			t.Errorf("reload of %q: %+v, want %q", step.text, r, step.want)
		}
		if st := x.status(); st.Generation != 1 || !strings.Contains(st.ConfigError, step.want) || st.ConfigError == "" || st.FailedAt == 0 {
			t.Errorf("status with the config %q: %+v", step.text, st)
		}
		if out := x.must(0, "status"); !strings.Contains(out, "THE NEWEST CONFIG DOES NOT RUN") {
			t.Errorf("status shows\n%s", out)
		}
		x.must(0, "enqueue", "one", "x")
	}
	x.write(x.file, one)
	if out := x.must(0, "reload"); !strings.HasPrefix(out, "nothing changed: "+x.file+": that is what runs already, as config generation 1, since ") {
		t.Errorf("reload of the same config prints %q", out)
	}
	if st := x.status(); st.ConfigError != "" {
		t.Errorf("status after the old text is back: %+v", st)
	}
}

func TestReloadReportsChanges(t *testing.T) {
	x := startWithoutWatch(t, "queues: {one: {}, gone: {}}\ndefaults: {retention: {done: 1h}}\n")
	x.write(x.file, "queues: {one: {timeout: 5m}, new: {retention: {done: 2d}}}\ndefaults: {retention: {done: 2h}, max_attempts: 3}\nlog: {level: warn}\n")
	got := x.must(0, "reload")
	want := "queues.gone removed: requests about this queue get unknown_queue, and its jobs wait\nqueues.new added\ndefaults.max_attempts: 20 → 3\ndefaults.retention.done: 1h → 2h\nlog.level: info → warn\nqueues.one.timeout: none → 5m\n"
	if got != want {
		t.Errorf("reload prints\n%swant\n%s", got, want)
	}
	if again := x.must(0, "reload"); !strings.HasPrefix(again, "nothing changed: ") || !strings.HasSuffix(again, " with these changes:\n"+want) { // as after an automatic reload
		t.Errorf("a second reload prints\n%s", again)
	}
}

// TestReloadReportsPermissions checks that a rule without a key is shown as a rule for all.
func TestReloadReportsPermissions(t *testing.T) {
	x := startWithoutWatch(t, one)
	socket := x.socket()
	listen := "listen: [{socket: " + socket
	for _, step := range []struct{ text, want string }{
		{listen + ", allow: [{ops: [reload, stats]}, {users: [7, 8], queues: one}]}]\n", "everything, to any client → [{ops: [reload, stats]}, {users: [7, 8], queues: [one]}]"},
		{listen + ", allow: [{}, {ops: [reload]}]}]\n", "[{ops: [reload, stats]}, {users: [7, 8], queues: [one]}] → [{}, {ops: [reload]}]"},
		{listen + "}]\n", "[{}, {ops: [reload]}] → everything, to any client"},
	} {
		x.write(x.file, one+step.text)
		if out := x.must(0, "reload"); out != "listen "+socket+".allow: "+step.want+"\n" {
			t.Errorf("reload prints %q, want %q", out, step.want)
		}
	}
}

// TestReloadReportsWhyNothingChanged checks the reasons: the same settings in another text,
// the same files, or no file.
func TestReloadReportsWhyNothingChanged(t *testing.T) {
	x := startWithoutWatch(t, one)
	x.write(x.file, one+"# the same\n")
	if out := x.must(0, "reload"); out != "nothing changed: config files changed; settings are unchanged\n" {
		t.Errorf("reload prints %q", out)
	}
	h := newHost(t)
	h.serve()
	if out := h.must(0, "reload"); !strings.HasPrefix(out, "nothing changed: the sidecar runs without a config file") {
		t.Errorf("reload prints %q", out)
	}
}

func TestReloadOnSIGHUP(t *testing.T) {
	h := newHost(t)
	h.poll, h.noEvents = time.Hour, true
	x := &reloading{host: h, file: h.file("c.yaml", one)}
	x.r = h.serve("--config", x.file)
	x.write(x.file, two)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	x.waitForQueue("two", true)
}

// TestReloadKeepsConnectionsAndJobs moves the database to another file and back, while a
// worker has a job and a claim waits.
func TestReloadKeepsConnectionsAndJobs(t *testing.T) {
	x := startWithoutWatch(t, one)
	at := func(db, more string) string {
		return "databases: {main: {url: 'sqlite:" + filepath.Join(x.dir, db) + "'" + more + "}}\n" + one
	}
	x.write(x.file, at("a.db", ""))
	x.must(0, "reload")
	testwait.Until(t, "the first database is left", func() bool { return len(x.status().Databases) == 1 })
	x.must(0, "enqueue", "one", "held")
	j := x.claim("one")
	x.write(x.file, at("b.db", ""))
	if out := x.must(0, "reload"); out != "databases.main.url changed\n" {
		t.Errorf("reload prints %q", out)
	}
	x.must(exitNoJob, "claim", "one")
	if st := x.status(); len(st.Databases) != 2 {
		t.Errorf("while a lease is open in the old database there are %+v", st.Databases)
	}
	x.must(0, "ack", j.Lease)
	testwait.Until(t, "the old database is left", func() bool { return len(x.status().Databases) == 1 })
}

// TestReloadOfTheURLFile checks that without a config the file with the database's URL is
// watched.
func TestReloadOfTheURLFile(t *testing.T) {
	h := newHost(t)
	h.poll = time.Hour
	at := func(name string) string { return filepath.Join(h.dir, name) }
	x := &reloading{host: h, file: h.file("url", "sqlite:"+at("a.db")+"\n")}
	x.r = h.serve("--database", "@"+x.file)
	x.must(0, "enqueue", "mail", "x")
	claimed := x.claim("mail")
	x.write(x.file, "")
	testwait.Until(t, "the empty file is refused", func() bool {
		return strings.Contains(x.status().ConfigError, x.file+" should hold one line, the database's URL")
	})
	x.write(x.file, "sqlite:"+at("b.db")+"\n")
	testwait.Until(t, "the other database is used", func() bool {
		st := x.status()
		return st.ConfigError == "" && st.Generation == 2 && slices.ContainsFunc(st.Databases, func(d databaseLine) bool { return d.Address == at("b.db") && !d.Draining })
	})
	x.must(exitNoJob, "claim", "mail")
	x.must(0, "ack", claimed.Lease)
}

// TestReloadKeepsDatabasesApart checks that each name keeps its own database when others
// change.
func TestReloadKeepsDatabasesApart(t *testing.T) {
	h := newHost(t)
	config := func(n int) string {
		var b strings.Builder
		b.WriteString("databases:\n")
		for _, db := range []string{"a", "b", "c", "d"} {
			b.WriteString("  " + db + ": {url: 'sqlite:" + filepath.Join(h.dir, db+".db") + "'}\n")
		}
		b.WriteString("queues:\n")
		for _, db := range []string{"a", "b", "c", "d"} {
			b.WriteString("  in-" + db + ": {database: " + db + ", max_attempts: " + strconv.Itoa(n) + "}\n")
		}
		return b.String()
	}
	x := &reloading{host: h, file: h.file("c.yaml", config(1))}
	h.poll, h.noEvents = time.Hour, true
	x.r = h.serve("--config", x.file)
	for n := 2; n < 12; n++ {
		x.write(x.file, config(n))
		x.must(0, "reload")
		for _, d := range x.status().Databases {
			if want := filepath.Join(h.dir, d.Name+".db"); d.Address != want {
				t.Fatalf("after %d reloads the database %s is %s, want %s", n-1, d.Name, d.Address, want)
			}
		}
	}
}
