package clients

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
)

// TestRubyExample runs the example of the package's README unchanged, with only the gem installed.
func TestRubyExample(t *testing.T) {
	t.Parallel()
	program := clientlib.Example(t, filepath.Join(clientlib.RubyPackage, "README.md"), "ruby")
	if n := strings.Count(strings.TrimSpace(program), "\n") + 1; n > 10 {
		t.Errorf("the example has %d lines, want ten at most", n)
	}
	env, _ := clientlib.RubyGem(t)
	s := kit.NewSite(t)
	sc := s.Start("a")
	file := filepath.Join(t.TempDir(), "example.rb")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ruby", "-w", file)
	cmd.Dir = t.TempDir()
	cmd.Env = append(append(os.Environ(), env...), "QSIDECAR_SOCKET="+sc.Socket)
	cmd.Stderr = os.Stderr
	clientlib.RunExample(t, cmd)
	if left := s.JobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// TestRubyWorker kills and stops a Ruby worker on PostgreSQL, with threads and with processes.
func TestRubyWorker(t *testing.T) {
	t.Parallel()
	p := newestPostgres(t)
	for name, connections := range map[string]int{"threads msgpack": 1, "processes json": 2} {
		how := []string{"-c", strconv.Itoa(8 / connections), "-p", strconv.Itoa(connections)}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			codec := []string{"WORKER_CODEC=" + name[strings.LastIndex(name, " ")+1:]}
			s := kit.NewSite(t)
			s.URL = p.Database(t)
			sc := s.Start("a")
			clientlib.RubyWorker(t, sc, codec, how...).KilledInTheMiddle(kit.Size(10_000), connections*unsettled)
			checkTerminate(clientlib.RubyWorker(t, sc, codec, how...), kit.Size(10_000), 8)
		})
	}
}

// TestRubyWorkerOutlivesTheSidecar: see checkSidecarRestart.
func TestRubyWorkerOutlivesTheSidecar(t *testing.T) {
	t.Parallel()
	checkSidecarRestarts(t, func(t *testing.T, sc *kit.Sidecar) *clientlib.Worker { return clientlib.RubyWorker(t, sc, nil) })
}

// TestRubyMemory: see checkMemory.
func TestRubyMemory(t *testing.T) {
	t.Parallel()
	total := kit.Size(100_000)
	for _, ack := range waysToAck() {
		t.Run(ack, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "ruby", kit.Path("e2e/clients/testdata/memory.rb"), strconv.Itoa(total), ack)
			cmd.Env = append(os.Environ(), "RUBYLIB="+filepath.Join(clientlib.RubyPackage, "lib"))
			checkMemory(t, total, "bytes", 2<<20, cmd)
		})
	}
}

// TestRubyWorkerStoppedAsAGroup: see checkGroupStop.
func TestRubyWorkerStoppedAsAGroup(t *testing.T) {
	t.Parallel()
	checkGroupStop(clientlib.RubyWorker(t, kit.NewSite(t).Start("a"), nil, "-c", "2", "-p", "2"), 4)
}

// TestRubyWorkerProgram checks the errors of qsidecar-work, and that it waits for a sidecar.
func TestRubyWorkerProgram(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Queues = "  quick: {}\n"
	sc := s.Start("a")
	w := clientlib.RubyWorker(t, sc, nil, "-c", "2")
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{2, "usage: ", nil},
		{2, "invalid option: --no-such", []string{"--no-such"}},
		{2, "there is no file", []string{"no-such.rb"}},
		{2, "makes 0 workers", []string{"-r", "json", "/dev/null"}},
		{2, "concurrency is 1 to 256", []string{"-c", "0", clientlib.RubyWorkerFile}},
		{2, "no block for the queue other", []string{"-q", "other", clientlib.RubyWorkerFile}},
		{1, "cannot load such file", []string{"-r", "no-such", clientlib.RubyWorkerFile}},
		{1, "long", []string{"-c", "2", clientlib.RubyWorkerFile}}, // a queue that does not exist
		{1, "failed with exit status 1", []string{"-p", "2", clientlib.RubyWorkerFile}},
	} {
		cmd := exec.CommandContext(t.Context(), "ruby", append([]string{w.Argv[2]}, c.args...)...)
		cmd.Env = append(os.Environ(), w.Env...)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("qsidecar-work %q exits with %d (%v) and prints %q, want %d and %q", c.args, code, err, out, c.code, c.want)
		}
	}

	sc = kit.NewSite(t).Sidecar("later")
	run := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "ruby", append([]string{w.Argv[2]}, args...)...)
		cmd.Env = append(append(os.Environ(), w.Env...), "QSIDECAR_SOCKET="+sc.Socket)
		return cmd
	}
	drain := run("-d", clientlib.RubyWorkerFile)
	if out, err := drain.CombinedOutput(); drain.ProcessState.ExitCode() != 5 || !strings.Contains(string(out), "no sidecar answers") {
		t.Errorf("a drain without a sidecar ends with %v and prints %q", err, out)
	}
	waits := run(clientlib.RubyWorkerFile)
	output, err := waits.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(output)
	for line := ""; !strings.Contains(line, "no sidecar answers"); {
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatalf("it does not say that no sidecar answers: %v", err)
		}
	}
	sc.Start()
	if line, err := lines.ReadString('\n'); !strings.Contains(line, "sidecar") {
		t.Errorf("with a sidecar it prints %q (%v)", line, err)
	}
	if err := waits.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Error(err)
	}
	if err := waits.Wait(); err != nil {
		t.Errorf("at SIGTERM it ends with %v", err)
	}
	if out, err := run("-d", clientlib.RubyWorkerFile).CombinedOutput(); err != nil {
		t.Errorf("a drain with a sidecar and no job ends with %v and prints %q", err, out)
	}
}
