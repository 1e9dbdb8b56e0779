package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// socketLists returns commands that print the paths at which a client looks for the sidecar's
// socket, in order. They run in a folder with copies of the clients.
func socketLists() map[string][]string {
	return map[string][]string{
		"python": {"python3", "-c", "from qsidecar._wire import sockets\nprint(*sockets())"},
		"ruby":   {"ruby", "-r", "qsidecar", "-e", "puts Qsidecar::Connection.sockets"},
		"shell":  {"sh", "-c", ". shell/qsidecar.sh && _qsidecar_sockets"},
		"php": {"php", "-r", `preg_match('/^function sockets.*?^}/ms', file_get_contents("examples/worker.php"), $m);
		eval($m[0]); echo implode(" ", sockets());`},
		"perl": {"perl", "-0777", "-ne", `/^(sub sockets.*?^})/ms and eval $1; print join " ", sockets()`, "examples/worker.pl"},
	}
}

// TestSocketsAreTriedInOneOrder checks that the program and every client look for the socket at
// the same paths, as a user other than root.
func TestSocketsAreTriedInOneOrder(t *testing.T) {
	dir := kit.NewSite(t).Dir
	for _, folder := range []string{"python", "ruby", "shell", "examples"} { // the checkout can be closed to another user
		command(t, "cp", "-R", kit.Path("clients/"+folder), dir)
	}
	state := filepath.Join(dir, "own", "qsidecar")
	for _, path := range []string{state, filepath.Join(dir, ".local", "state", "qsidecar")} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const system, run = "/run/qsidecar/qsidecar.sock", "/nowhere/qsidecar/qsidecar.sock"
	home := filepath.Join(dir, ".local", "state", "qsidecar", "qsidecar.sock")
	for _, row := range []struct {
		env  []string
		want []string
	}{
		{nil, []string{system}},
		{[]string{"HOME=" + dir}, []string{home, system}},
		{[]string{"HOME=" + dir, "XDG_STATE_HOME=" + filepath.Join(dir, "own")}, []string{state + "/qsidecar.sock", system}},
		{[]string{"HOME=" + dir, "XDG_STATE_HOME=" + filepath.Join(dir, "none")}, []string{system}},
		{[]string{"XDG_RUNTIME_DIR=/nowhere", "HOME=" + dir}, []string{run, home, system}},
		{[]string{"XDG_RUNTIME_DIR=/nowhere", "HOME=/none"}, []string{run, system}},
		{[]string{"XDG_RUNTIME_DIR=", "HOME=", "QSIDECAR_SOCKET="}, []string{system}},
		{[]string{"XDG_RUNTIME_DIR=/nowhere", "HOME=" + dir, "QSIDECAR_SOCKET=/nowhere/x.sock"}, []string{"/nowhere/x.sock"}},
	} {
		for name, argv := range socketLists() {
			if got := printedSockets(t, dir, argv, row.env); !slices.Equal(got, row.want) {
				t.Errorf("%s with %v: %v, want %v", name, row.env, got, row.want)
			}
		}
		if os.Geteuid() == 0 {
			row.want = slices.DeleteFunc(row.want, func(path string) bool { return strings.HasPrefix(path, dir) })
		}
		for _, name := range []string{"HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "QSIDECAR_SOCKET"} {
			t.Setenv(name, "")
		}
		for _, v := range row.env {
			name, value, _ := strings.Cut(v, "=")
			t.Setenv(name, value)
		}
		for name, got := range map[string][]string{"Go": qsidecar.Sockets(), "program": config.Input{Env: os.LookupEnv}.Sockets()} {
			if !slices.Equal(got, row.want) {
				t.Errorf("%s with %v: %v, want %v", name, row.env, got, row.want)
			}
		}
	}
}

var socketPath = regexp.MustCompile(`/\S+\.sock`)

// printedSockets runs a command in dir without root's rights, and returns the paths that it
// prints.
func printedSockets(t *testing.T, dir string, argv, env []string) []string {
	t.Helper()
	cmd := exec.CommandContext(testwait.Context(t), "/usr/bin/env", argv...) // finds it in the PATH below
	cmd.Env = append(slices.Clone(env), "PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONPATH=python", "RUBYLIB=ruby/lib")
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", argv, err)
	}
	return socketPath.FindAllString(string(out), -1)
}
