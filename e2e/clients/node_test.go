package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testdocs"
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
	s.Queues = "  \"*\": {}\n  kept: {retention: {done: 1h}}\n  waited: {retention: {done: 1h}}\n"
	files, err := filepath.Glob(filepath.Join(clientlib.NodePackage, "test", "*.test.js"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the package's tests are %v (%v)", files, err)
	}
	suite := exec.CommandContext(testwait.Context(t), "node", append([]string{"--test", "--test-reporter=spec"}, files...)...)
	suite.Dir = clientlib.NodePackage
	suite.Env = append(os.Environ(), "QSIDECAR_SOCKET="+s.Start("a").Socket)
	suite.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	suite.Cancel = func() error { return syscall.Kill(-suite.Process.Pid, syscall.SIGKILL) } // Node starts a process for each file
	if out, err := suite.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// typeScriptFolder returns a folder in which the package and the TypeScript compiler are installed, and its files of a folder.
func typeScriptFolder(t *testing.T, files ...string) string {
	t.Helper()
	folder := kit.Path("e2e/clients/testdata/types")
	packages, err := clientlib.NpmPackages(folder)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	modules := filepath.Join(dir, "node_modules") // beside the programs, where the compiler looks for types
	if err := os.MkdirAll(filepath.Join(modules, ".bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(clientlib.NodeHome(t), "node_modules", "qsidecar")
	links := map[string]string{"qsidecar": own, ".bin/qsidecar-node": filepath.Join(own, "bin", "qsidecar-node.js")}
	for _, name := range []string{"@types", "undici-types", "tsx", ".bin/tsc"} { // @types/node imports undici-types
		links[name] = filepath.Join(packages, "node_modules", name)
	}
	for name, path := range links {
		if err := os.Symlink(path, filepath.Join(modules, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(text))
	}
	return dir
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNodeTypes compiles programs that use the package's types, with every check of the compiler.
func TestNodeTypes(t *testing.T) {
	t.Parallel()
	tsc := exec.CommandContext(testwait.Context(t), "node", "node_modules/.bin/tsc", "--preserveSymlinks")
	tsc.Dir = typeScriptFolder(t, "consumer.mts", "consumer.cts", "tsconfig.json")
	if out, err := tsc.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNodeTypeScript runs a worker of the page on Node in TypeScript, as the page does: compiled to both kinds of modules, and not
// compiled. It compiles the example of the package's README in the same project.
func TestNodeTypeScript(t *testing.T) {
	t.Parallel()
	example := clientlib.Example(t, filepath.Join(clientlib.NodePackage, "README.md"), "js")
	for _, kind := range []string{"module", "commonjs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			sc := kit.NewSite(t).Start("a")
			dir := typeScriptFolder(t)
			script := ""
			for _, b := range testdocs.Blocks(t, kit.Path("docs/how-to/node.md")) {
				file, isFile := strings.CutPrefix(b.Mark, fileMark)
				switch {
				case !slices.Contains(b.Headings, "## TypeScript"):
				case isFile:
					write(t, filepath.Join(dir, file), strings.Replace(b.Text, `"outDir"`, `"preserveSymlinks": true, "outDir"`, 1))
				case b.Mark == "not run: TestNodeTypeScript runs it":
					script += b.Text
				}
			}
			if n := strings.Count(script, " src/worker.ts") + strings.Count(script, " dist/worker.js"); n != 2 {
				t.Fatalf("the page runs %d workers, want a compiled one and one that is not:\n%s", n, script)
			}
			if kind == "module" {
				write(t, filepath.Join(dir, "src", "greet.ts"), example)
			}
			write(t, filepath.Join(dir, "package.json"), `{"type": "`+kind+`"}`)
			cmd := exec.CommandContext(testwait.Context(t), "bash", "-eu", "-c", script)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.Socket, "PATH="+filepath.Dir(kit.Binary)+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if n := strings.Count(string(out), "welcome, ADA"); n != 2 || err != nil {
				t.Errorf("%d jobs have run, want 2 (%v):\n%s", n, err, out)
			}
		})
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
	for _, ack := range waysToAck() {
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
