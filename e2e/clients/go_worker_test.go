package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestGoWorker kills and stops a Go worker on PostgreSQL.
func TestGoWorker(t *testing.T) {
	t.Parallel()
	p := newestPostgres(t)
	s := kit.NewSite(t)
	s.URL = p.Database(t)
	sc := s.Start("a")
	clientlib.GoWorker(t, sc).KilledInTheMiddle(kit.Size(10_000), unsettled)
	checkTerminate(clientlib.GoWorker(t, sc), kit.Size(10_000), 8)
}

// TestGoWorkerOutlivesTheSidecar: see checkSidecarRestart.
func TestGoWorkerOutlivesTheSidecar(t *testing.T) {
	t.Parallel()
	checkSidecarRestarts(t, func(t *testing.T, sc *kit.Sidecar) *clientlib.Worker { return clientlib.GoWorker(t, sc) })
}

// goModules returns an environment in which go uses the modules of this repository's cache, and no network.
func goModules(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	dirs := strings.Fields(string(out))
	return []string{"GOMODCACHE=" + dirs[0], "GOCACHE=" + dirs[1], "GOPROXY=off", "GOSUMDB=off", "GOFLAGS="}
}

// buildGoExample builds a program with the commands of the package's README, and returns its path.
func buildGoExample(t *testing.T, program string) string {
	t.Helper()
	readme := kit.Path("clients/go/README.md")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "<!-- install -->\n```sh\n")
	script, _, found := strings.Cut(after, "```")
	if !found {
		t.Fatalf("%s has no block of sh below <!-- install -->", readme)
	}
	install := exec.CommandContext(t.Context(), "sh", "-euc", script)
	install.Dir = dir
	install.Env = append(append(os.Environ(), goModules(t)...), "REPOSITORY="+kit.Path("."))
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(dir, "app")
}

// TestGoExampleEndsAtASecondSignal runs the example of the package's README with a job that doesn't end.
func TestGoExampleEndsAtASecondSignal(t *testing.T) {
	t.Parallel()
	const work = "fmt.Printf(\"hello, %s\\n\", name)\n"
	program := clientlib.Example(t, kit.Path("clients/go/README.md"), "go")
	if !strings.Contains(program, work) {
		t.Fatalf("the example has no line %q", work)
	}
	sc := kit.NewSite(t).Start("a")
	sc.Dial().Must(kit.Msg{"op": "enqueue", "queue": "greet", "payload": `"Ada"`})
	var log kit.LockedBuffer
	cmd := exec.CommandContext(t.Context(), buildGoExample(t, strings.Replace(program, work, work+"select {}\n", 1)))
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.Socket)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	testwait.Until(t, "the job runs", func() bool { return strings.Contains(log.String(), "hello, Ada") })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the worker logs the first signal", func() bool { return strings.Contains(log.String(), "worker stopping running_jobs=1") })
	testwait.Until(t, "it ends at a further signal", func() bool {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails once it has ended
		return len(ended) > 0
	})
	if err := <-ended; err == nil {
		t.Error("it ended with 0")
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v, want SIGTERM; its log:\n%s", cmd.ProcessState, log.String())
	}
}

// TestGoExample runs the example of the package's README unchanged, in its own module.
func TestGoExample(t *testing.T) {
	t.Parallel()
	program := buildGoExample(t, clientlib.Example(t, kit.Path("clients/go/README.md"), "go"))
	s := kit.NewSite(t)
	sc := s.Start("a")
	sc.Dial().Must(kit.Msg{"op": "enqueue", "queue": "greet", "payload": `"Ada"`})
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.Socket)
	cmd.Stderr = os.Stderr
	clientlib.RunExample(t, cmd)
	if left := s.JobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// TestGoKit checks that the Go client has every reaction of clients/README.md.
func TestGoKit(t *testing.T) {
	t.Parallel()
	adapter := filepath.Join(t.TempDir(), "adapter")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", adapter, kit.Path("clients/go/kitadapter")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if report, ok := runKit(t, "msgpack", testwait.Limit, adapter); !ok {
		t.Errorf("the kit on the Go client:\n%s", report)
	}
}
