package system

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/debian"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// asRoot is set in the process that runs a test as root for one that does not run as root.
const asRoot = "QSIDECAR_E2E_AS_ROOT"

// service is the sidecar as a systemd service in a machine, with the files in deploy/systemd.
type service struct {
	*machine
	page string // README.md, whose commands are run
}

const (
	unit        = "qsidecar.service"
	unitSocket  = "/run/qsidecar/qsidecar.sock"
	unitConfig  = "/etc/qsidecar/config.yaml"
	unitProgram = "/usr/local/bin/qsidecar"
)

// TestSystemd installs and uses the files in deploy/systemd with the commands of their page, in a
// Debian booted by systemd.
func TestSystemd(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		againAsRoot(t, "systemd")
		return
	}
	endsWithStarter()
	m := boot(t)
	page := installed(t, m)
	for _, step := range []struct {
		name string
		run  func(t *testing.T, s *service)
	}{
		{"install", unitInstall},
		{"users", unitUsers},
		{"sandbox", unitSandbox},
		{"reload", unitReload},
		{"restart", unitRestart},
		{"stop", unitStop},
		{"killed", unitKilled},
		{"worker", unitWorker},
		{"database", unitDatabase},
		{"stuck", unitStuck},
		{"off", unitOff},
	} {
		t.Run(step.name, func(t *testing.T) {
			began := kit.Monotonic()
			step.run(t, m.service(t, page))
			t.Logf("%s took %v", step.name, kit.Since(began).Round(time.Millisecond))
		})
	}
	if t.Failed() {
		return
	}
	if err := local.RanAsRoot("systemd", "booted under systemd-nspawn: "+m.do("systemctl --version | head -n 1")); err != nil {
		t.Fatal(err)
	}
}

// endsWithStarter ends this process with the process that runs it as root, if there is one.
func endsWithStarter() {
	if os.Getenv(asRoot) != "" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // until that process has ended in any way
			os.Exit(1)
		}()
	}
}

// againAsRoot runs this test in another process of this program, as root. what is the argument of
// local.RanAsRoot.
func againAsRoot(t *testing.T, what string, env ...string) {
	t.Helper()
	if os.Getenv(asRoot) != "" {
		t.Fatal("sudo did not give root")
	}
	env = append(env, asRoot+"=1", "QSIDECAR_BIN="+kit.Binary, "PATH="+os.Getenv("PATH"))
	for _, name := range []string{"QSIDECAR_SOAK", debian.EnvMirror, "XDG_CACHE_HOME"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	cmd := local.AsRoot(t.Context(), "env", append(env, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")...)
	stdin, err := cmd.StdinPipe() // it ends when this process ends in any way
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := cmd.CombinedOutput()
	t.Logf("as root:\n%s", out)
	if err != nil {
		t.Fatalf("as root: %v (this test needs root, or sudo without a password)", err)
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if output, ok := strings.CutPrefix(line, "figure: "+t.Name()); ok {
			kit.Figure(t, "%s", output)
		}
	}
	if err := local.RanAsRoot(what, "by sudo, booted under systemd-nspawn"); err != nil {
		t.Fatal(err)
	}
}

// commands returns the commands of a block of the page, after <!-- name -->.
func (s *service) commands(name string) string {
	s.t.Helper()
	found := regexp.MustCompile("(?s)<!-- " + name + " -->\n```sh\n(.*?)```").FindStringSubmatch(s.page)
	if found == nil {
		s.t.Fatalf("deploy/systemd/README.md has no commands after <!-- %s -->", name)
	}
	return found[1]
}

// running returns the process that systemd runs, and how often it was restarted.
func (s *service) running() (pid, restarts string) {
	s.t.Helper()
	return s.property(unit, "MainPID"), s.property(unit, "NRestarts")
}

// restarted waits until another process serves.
func (s *service) restarted(was string) (pid string) {
	s.t.Helper()
	testwait.Until(s.t, "systemd runs another process", func() bool {
		pid = s.property(unit, "MainPID")
		return pid != was && pid != "0" && s.property(unit, "ActiveState") == "active"
	})
	return pid
}

func (s *service) dial() *kit.Conn {
	s.t.Helper()
	return kit.Dial(s.t, s.path(unitSocket))
}

// config writes a config and restarts the service.
func (s *service) config(text string) {
	s.t.Helper()
	s.write(unitConfig, text)
	s.do("systemctl restart %s", unit)
}

// service returns the machine's service for one test.
func (m *machine) service(t *testing.T, page string) *service {
	own := *m
	own.t = t
	return &service{machine: &own, page: page}
}

// installed copies this checkout to the machine, for the page's commands.
func installed(t *testing.T, m *machine) (page string) {
	t.Helper()
	root, err := local.Repository()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-r", filepath.Join(root, "deploy"), m.share).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program, err := os.ReadFile(kit.Binary)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(m.share, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := local.WriteProgram(filepath.Join(m.share, "bin", "qsidecar"), program); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "systemd", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// unitInstall installs the service as the page describes. systemd is notified when the sidecar
// serves.
func unitInstall(t *testing.T, s *service) {
	s.do("%s", s.commands("install"))
	for name, want := range map[string]string{"ActiveState": "active", "Type": "notify", "NRestarts": "0",
		"StatusText": "serving on " + unitSocket + ", database sqlite:/var/lib/qsidecar/qsidecar.db"} {
		if got := s.property(unit, name); got != want {
			t.Errorf("%s of the service is %q, want %q", name, got, want)
		}
	}
	s.do("%s", s.commands("try"))
	if out := s.fails("setpriv --reuid games --regid games --init-groups qsidecar ping"); !strings.Contains(out, "no permission to connect") {
		t.Errorf("a user outside of the socket's group gets: %s", out)
	}
	s.do("test ! -e %s.lock", unitSocket)
}

// unitSandbox checks systemd's rating of the units, and the restrictions of the process.
func unitSandbox(t *testing.T, s *service) {
	s.do("install -D -m 755 /dev/null /usr/local/lib/qsidecar/mail") // the command of the example of a worker
	if out := s.do("systemd-analyze verify qsidecar.service qsidecar.socket qsidecar-work@mail.service 2>&1"); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	out := s.do("systemd-analyze security --no-pager %s", unit)
	score := regexp.MustCompile(`Overall exposure level for qsidecar.service: ([\d.]+) (\w+)`).FindStringSubmatch(out)
	if score == nil {
		t.Fatalf("systemd-analyze security: %s", out)
	}
	var open []string
	for _, m := range regexp.MustCompile(`(?m)^✗ (\S+)`).FindAllStringSubmatch(out, -1) {
		open = append(open, strings.TrimSuffix(m[1], "="))
	}
	kit.Figure(t, "systemd-analyze security: exposure %s %s; open: %s", score[1], score[2], strings.Join(open, ", "))
	if score[1] > "1.5" {
		t.Errorf("an exposure of %s, want 1.5 at most:\n%s", score[1], out)
	}
	pid, _ := s.running()
	for what, want := range map[string]string{"NoNewPrivs": "1", "CapBnd": "0000000000000000", "CapEff": "0000000000000000", "Seccomp": "2"} {
		if got := s.do("sed -n 's/^%s:\t//p' /proc/%s/status", what, pid); got != want {
			t.Errorf("%s of the process is %s, want %s", what, got, want)
		}
	}
}

// unitUsers checks that rules by user and by group apply to processes of that user and group.
func unitUsers(t *testing.T, s *service) {
	s.config(`listen:
  - socket: ` + unitSocket + `
    allow:
      - {users: [root]}
      - {users: [root, qsidecar], ops: [ping, status, reload]}
      - {users: [www-data], ops: [enqueue], queues: [mail]}
      - {groups: [games], ops: [stats]}
`)
	as := func(user string) string {
		return "setpriv --reuid " + user + " --regid " + user + " --groups qsidecar-clients "
	}
	s.do("%s qsidecar enqueue mail hello", as("www-data"))
	s.do("%s qsidecar stats mail", as("games"))
	for _, refused := range []string{as("www-data") + "qsidecar stats mail", as("games") + "qsidecar enqueue mail hello",
		as("www-data") + "qsidecar enqueue other hello", as("news") + "qsidecar ping"} {
		if out := s.fails("%s", refused); !strings.Contains(out, "forbidden") {
			t.Errorf("%s: %s", refused, out)
		}
	}
	s.do("systemctl reload %s", unit) // as the sidecar's own user
	s.dial().Must(kit.Msg{"op": "purge", "queue": "mail", "state": "ready"})
}

// unitReload checks that changes are logged. A config that can't be loaded fails the reload with
// the reason, and the old one stays.
func unitReload(t *testing.T, s *service) {
	const good = "drain_timeout: 300ms\n"
	s.config(good)
	client := s.dial()
	generation := func() int { return client.Must(kit.Msg{"op": "status"}).Generation }
	client.Must(kit.Msg{"op": "ping"})
	before := generation()
	s.write(unitConfig, good+"limits: {jobs_per_connection: 77}\n")
	s.do("%s", s.commands("reload"))
	if got := generation(); got != before+1 {
		t.Errorf("after the reload generation %d runs, want %d", got, before+1)
	}
	if output := s.journal(unit); !strings.Contains(output, "limits.jobs_per_connection: 10000 → 77") {
		t.Errorf("the journal does not contain the changes:\n%s", output)
	}
	s.write(unitConfig, good+"limts: {}\n"+wrongKeys(300)) // with long errors
	out := s.fails("%s", s.commands("reload"))
	if !strings.Contains(out, "failed") {
		t.Errorf("systemctl reload of a bad config prints %q", out)
	}
	for where, output := range map[string]string{"the journal": s.journal(unit), "the status": s.property(unit, "StatusText"),
		"systemctl status": s.do("systemctl status --no-pager -n 20 %s", unit)} {
		if !strings.Contains(output, `unknown key "limts"`) {
			t.Errorf("%s does not contain why the reload failed:\n%s", where, output)
		}
	}
	if got := s.property(unit, "ActiveState"); got != "active" || generation() != before+1 {
		t.Errorf("after the refused reload the service is %s, generation %d", got, generation())
	}
	// The socket is systemd's, so a config can't remove it.
	s.write(unitConfig, good+"listen: [{socket: /run/qsidecar/other.sock}]\n")
	s.fails("systemctl reload %s", unit)
	if output := s.property(unit, "StatusText"); !strings.Contains(output, "hands over the socket "+unitSocket) {
		t.Errorf("the status does not name the missing socket: %s", output)
	}
	client.Must(kit.Msg{"op": "ping"})
	s.write(unitConfig, good)
	s.do("systemctl reload %s", unit)
	if output := s.property(unit, "StatusText"); strings.Contains(output, "NOT RUN") {
		t.Errorf("the status after a successful reload: %s", output)
	}
}

// wrongKeys returns config lines with unknown keys.
func wrongKeys(n int) (lines string) {
	for i := range n {
		lines += fmt.Sprintf("größe%d: {}\n", i)
	}
	return lines
}

// unitStop checks that a stop waits for workers with jobs, longer than TimeoutStopSec if the config
// sets a longer time. A later connection starts the service again.
func unitStop(t *testing.T, s *service) {
	s.write("/etc/systemd/system/"+unit+".d/stop.conf", "[Service]\nTimeoutStopSec=1s\n")
	defer s.do("rm /etc/systemd/system/%s.d/stop.conf; systemctl daemon-reload", unit)
	s.do("systemctl daemon-reload")
	s.config("drain_timeout: 60s\n")
	worker := s.dial()
	worker.Must(kit.Msg{"op": "hello", "events": []string{"draining"}})
	worker.Enqueue("stop", 3)
	job := worker.ClaimOne("stop")
	began := kit.Monotonic()
	stopped := make(chan error, 1)
	go func() {
		_, err := s.try("systemctl stop " + unit)
		stopped <- err
	}()
	if e := worker.Next(); e.Event != "draining" {
		t.Fatalf("a worker of a service that stops gets %+v", e)
	}
	if output := s.property(unit, "StatusText"); !strings.HasPrefix(output, "stopping") {
		t.Errorf("the status while it stops: %q", output)
	}
	// Another service with the same TimeoutStopSec that does not end is killed in the meantime.
	s.do(`systemd-run --quiet --unit=stubborn -p TimeoutStopSec=1s sh -c 'trap "" TERM; touch /run/stubborn; while :; do sleep 1000; done'
		while ! test -e /run/stubborn; do sleep 0.05; done; systemctl stop stubborn`)
	worker.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if got := s.property(unit, "Result"); got != "success" {
		t.Errorf("the service's result is %s, want success", got)
	}
	kit.Figure(t, "a stop waited %v for a worker's ack, with TimeoutStopSec=1s", kit.Since(began).Round(100*time.Millisecond))
	// Its socket exists: this connects, and a new service process serves it.
	again := s.dial()
	if left := again.Stats("stop"); left.Ready != 2 || left.Total() != 2 {
		t.Errorf("after the stop the queue has %+v, want 2 ready jobs", left)
	}
	again.Must(kit.Msg{"op": "purge", "queue": "stop", "state": "ready"})
}

// unitKilled checks that a killed process is restarted, and that no connection is refused in the
// meantime.
func unitKilled(t *testing.T, s *service) {
	s.config("{}\n")
	worker := s.dial()
	worker.Enqueue("killed", 1)
	job := worker.ClaimOne("killed")
	pid, restarts := s.running()
	s.do("systemctl kill --signal=KILL %s", unit)
	worker.WantClosed()
	again := s.dial()
	again.Must(kit.Msg{"op": "extend", "lease": job.Lease, "bind": true})
	again.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	if s.restarted(pid) == pid || s.property(unit, "NRestarts") == restarts {
		t.Error("it was not restarted")
	}
}

// unitOff checks that the service is off once it is stopped with its socket.
func unitOff(t *testing.T, s *service) {
	s.do("systemctl stop qsidecar.socket qsidecar.service")
	if _, err := kit.DialWire(s.path(unitSocket)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dial: %v, want no such file", err)
	}
}
