package config

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

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// marker is a part of every password in these tests.
const marker = "Zq7marker"

// secretRun collects all output of the program about a database whose passwords contain the marker.
type secretRun struct {
	t      *testing.T
	s      *kit.Site
	engine string
	addr   string            // host:port
	passwd func(word string) // sets the password of the user app on the server
	cut    func() bool       // ends that user's sessions and reports whether none is left

	mu     sync.Mutex
	output map[string]string // output by command
	runs   int
}

func TestNoPasswordIsShownOnPostgres(t *testing.T) {
	s, srv := kit.NewPostgresSite(t)
	loads := &reloadRun{t: t, s: s, srv: srv, secret: filepath.Join(s.Dir, "first")}
	loads.passwords() // the role app, which logs in with a password over TCP
	newSecretRun(t, s, "postgres", srv.Addr, func(word string) {
		loads.exec("ALTER ROLE app PASSWORD '" + word + "'")
	}, func() bool {
		// A session has no user during its login.
		srv.Query(srv.Admin(), "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE usename = 'app'")
		return len(srv.Query(srv.Admin(), "SELECT pid::text FROM pg_stat_activity WHERE backend_type = 'client backend' AND coalesce(usename, 'app') = 'app'")) == 0
	}).all()
}

func TestNoPasswordIsShownOnMySQL(t *testing.T) {
	kit.OnMySQL(t, []testserver.Kind{testserver.MariaDB1011}, func(t *testing.T, s *kit.Site, p *databases.MySQL) {
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
		}, func() bool {
			exec("KILL USER app")
			db, err := p.Open("")
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			var left int
			if err := db.QueryRow("SELECT count(*) FROM information_schema.processlist WHERE user IN ('app', 'unauthenticated user')").Scan(&left); err != nil {
				t.Fatal(err)
			}
			return left == 0
		}).all()
	})
}

func newSecretRun(t *testing.T, s *kit.Site, engine, addr string, passwd func(string), cut func() (none bool)) *secretRun {
	return &secretRun{t: t, s: s, engine: engine, addr: addr, passwd: passwd, cut: cut, output: map[string]string{}}
}

// url returns the database's URL, with the password unless it is empty.
func (s *secretRun) url(word string) string {
	user := "app"
	if word != "" {
		user += ":" + neturl.QueryEscape(word)
	}
	return s.engine + "://" + user + "@" + s.addr + "/e2e"
}

func (s *secretRun) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.s.Dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// keep keeps output.
func (s *secretRun) keep(what, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.output[what] += text
}

// run runs the program to its end and keeps its output.
func (s *secretRun) run(env []string, args ...string) (out string, code int) {
	s.t.Helper()
	ctx := testwait.Context(s.t)
	cmd := exec.CommandContext(ctx, kit.Binary, args...)
	cmd.Env = append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	if _, ran := errors.AsType[*exec.ExitError](err); err != nil && !ran {
		s.t.Fatal(err)
	}
	s.runs++
	s.keep(strings.Join(args, " "), string(text))
	return string(text), cmd.ProcessState.ExitCode()
}

// config writes a config with this database.
func (s *secretRun) config(name, database string) string {
	s.t.Helper()
	return s.file(name+".yaml", fmt.Sprintf("listen:\n  - socket: %[1]s.sock\ndatabases:\n  main: %[2]s\nlog: {level: debug}\nadmin: {listen: %[1]s.admin, pprof: on}\n", filepath.Join(s.s.Dir, name), database))
}

func (s *secretRun) all() {
	s.rightPassword()
	s.running()
	for what, text := range s.output {
		for line := range strings.Lines(text) {
			if strings.Contains(line, marker) {
				s.t.Errorf("%s shows a password:\n%s", what, line)
			}
		}
	}
	if !s.t.Failed() {
		kit.Figure(s.t, "%s: no password in the output of %d runs of the program, nor in the log and the answers of a sidecar", s.engine, s.runs)
	}
}

// rightPassword runs everything on a database with the right password, given in each possible way.
func (s *secretRun) rightPassword() {
	s.t.Helper()
	word := marker + "/1#@:%"
	s.passwd(word)
	secret := s.file("password", word+"\n")
	env := []string{"SECRET=" + neturl.QueryEscape(word), "SECRET_URL=" + s.url(word)}
	at := "@" + s.file("url", s.url(word)+"\n")
	ways := map[string][]string{
		"in the URL":      {"--config", s.config("in", fmt.Sprintf("{url: %q}", s.url(word)))},
		"in a file":       {"--config", s.config("file", fmt.Sprintf("{url: %q, password_file: %s}", s.url(""), secret))},
		"by a variable":   {"--config", s.config("var", fmt.Sprintf(`{url: "%s://app:${SECRET}@%s/e2e"}`, s.engine, s.addr))},
		"by one in all":   {"--config", s.config("url", `{url: "${SECRET_URL}"}`)},
		"by the URL file": {"--database", at, "--log-level", "debug"},
	}
	for way, flags := range ways {
		for _, command := range [][]string{{"migrate"}, {"migrate", "--print"}, {"check"}, {"check", "--json"}} {
			if out, code := s.run(env, append(command, flags...)...); code != 0 {
				s.t.Errorf("%s, %v: exit code %d\n%s", way, command, code, out)
			}
		}
	}
	table := map[string]string{"postgres": "qsidecar.qsidecar_jobs", "mysql": "qsidecar_jobs"}[s.engine]
	if out, code := s.run(nil, "adopt", "--database", at, table); code != 0 || !strings.Contains(out, s.url("")) {
		s.t.Errorf("adopt: exit code %d\n%s", code, out)
	}
	if out, code := s.run([]string{"QSIDECAR_DATABASE=" + s.url(word)}, "adopt", table); code != 0 || !strings.Contains(out, s.url("")) {
		s.t.Errorf("adopt: exit code %d\n%s", code, out)
	}
	s.environment(word)
}

// environment checks that no process has the password in its arguments, and that a worker's
// commands do not have it in their environment.
func (s *secretRun) environment(word string) {
	s.t.Helper()
	socket := filepath.Join(s.s.Dir, "env.sock")
	sc := s.s.Sidecar("env")
	s.t.Setenv("QSIDECAR_DATABASE", s.url(word))
	s.file("env.yaml", "listen: [{socket: "+socket+"}]\nlog: {level: debug}\n")
	sc.Start()
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", sc.Cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	s.keep("ps", string(args))
	sc.Dial().Must(kit.Msg{"op": "enqueue", "queue": "mail", "payload": "x"})
	// Its children: the command, the command's children, and the guard.
	out, code := s.run(nil, "work", "mail", "--socket", socket, "--once", "--", "sh", "-c", `
		env; cat /proc/self/environ; for p in /proc/[0-9]*; do
			case $(tr '\0' ' ' <$p/cmdline 2>/dev/null) in "/proc/self/exe work-guard "*) cat $p/environ; echo "guard of $(awk '/^PPid/ {print $2}' $p/status)";; *qsidecar*) tr '\0' ' ' <$p/cmdline;; esac
		done; true`)
	if code != 0 || !strings.Contains(out, "QSIDECAR_JOB=") || !strings.Contains(out, "guard of") {
		s.t.Errorf("work: exit code %d\n%s", code, out)
	}
	sc.Kill()
	s.keep("the log", sc.Log())
	if err := os.Unsetenv("QSIDECAR_DATABASE"); err != nil { // an empty one is an error
		s.t.Fatal(err)
	}
}

// running reloads a sidecar with all kinds of right and wrong passwords, and starts others with
// wrong ones.
func (s *secretRun) running() {
	s.t.Helper()
	first, second := marker+"-2", marker+"-3"
	s.passwd(first)
	secret := s.file("rotated", first)
	good := fmt.Sprintf("{url: %q, password_file: %s}", s.url(""), secret)
	sc := s.s.Sidecar("run")
	s.config("run", good) // replaces the site's own
	sc.Start()
	ask := func(want int, args ...string) string {
		s.t.Helper()
		out, code := s.run(nil, append(args, "--socket", sc.Socket)...)
		if code != want {
			s.t.Errorf("%v: exit code %d, want %d\n%s", args, code, want, out)
		}
		return out
	}
	look := func() {
		s.t.Helper()
		ask(0, "status")
		ask(0, "status", "--json")
		ask(0, "stats")
		s.admin(filepath.Join(s.s.Dir, "run.admin"))
	}
	look()
	s.passwd(second)
	s.file("rotated", second)
	ask(0, "reload")
	look()
	s.config("run", fmt.Sprintf("{url: %q}", s.url(second))) // moved from the file into the URL
	ask(0, "reload", "--json")
	mistakes := s.mistakes()
	maps.Copy(mistakes, s.absences())
	for name, wrong := range mistakes {
		s.config("run", wrong)
		ask(2, "reload")
		if out := ask(0, "status"); !strings.Contains(out, "DOES NOT RUN") {
			s.t.Errorf("%s: status does not report it:\n%s", name, out)
		}
	}
	s.file("run.yaml", "databases: {main: {url: "+s.url(marker)+"\n")
	ask(2, "reload")
	look()
	s.config("run", good)
	ask(0, "reload")
	s.passwd(marker + "-4") // changed only on the server, so that new connections fail
	testwait.Until(s.t, "no session is left that logged in before", s.cut)
	ask(0, "status")
	refused := exec.Command(kit.Binary, "enqueue", "mail", "x", "--socket", sc.Socket) // after some seconds
	said := new(kit.LockedBuffer)
	refused.Stdout, refused.Stderr = said, said
	if err := refused.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.wrong()
	if err := refused.Wait(); err == nil {
		s.t.Error("an enqueue is taken where the password is wrong")
	}
	s.keep("an enqueue that is refused", said.String())
	sc.Kill()
	log, err := os.ReadFile(sc.LogFile)
	if err != nil {
		s.t.Fatal(err)
	}
	if !bytes.Contains(log, []byte("event=config_reload_failed")) || !bytes.Contains(log, []byte("a secret")) {
		s.t.Errorf("the log does not tell of the reloads:\n%s", log)
	}
	s.keep("the log", string(log))
}

// admin requests every page of the admin listener.
func (s *secretRun) admin(socket string) {
	s.t.Helper()
	var d net.Dialer
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) }}
	defer transport.CloseIdleConnections()
	for _, path := range []string{"/metrics", "/readyz", "/healthz", "/startupz", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
		answer, err := (&http.Client{Transport: transport, Timeout: testwait.Limit}).Get("http://admin" + path)
		if err != nil {
			s.t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil || answer.StatusCode == http.StatusNotFound {
			s.t.Fatalf("%s: %s, %v", path, answer.Status, err)
		}
		s.keep(path, string(text))
	}
}

// mistakes are possible errors in a config's database and password.
func (s *secretRun) mistakes() map[string]string {
	word := marker + "-9"
	return map[string]string{
		"a wrong password":               fmt.Sprintf("{url: %q}", s.url(word)),
		"a wrong password in a file":     fmt.Sprintf("{url: %q, password_file: %s}", s.url(""), s.file("wrong", word)),
		"a slash":                        fmt.Sprintf("{url: \"%s://app:%s/x@%s/e2e\"}", s.engine, word, s.addr),
		"a number sign":                  fmt.Sprintf("{url: \"%s://app:%s#x@%s/e2e\"}", s.engine, word, s.addr),
		"a percent sign":                 fmt.Sprintf("{url: \"%s://app:%s%%zz@%s/e2e\"}", s.engine, word, s.addr),
		"no host":                        fmt.Sprintf("{url: \"%s://app:%s\"}", s.engine, word),
		"a parameter":                    fmt.Sprintf("{url: \"%s://%s/e2e?user=app&password=%s&tls=perhaps&sslmode=perhaps\"}", s.engine, s.addr, word),
		"no engine":                      fmt.Sprintf("{url: \"other://app:%s@%s/e2e\"}", word, s.addr),
		"the password alone":             fmt.Sprintf("{url: %s}", word),
		"a key that is none":             fmt.Sprintf("{url: %q, password: %s}", s.url(""), word),
		"a key that is none, in lines":   fmt.Sprintf("\n    url: %q\n    password: %s", s.url(""), word),
		"a number beside it":             fmt.Sprintf("{url: %q, max_connections: many}", s.url(word)),
		"no map":                         s.url(word),
		"quotes that do not end":         fmt.Sprintf("{url: \"%s}", s.url(word)),
		"a database that does not exist": fmt.Sprintf("{url: \"%s://app:%s@%s/none\"}", s.engine, word, s.addr),
	}
}

// absences are databases that can't be reached, which can be temporary, so serve waits for them.
func (s *secretRun) absences() map[string]string {
	word := marker + "-9"
	return map[string]string{
		"another name behind the at": fmt.Sprintf("{url: \"%s://app:%s@nowhere.invalid/e2e\"}", s.engine, word),
		"a port without a server":    fmt.Sprintf("{url: \"%s://app:%s@127.0.0.1:1/e2e\"}", s.engine, word),
	}
}

// awaits starts a sidecar that waits for its database.
func (s *secretRun) awaits(config string) {
	s.t.Helper()
	sc := s.s.Sidecar("awaits")
	sc.ConfigFile, sc.Socket = config, strings.TrimSuffix(config, ".yaml")+".sock"
	sc.Start()
	for _, ask := range [][]string{{"status"}, {"status", "--json"}, {"stats"}, {"reload"}} {
		_, _ = s.run(nil, append(ask, "--socket", sc.Socket)...)
	}
	s.admin(strings.TrimSuffix(config, ".yaml") + ".admin")
	sc.Kill()
	log, err := os.ReadFile(sc.LogFile)
	if err != nil {
		s.t.Fatal(err)
	}
	if !bytes.Contains(log, []byte("the database cannot be opened")) {
		s.t.Errorf("it does not say that it waits:\n%s", log)
	}
	s.keep("the log of one that waits", string(log))
}

// wrong runs every command with each mistake.
func (s *secretRun) wrong() {
	s.t.Helper()
	for name, wrong := range s.mistakes() {
		config := s.config("wrong", wrong)
		for _, command := range [][]string{{"serve"}, {"check", "--json"}} {
			if out, code := s.run(nil, append(command, "--config", config)...); code == 0 {
				s.t.Errorf("%s: %v went well\n%s", name, command, out)
			}
		}
	}
	for name, away := range s.absences() {
		config := s.config("away", away)
		if out, code := s.run(nil, "check", "--json", "--config", config); code == 0 {
			s.t.Errorf("%s: check went well\n%s", name, out)
		}
		s.awaits(config)
	}
	for _, bad := range []string{"//app:" + marker + "/x@db/e2e", "//app:" + marker + "-9@" + s.addr + "/e2e"} {
		bad = s.engine + ":" + bad
		for _, command := range [][]string{{"serve"}, {"check"}, {"adopt", "jobs"}, {"stdio", "--config", "/dev/null"}} {
			_, _ = s.run([]string{"QSIDECAR_DATABASE=" + bad}, command...)
			_, _ = s.run([]string{"QSIDECAR_DATABASE=@" + s.file("bad", bad)}, command...)
			if command[0] != "stdio" {
				if out, code := s.run(nil, append(command, "--database", bad)...); code == 0 {
					s.t.Errorf("%v --database %s went well\n%s", command, bad, out)
				}
			}
		}
	}
}
