package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

const (
	// debVersion is the version of the release's package, debNext that of the next one.
	debVersion, debNext = "1.2.3~rc.1", "1.2.3"

	// debsDir names the directory with both, for a process that runs as root and builds nothing.
	debsDir = "QSIDECAR_E2E_DEBS"
)

// debs returns a directory with the release's package and a later one of the same program.
func debs(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv(debsDir); dir != "" {
		return dir
	}
	r, err := released()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	name := "qsidecar-" + strings.TrimPrefix(releaseTag, "v") + "-linux-" + runtime.GOARCH
	for _, command := range [][]string{
		{"tar", "-xzf", filepath.Join(r.dist(), name+".tar.gz"), "-C", dir},
		{"cp", filepath.Join(r.dist(), debName(debVersion)), dir},
		{"scripts/deb.sh", filepath.Join(dir, name), runtime.GOARCH, debNext, dir},
	} {
		if err := runIn(r.clone, []string{"SOURCE_DATE_EPOCH=1800000000"}, command[0], command[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func debName(version string) string {
	return "qsidecar_" + version + "_" + runtime.GOARCH + ".deb"
}

// packaged is a machine on which the package is installed.
type packaged struct {
	*machine
}

// dpkg runs dpkg as an unattended upgrade does.
func (p *packaged) dpkg(args string) string {
	p.t.Helper()
	return p.do("DEBIAN_FRONTEND=noninteractive dpkg %s 2>&1", args)
}

func (p *packaged) install(version string) {
	p.t.Helper()
	p.dpkg("-i " + debName(version))
}

// states checks systemctl is-active or is-enabled of the socket and the service.
func (p *packaged) states(ask string, want string) {
	p.t.Helper()
	out, _ := p.try("systemctl " + ask + " qsidecar.socket qsidecar.service") // the exit status repeats the output
	if got := strings.Join(strings.Fields(out), " "); got != want {
		p.t.Errorf("%s of the socket and the service: %s, want %s", ask, got, want)
	}
}

// kept checks that the job of the first version exists.
func (p *packaged) kept() {
	p.t.Helper()
	if out := p.do("qsidecar peek kept --json"); !strings.Contains(out, "over an upgrade") {
		p.t.Errorf("the job is not there any more: %s", out)
	}
}

// TestDeb checks the package in a Debian booted by systemd: installed, upgraded under load,
// stopped, removed and purged, as Debian's own packages behave.
func TestDeb(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		againAsRoot(t, "deb", debsDir+"="+debs(t))
		return
	}
	endsWithStarter()
	dir := debs(t)
	p := &packaged{machine: boot(t)}
	for _, version := range []string{debVersion, debNext} {
		if err := runIn(dir, nil, "cp", debName(version), p.share); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		name string
		run  func(t *testing.T, p *packaged)
	}{
		{"install", debInstall},
		{"upgrade", debUpgrade},
		{"off", debOff},
		{"remove", debRemove},
		{"purge", debPurge},
	} {
		t.Run(step.name, func(t *testing.T) {
			began := kit.Monotonic()
			own := *p.machine
			own.t = t
			step.run(t, &packaged{&own})
			t.Logf("%s took %v", step.name, kit.Since(began).Round(time.Millisecond))
		})
	}
	if t.Failed() {
		return
	}
	if err := local.RanAsRoot("deb", "installed, upgraded, removed and purged in a Debian booted under systemd-nspawn"); err != nil {
		t.Fatal(err)
	}
}

// TestDebVersion checks that the output of git describe becomes a version that Debian sorts
// correctly, without a revision.
func TestDebVersion(t *testing.T) {
	t.Parallel()
	folder, out := t.TempDir(), t.TempDir()
	for _, file := range []string{"qsidecar", "LICENSES.txt", "man/qsidecar.1",
		"completions/qsidecar.bash", "completions/qsidecar.zsh", "completions/qsidecar.fish"} {
		if err := os.MkdirAll(filepath.Join(folder, filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, file), []byte("x\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := "0"
	for _, v := range [][2]string{ // each is later than the one before it
		{"0.0.0-20261122054554-0123456789ab+dirty", "0.0.0~20261122054554.0123456789ab+dirty"},
		{"1.3.0-0.20261122054554-0123456789ab", "1.3.0~0.20261122054554.0123456789ab"},
		{"1.3.0-rc.1", "1.3.0~rc.1"},
		{"1.3.0", "1.3.0"},
	} {
		if err := runIn(kit.Path("."), []string{"SOURCE_DATE_EPOCH=1800000000"}, "scripts/deb.sh", folder, runtime.GOARCH, v[0], out); err != nil {
			t.Fatal(err)
		}
		said, err := exec.Command("dpkg-deb", "-f", filepath.Join(out, debName(v[1])), "Version").Output()
		if got := strings.TrimSpace(string(said)); err != nil || got != v[1] {
			t.Errorf("the package of %s is of version %s (%v), want %s", v[0], got, err, v[1])
		}
		if err := exec.Command("dpkg", "--compare-versions", before, "lt", v[1]).Run(); err != nil {
			t.Errorf("%s is not before %s: %v", before, v[1], err)
		}
		before = v[1]
	}
}

// debInstall checks that it serves at once, as its own user, for members of the group.
func debInstall(t *testing.T, p *packaged) {
	p.install(debVersion)
	if said := p.dpkg("--verify qsidecar"); said != "" {
		t.Errorf("dpkg --verify: %s", said)
	}
	p.states("is-active", "active active")
	p.states("is-enabled", "enabled enabled")
	if got := p.do("stat -c %%U /proc/%s", p.property(unit, "MainPID")); got != "qsidecar" {
		t.Errorf("the service runs as %s", got)
	}
	if got := p.do("stat -c '%%U %%G %%a' %s", unitConfig); got != "root qsidecar 640" {
		t.Errorf("the config is %s", got)
	}
	p.do("setpriv --reuid qsidecar --regid qsidecar --init-groups qsidecar check --config %s", unitConfig)
	p.do("adduser --quiet games qsidecar-clients")
	p.do("setpriv --reuid games --regid games --init-groups qsidecar enqueue kept 'over an upgrade'")
	if got := p.do("qsidecar version"); !strings.HasPrefix(got, "qsidecar "+strings.TrimPrefix(releaseTag, "v")+" (") {
		t.Errorf("the program is %s", got)
	}
	p.do("systemd-analyze verify qsidecar.service qsidecar.socket")
	p.do("bash -c '. /usr/share/bash-completion/completions/qsidecar && complete -p qsidecar'")
}

// debUpgrade checks that no connection is refused, no job is lost or delivered twice, and a changed
// config stays.
func debUpgrade(t *testing.T, p *packaged) {
	p.do("echo 'drain_timeout: 300ms' >>%s; systemctl reload %s", unitConfig, unit)
	config, pid, socket := p.do("cat %s", unitConfig), p.property(unit, "MainPID"), p.property("qsidecar.socket", "ActiveEnterTimestampMonotonic")
	c := &callers{socket: p.path(unitSocket), over: make(chan struct{}), delivered: map[string]int{}}
	c.join(8, "worker", func(m *caller) { m.work("busy", func() {}) })
	c.join(4, "connecter", (*caller).connectRepeatedly)
	testwait.Until(t, "the clients work", func() bool { return c.jobs.Load() > 20 })
	p.install(debNext)
	worked := c.jobs.Load()
	testwait.Until(t, "the clients work on", func() bool { return c.jobs.Load() > worked+20 })
	c.stop(t)
	if now := p.property(unit, "MainPID"); now == pid || now == "0" {
		t.Errorf("after the upgrade the process is %s, and was %s", now, pid)
	}
	if now := p.property("qsidecar.socket", "ActiveEnterTimestampMonotonic"); now != socket {
		t.Error("the socket was created again")
	}
	if now := p.do("cat %s", unitConfig); now != config {
		t.Errorf("the changed config did not stay:\n%s", now)
	}
	if got := p.do("stat -c '%%U %%G %%a' %s", unitConfig); got != "root qsidecar 640" {
		t.Errorf("after the upgrade the config is %s", got)
	}
	p.kept()
	if got := p.do("dpkg-query -f '${Version} ${Status}' -W qsidecar"); got != debNext+" install ok installed" {
		t.Errorf("installed is %s", got)
	}
	kit.Figure(t, "an upgrade under 12 clients: %d connects, %d jobs, 0 refused", c.connects.Load(), c.jobs.Load())
}

// debOff checks that what the administrator stopped and disabled stays so.
func debOff(t *testing.T, p *packaged) {
	p.do("systemctl disable --now qsidecar.socket qsidecar.service 2>&1")
	p.install(debNext)
	p.states("is-active", "inactive inactive")
	p.states("is-enabled", "disabled disabled")
	p.do("systemctl enable --now qsidecar.socket qsidecar.service 2>&1")
	p.states("is-active", "active active")
}

// debRemove checks that the program and its process are removed, that config and jobs stay, and
// that a new installation uses them.
func debRemove(t *testing.T, p *packaged) {
	pid := p.property(unit, "MainPID")
	p.dpkg("-r qsidecar")
	p.fails("kill -0 %s", pid)
	p.fails("command -v qsidecar")
	p.do("! test -e %s", unitSocket)
	if said := p.dpkg("--audit"); said != "" {
		t.Errorf("dpkg --audit: %s", said)
	}
	p.do("grep -q drain_timeout %s", unitConfig)
	p.install(debNext)
	p.states("is-active", "active active")
	p.states("is-enabled", "enabled enabled")
	p.kept()
}

// debPurge checks that only the remaining jobs and the user are left.
func debPurge(t *testing.T, p *packaged) {
	if said := p.dpkg("-P qsidecar"); !strings.Contains(said, "/var/lib/qsidecar stays") {
		t.Errorf("it does not report that the jobs stay: %s", said)
	}
	left := p.do("find / -xdev -iname '*qsidecar*' ! -path '/proc/*' ! -path '/sys/*' ! -path '/share/*' ! -path '/var/lib/qsidecar/*' ! -path '/var/log/*' ! -path '/tmp/*' ! -path '/var/tmp/*'")
	if left != "/var/lib/qsidecar" {
		t.Errorf("a purge leaves:\n%s", left)
	}
	p.do("test -s /var/lib/qsidecar/qsidecar.db; getent passwd qsidecar; systemctl is-system-running")
}
