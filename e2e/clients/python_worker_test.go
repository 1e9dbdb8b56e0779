package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testserver/pythonenv"
)

// TestPythonExample runs the example of the package's README unchanged, with the package installed
// in a clean environment.
func TestPythonExample(t *testing.T) {
	t.Parallel()
	program := clientlib.Example(t, filepath.Join(clientlib.PythonPackage, "README.md"), "python")
	if n := strings.Count(strings.TrimSpace(program), "\n") + 1; n > 10 {
		t.Errorf("the example has %d lines, want ten at most", n)
	}
	s := kit.NewSite(t)
	sc := s.Start("a")
	file := filepath.Join(t.TempDir(), "example.py")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(clientlib.PythonEnv(t, clientlib.PythonPackage), file)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.Socket, "PYTHONUNBUFFERED=")
	cmd.Stderr = os.Stderr
	clientlib.RunExample(t, cmd)
	if left := s.JobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// TestPythonPostgres kills and stops a Python worker on PostgreSQL, with threads and with
// processes. It also checks jobs that psycopg inserts.
func TestPythonPostgres(t *testing.T) {
	t.Parallel()
	p := newestPostgres(t)
	t.Run("insert", func(t *testing.T) {
		t.Parallel()
		s := kit.NewSite(t)
		s.URL = p.Database(t)
		checkPythonSQL(t, s, clientlib.PythonEnv(t, pythonenv.Tools...), "postgresql", s.URL)
	})
	t.Run("async", func(t *testing.T) {
		t.Parallel()
		s := kit.NewSite(t)
		s.URL = p.Database(t)
		sc := s.Start("a")
		clientlib.AsyncPythonWorker(t, sc).KilledInTheMiddle(kit.Size(10_000), unsettled)
		checkTerminate(clientlib.AsyncPythonWorker(t, sc), kit.Size(10_000), 8)
	})
	for name, connections := range map[string]int{"threads": 1, "processes": 8} {
		var how []string
		if connections > 1 {
			how = []string{"--processes"}
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kit.NewSite(t)
			s.URL = p.Database(t)
			sc := s.Start("a")
			clientlib.PythonWorker(t, sc, nil, how...).KilledInTheMiddle(kit.Size(10_000), connections*unsettled)
			checkTerminate(clientlib.PythonWorker(t, sc, nil, how...), kit.Size(10_000), 8)
		})
	}
}

// TestPythonWorkerOutlivesTheSidecar: see checkSidecarRestart.
func TestPythonWorkerOutlivesTheSidecar(t *testing.T) {
	t.Parallel()
	t.Run("threads", func(t *testing.T) {
		t.Parallel()
		checkSidecarRestarts(t, func(t *testing.T, sc *kit.Sidecar) *clientlib.Worker { return clientlib.PythonWorker(t, sc, nil) })
	})
	t.Run("async", func(t *testing.T) {
		t.Parallel()
		checkSidecarRestarts(t, clientlib.AsyncPythonWorker)
	})
}

// TestPythonMemory: see checkMemory. In a full run, one object for each job would be 90,000 blocks.
func TestPythonMemory(t *testing.T) {
	t.Parallel()
	total := kit.Size(100_000)
	python := clientlib.PythonEnv(t, clientlib.PythonPackage)
	for _, kind := range []string{"threads", "async"} {
		for _, ack := range waysToAck() {
			t.Run(kind+" "+ack, func(t *testing.T) {
				t.Parallel()
				cmd := exec.CommandContext(t.Context(), python, kit.Path("e2e/clients/testdata/memory.py"), strconv.Itoa(total), ack, kind)
				checkMemory(t, total, "allocated blocks", 20_000, cmd)
			})
		}
	}
}

// TestPythonWorkerStoppedAsAGroup: see checkGroupStop.
func TestPythonWorkerStoppedAsAGroup(t *testing.T) {
	t.Parallel()
	checkGroupStop(clientlib.PythonWorker(t, kit.NewSite(t).Start("a"), nil, "--processes"), 8)
}
