package clients

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

const pythonCancelled = `
import qsidecar, asyncio
app = qsidecar.App()
@app.job("python")
def work(job):
    print("started", flush=True)
    try:
        while True:
            job.checkpoint()
            asyncio.run(asyncio.sleep(0.01))
    except qsidecar.Cancelled:
        print("cancelled", flush=True)
        raise
@app.job("asyncio")
async def work_async(job):
    print("started", flush=True)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("cancelled" if job.cancelled else "lost", flush=True)
        raise
app.run(concurrency=2)
`

const rubyCancelled = `
require "qsidecar"
$stdout.sync = true
worker = Qsidecar::Worker.new(logger: nil)
worker.job("ruby") do |job|
  puts "started"
  loop { job.checkpoint; sleep 0.01 }
rescue Qsidecar::Cancelled
  puts "cancelled"
  raise
end
worker.run
`

// TestCancelOnAnotherHost cancels running jobs through another sidecar of the same PostgreSQL database. The workers of each kind stop, and no
// job runs again. It prints how long they took.
func TestCancelOnAnotherHost(t *testing.T) {
	t.Parallel()
	s, _ := kit.NewPostgresSite(t)
	near, far := s.Start("a"), s.Start("b").Dial()
	outputs := map[string]*kit.LockedBuffer{}
	run := func(name string, args ...string) {
		t.Helper()
		outputs[name] = new(kit.LockedBuffer)
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+near.Socket, "PYTHONPATH="+clientlib.PythonPackage)
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = outputs[name], os.Stderr, time.Second
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it can have ended
			_ = cmd.Wait()
		})
	}
	run("python", "python3", "-c", pythonCancelled)
	outputs["asyncio"] = outputs["python"]
	run("ruby", "ruby", "-I", filepath.Join(clientlib.RubyPackage, "lib"), "-e", rubyCancelled)
	run("work", kit.Binary, "work", "work", "--", "sh", "-c", `trap 'echo cancelled; exit 0' TERM; echo started; while :; do sleep 0.05; done`)
	outputs["go"] = new(kit.LockedBuffer)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	worker := &qsidecar.Worker{Queues: []string{"go"}, Options: qsidecar.Options{Socket: near.Socket}, Handler: func(ctx context.Context, _ *qsidecar.Job) error {
		fmt.Fprintln(outputs["go"], "started")
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), qsidecar.ErrCancelled) {
			fmt.Fprintln(outputs["go"], "cancelled")
		}
		return context.Cause(ctx)
	}}
	go func() { ended <- worker.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for _, queue := range []string{"python", "asyncio", "ruby", "go", "work"} {
		before := strings.Count(outputs[queue].String(), "cancelled")
		id := far.Enqueue(queue, 1)[0]
		testwait.Until(t, queue+" runs the job", func() bool { return strings.Count(outputs[queue].String(), "started") > before })
		began := time.Now()
		if r := far.Must(kit.Msg{"op": "cancel", "queue": queue, "ids": []string{id}}); r.Count != 1 {
			t.Errorf("%s: %d jobs are cancelled", queue, r.Count)
		}
		testwait.Until(t, queue+" stops", func() bool { return strings.Count(outputs[queue].String(), "cancelled") > before })
		kit.Figure(t, "%s stopped %v after the cancel on another host", queue, time.Since(began).Round(time.Millisecond))
		if r := far.Must(kit.Msg{"op": "retry", "queue": queue, "ids": []string{id}}); r.Count != 1 {
			t.Errorf("%s: the cancelled job is not dead", queue)
		}
		testwait.Until(t, queue+" runs the retried job", func() bool { return strings.Count(outputs[queue].String(), "started") > before+1 })
		far.Must(kit.Msg{"op": "cancel", "queue": queue, "ids": []string{id}})
		testwait.Until(t, queue+" stops again", func() bool { return strings.Count(outputs[queue].String(), "cancelled") > before+1 })
		if n := strings.Count(outputs[queue].String(), "started"); n != before+2 {
			t.Errorf("%s: the jobs started %d times, want %d", queue, n, before+2)
		}
	}
}
