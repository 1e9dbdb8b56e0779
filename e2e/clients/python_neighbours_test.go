package clients

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
)

// neighbours is an app whose job "kill" ends the process with signal 9. In its first two attempts it waits until all other
// jobs run beside it, which never end before their last attempt.
const neighbours = `
import os, signal, threading, time
from qsidecar import App

app = App()
running = threading.Semaphore(0)

@app.job("q")
def work(job):
    if job.payload == "kill":
        for _ in range(7 if job.attempt < 3 else 0):
            running.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    if job.attempt < 3:
        running.release()
        threading.Event().wait()
    time.sleep(2)  # so long that the killer, if it ran beside it, would end it
`

// TestNeighboursOfACrashLive: eight jobs run in the threads of one process with one connection. One of them kills the process
// in each of its three attempts. The other seven get through.
func TestNeighboursOfACrashLive(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	sc := s.Sidecar("a")
	sc.WriteConfig(fmt.Sprintf("listen: [{socket: %s}]\ndatabases: {main: {url: %q}}\nqueues: {q: {max_attempts: 3, retention: {done: 1d}}}\n", sc.Socket, s.URL))
	sc.Start()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "neighbours.py"), []byte(neighbours), 0o644); err != nil {
		t.Fatal(err)
	}
	c := sc.Dial()
	jobs := []any{}
	for i := range 8 {
		payload := fmt.Sprint("job ", i)
		if i == 3 {
			payload = "kill"
		}
		jobs = append(jobs, kit.Msg{"queue": "q", "payload": strconv.Quote(payload)})
	}
	c.Must(kit.Msg{"op": "enqueue", "jobs": jobs})
	env := []string{"PYTHONPATH=" + dir}
	w := clientlib.NewWorker(t, sc, env, clientlib.PythonEnv(t, clientlib.PythonPackage), "-m", "qsidecar", "work", "neighbours:app", "-j", "8")
	kit.WaitProgress(t, "each job is done or dead", func() (now int, done bool) {
		if w.Exited() {
			w.Start()
		}
		q := c.Stats("q")
		now = q.Done + q.Dead
		return now, now == len(jobs)
	})
	if q := c.Stats("q"); q.Dead != 1 || q.Done != 7 {
		t.Errorf("%+v, want 7 done and one dead", q)
	}
	var failures []string
	for _, j := range c.Must(kit.Msg{"op": "peek", "queue": "q", "state": "dead"}).Jobs {
		if j.Payload != `"kill"` {
			t.Errorf("dead: %s", j.Payload)
		}
		for _, e := range j.Errors {
			failures = append(failures, e.Message)
		}
	}
	const beside, alone = "the client hung up while it had 8 jobs", "the client hung up"
	if got, want := strings.Join(failures, "; "), strings.Join([]string{beside, beside, alone}, "; "); got != want {
		t.Errorf("the killer's failures are %q, want %q", got, want)
	}
}
