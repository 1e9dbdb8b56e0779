package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestPythonExample runs the example of the package's README as it stands there, on a
// fresh installation of the package in an environment without anything else.
func TestPythonExample(t *testing.T) {
	t.Parallel()
	program := readmeExample(t, filepath.Join(pythonPackage, "README.md"), "python")
	if n := strings.Count(strings.TrimSpace(program), "\n") + 1; n > 10 {
		t.Errorf("the example has %d lines, want ten at most", n)
	}
	s := newSite(t)
	sc := s.started("a")
	file := filepath.Join(t.TempDir(), "example.py")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(pythonEnv(t, pythonPackage), file)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.socket, "PYTHONUNBUFFERED=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "hello, Ada\n" {
		t.Errorf("it printed %q, want the greeting of Ada (%v)", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v, want the exit code 0", err)
	}
	if left := s.jobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// readmeExample is the code block below the line that marks a README's example.
func readmeExample(t *testing.T, readme, language string) string {
	t.Helper()
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)<!-- example -->\n+```" + language + "\n(.*?)```").FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s has no block of %s below <!-- example -->", readme, language)
	}
	return string(found[1])
}

// pythonWorker runs testdata/python/worker.py by python -m qsidecar work.
func pythonWorker(t *testing.T, sc *sidecar, env []string, more ...string) *clientWorker {
	t.Helper()
	env = append(env, "PYTHONPATH=testdata/python", "PYTHONDONTWRITEBYTECODE=1")
	argv := []string{pythonEnv(t, pythonPackage), "-m", "qsidecar", "work", "worker:app", "-j", "8"}
	return newClientWorker(t, sc, env, append(argv, more...)...)
}

// TestPythonPostgres: deaths and stops of a Python worker on PostgreSQL, in threads and
// in processes; and jobs that psycopg inserts.
func TestPythonPostgres(t *testing.T) {
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
	t.Run("insert", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.url = p.Database(t)
		checkPythonSQL(t, s, pythonEnv(t, testserver.PythonTools...), "postgresql", s.url)
	})
	for name, how := range map[string][]string{"threads": nil, "processes": {"--processes"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.url = p.Database(t)
			sc := s.started("a")
			pythonWorker(t, sc, nil, how...).killedInTheMiddle(size(10_000), 8)
			pythonWorker(t, sc, nil, how...).terminatedInTheMiddle(size(10_000))
		})
	}
}

// TestPythonWorkerOutlivesKills: see outlivesKills.
func TestPythonWorkerOutlivesKills(t *testing.T) {
	t.Parallel()
	pythonWorker(t, newSite(t).started("a"), nil).outlivesKills(size(10_000))
}

// TestPythonWorkerOutlivesTheSidecar: see outlivesRestart.
func TestPythonWorkerOutlivesTheSidecar(t *testing.T) {
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
			pythonWorker(t, s.started("a"), []string{seconds}).outlivesRestart(stop)
		})
	}
}

// TestPythonWorkerStoppedAsAGroup: see stoppedAsAGroup.
func TestPythonWorkerStoppedAsAGroup(t *testing.T) {
	t.Parallel()
	pythonWorker(t, newSite(t).started("a"), []string{"WORKER_SECONDS=1"}, "--processes").stoppedAsAGroup(8)
}
