package clients

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// unsettled is how many jobs of a connection can be begun and not settled when a worker dies.
const unsettled = 32

// checkTerminate checks that SIGTERM during n jobs loses none and uses up no attempt. Long
// jobs use all of the worker's concurrency, so that quick ones are ready when it ends.
func checkTerminate(w *clientlib.Worker, n, concurrency int) {
	w.T.Helper()
	c := w.Sidecar.Dial()
	c.Enqueue("quick", n/2)
	w.Start()
	w.DoneAtLeast(n / 2)
	c.Enqueue("long", concurrency)
	w.DoneAtLeast(n/2 + concurrency)
	c.Enqueue("quick", n/2)
	if err := w.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.T.Fatalf("%v; output:\n%s", err, w.Output)
	}
	w.OpenGate()
	w.WaitExit()
	_, lines := w.Done()
	var left kit.QueueStats
	testwait.Until(w.T, "what the sidecar claimed ahead is back", func() bool {
		left = w.Counts("quick")
		return left.Claimed == 0
	})
	total := n/2 + concurrency + n/2
	if len(lines)+left.Ready != total || left.Total() != left.Ready || w.Counts("long").Total() != 0 {
		w.T.Errorf("of %d jobs %d were done, and are left: %+v", total, len(lines), left)
	}
	for _, j := range c.Must(kit.Msg{"op": "peek", "queue": "quick", "max": 1000}).Jobs {
		if j.Attempt != 0 || len(j.Errors) > 0 {
			w.T.Errorf("a job that was not done shows %+v, want no attempt counted", j)
		}
	}
	w.Start()
	c.Put("quick", "-2") // so that the worker is up when it is terminated
	w.WaitEmpty("quick")
	w.Terminate()
	if _, lines = w.Done(); len(lines) != total+1 {
		w.T.Errorf("%d jobs were done, want each of %d once", len(lines), total+1)
	}
}

// checkGroupStop sends SIGTERM to every process of a worker of that concurrency, as a terminal or
// a service manager does. The running jobs finish.
func checkGroupStop(w *clientlib.Worker, concurrency int) {
	w.T.Helper()
	w.Sidecar.Dial().Enqueue("long", concurrency)
	w.Start()
	w.DoneAtLeast(concurrency)
	children := w.Children()
	if len(children) == 0 {
		w.T.Fatal("the worker has no children, want some")
	}
	for _, pid := range children {
		n, err := strconv.Atoi(pid)
		if err != nil {
			w.T.Fatal(err)
		}
		if err := syscall.Kill(n, syscall.SIGTERM); err != nil {
			w.T.Fatal(err)
		}
	}
	w.OpenGate()
	w.Terminate()
	if left := w.Counts("long"); left.Total() != 0 {
		w.T.Errorf("running jobs that are left: %+v; the worker's output:\n%s", left, w.Output)
	}
	if _, lines := w.Done(); len(lines) != concurrency {
		w.T.Errorf("the %d jobs were delivered as %q", concurrency, lines)
	}
}

// checkSidecarRestarts runs checkSidecarRestart with both ways to stop a sidecar. start creates the
// worker under test.
func checkSidecarRestarts(t *testing.T, start func(t *testing.T, sc *kit.Sidecar) *clientlib.Worker) {
	t.Helper()
	for name, stop := range map[string]func(*kit.Sidecar){
		"SIGTERM": func(sc *kit.Sidecar) {
			sc.Signal(syscall.SIGTERM)
			sc.WaitExit()
		},
		"SIGKILL": (*kit.Sidecar).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkSidecarRestart(start(t, restartSite(t).Start("a")), stop)
		})
	}
}

// checkSidecarRestart restarts the sidecar under a job that makes no call. The job is delivered once
// and acked. A second job, whose worker does not come back, is delivered again when the leases of
// the stopped sidecar have ended.
func checkSidecarRestart(w *clientlib.Worker, stop func(*kit.Sidecar)) {
	w.T.Helper()
	c := w.Sidecar.Dial()
	c.Enqueue("long", 1)
	c.Put("left", "x")
	c.WaitDelivered(c.ClaimOne("left"))
	w.Start()
	w.DoneAtLeast(1)
	stop(w.Sidecar)
	w.Sidecar.Start()
	c = w.Sidecar.Dial()
	if job := c.ClaimOne("left"); job.Attempt != 2 {
		w.T.Errorf("the job without a returning worker is delivered with attempt %d, want 2", job.Attempt)
	}
	if got := w.Counts("long"); got.Claimed != 1 {
		w.T.Errorf("the worker's job is not its own any more: %+v", got)
	}
	w.OpenGate()
	w.WaitEmpty("long")
	w.Terminate()
	if _, lines := w.Done(); len(lines) != 1 || lines[0] != "0 1" {
		w.T.Errorf("the job was delivered as %q, want once, as attempt 1; the worker's output:\n%s", lines, w.Output)
	}
}

// A change happens to a worker and its sidecar while jobs run.
type change struct {
	name string
	do   func(w *clientlib.Worker, number int)
	// twice is how many jobs one change can run twice.
	twice int
}

var (
	killed   = change{"killed", func(w *clientlib.Worker, _ int) { killSidecar(w.Sidecar) }, 0}
	upgraded = change{"upgraded", func(w *clientlib.Worker, _ int) { upgradeSidecar(w.Sidecar) }, 0}
	inTurn   = change{"killed and upgraded in turn", func(w *clientlib.Worker, number int) { killOrUpgrade(w.Sidecar, number) }, 0}
	beneath  = change{"changed while the worker is dead", func(w *clientlib.Worker, number int) {
		w.Kill()
		killOrUpgrade(w.Sidecar, number)
		w.Start() // after the sidecar: "qsidecar work" ends if there is none
	}, unsettled}
)

// changes returns the changes of this run. Only a soak has a run of kills and one of upgrades.
func changes() []change {
	if kit.Soak {
		return []change{killed, upgraded, beneath}
	}
	return []change{inTurn, beneath}
}

// killOrUpgrade upgrades a sidecar, and the next time kills it.
func killOrUpgrade(sc *kit.Sidecar, number int) {
	if number%2 == 0 {
		upgradeSidecar(sc)
	} else {
		killSidecar(sc)
	}
}

// TestWorkersOutliveSidecars: see checkChange.
func TestWorkersOutliveSidecars(t *testing.T) {
	for name, start := range clientlib.Workers {
		for _, how := range changes() {
			t.Run(name+" "+how.name, func(t *testing.T) {
				t.Parallel()
				checkChange(start(t, restartSite(t).Start("a")), kit.Size(10_000), how, strconv.Itoa)
			})
		}
	}
}

func killSidecar(sc *kit.Sidecar) {
	sc.Kill()
	sc.Start()
}

// upgradeSidecar replaces the program while the sidecar runs, and restarts it as a service manager does.
func upgradeSidecar(sc *kit.Sidecar) {
	sc.T.Helper()
	program, err := os.ReadFile(cmp.Or(sc.Program, kit.Binary))
	if err != nil {
		sc.T.Fatal(err)
	}
	sc.Program = filepath.Join(filepath.Dir(sc.ConfigFile), "qsidecar")
	if err := local.WriteProgram(sc.Program+".new", append(program, "more"...)); err != nil {
		sc.T.Fatal(err)
	}
	if err := os.Rename(sc.Program+".new", sc.Program); err != nil {
		sc.T.Fatal(err)
	}
	sc.Signal(syscall.SIGTERM)
	if code := sc.WaitExit(); code != 0 {
		sc.T.Errorf("the sidecar ended with the exit code %d", code)
	}
	sc.Start()
}

// checkChange changes the sidecar, and with it perhaps the worker, repeatedly during n short jobs. Each job is done. It is done
// once, unless the worker was killed: a worker binds its leases again and repeats a settle without a reply. The jobs of a lost claim
// are delivered again when their lease has ended. payload returns that of the job that logs a number.
func checkChange(w *clientlib.Worker, n int, how change, payload func(number int) string) {
	w.T.Helper()
	w.Start()
	const times = 5
	for i := range times {
		putNumbers(w.Sidecar, i*n/times, (i+1)*n/times, payload) // so that the change meets running jobs
		w.DoneAtLeast(i*n/times + 1)
		how.do(w, i)
	}
	w.WaitEmpty("quick")
	putNumbers(w.Sidecar, n, n+1, payload) // so that the worker is up before it is terminated
	w.WaitEmpty("quick")
	w.Terminate()
	byPayload, lines := w.Done()
	lost, twice := n+1-len(byPayload), len(lines)-len(byPayload)
	kit.Figure(w.T, "%d jobs, %d lost, %d done twice", n+1, lost, twice)
	if lost != 0 || twice > times*how.twice {
		w.T.Errorf("of %d jobs %d were lost and %d done twice, want 0 and %d at most; the worker's output:\n%s", n+1, lost, twice, times*how.twice, w.Output)
	}
}

// putNumbers enqueues jobs that log the numbers.
func putNumbers(sc *kit.Sidecar, from, to int, payload func(number int) string) {
	sc.T.Helper()
	c := sc.Dial()
	for from < to {
		var jobs []kit.Msg
		for ; from < to && len(jobs) < 1000; from++ {
			jobs = append(jobs, kit.Msg{"queue": "quick", "payload": payload(from)})
		}
		c.Must(kit.Msg{"op": "enqueue", "jobs": jobs})
	}
}

// waysToAck returns the ways to ack with which the tests of memory run. An ack that the job waits for leaves less behind, so only a soak has it.
func waysToAck() []string {
	if kit.Soak {
		return []string{"behind", "sync"}
	}
	return []string{"behind"}
}

// checkMemory runs a program that works so many jobs and prints the size of its objects, in a unit, after a tenth of them and after
// all. It must grow by less than most: a worker keeps nothing of the jobs that it has settled. A drain works all jobs.
func checkMemory(t *testing.T, total int, unit string, most int, cmd *exec.Cmd) {
	t.Helper()
	cmd.Env = append(cmd.Environ(), "QSIDECAR_SOCKET="+kit.NewSite(t).Start("a").Socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var got struct{ Done, First, Last int }
	if err := errors.Join(err, json.Unmarshal(out, &got)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	kit.Figure(t, "%d jobs, %s from %d to %d", got.Done, unit, got.First, got.Last)
	if got.Done != total {
		t.Errorf("%d jobs of %d were done", got.Done, total)
	}
	if got.Last > got.First+most {
		t.Errorf("the objects have grown from %d %s after a tenth of the jobs to %d", got.First, unit, got.Last)
	}
}

// restartSite returns a site whose sidecar stops without waiting long for its workers, and whose
// leases last much longer.
func restartSite(t *testing.T) *kit.Site {
	t.Helper()
	s := kit.NewSite(t)
	s.SidecarTimeout = 20 * time.Second
	s.Extra = "drain_timeout: 300ms\n"
	return s
}

// newestPostgres starts a PostgreSQL of the newest version, which ends with the test.
func newestPostgres(t *testing.T) *testserver.Postgres {
	t.Helper()
	p, err := testserver.StartPostgres(t.Context(), testserver.NewestPostgres, testserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}
