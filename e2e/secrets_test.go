package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// marker is in every password of these tests.
const marker = "Zq7marker"

// secretRun gathers all that the program says about a database whose passwords have the
// marker in them.
type secretRun struct {
	t      *testing.T
	s      *site
	engine string
	addr   string            // host:port
	passwd func(word string) // sets the password of the user app on the server
	cut    func()            // ends that user's connections

	mu   sync.Mutex
	said map[string]string // by what was done
	runs int
}

func TestNoPasswordIsToldOnPostgres(t *testing.T) {
	s, srv := newPostgresSite(t)
	loads := &reloadRun{t: t, s: s, srv: srv, secret: filepath.Join(s.dir, "first")}
	loads.passwords() // the role app, which logs in with a password over TCP
	newSecretRun(t, s, "postgres", srv.addr, func(word string) {
		loads.exec("ALTER ROLE app PASSWORD '" + word + "'")
	}, func() {
		srv.query(srv.Admin(), "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE usename = 'app'")
	}).all()
}

func TestNoPasswordIsToldOnMySQL(t *testing.T) {
	onMySQL(t, []testserver.Kind{testserver.MariaDB1011}, func(t *testing.T, s *site, p *mysqlServer) {
		exec := func(sql string) {
			t.Helper()
			if err := p.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		exec("CREATE USER app@'%' IDENTIFIED BY 'x'")
		exec("GRANT ALL ON e2e.* TO app@'%'")
		newSecretRun(t, s, "mysql", p.Host+":"+p.Port, func(word string) {
			exec("ALTER USER app@'%' IDENTIFIED BY '" + word + "'")
		}, func() { exec("KILL USER app") }).all()
	})
}

func newSecretRun(t *testing.T, s *site, engine, addr string, passwd func(string), cut func()) *secretRun {
	return &secretRun{t: t, s: s, engine: engine, addr: addr, passwd: passwd, cut: cut, said: map[string]string{}}
}

// url is the database's, with a password unless it is empty.
func (r *secretRun) url(word string) string {
	user := "app"
	if word != "" {
		user += ":" + neturl.QueryEscape(word)
	}
	return r.engine + "://" + user + "@" + r.addr + "/e2e"
}

func (r *secretRun) file(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// heard keeps what was said.
func (r *secretRun) heard(what, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said[what] += text
}

// run runs the program to its end, and keeps all that it says.
func (r *secretRun) run(env []string, args ...string) (out string, code int) {
	r.t.Helper()
	ctx, stop := context.WithTimeout(r.t.Context(), 2*patience) // one that hangs is told as it is
	defer stop()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	if _, ran := errors.AsType[*exec.ExitError](err); err != nil && !ran {
		r.t.Fatal(err)
	}
	r.runs++
	r.heard(strings.Join(args, " "), string(text))
	return string(text), cmd.ProcessState.ExitCode()
}

// config is one that says so of its database.
func (r *secretRun) config(name, database string) string {
	r.t.Helper()
	return r.file(name+".yaml", fmt.Sprintf("listen:\n  - socket: %[1]s.sock\ndatabases:\n  main: %[2]s\nlog: {level: debug}\nadmin: {listen: %[1]s.admin, pprof: on}\n", filepath.Join(r.s.dir, name), database))
}

func (r *secretRun) all() {
	r.asItShould()
	r.running()
	for what, text := range r.said {
		for line := range strings.Lines(text) {
			if strings.Contains(line, marker) {
				r.t.Errorf("%s shows a password:\n%s", what, line)
			}
		}
	}
	if !r.t.Failed() {
		figure(r.t, "%s: no password in what %d runs of the program said, nor in the log and the answers of a sidecar", r.engine, r.runs)
	}
}

// asItShould asks everything of a database whose password is right, given in each way.
func (r *secretRun) asItShould() {
	r.t.Helper()
	word := marker + "/1#@:%"
	r.passwd(word)
	secret := r.file("password", word+"\n")
	env := []string{"SECRET=" + neturl.QueryEscape(word), "SECRET_URL=" + r.url(word)}
	at := "@" + r.file("url", r.url(word)+"\n")
	ways := map[string][]string{
		"in the URL":      {"--config", r.config("in", fmt.Sprintf("{url: %q}", r.url(word)))},
		"in a file":       {"--config", r.config("file", fmt.Sprintf("{url: %q, password_file: %s}", r.url(""), secret))},
		"by a variable":   {"--config", r.config("var", fmt.Sprintf(`{url: "%s://app:${SECRET}@%s/e2e"}`, r.engine, r.addr))},
		"by one in all":   {"--config", r.config("url", `{url: "${SECRET_URL}"}`)},
		"by the URL file": {"--database", at, "--log-level", "debug"},
	}
	for way, flags := range ways {
		for _, command := range [][]string{{"migrate"}, {"migrate", "--print"}, {"check"}, {"check", "--json"}} {
			if out, code := r.run(env, append(command, flags...)...); code != 0 {
				r.t.Errorf("%s, %v: exit code %d\n%s", way, command, code, out)
			}
		}
	}
	table := map[string]string{"postgres": "qsidecar.qsidecar_jobs", "mysql": "qsidecar_jobs"}[r.engine]
	if out, code := r.run(nil, "adopt", "--database", at, table); code != 0 || !strings.Contains(out, r.url("")) {
		r.t.Errorf("adopt: exit code %d\n%s", code, out)
	}
	if out, code := r.run([]string{"QSIDECAR_DATABASE=" + r.url(word)}, "adopt", table); code != 0 || !strings.Contains(out, r.url("")) {
		r.t.Errorf("adopt: exit code %d\n%s", code, out)
	}
	r.environment(word)
}

// environment: nobody sees the password in the arguments of a process, and a worker's commands
// have it not in their environment either.
func (r *secretRun) environment(word string) {
	r.t.Helper()
	socket := filepath.Join(r.s.dir, "env.sock")
	sc := r.s.sidecar("env")
	r.t.Setenv("QSIDECAR_DATABASE", r.url(word))
	r.file("env.yaml", "listen: [{socket: "+socket+"}]\nlog: {level: debug}\n")
	sc.start()
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", sc.cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	r.heard("ps", string(args))
	sc.dial().must(msg{"op": "enqueue", "queue": "mail", "payload": "x"})
	// Its children: the command, what that starts, and the guard.
	out, code := r.run(nil, "work", "mail", "--socket", socket, "--once", "--", "sh", "-c", `
		env; cat /proc/self/environ; for p in /proc/[0-9]*; do
			case $(tr '\0' ' ' <$p/cmdline 2>/dev/null) in "/proc/self/exe work-guard "*) cat $p/environ; echo "guard of $(awk '/^PPid/ {print $2}' $p/status)";; *qsidecar*) tr '\0' ' ' <$p/cmdline;; esac
		done; true`)
	if code != 0 || !strings.Contains(out, "QSIDECAR_JOB=") || !strings.Contains(out, "guard of") {
		r.t.Errorf("work: exit code %d\n%s", code, out)
	}
	sc.kill()
	r.heard("the log", sc.readLog())
	r.t.Setenv("QSIDECAR_DATABASE", "")
}

// running reloads a sidecar with all kinds of right and wrong passwords, and starts others
// with the wrong ones.
func (r *secretRun) running() {
	r.t.Helper()
	first, second := marker+"-2", marker+"-3"
	r.passwd(first)
	secret := r.file("rotated", first)
	good := fmt.Sprintf("{url: %q, password_file: %s}", r.url(""), secret)
	sc := r.s.sidecar("run")
	r.config("run", good) // in the place of the site's own
	sc.start()
	ask := func(want int, args ...string) string {
		r.t.Helper()
		out, code := r.run(nil, append(args, "--socket", sc.socket)...)
		if code != want {
			r.t.Errorf("%v: exit code %d, want %d\n%s", args, code, want, out)
		}
		return out
	}
	look := func() {
		r.t.Helper()
		ask(0, "status")
		ask(0, "status", "--json")
		ask(0, "stats")
		r.admin(filepath.Join(r.s.dir, "run.admin"))
	}
	look()
	r.passwd(second)
	r.file("rotated", second)
	ask(0, "reload")
	look()
	r.config("run", fmt.Sprintf("{url: %q}", r.url(second))) // from the file into the URL
	ask(0, "reload", "--json")
	mistakes := r.mistakes()
	maps.Copy(mistakes, r.absences())
	for name, wrong := range mistakes {
		r.config("run", wrong)
		ask(2, "reload")
		if out := ask(0, "status"); !strings.Contains(out, "DOES NOT RUN") {
			r.t.Errorf("%s: status says nothing of it:\n%s", name, out)
		}
	}
	r.file("run.yaml", "databases: {main: {url: "+r.url(marker)+"\n")
	ask(2, "reload")
	look()
	r.config("run", good)
	ask(0, "reload")
	r.passwd(marker + "-4") // behind the sidecar's back, and new connections are refused
	r.cut()
	ask(0, "status")
	refused := exec.Command(binary, "enqueue", "mail", "x", "--socket", sc.socket) // after some seconds
	said := new(lockedBuffer)
	refused.Stdout, refused.Stderr = said, said
	if err := refused.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.wrong()
	if err := refused.Wait(); err == nil {
		r.t.Error("an enqueue is taken where the password is wrong")
	}
	r.heard("an enqueue that is refused", said.String())
	sc.kill()
	log, err := os.ReadFile(sc.log)
	if err != nil {
		r.t.Fatal(err)
	}
	if !bytes.Contains(log, []byte("the config was not reloaded")) || !bytes.Contains(log, []byte("a secret")) {
		r.t.Errorf("the log does not tell of the reloads:\n%s", log)
	}
	r.heard("the log", string(log))
}

// admin asks the admin listener for all that it has.
func (r *secretRun) admin(socket string) {
	r.t.Helper()
	var d net.Dialer
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) }}
	defer transport.CloseIdleConnections()
	for _, path := range []string{"/metrics", "/readyz", "/healthz", "/startupz", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
		answer, err := (&http.Client{Transport: transport, Timeout: patience}).Get("http://admin" + path)
		if err != nil {
			r.t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil || answer.StatusCode == http.StatusNotFound {
			r.t.Fatalf("%s: %s, %v", path, answer.Status, err)
		}
		r.heard(path, string(text))
	}
}

// mistakes are what may be wrong with what a config says of its database and its password.
func (r *secretRun) mistakes() map[string]string {
	word := marker + "-9"
	return map[string]string{
		"a wrong password":               fmt.Sprintf("{url: %q}", r.url(word)),
		"a wrong password in a file":     fmt.Sprintf("{url: %q, password_file: %s}", r.url(""), r.file("wrong", word)),
		"a slash":                        fmt.Sprintf("{url: \"%s://app:%s/x@%s/e2e\"}", r.engine, word, r.addr),
		"a number sign":                  fmt.Sprintf("{url: \"%s://app:%s#x@%s/e2e\"}", r.engine, word, r.addr),
		"a percent sign":                 fmt.Sprintf("{url: \"%s://app:%s%%zz@%s/e2e\"}", r.engine, word, r.addr),
		"no host":                        fmt.Sprintf("{url: \"%s://app:%s\"}", r.engine, word),
		"a parameter":                    fmt.Sprintf("{url: \"%s://%s/e2e?user=app&password=%s&tls=perhaps&sslmode=perhaps\"}", r.engine, r.addr, word),
		"no engine":                      fmt.Sprintf("{url: \"other://app:%s@%s/e2e\"}", word, r.addr),
		"the password alone":             fmt.Sprintf("{url: %s}", word),
		"a key that is none":             fmt.Sprintf("{url: %q, password: %s}", r.url(""), word),
		"a key that is none, in lines":   fmt.Sprintf("\n    url: %q\n    password: %s", r.url(""), word),
		"a number beside it":             fmt.Sprintf("{url: %q, max_connections: many}", r.url(word)),
		"no map":                         r.url(word),
		"quotes that do not end":         fmt.Sprintf("{url: \"%s}", r.url(word)),
		"a database that does not exist": fmt.Sprintf("{url: \"%s://app:%s@%s/none\"}", r.engine, word, r.addr),
	}
}

// absences are databases that cannot be reached, as far as anybody can tell: serve waits for them.
func (r *secretRun) absences() map[string]string {
	word := marker + "-9"
	return map[string]string{
		"another name behind the at":  fmt.Sprintf("{url: \"%s://app:%s@nowhere.invalid/e2e\"}", r.engine, word),
		"a port where nobody answers": fmt.Sprintf("{url: \"%s://app:%s@127.0.0.1:1/e2e\"}", r.engine, word),
	}
}

// awaits starts one that waits for its database.
func (r *secretRun) awaits(config string) {
	r.t.Helper()
	sc := r.s.sidecar("awaits")
	sc.config, sc.socket = config, strings.TrimSuffix(config, ".yaml")+".sock"
	sc.start()
	for _, ask := range [][]string{{"status"}, {"status", "--json"}, {"stats"}, {"reload"}} {
		_, _ = r.run(nil, append(ask, "--socket", sc.socket)...)
	}
	r.admin(strings.TrimSuffix(config, ".yaml") + ".admin")
	sc.kill()
	log, err := os.ReadFile(sc.log)
	if err != nil {
		r.t.Fatal(err)
	}
	if !bytes.Contains(log, []byte("the database cannot be opened")) {
		r.t.Errorf("it does not say that it waits:\n%s", log)
	}
	r.heard("the log of one that waits", string(log))
}

// wrong starts everything with what is wrong.
func (r *secretRun) wrong() {
	r.t.Helper()
	for name, wrong := range r.mistakes() {
		config := r.config("wrong", wrong)
		for _, command := range [][]string{{"serve"}, {"check", "--json"}} {
			if out, code := r.run(nil, append(command, "--config", config)...); code == 0 {
				r.t.Errorf("%s: %v went well\n%s", name, command, out)
			}
		}
	}
	for name, away := range r.absences() {
		config := r.config("away", away)
		if out, code := r.run(nil, "check", "--json", "--config", config); code == 0 {
			r.t.Errorf("%s: check went well\n%s", name, out)
		}
		r.awaits(config)
	}
	for _, bad := range []string{"//app:" + marker + "/x@db/e2e", "//app:" + marker + "-9@" + r.addr + "/e2e"} {
		bad = r.engine + ":" + bad
		for _, command := range [][]string{{"serve"}, {"check"}, {"adopt", "jobs"}, {"stdio", "--config", "/dev/null"}} {
			_, _ = r.run([]string{"QSIDECAR_DATABASE=" + bad}, command...)
			_, _ = r.run([]string{"QSIDECAR_DATABASE=@" + r.file("bad", bad)}, command...)
			if command[0] != "stdio" {
				if out, code := r.run(nil, append(command, "--database", bad)...); code == 0 {
					r.t.Errorf("%v --database %s went well\n%s", command, bad, out)
				}
			}
		}
	}
}
