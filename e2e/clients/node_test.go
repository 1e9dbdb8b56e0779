package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestNodeKit checks that the Node client has every reaction of clients/README.md.
func TestNodeKit(t *testing.T) {
	t.Parallel()
	if report, ok := runKit(t, "json", testwait.Limit, "node", filepath.Join(clientlib.NodePackage, "kit_adapter.js")); !ok {
		t.Errorf("the kit on the Node client:\n%s", report)
	}
}

// TestNodeExample runs the example of the package's README unchanged, with only the package installed.
func TestNodeExample(t *testing.T) {
	t.Parallel()
	program := clientlib.Example(t, filepath.Join(clientlib.NodePackage, "README.md"), "js")
	if n := strings.Count(strings.TrimSpace(program), "\n") + 1; n > 10 {
		t.Errorf("the example has %d lines, want ten at most", n)
	}
	s := kit.NewSite(t)
	sc := s.Start("a")
	file := filepath.Join(clientlib.NodeHome(t), "example.mjs")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", file)
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.Socket)
	cmd.Stderr = os.Stderr
	clientlib.RunExample(t, cmd)
	if left := s.JobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// TestNodeSuite runs the package's own tests on a sidecar.
func TestNodeSuite(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Queues = "  \"*\": {}\n  kept: {retention: {done: 1h}}\n"
	files, err := filepath.Glob(filepath.Join(clientlib.NodePackage, "test", "*.test.js"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the package's tests are %v (%v)", files, err)
	}
	suite := exec.CommandContext(testwait.Context(t), "node", append([]string{"--test", "--test-reporter=spec"}, files...)...)
	suite.Dir = clientlib.NodePackage
	suite.Env = append(os.Environ(), "QSIDECAR_SOCKET="+s.Start("a").Socket)
	if out, err := suite.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNodeTypes compiles programs that use the package's types, with every check of the compiler.
func TestNodeTypes(t *testing.T) {
	t.Parallel()
	folder := kit.Path("e2e/clients/testdata/types")
	packages, err := clientlib.NpmPackages(folder)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "node_modules") // beside the programs, where the compiler looks for types
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"qsidecar":     filepath.Join(clientlib.NodeHome(t), "node_modules", "qsidecar"),
		"@types":       filepath.Join(packages, "node_modules", "@types"),
		"undici-types": filepath.Join(packages, "node_modules", "undici-types"), // @types/node imports it
	} {
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"consumer.mts", "consumer.cts", "tsconfig.json"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(dir), name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tsc := exec.CommandContext(testwait.Context(t), "node", filepath.Join(packages, "node_modules", "typescript", "bin", "tsc"), "--preserveSymlinks")
	tsc.Dir = filepath.Dir(dir)
	if out, err := tsc.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNodeWorker kills and stops a Node worker, with jobs in its main thread and in threads.
func TestNodeWorker(t *testing.T) {
	t.Parallel()
	for name, how := range map[string][]string{"one thread": nil, "threads": {"--threads", "8"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := kit.NewSite(t).Start("a")
			clientlib.NodeWorker(t, sc, nil, how...).KilledInTheMiddle(kit.Size(10_000), unsettled)
			checkTerminate(clientlib.NodeWorker(t, sc, nil, how...), kit.Size(10_000), 8)
		})
	}
}

// TestNodeMemory: see checkMemory.
func TestNodeMemory(t *testing.T) {
	t.Parallel()
	total := kit.Size(100_000)
	for _, ack := range []string{"behind", "sync"} {
		t.Run(ack, func(t *testing.T) {
			t.Parallel()
			checkMemory(t, total, "bytes", 2<<20, exec.CommandContext(t.Context(), "node", "--expose-gc", kit.Path("e2e/clients/testdata/memory.mjs"), strconv.Itoa(total), ack))
		})
	}
}

// TestNodeWorkerOutlivesTheSidecar: see checkSidecarRestart.
func TestNodeWorkerOutlivesTheSidecar(t *testing.T) {
	t.Parallel()
	checkSidecarRestarts(t, func(t *testing.T, sc *kit.Sidecar) *clientlib.Worker { return clientlib.NodeWorker(t, sc, nil) })
}

// TestNodeThreadOutlivesTheSidecar checks that a job that stops the event loop of its thread keeps its lease: see checkSidecarRestart.
func TestNodeThreadOutlivesTheSidecar(t *testing.T) {
	t.Parallel()
	checkSidecarRestarts(t, func(t *testing.T, sc *kit.Sidecar) *clientlib.Worker {
		return clientlib.NodeWorker(t, sc, []string{"WORKER_BLOCKS=1"}, "--threads", "1")
	})
}

// TestNodeWorkerIsFirstProcess checks that a worker that is the first process of a container reports that it reaps no
// orphans, and that it stops in order.
func TestNodeWorkerIsFirstProcess(t *testing.T) {
	t.Parallel()
	w := clientlib.NodeWorker(t, kit.NewSite(t).Start("a"), nil)
	w.Argv = append(asFirstProcess(t), w.Argv...)
	w.Sidecar.Dial().Enqueue("quick", 1)
	w.Start()
	w.WaitEmpty("quick")
	first, err := strconv.Atoi(w.Children()[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	w.WaitExit()
	if n := strings.Count(w.Output.String(), "first process of its container"); n != 1 {
		t.Errorf("%d warnings about orphans, want 1; the worker's output:\n%s", n, w.Output)
	}
}
