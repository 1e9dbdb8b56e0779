package deploy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// container describes a container for a runtime: the image, read-only, and mounts.
type container struct {
	img    *image
	user   string // UID:GID
	groups []string
	args   []string // including the program
	env    []string
	mounts []mount
	stdin  *os.File

	// ownNetwork gives it a network namespace without any interface.
	ownNetwork bool
}

type mount struct {
	from, to string
	readOnly bool
}

// container returns a container that runs the image as its config defines, with further arguments.
func (i *image) container(args ...string) container {
	return container{
		img: i, user: i.config.User, env: i.config.Env,
		args: slices.Concat(i.config.Entrypoint, args),
	}
}

// process is a running container.
type process struct {
	t     *testing.T
	c     container
	cmd   *exec.Cmd
	pid   int // process id of the program on this host
	ended chan struct{}
	out   lockedBuffer
}

// prepare guards the creation of mount points in the image's files.
var prepare sync.Mutex

// start runs the container under bwrap as process 1, with its own mounts, processes, IPC and host
// name, without privileges, and with nothing writable except mounts.
func (c container) start(t *testing.T) *process {
	t.Helper()
	bwrap := []string{
		"bwrap", "--ro-bind", c.img.rootfs, "/", "--proc", "/proc", "--dev", "/dev",
		"--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--as-pid-1", "--die-with-parent",
		"--info-fd", "9", "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--clearenv", "--chdir", "/",
	}
	if c.ownNetwork {
		bwrap = append(bwrap, "--unshare-net")
	}
	for _, e := range c.env {
		key, value, _ := strings.Cut(e, "=")
		bwrap = append(bwrap, "--setenv", key, value)
	}
	prepare.Lock()
	for _, m := range append([]mount{{"/", "/proc", true}, {"/", "/dev", true}}, c.mounts...) {
		c.img.place(t, m)
	}
	prepare.Unlock()
	for _, m := range c.mounts {
		bwrap = append(bwrap, map[bool]string{true: "--ro-bind", false: "--bind"}[m.readOnly], m.from, m.to)
	}
	uid, gid, ok := strings.Cut(c.user, ":")
	if !ok {
		t.Fatalf("the user %q has no group", c.user)
	}
	// The last step is not a file of the container, so it runs through a descriptor.
	bwrap = append(bwrap, "/proc/self/fd/8", uid, gid, strings.Join(c.groups, ","))
	dir := folder(t)
	info := filepath.Join(dir, "info")
	sh := []string{"-c", `helper=$1 info=$2; shift 2; exec 8<"$helper" 9>"$info"; exec "$@"`, "sh", become(t), info}
	p := &process{t: t, c: c, cmd: asRoot("sh", slices.Concat(sh, bwrap, c.args)...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if c.stdin != nil {
		p.cmd.Stdin = c.stdin
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // the process state has the result
		close(p.ended)
	}()
	t.Cleanup(p.clean)
	testwait.Until(t, "bwrap reports the process", func() bool {
		var said struct {
			PID int `json:"child-pid"`
		}
		text, err := os.ReadFile(info)
		if err == nil && json.Unmarshal(text, &said) == nil {
			p.pid = said.PID
		}
		return p.pid != 0 || p.gone()
	})
	return p
}

// startWithInput starts it with a stdin to which line writes a line.
func (c container) startWithInput(t *testing.T) (p *process, line func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdin = r
	p = c.start(t)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	return p, func() {
		t.Helper()
		if _, err := w.WriteString("\n"); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// run runs the container to its end.
func (c container) run(t *testing.T) (exit int, out string) {
	t.Helper()
	p := c.start(t)
	return p.wait(), p.out.String()
}

// place creates a mount point in the image's files.
func (i *image) place(t *testing.T, m mount) {
	t.Helper()
	at := filepath.Join(i.rootfs, m.to)
	if asRoot("test", "-e", at).Run() == nil {
		return
	}
	info, err := os.Stat(m.from)
	if err != nil {
		t.Fatalf("what is to be mounted at %s: %v", m.to, err)
	}
	output(t, asRoot("mkdir", "-p", filepath.Dir(at)))
	output(t, asRoot(map[bool]string{true: "mkdir", false: "touch"}[info.IsDir()], at))
}

func (p *process) gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// wait waits until the container has ended by itself and returns its exit code.
func (p *process) wait() int {
	p.t.Helper()
	testwait.Closed(p.t, "the container ends", p.ended)
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	output(p.t, asRoot("kill", fmt.Sprintf("-%d", sig), fmt.Sprint(p.pid)))
}

func (p *process) clean() {
	if !p.gone() && p.pid != 0 {
		_ = asRoot("kill", "-9", fmt.Sprint(p.pid)).Run() // it may have ended
	}
	defer func() {
		if p.t.Failed() {
			p.t.Logf("output of %s:\n%s", strings.Join(p.c.args, " "), p.out.String())
		}
	}()
	testwait.Closed(p.t, "the container dies", p.ended)
}

// exec runs a program inside the running container, as a probe does, with its files, user and
// environment.
func (p *process) exec(args ...string) (exit int, out string) {
	p.t.Helper()
	uid, gid, _ := strings.Cut(p.c.user, ":")
	enter := []string{"-i"}
	enter = append(enter, p.c.env...)
	if i := slices.IndexFunc(p.c.env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }); i >= 0 {
		args[0] = cmp.Or(p.c.img.lookPath(p.c.env[i][len("PATH="):], args[0]), args[0])
	}
	enter = append(enter, nsenter(), "--target", fmt.Sprint(p.pid), "--mount", "--pid", "--ipc", "--uts", "--net", "--root", "--wdns=/", "--setuid", uid, "--setgid", gid, "--")
	cmd := asRoot("env", append(enter, args...)...)
	said, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		p.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(said)
}

func nsenter() string {
	path, err := exec.LookPath("nsenter")
	if err != nil {
		return "nsenter" // running it reports that it is missing
	}
	return path
}

// lookPath finds a program as the container would.
func (i *image) lookPath(path, name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	for _, dir := range filepath.SplitList(path) {
		if asRoot("test", "-x", filepath.Join(i.rootfs, dir, name)).Run() == nil {
			return filepath.Join(dir, name)
		}
	}
	return ""
}

// status returns a line of the program's /proc/PID/status.
func (p *process) status(key string) string {
	p.t.Helper()
	for line := range strings.Lines(output(p.t, asRoot("cat", fmt.Sprintf("/proc/%d/status", p.pid)))) {
		if k, v, _ := strings.Cut(line, ":"); k == key {
			return strings.Join(strings.Fields(v), " ")
		}
	}
	p.t.Fatalf("/proc/%d/status has no %s", p.pid, key)
	return ""
}

var helpers sync.Once

// buildHelpers builds the programs of this module's tests, once.
func buildHelpers(t *testing.T) {
	t.Helper()
	helpers.Do(func() {
		cmd := exec.Command("go", "build", "-trimpath", "-o", work+"/", "./internal/become", "./internal/app")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		output(t, cmd)
	})
}

// become returns the last step of a container's start.
func become(t *testing.T) string {
	t.Helper()
	buildHelpers(t)
	return filepath.Join(work, "become")
}

// theApp returns an application's image, which contains nothing of this project.
func theApp(t *testing.T) *image {
	t.Helper()
	buildHelpers(t)
	app := &image{rootfs: folder(t), config: imageConfig{Entrypoint: []string{"/app"}}}
	output(t, exec.Command("cp", filepath.Join(work, "app"), app.rootfs))
	return app
}

// lockedBuffer collects output. It is safe for concurrent use.
type lockedBuffer struct {
	sync.Mutex
	b bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.Lock()
	defer l.Unlock()
	return l.b.String()
}
