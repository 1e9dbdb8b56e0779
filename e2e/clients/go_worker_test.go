package clients

import (
	"os"
	"os/exec"
	"path/filepath"
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

// TestGoExample runs the example of the package's README unchanged, in its own module.
func TestGoExample(t *testing.T) {
	t.Parallel()
	root := kit.Path(".")
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"main.go": clientlib.Example(t, kit.Path("clients/go/README.md"), "go"), "go.sum": string(sums),
		"go.mod": "module example\n\ngo 1.26\n\nrequire github.com/qsidecar/qsidecar v0.0.0\n\nreplace github.com/qsidecar/qsidecar => " + root + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", "example", ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := kit.NewSite(t)
	sc := s.Start("a")
	sc.Dial().Must(kit.Msg{"op": "enqueue", "queue": "greet", "payload": `"Ada"`})
	cmd := exec.Command(filepath.Join(dir, "example"))
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
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", adapter, kit.Path("clients/go/kitadapter")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if report, ok := runKit(t, "msgpack", testwait.Limit, adapter); !ok {
		t.Errorf("the kit on the Go client:\n%s", report)
	}
}
