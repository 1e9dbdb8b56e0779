package e2e

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestRubyExample runs the example of the package's README as it stands there, with
// the gem built and installed where nothing else is.
func TestRubyExample(t *testing.T) {
	t.Parallel()
	program := readmeExample(t, filepath.Join(rubyPackage, "README.md"), "ruby")
	if n := strings.Count(strings.TrimSpace(program), "\n") + 1; n > 10 {
		t.Errorf("the example has %d lines, want ten at most", n)
	}
	env, _ := rubyGem(t)
	s := newSite(t)
	sc := s.started("a")
	file := filepath.Join(t.TempDir(), "example.rb")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ruby", "-w", file)
	cmd.Dir = t.TempDir()
	cmd.Env = append(append(os.Environ(), env...), "QSIDECAR_SOCKET="+sc.socket)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	greeted(t, cmd)
	if left := s.jobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// rubyWorker runs testdata/ruby/worker.rb by the gem's qsidecar-work.
func rubyWorker(t *testing.T, sc *sidecar, env []string, more ...string) *clientWorker {
	t.Helper()
	gems, bin := rubyGem(t)
	gems = gems[:1] // beside this system's own: with msgpack
	argv := append([]string{"ruby", "-w", filepath.Join(bin, "qsidecar-work")}, more...)
	return newClientWorker(t, sc, append(env, gems...), append(argv, "testdata/ruby/worker.rb")...)
}

// TestRubyWorker: deaths and stops of a Ruby worker on PostgreSQL, in threads and
// in processes.
func TestRubyWorker(t *testing.T) {
	t.Parallel()
	versions := testserver.Versions()
	p, err := testserver.StartPostgres(t.Context(), versions[len(versions)-1], testserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	for name, how := range map[string][]string{"threads msgpack": {"-c", "8"}, "processes json": {"-c", "4", "-p", "2"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			codec := []string{"WORKER_CODEC=" + name[strings.LastIndex(name, " ")+1:]}
			s := newSite(t)
			s.url = p.Database(t)
			sc := s.started("a")
			rubyWorker(t, sc, codec, how...).killedInTheMiddle(size(10_000), 8)
			rubyWorker(t, sc, codec, how...).terminatedInTheMiddle(size(10_000))
		})
	}
}

// TestRubyWorkerOutlivesTheSidecar: see outlivesRestart.
func TestRubyWorkerOutlivesTheSidecar(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*sidecar){
		"SIGTERM": func(sc *sidecar) {
			sc.signal(syscall.SIGTERM)
			sc.exit(patience)
		},
		"SIGKILL": (*sidecar).kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, seconds := restartSite(t)
			rubyWorker(t, s.started("a"), []string{seconds}).outlivesRestart(stop)
		})
	}
}

// TestRubyWorkerStoppedAsAGroup: see stoppedAsAGroup.
func TestRubyWorkerStoppedAsAGroup(t *testing.T) {
	t.Parallel()
	rubyWorker(t, newSite(t).started("a"), []string{"WORKER_SECONDS=1"}, "-c", "2", "-p", "2").stoppedAsAGroup(4)
}

// TestRubyWorkerProgram: what qsidecar-work says where it cannot work, and that it
// waits for a sidecar.
func TestRubyWorkerProgram(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.queues = "  quick: {}\n"
	sc := s.started("a")
	w := rubyWorker(t, sc, []string{"WORKER_SECONDS=0"}, "-c", "2")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"usage: ", nil},
		{"invalid option: --no-such", []string{"--no-such"}},
		{"cannot load such file", []string{"no-such.rb"}},
		{"makes 0 workers", []string{"-r", "json", "/dev/null"}},
		{"concurrency is 1 to 256", []string{"-c", "0", "testdata/ruby/worker.rb"}},
		{"long", []string{"-c", "2", "testdata/ruby/worker.rb"}}, // a queue that does not exist
		{"gave up (exit status 1)", []string{"-p", "2", "testdata/ruby/worker.rb"}},
	} {
		cmd := exec.CommandContext(t.Context(), "ruby", append([]string{w.argv[2]}, c.args...)...)
		cmd.Env = append(os.Environ(), w.env...)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), c.want) {
			t.Errorf("qsidecar-work %q exits with %d (%v) and says %q, want 1 and %q", c.args, code, err, out, c.want)
		}
	}

	sc = newSite(t).sidecar("later")
	cmd := exec.CommandContext(t.Context(), "ruby", w.argv[2], "-d", "testdata/ruby/worker.rb")
	cmd.Env = append(append(os.Environ(), w.env...), "QSIDECAR_SOCKET="+sc.socket)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(said)
	if line, err := lines.ReadString('\n'); !strings.Contains(line, "no sidecar answers") {
		t.Errorf("without a sidecar it says %q (%v)", line, err)
	}
	sc.start()
	rest, err := io.ReadAll(lines)
	if err := errors.Join(err, cmd.Wait()); err != nil || len(rest) > 0 {
		t.Errorf("with a sidecar and nothing to do it ends with %v and says %q", err, rest)
	}
}
