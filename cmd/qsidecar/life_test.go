package main

import (
	"database/sql"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// claimed is a line of the output of claim.
type claimed struct {
	ID, Queue, Lease, Payload string
	Attempt                   int
	Key                       string
	Headers                   map[string]string
	Priority                  int
}

func (h *host) claim(args ...string) claimed {
	h.t.Helper()
	var j claimed
	if err := json.Unmarshal([]byte(h.must(0, append([]string{"claim"}, args...)...)), &j); err != nil {
		h.t.Fatal(err)
	}
	return j
}

// TestLife checks the life of a job through the commands, on the default database and
// socket.
func TestLife(t *testing.T) {
	h := newHost(t)
	r := h.serve()
	if got, want := r.out.String(), "serving on "+h.socket()+", database sqlite:"+filepath.Join(h.dir, "state", "qsidecar", "qsidecar.db")+"\n"; got != want {
		t.Errorf("serve prints %q, want %q", got, want)
	}
	h.must(0, "ping")
	h.must(exitNoJob, "claim", "mail")
	id := strings.TrimSpace(h.must(0, "enqueue", "mail", "hello", "--key", "k1", "--priority", "-3",
		"--header", "a=b", "--header", "c==d", "--max-attempts", "7", "--timeout", "1h"))
	if again := h.run("enqueue", "mail", "other", "--key", "k1"); strings.TrimSpace(again.out) != id || !strings.Contains(again.err, "nothing was stored") {
		t.Errorf("the same key again: %+v, want id %s and a word that nothing was stored", again, id)
	}
	j := h.claim("sms", "mail")
	if j.ID != id || j.Payload != `"hello"` || j.Key != "k1" || j.Priority != -3 || j.Headers["a"] != "b" || j.Headers["c"] != "=d" {
		t.Errorf("claimed %+v", j)
	}
	h.must(0, "extend", j.Lease, "--lease", "2h")
	h.must(0, "nack", j.Lease, "--error", "no route", "--delay", "0")
	j = h.claim("mail")
	if j.Attempt != 2 {
		t.Errorf("after a nack the attempt is %d, want 2", j.Attempt)
	}
	h.must(0, "nack", j.Lease, "--dead", "--error", "gone\nfor good")
	out := h.must(0, "peek", "mail", "--state", "dead")
	if !strings.Contains(out, "2/7") || !strings.Contains(out, `gone\nfor good`) || strings.Count(out, "\n") != 2 {
		t.Errorf("peek shows\n%s", out)
	}
	h.must(0, "retry", "mail", id)
	j = h.claim("mail")
	h.must(0, "ack", j.Lease)
	r2 := h.run("ack", j.Lease)
	if r2.code != exitLeaseLost || strings.Contains(r2.err, j.Lease) {
		t.Errorf("acked twice: %+v, want exit code 4 and not the whole lease", r2)
	}
	if code := r.stop(); code != 0 {
		t.Errorf("serve ended with %d after SIGTERM:\n%s", code, r.errOut)
	}
	if _, err := os.Stat(h.socket()); err == nil {
		t.Error("the socket is still there")
	}
}

func TestServeMakesDirectories(t *testing.T) {
	h := newHost(t)
	h.serve()
	for dir, want := range map[string]os.FileMode{filepath.Join(h.dir, "run", "qsidecar"): 0o700, filepath.Join(h.dir, "state", "qsidecar"): 0o700} {
		fi, err := os.Stat(dir)
		if err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", dir, fi.Mode(), err, want)
		}
	}
	other := filepath.Join(h.dir, "open", "s.sock")
	h.serve("--socket", other, "--database", "sqlite:"+filepath.Join(h.dir, "other.db"))
	if fi, err := os.Stat(filepath.Dir(other)); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("the directory of another socket: %v, %v; want mode 0755", fi.Mode(), err)
	}
	h.must(0, "ping", "--socket", other)
}

// TestFlagsFileEnvironment checks that flags override the file, and the file overrides the
// environment.
func TestFlagsFileEnvironment(t *testing.T) {
	h := newHost(t)
	at := func(name string) string { return filepath.Join(h.dir, name) }
	h.env["QSIDECAR_SOCKET"], h.env["QSIDECAR_DATABASE"] = at("env.sock"), "sqlite:"+at("env.db")
	file := h.file("c.yaml", "listen: [{socket: "+at("file.sock")+"}]\ndatabases: {main: {url: 'sqlite:"+at("file.db")+"'}}\n")
	url := h.file("url", "sqlite:"+at("flag.db")+"\n")
	for _, row := range []struct {
		args []string
		want string
	}{
		{nil, "serving on " + at("env.sock") + ", database sqlite:" + at("env.db")},
		{[]string{"--config", file}, "serving on " + at("file.sock") + ", database sqlite:" + at("file.db") + ", config " + file},
		{[]string{"--config", file, "--socket", at("flag.sock")}, "serving on " + at("flag.sock") + ", database sqlite:" + at("file.db") + ", config " + file},
		{[]string{"--database", "@" + url}, "serving on " + at("env.sock") + ", database sqlite:" + at("flag.db")},
	} {
		r := h.serve(row.args...)
		if got := strings.TrimSpace(r.out.String()); got != row.want {
			t.Errorf("serve %v prints %q, want %q", row.args, got, row.want)
		}
		if code := r.stop(); code != 0 {
			t.Errorf("serve %v ended with %d: %s", row.args, code, r.errOut)
		}
	}
}

// TestClientsTryDefaultSocketsInOrder checks that clients try the default sockets in order.
func TestClientsTryDefaultSocketsInOrder(t *testing.T) {
	h := newHost(t)
	a := h.app(nil, nil, nil, nil)
	if got := a.sockets(); !slices.Equal(got, []string{h.socket(), h.systemSocket()}) {
		t.Errorf("sockets: %v", got)
	}
	if err := os.Chmod(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	delete(h.env, "XDG_RUNTIME_DIR")
	own := filepath.Join(h.dir, "state", "qsidecar", "qsidecar.sock")
	for _, dir := range []string{"none", "qsidecar"} {
		if err := os.MkdirAll(filepath.Join(h.dir, "state", dir), 0o755); err != nil {
			t.Fatal(err)
		}
		want := []string{h.systemSocket()}
		if dir == "qsidecar" {
			want = []string{own, h.systemSocket()}
		}
		asUnprivileged(t, func() {
			if got := a.sockets(); !slices.Equal(got, want) {
				t.Errorf("without XDG_RUNTIME_DIR, as another user: %v, want %v", got, want)
			}
		})
	}
	h.env["QSIDECAR_SOCKET"] = "/x"
	if got := a.sockets(); len(got) != 1 || got[0] != "/x" {
		t.Errorf("with QSIDECAR_SOCKET: %v", got)
	}
	a.socket = "/y"
	if got := a.sockets(); len(got) != 1 || got[0] != "/y" {
		t.Errorf("with --socket: %v", got)
	}
}

// TestEnvSurvivesEval checks that eval preserves any payload.
func TestEnvSurvivesEval(t *testing.T) {
	h := newHost(t)
	h.serve()
	for _, payload := range []string{
		"plain", "", "it's", "a\nb\n\n", `$(touch x) "q" \ * ~ ;&|`, "'", "''\\''", "\xff\xfe", "-n", "é ☎",
	} {
		args := []string{"enqueue", "q", "-", "--header", "h=it's"}
		if !utf8.ValidString(payload) {
			args = append(args, "--raw")
		}
		h.mustWith(0, payload, args...)
		env := h.must(0, "claim", "q", "--env")
		script := env + `printf '%s' "$QSIDECAR_PAYLOAD"; test -n "$QSIDECAR_LEASE" && test "$QSIDECAR_HEADERS" = "{\"h\":\"it's\"}" && test "$QSIDECAR_ATTEMPT" = 1`
		out, err := exec.Command("sh", "-c", script).Output()
		if err != nil || string(out) != payload {
			t.Errorf("payload %q came as %q (%v) by\n%s", payload, out, err, env)
		}
	}
	h.mustWith(0, "a\x00b", "enqueue", "q", "-")
	if env := h.must(0, "claim", "q", "--env"); !strings.Contains(env, "QSIDECAR_PAYLOAD=''\n") || !strings.Contains(env, "QSIDECAR_PAYLOAD_B64=YQBi\n") {
		t.Errorf("a payload with NUL: %s", env)
	}
}

// TestUnprintedJobsAreReturned checks that a job which could not be printed is given back at
// once.
func TestUnprintedJobsAreReturned(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.must(0, "enqueue", "q", "x")
	in, out := io.Pipe()
	in.Close() // no reader
	errOut := newText()
	if code := h.app(strings.NewReader(""), out, errOut, nil).main([]string{"claim", "q"}); code != exitFailure {
		t.Errorf("exit code %d, want 1: %s", code, errOut)
	}
	if j := h.claim("q"); j.Attempt != 1 {
		t.Errorf("attempt %d, want 1: the first was not delivered", j.Attempt)
	}
}

func TestSecondSignalEndsTheDrain(t *testing.T) {
	h := newHost(t)
	file := h.file("c.yaml", "drain_timeout: 1h\n")
	r := h.serve("--config", file)
	in, feed := io.Pipe()
	worker := h.start(in, "stdio")
	h.must(0, "enqueue", "q", "x")
	if _, err := io.WriteString(feed, `{"op":"claim","queue":"q"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	worker.waitForOutput(`"lease"`)
	r.signals <- os.Interrupt
	testwait.Until(t, "it stops", func() bool { return strings.Contains(r.errOut.String(), "event=stopping") || r.ended() })
	if r.ended() {
		t.Fatalf("the first signal ended it with %d although a worker holds a job", r.code)
	}
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d after the second signal: %s", code, r.errOut)
	}
	worker.wait()
	feed.Close()
}

func TestStdio(t *testing.T) {
	h := newHost(t)
	script := `{"op":"enqueue","queue":"q","payload":"p"}` + "\n" + `{"op":"claim","queue":"q"}` + "\n"
	for _, how := range []string{"its own", "the host's"} {
		if how == "the host's" {
			h.serve()
		}
		out := h.mustWith(0, script, "stdio")
		if strings.Count(out, "\n") != 2 || strings.Count(out, `"ok":true`) != 2 || !strings.Contains(out, `"attempt":1`) {
			t.Errorf("%s sidecar answers %s", how, out)
		}
	}
}

func TestConfirm(t *testing.T) {
	h := newHost(t)
	h.serve()
	ready := func() bool { return strings.Contains(h.must(0, "stats", "q", "--json"), `"ready":1`) }
	h.must(0, "enqueue", "q", "x")
	for _, args := range [][]string{{"purge", "q", "--state", "ready"}, {"delete", "q", "1"}, {"reclaim", "q", "1"}} {
		h.terminal = false
		if r := h.runWith("y\n", args...); r.code != exitUsage || !strings.Contains(r.err, "--yes") {
			t.Errorf("%v without a terminal: %+v, want exit code 2 and --yes", args, r)
		}
		h.terminal = true
		for _, answer := range []string{"", "\n", "n\n", "no\n", "yikes\n"} {
			if r := h.runWith(answer, args...); r.code != exitFailure || !strings.Contains(r.err, "cannot be undone") {
				t.Errorf("%v answered %q: %+v, want exit code 1", args, answer, r)
			}
		}
	}
	if !ready() {
		t.Fatal("the job is gone without a confirmation")
	}
	if r := h.runWith("y\n", "purge", "q", "--state", "ready"); r.code != 0 || r.out != "purged 1 job\n" {
		t.Errorf("answered y: %+v", r)
	}
	h.terminal = false
	h.must(0, "enqueue", "q", "x")
	if out := h.must(0, "purge", "q", "--state", "ready", "--yes", "--json"); out != `{"count":1}`+"\n" {
		t.Errorf("--yes --json: %q", out)
	}
}

func TestPauseAndReclaim(t *testing.T) {
	h := newHost(t)
	h.serve()
	id := strings.TrimSpace(h.must(0, "enqueue", "q", "x"))
	h.must(0, "pause", "q")
	if out := h.must(0, "stats", "q"); !strings.Contains(out, "paused") {
		t.Errorf("stats of a paused queue:\n%s", out)
	}
	h.must(exitNoJob, "claim", "q")
	h.must(0, "resume", "q")
	j := h.claim("q")
	if out := h.must(0, "reclaim", "q", id, "--yes"); out != "reclaimed 1 job\n" {
		t.Errorf("reclaim prints %q", out)
	}
	h.must(exitLeaseLost, "ack", j.Lease)
	if j := h.claim("q"); j.Attempt != 1 {
		t.Errorf("after a release the attempt is %d, want 1", j.Attempt)
	}
	if out := h.must(1, "delete", "q", id, "--yes"); out != "" {
		t.Errorf("delete of a claimed job prints %q", out)
	}
}

func TestSettleSeveral(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.mustWith(0, "a\nb\n", "enqueue", "q", "--lines")
	a, b := h.claim("q"), h.claim("q")
	h.must(0, "ack", a.Lease)
	r := h.run("ack", a.Lease, b.Lease)
	if r.code != exitLeaseLost || r.out != "acked 1\n" || !strings.Contains(r.err, "1 of 2 leases") {
		t.Errorf("one of two lost: %+v", r)
	}
}

func TestCheckAndMigrate(t *testing.T) {
	h := newHost(t)
	h.run("check").wantStdout(t, 0, "database main: sqlite", ": ok", "there is no file yet", "socket: "+h.socket(), "any other name")
	if left, err := os.ReadDir(h.dir); err != nil || len(left) > 0 {
		t.Errorf("check made %v, %v", left, err)
	}
	if out := h.must(0, "migrate"); !strings.Contains(out, "up to date") {
		t.Errorf("migrate prints %s", out)
	}
	h2 := newHost(t)
	if out := h2.must(0, "migrate", "--print"); !strings.Contains(out, "CREATE TABLE") {
		t.Errorf("migrate --print prints %s", out)
	}
	if _, err := os.Stat(filepath.Join(h2.dir, "state")); err == nil {
		t.Error("migrate --print made a database")
	}
}

func TestHelp(t *testing.T) {
	h := newHost(t)
	root := h.app(nil, nil, nil, nil).root()
	for _, c := range root.Commands() {
		if c.Name() == "completion" || c.Name() == "help" {
			continue
		}
		out := h.must(0, c.Name(), "--help")
		if !strings.Contains(out, "Exit codes:") {
			t.Errorf("%s --help lists no exit codes", c.Name())
		}
		for line := range strings.Lines(out) {
			if len([]rune(line)) > 100 {
				t.Errorf("%s --help has a line of %d characters: %s", c.Name(), len(line), line)
			}
		}
	}
}

// TestClientOverRestart checks that a worker keeps its job over restarts while it makes no
// call, and settles it afterwards. Each new sidecar takes over the job when the worker
// reconnects, so the end of the lease of an earlier sidecar doesn't free it.
func TestClientOverRestart(t *testing.T) {
	h := newHost(t)
	file := h.file("c.yaml", "drain_timeout: 0s\ndatabases: {main: {url: 'sqlite:"+h.dir+"/q.db', sidecar_timeout: 1h, restart_grace: 1h}}\n")
	serve := h.serve("--config", file)
	defer func() {
		if t.Failed() {
			t.Logf("the log of the last sidecar:\n%s", serve.errOut)
		}
	}()
	h.must(0, "enqueue", "q", "x")
	c, err := qsidecar.Dial(t.Context(), qsidecar.Options{
		Socket: h.socket(),
		OnLost: func([]string, string) { t.Error("the lease was lost") },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	jobs, err := c.Claim(t.Context(), qsidecar.Claim{Queues: []string{"q"}})
	if err != nil || len(jobs) != 1 {
		t.Fatalf("claimed %v, %v", jobs, err)
	}
	last := ownerOf(t, h.dir+"/q.db")
	for range 3 {
		if code := serve.stop(); code != 0 {
			t.Fatalf("serve ended with %d: %s", code, serve.errOut)
		}
		serve = h.serve("--config", file)
		testwait.Until(t, "the new sidecar owns the job", func() bool { return ownerOf(t, h.dir+"/q.db") != last })
		last = ownerOf(t, h.dir+"/q.db")
	}
	if err := c.Ack(t.Context(), jobs[0].Lease); err != nil {
		t.Errorf("after three restarts: %v", err)
	}
}

// ownerOf returns the identity of the sidecar that owns the only job.
func ownerOf(t *testing.T, file string) (owner int64) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?mode=ro&_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow("SELECT owner FROM qsidecar_jobs").Scan(&owner); err != nil {
		t.Fatal(err)
	}
	return owner
}
