package system

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/debian"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// machine is a Debian booted by systemd in a container, on this host's network. Its disk is deleted
// with it, and it ends with this process.
type machine struct {
	t       testing.TB
	name    string
	share   string // a directory of this host, /share in the machine
	cgroups []string
	cmd     *exec.Cmd
	leader  int // its first process
}

// boot starts a machine. It needs root.
func boot(t testing.TB) *machine {
	t.Helper()
	root, took, err := debian.System(t.Context(), "bookworm")
	if err != nil {
		t.Fatal(err)
	}
	if took > 0 {
		kit.Figure(t, "debootstrap took %v", took.Round(time.Second))
	}
	sweepMachines(t)
	m := &machine{t: t, name: fmt.Sprintf("%s%d-%d", machineName, machines.Add(1), os.Getpid())}
	m.share = filepath.Join(os.TempDir(), m.name)
	if err := os.Mkdir(m.share, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.remove)
	// nspawn is the first process of a new PID namespace. When it ends, all its processes end, and
	// it ends with this process (nspawn alone would leave the machine behind).
	args := []string{"unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--",
		"systemd-nspawn", "--quiet", "--directory=" + root, "--machine=" + m.name, "--volatile=overlay", "--register=no", "--keep-unit",
		"--bind=" + m.share + ":/share", "--console=pipe", "--resolv-conf=off", "--timezone=off", "--link-journal=no", "--boot"}
	if _, err := os.Stat("/run/systemd/system"); err == nil { // this host's systemd manages the control groups
		args = append([]string{"systemd-run", "--quiet", "--scope", "--property=Delegate=yes", "--unit=" + m.name, "--"}, args...)
	} else {
		m.makeCgroups()
		enter := `for group in $GROUPS_OF_IT; do echo 0 >"$group/cgroup.procs"; done; exec "$@"`
		args = append([]string{"sh", "-c", enter, "sh"}, args...)
	}
	m.cmd = exec.Command(args[0], args[1:]...)
	m.cmd.Env = append(os.Environ(), "GROUPS_OF_IT="+strings.Join(m.cgroups, " "))
	console, err := os.Create(filepath.Join(m.share, "console"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	m.cmd.Stdout, m.cmd.Stderr = console, console
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := kit.Monotonic()
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the machine has a first process", func() bool { return m.findLeader() })
	testwait.Until(t, "systemd has booted", func() bool {
		out, _ := m.try("systemctl is-system-running --wait") // fails until systemd runs
		return strings.TrimSpace(out) == "running"
	})
	t.Logf("systemd booted in %v", kit.Since(began).Round(time.Millisecond))
	return m
}

// machineName is the prefix of a machine's name. A number and this process's id follow.
const machineName = "qsidecar-test-"

// machines counts the machines of this process.
var machines atomic.Int32

// machineDirs returns the directories on this host that a machine can use.
func machineDirs(name string) []string {
	return []string{filepath.Join(os.TempDir(), name), "/run/systemd/nspawn/propagate/" + name,
		"/sys/fs/cgroup/systemd/" + name, "/sys/fs/cgroup/unified/" + name, "/sys/fs/cgroup/" + name}
}

// sweepMachines removes the leftovers of runs that were killed. Their machines ended with them.
func sweepMachines(t testing.TB) {
	for _, pattern := range machineDirs(machineName + "*") {
		left, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range left {
			pid, err := strconv.Atoi(dir[strings.LastIndexByte(dir, '-')+1:])
			if err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
				_ = removeFolder(dir) // another run can remove it at the same time
			}
		}
	}
}

// makeCgroups creates control groups for the machine.
func (m *machine) makeCgroups() {
	m.t.Helper()
	for _, at := range []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(at, "cgroup.procs")); err != nil {
			continue
		}
		group := filepath.Join(at, m.name)
		if err := os.Mkdir(group, 0o755); err != nil {
			m.t.Fatal(err)
		}
		m.cgroups = append(m.cgroups, group)
	}
}

// removeFolder removes a directory. Of a control group only the groups in it can be removed.
func removeFolder(dir string) error {
	if !strings.HasPrefix(dir, "/sys/") {
		return os.RemoveAll(dir)
	}
	inner, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range inner {
		if e.IsDir() {
			if err := removeFolder(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// findLeader finds the machine's first process: nspawn's child, two namespaces below.
func (m *machine) findLeader() bool {
	m.t.Helper()
	if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.cmd.Process.Pid)); err != nil || bytes.Contains(state, []byte(") Z ")) {
		m.t.Fatalf("systemd-nspawn ended:\n%s", m.console())
	}
	nspawn := childOf(m.cmd.Process.Pid, `\d+\t1`)
	m.leader = childOf(nspawn, `\d+\t\d+\t1`)
	return m.leader != 0
}

// childOf returns a process's child with these PIDs in its namespaces, from this process's on, or 0
// if there is none.
func childOf(parent int, pids string) int {
	wanted := regexp.MustCompile(fmt.Sprintf(`(?s)\nPPid:\t%d\n.*\nNSpid:\t%s\n`, parent, pids))
	all, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		panic(err) // the pattern is constant
	}
	for _, file := range all {
		status, err := os.ReadFile(file) // an error means that it has ended
		if err == nil && wanted.Match(status) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	return 0
}

// try runs a script in the machine, as root in /share.
func (m *machine) try(script string) (out string, err error) {
	cmd := exec.Command("nsenter", "--target", strconv.Itoa(m.leader), "--all", "sh", "-ec", "cd /share; "+script)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	both, err := cmd.CombinedOutput()
	return string(both), err
}

// do runs a script that must succeed.
func (m *machine) do(format string, args ...any) string {
	m.t.Helper()
	script := fmt.Sprintf(format, args...)
	out, err := m.try(script)
	if err != nil {
		m.t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return strings.TrimSpace(out)
}

// fails runs a script that must fail.
func (m *machine) fails(format string, args ...any) string {
	m.t.Helper()
	script := fmt.Sprintf(format, args...)
	out, err := m.try(script)
	if err == nil {
		m.t.Fatalf("%s\nsucceeded:\n%s", script, out)
	}
	return out
}

// property returns a property of a unit.
func (m *machine) property(unit, name string) string {
	m.t.Helper()
	return m.do("systemctl show --value -p %s %s", name, unit)
}

// journal returns the log of a unit and systemd's messages about it.
func (m *machine) journal(unit string) string {
	m.t.Helper()
	return m.do("journalctl --sync && journalctl --no-pager -o cat -u %s", unit) // it writes what it received with a delay
}

// write writes a file in the machine.
func (m *machine) write(name, text string) {
	m.t.Helper()
	at := filepath.Join(m.share, "written")
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
	m.do("install -D -m 644 written %s", name)
}

// path returns the path of a machine's file from this host.
func (m *machine) path(name string) string { return fmt.Sprintf("/proc/%d/root%s", m.leader, name) }

func (m *machine) console() []byte {
	text, err := os.ReadFile(filepath.Join(m.share, "console"))
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(text)
}

// remove ends the machine, and shows its output if the test failed.
func (m *machine) remove() {
	if m.leader != 0 && m.t.Failed() {
		said, err := m.try("journalctl --no-pager -n 200")
		m.t.Logf("the machine's journal ends (%v):\n%s\nand its console:\n%s", err, said, m.console())
	}
	if m.cmd != nil && m.cmd.Process != nil {
		_ = m.cmd.Process.Kill() // it may have ended
		_ = m.cmd.Wait()
	}
	for _, dir := range machineDirs(m.name) {
		testwait.Until(m.t, dir+" is removed", func() bool { // a group can be removed when its processes have ended
			err := removeFolder(dir)
			return err == nil || os.IsNotExist(err)
		})
	}
}
