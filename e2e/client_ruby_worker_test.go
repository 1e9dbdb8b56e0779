package e2e

import (
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
