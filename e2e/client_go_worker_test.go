package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	client "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// modeClientGo is a worker of the Go client library, for clientWorker.
const modeClientGo = "client-go"

func runGoWorker() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log, err := os.OpenFile(os.Getenv("WORKER_LOG"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	w := &client.Worker{Queues: []string{"quick", "long"}, Concurrency: 8}
	w.Handler = func(ctx context.Context, job *client.Job) error {
		if job.Queue == "quick" {
			<-time.After(2 * time.Millisecond)
		}
		if _, err := fmt.Fprintf(log, "%s %d\n", job.Payload, job.Attempt); err != nil || job.Queue == "quick" {
			return err
		}
		seconds, err := strconv.ParseFloat(os.Getenv("WORKER_SECONDS"), 64)
		if err != nil {
			return err
		}
		select {
		case <-time.After(time.Duration(seconds * float64(time.Second))):
		case <-ctx.Done():
		}
		return context.Cause(ctx)
	}
	return w.Run(ctx)
}

func goWorker(t *testing.T, sc *sidecar, env ...string) *clientWorker {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return newClientWorker(t, sc, append(env, workerMode+"="+modeClientGo, workerTaskVar+"={}"), self)
}

// TestGoWorker: deaths and stops of a Go worker on PostgreSQL.
func TestGoWorker(t *testing.T) {
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
	s := newSite(t)
	s.url = p.Database(t)
	sc := s.started("a")
	goWorker(t, sc).killedInTheMiddle(size(10_000), 8)
	goWorker(t, sc).terminatedInTheMiddle(size(10_000))
}

// TestGoWorkerOutlivesTheSidecar: see outlivesRestart.
func TestGoWorkerOutlivesTheSidecar(t *testing.T) {
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
			goWorker(t, s.started("a"), seconds).outlivesRestart(stop)
		})
	}
}

// TestGoExample runs the example of the package's README as it stands there, in a
// module of its own.
func TestGoExample(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"main.go": readmeExample(t, "../clients/go/README.md", "go"), "go.sum": string(sums),
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
	s := newSite(t)
	sc := s.started("a")
	sc.dial().must(msg{"op": "enqueue", "queue": "greet", "payload": "Ada"})
	cmd := exec.Command(filepath.Join(dir, "example"))
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.socket)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	greeted(t, cmd)
	if left := s.jobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// greeted runs a README's example until it has greeted Ada, and then stops it.
func greeted(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
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
}

// TestGoKit: the Go client has every reaction of clients/README.md.
func TestGoKit(t *testing.T) {
	t.Parallel()
	adapter := filepath.Join(t.TempDir(), "adapter")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", adapter, "../clients/go/kitadapter").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if report, ok := runKit(t, "msgpack", "20s", adapter); !ok {
		t.Errorf("the kit on the Go client:\n%s", report)
	}
}
