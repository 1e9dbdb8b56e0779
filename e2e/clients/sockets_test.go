package clients

import (
	"errors"
	"fmt"
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
		"node":   {"node", "-e", "console.log(...require('./node/lib/wire.js').sockets())"},
		"python": {"python3", "-c", "from qsidecar._wire import sockets\nprint(*sockets())"},
		"ruby":   {"ruby", "-r", "qsidecar", "-e", "puts Qsidecar::Connection.sockets"},
		"shell":  {"sh", "-c", ". shell/qsidecar.sh && _qsidecar_sockets"},
		"php": {"php", "-r", `preg_match('/^function sockets.*?^}/ms', file_get_contents("examples/worker.php"), $m);
		eval($m[0]); echo implode(" ", sockets());`},
	}
}

// TestSocketsAreTriedInOneOrder checks that the program and every client look for the socket at
// the same paths, as a user other than root.
func TestSocketsAreTriedInOneOrder(t *testing.T) {
	dir := kit.NewSite(t).Dir
	for _, folder := range []string{"node", "python", "ruby", "shell", "examples"} { // the checkout can be closed to another user
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
			if got := printedSockets(t, dir, argv, row.env, unprivileged()); !slices.Equal(got, row.want) {
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

// unprivileged returns the credential of a command that has no rights of root.
func unprivileged() *syscall.SysProcAttr {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// clientCommand is a command that uses the copies of the clients in dir.
func clientCommand(t *testing.T, dir string, argv, env []string, as *syscall.SysProcAttr) *exec.Cmd {
	cmd := exec.CommandContext(testwait.Context(t), "/usr/bin/env", argv...) // finds it in the PATH below
	cmd.Env = append(slices.Clone(env), "PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONPATH=python", "RUBYLIB=ruby/lib", "LANG=C.UTF-8")
	cmd.Dir = dir
	cmd.SysProcAttr = as
	return cmd
}

// printedSockets runs a command in dir, and returns the paths that it prints.
func printedSockets(t *testing.T, dir string, argv, env []string, as *syscall.SysProcAttr) []string {
	t.Helper()
	cmd := clientCommand(t, dir, argv, env, as)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", argv, err)
	}
	return socketPath.FindAllString(string(out), -1)
}

// TestRootTrustsNoOtherUsersRuntimeDirectory checks that root's clients don't look for a socket in a
// runtime directory of another user, as after `sudo -E`. That user could serve jobs of its own there.
func TestRootTrustsNoOtherUsersRuntimeDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it is about root")
	}
	dir := kit.NewSite(t).Dir
	const system = "/run/qsidecar/qsidecar.sock"
	for _, owner := range []struct {
		name         string
		outer, inner int
		want         bool
	}{{"root's", 0, 0, true}, {"another user's", 65534, 65534, false}, {"another user's below root's", 0, 65534, false}, {"root's below another user's", 65534, 0, false}} {
		run := filepath.Join(dir, strings.ReplaceAll(owner.name, " ", "-"))
		own := filepath.Join(run, "qsidecar")
		if err := errors.Join(os.MkdirAll(own, 0o755), os.Chown(run, owner.outer, -1), os.Chown(own, owner.inner, -1)); err != nil {
			t.Fatal(err)
		}
		want := []string{system}
		if owner.want {
			want = []string{own + "/qsidecar.sock", system}
		}
		for name, argv := range socketLists() {
			t.Run(name+" with "+owner.name, func(t *testing.T) {
				if got := printedSockets(t, kit.Path("clients"), argv, []string{"XDG_RUNTIME_DIR=" + run}, nil); !slices.Equal(got, want) {
					t.Errorf("%v, want %v", got, want)
				}
			})
		}
		t.Setenv("QSIDECAR_SOCKET", "")
		t.Setenv("XDG_RUNTIME_DIR", run)
		for name, got := range map[string][]string{"Go": qsidecar.Sockets(), "program": config.Input{Env: os.LookupEnv}.Sockets()} {
			if !slices.Equal(got, want) {
				t.Errorf("%s with %s: %v, want %v", name, owner.name, got, want)
			}
		}
	}
}

// envGoClient makes TestGoClientProcess a client.
const envGoClient = "QSIDECAR_TEST_GO_CLIENT"

// TestGoClientProcess is the Go client in a process of another user.
func TestGoClientProcess(t *testing.T) {
	if os.Getenv(envGoClient) == "" {
		return // TestClosedSocketIsPassedOver runs it
	}
	c, err := qsidecar.Dial(testwait.Context(t), qsidecar.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// TestClosedSocketIsPassedOver checks that each client tries the next path if the first one is
// closed to it or too long. If no path works, the error lists all of them.
func TestClosedSocketIsPassedOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can close a directory to its clients")
	}
	s := kit.NewSite(t)
	for _, folder := range []string{"node", "python", "ruby", "shell", "examples"} {
		command(t, "cp", "-R", kit.Path("clients/"+folder), s.Dir)
	}
	closed := filepath.Join(s.Dir, "run", "qsidecar")
	state := filepath.Join(s.Dir, "state", "qsidecar")
	for path, mode := range map[string]os.FileMode{closed: 0o700, state: 0o755} {
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	a := s.Sidecar("a")
	socket := filepath.Join(state, "qsidecar.sock")
	text := fmt.Sprintf("listen:\n  - {socket: %s, mode: \"0666\"}\ndatabases:\n  main: {url: %q}\nqueues:\n  \"*\": {}\n", socket, s.URL)
	if err := os.WriteFile(a.ConfigFile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	a.Socket = socket
	a.Start()
	clients := map[string][]string{
		"node":    {"node", "-e", "const c = new (require('./node').Client)(); c.enqueue('q', 'x')"},
		"python":  {"python3", "-c", "from qsidecar import Client\nClient().enqueue('q', 'x')"},
		"ruby":    {"ruby", "-r", "qsidecar", "-e", "Qsidecar::Client.new.enqueue('q', 'x')"},
		"shell":   {"sh", "-c", ". shell/qsidecar.sh && qsidecar_socket"},
		"php":     {"php", "examples/worker.php", "q", "x"},
		"program": {kit.Binary, "enqueue", "q", "x"},
		"stdio":   {"sh", "-c", "echo '{\"op\":\"ping\"}' | " + kit.Binary + " stdio"},
		"Go":      {"/proc/self/exe", "-test.run=^TestGoClientProcess$"},
	}
	env := func(run, home string) []string {
		return []string{"XDG_RUNTIME_DIR=" + run, "XDG_STATE_HOME=" + home, "HOME=" + s.Dir, "QSIDECAR_CONFIG=none", envGoClient + "=1", "QSIDECAR_BIN=" + kit.Binary}
	}
	long := filepath.Join(s.Dir, strings.Repeat("x", 120))
	for name, argv := range clients {
		for _, run := range []string{filepath.Dir(closed), long} {
			t.Run(name+" with "+filepath.Base(run)[:1], func(t *testing.T) {
				cmd := clientCommand(t, s.Dir, argv, env(run, filepath.Dir(state)), unprivileged())
				if name == "Go" {
					cmd.Path, cmd.Args = argv[0], argv
				}
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
		if name == "php" {
			continue // it waits for a sidecar
		}
		t.Run(name+" with no sidecar", func(t *testing.T) {
			cmd := clientCommand(t, s.Dir, argv, env(filepath.Dir(closed), filepath.Join(s.Dir, "none")), unprivileged())
			if name == "Go" {
				cmd.Path, cmd.Args = argv[0], argv
			}
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("it connected: %s", out)
			}
			for _, path := range []string{filepath.Join(closed, "qsidecar.sock"), "/run/qsidecar/qsidecar.sock"} {
				if !strings.Contains(string(out), path) {
					t.Errorf("the error doesn't list %s: %s", path, out)
				}
			}
			if name != "shell" && name != "stdio" && !(strings.Contains(string(out), "start one") && strings.Contains(string(out), "QSIDECAR_SOCKET")) {
				t.Errorf("the error doesn't name the cure: %s", out)
			}
		})
	}
}

// TestSocketsAreNotURLs checks that clients report a socket that is written as a URL, with the path to write, and don't try to reach it.
func TestSocketsAreNotURLs(t *testing.T) {
	dir := kit.NewSite(t).Dir
	for _, folder := range []string{"node", "python", "ruby", "shell", "examples"} {
		command(t, "cp", "-R", kit.Path("clients/"+folder), dir)
	}
	commands := map[string][]string{
		"node":          {"node", "-e", "new (require('./node').Client)().ping()"},
		"node worker":   {"node", "-e", "new (require('./node').Worker)({q() {}}).run()"},
		"node option":   {"node", "-e", "new (require('./node').Client)({socket: process.env.QSIDECAR_SOCKET}).ping()"},
		"python":        {"python3", "-c", "import sys; sys.path.insert(0, 'python'); import qsidecar; qsidecar.Client().ping()"},
		"python worker": {"python3", "-c", "import sys; sys.path.insert(0, 'python'); import qsidecar; a = qsidecar.App(); a.job('q')(print); a.run()"},
		"python option": {"python3", "-c", "import os, sys; sys.path.insert(0, 'python'); import qsidecar; qsidecar.Client(os.environ['QSIDECAR_SOCKET']).ping()"},
		"ruby":          {"ruby", "-Iruby/lib", "-rqsidecar", "-e", "Qsidecar::Client.new.ping"},
		"ruby worker":   {"ruby", "-Iruby/lib", "-rqsidecar", "-e", "w = Qsidecar::Worker.new; w.job('q') {}; w.run"},
		"ruby option":   {"ruby", "-Iruby/lib", "-rqsidecar", "-e", "Qsidecar::Client.new(socket: ENV['QSIDECAR_SOCKET']).ping"},
		"shell":         {"sh", "-c", ". shell/qsidecar.sh && qsidecar_socket"},
		"php":           {"php", "examples/worker.php", "greet", "Ada"},
	}
	for _, url := range []string{"unix:///nowhere/x.sock", "unix:/nowhere/x.sock", "http://localhost:80", "localhost:9464"} {
		for name, argv := range commands {
			out, err := clientCommand(t, dir, argv, []string{"QSIDECAR_SOCKET=" + url}, nil).CombinedOutput()
			if err == nil || !strings.Contains(string(out), url+" is not a path") {
				t.Errorf("%s with %s: %v, %s", name, url, err, out)
			}
		}
		t.Setenv("QSIDECAR_SOCKET", url)
		for name, socket := range map[string]string{"Go": "", "Go with an option": url} {
			_, err := qsidecar.Dial(t.Context(), qsidecar.Options{Socket: socket})
			if _, ok := errors.AsType[*qsidecar.DialError](err); !ok || !strings.Contains(err.Error(), url+": it is not a path: write /") {
				t.Errorf("%s with %s: %v", name, url, err)
			}
		}
	}
}

// TestSocketsThatAreOtherFiles checks that clients report a folder or a file in place of the socket, and a ~, which no shell has replaced.
func TestSocketsThatAreOtherFiles(t *testing.T) {
	dir := kit.NewSite(t).Dir
	for _, folder := range []string{"node", "python", "ruby"} {
		command(t, "cp", "-R", kit.Path("clients/"+folder), dir)
	}
	commands := map[string][]string{
		"node":   {"node", "-e", "new (require('./node').Client)().ping()"},
		"python": {"python3", "-c", "import sys; sys.path.insert(0, 'python'); import qsidecar; qsidecar.Client().ping()"},
		"ruby":   {"ruby", "-Iruby/lib", "-rqsidecar", "-e", "Qsidecar::Client.new.enqueue('q', 1)"},
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for socket, want := range map[string]string{
		dir:        "it is a folder: name the socket in it",
		file:       "it is a file, and not a socket",
		"~/q.sock": "~ isn't replaced here: write the whole path",
	} {
		for name, argv := range commands {
			out, err := clientCommand(t, dir, argv, []string{"QSIDECAR_SOCKET=" + socket}, nil).CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("%s with %s: %v, %s", name, socket, err, out)
			}
		}
		_, err := qsidecar.Dial(t.Context(), qsidecar.Options{Socket: socket})
		if _, ok := errors.AsType[*qsidecar.DialError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("Go with %s: %v", socket, err)
		}
	}
}
