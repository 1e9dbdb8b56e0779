package cli

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// lines returns the lines of a file of the site.
func lines(s *kit.Site, name string) []string {
	s.T.Helper()
	return strings.Fields(s.Read(name))
}

// TestWorkCrash kills `qsidecar work` during many jobs. The next one processes the rest.
func TestWorkCrash(t *testing.T) {
	t.Parallel()
	for ack, twice := range map[string]int{"behind": 32, "sync": 8} { // how many jobs are begun and not settled
		t.Run(ack, func(t *testing.T) {
			t.Parallel()
			s := kit.NewSite(t)
			a := s.Start("a")
			c := a.Dial()
			ids := c.Enqueue("q", kit.Size(3_000))
			s.Script("send.sh", "echo $QSIDECAR_JOB >>done")
			w := a.Work("q", "-j", "8", "--ack", ack, "--", "./send.sh")
			testwait.Until(t, "a third is done", func() bool { return len(lines(s, "done")) > len(ids)/3 })
			w.Signal(syscall.SIGKILL)
			<-w.Exited
			a.Work("q", "-j", "8", "--drain", "--ack", ack, "--", "./send.sh").WaitExit(0)
			// A job that was killed twice in a row comes after the back-off.
			testwait.Until(t, "nothing is left", func() bool { return c.Stats("q").Total() == 0 })
			done := lines(s, "done")
			kit.Figure(t, "%d jobs, killed in the middle: %d commands ran", len(ids), len(done))
			for _, id := range ids {
				if !slices.Contains(done, id) {
					t.Errorf("job %s was never worked", id)
				}
			}
			if most := len(ids) + twice; len(done) > most {
				t.Errorf("%d commands ran, want %d at most: %d may run twice", len(done), most, twice)
			}
		})
	}
}

// TestWorkStopped checks that SIGTERM lets commands finish. No job is lost, uses up an attempt, or
// runs twice.
func TestWorkStopped(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	ids := c.Enqueue("q", 300)
	s.Script("send.sh", "read -r x <release; echo $QSIDECAR_JOB >>done")
	fifo := newFIFO(s, "release")
	w := a.Work("q", "-j", "4", "--", "./send.sh")
	for range 20 {
		fifo.release()
	}
	testwait.Until(t, "20 are done", func() bool { return len(lines(s, "done")) == 20 })
	w.Signal(syscall.SIGTERM)
	for range 60 { // for the running commands; a worker that still claimed would wait for more
		fifo.release()
	}
	w.WaitExit(0)
	done := lines(s, "done")
	slices.Sort(done)
	if len(slices.Compact(slices.Clone(done))) != len(done) {
		t.Errorf("a job was worked twice: %v", done)
	}
	if left := s.JobsInFile(t); len(left)+len(done) != len(ids) {
		t.Errorf("%d jobs done and %d left, of %d", len(done), len(left), len(ids))
	}
	// Jobs that the sidecar had prefetched are ready within a second.
	testwait.Until(t, "no job is claimed", func() bool { return c.Stats("q").Claimed == 0 })
	if st := c.Stats("q"); st.Ready != len(ids)-len(done) || st.Total() != st.Ready {
		t.Errorf("the queue has %+v, want %d ready and nothing else", st, len(ids)-len(done))
	}
	for _, j := range c.Must(kit.Msg{"op": "peek", "queue": "q", "max": 1000}).Jobs {
		if j.Attempt != 0 || len(j.Errors) != 0 {
			t.Fatalf("job %s shows %d attempts, want none", j.ID, j.Attempt)
		}
	}
}

// TestWorkSecondSignal checks that a second signal ends the commands, and that their jobs use up no
// attempt.
func TestWorkSecondSignal(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	id := c.Put("q", "x")[0]
	s.Script("send.sh", `trap '' TERM
sleep 1000 & echo $! $$ >pids.tmp; mv pids.tmp pids; wait`)
	w := a.Work("q", "--", "./send.sh")
	testwait.Until(t, "the command runs", func() bool { return s.Read("pids") != "" })
	w.Signal(syscall.SIGTERM)
	// The first signal has an effect once the worker no longer claims.
	late := c.Put("q", "late")[0]
	w.Signal(syscall.SIGINT)
	w.WaitExit(130)
	s.WaitEnded("pids", 2)
	for _, id := range []string{id, late} {
		if j := c.Peek("q", id); j.State != "ready" || j.Attempt != 0 {
			t.Errorf("the job is %+v, want it ready without an attempt", j)
		}
	}
}

// TestWorkLost checks that the command of a reclaimed job is stopped and settles nothing.
func TestWorkLost(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	id := c.Put("q", "x")[0]
	s.Script("send.sh", `[ -e pids ] && exit 0
sleep 1000 & echo $! $$ >pids.tmp; mv pids.tmp pids; wait`)
	w := a.Work("q", "--", "./send.sh")
	testwait.Until(t, "the command runs", func() bool { return s.Read("pids") != "" })
	if n := c.Must(kit.Msg{"op": "reclaim", "queue": "q", "ids": []string{id}}).Count; n != 1 {
		t.Fatalf("reclaimed %d", n)
	}
	s.WaitEnded("pids", 2)
	testwait.Until(t, "the job is done by its second run", func() bool { return c.Stats("q").Total() == 0 })
	w.Signal(syscall.SIGTERM)
	w.WaitExit(0)
	if !strings.Contains(w.Diag.String(), "the job was taken back") {
		t.Errorf("it printed %q", w.Diag)
	}
}

// TestWorkLogsATimeLimit checks the log of a command that runs longer than the time limit of its job.
func TestWorkLogsATimeLimit(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	a.Dial().Must(kit.Msg{"op": "enqueue", "queue": "q", "timeout_ms": 1, "max_attempts": 1})
	w := a.Work("q", "--", "sleep", "1000")
	testwait.Until(t, "the log names the limit", func() bool {
		return strings.Contains(w.Diag.String(), "attempt 1 of 1: it ran longer than its time limit of 1ms and was stopped")
	})
	w.Signal(syscall.SIGTERM)
	w.WaitExit(0)
}

// TestWorkSidecarRestarts restarts the sidecar under a command that outlives all old leases. Its
// job is acked and was delivered once.
func TestWorkSidecarRestarts(t *testing.T) {
	for name, stop := range map[string]func(*kit.Sidecar){
		"SIGTERM": func(sc *kit.Sidecar) {
			sc.Signal(syscall.SIGTERM)
			sc.WaitExit()
		},
		"SIGKILL": (*kit.Sidecar).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kit.NewSite(t)
			s.SidecarTimeout = 20 * time.Second // longer than a restart takes on a busy machine
			s.Extra = "drain_timeout: 300ms\n"
			a := s.Start("a")
			c := a.Dial()
			c.Put("q", "x")
			c.Put("left", "x")
			c.WaitDelivered(c.ClaimOne("left"))
			s.Script("send.sh", "echo $QSIDECAR_ATTEMPT >>runs; read -r x <release")
			fifo := newFIFO(s, "release")
			w := a.Work("q", "-j", "2", "--", "./send.sh")
			testwait.Until(t, "the command runs", func() bool { return s.Read("runs") != "" })
			stop(a)
			a.Start()
			c = a.Dial()
			if job := c.ClaimOne("left"); job.Attempt != 2 { // the old leases have ended
				t.Errorf("the job without a returning worker is delivered with attempt %d, want 2", job.Attempt)
			} else {
				c.Must(kit.Msg{"op": "ack", "lease": job.Lease})
			}
			fifo.release()
			testwait.Until(t, "the job is done", func() bool { return c.Stats("q").Total() == 0 })
			w.Signal(syscall.SIGTERM)
			w.WaitExit(0)
			if got := s.Read("runs"); got != "1\n" {
				t.Errorf("it ran as attempts %q, want once", got)
			}
			if left := s.JobsInFile(t); len(left) > 0 {
				t.Errorf("jobs %v are left", left)
			}
		})
	}
}

// TestWorkWhileTheSidecarIsDown checks a command that ends while no sidecar runs. The next sidecar gets the
// ack, and the job was delivered once.
func TestWorkWhileTheSidecarIsDown(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	a.Dial().Put("q", "x")
	s.Script("send.sh", "echo $QSIDECAR_ATTEMPT >>runs; read -r x <release; echo >ended")
	fifo := newFIFO(s, "release")
	w := a.Work("q", "--", "./send.sh")
	testwait.Until(t, "the command runs", func() bool { return s.Read("runs") != "" })
	a.Kill()
	fifo.release()
	testwait.Until(t, "the command has ended", func() bool { return s.Read("ended") != "" })
	w.Signal(syscall.SIGTERM) // it waits to send the ack
	a.Start()
	w.WaitExit(0)
	if left := s.JobsInFile(t); len(left) > 0 || s.Read("runs") != "1\n" {
		t.Errorf("jobs %v are left, and it ran as attempts %q, want once", left, s.Read("runs"))
	}
}

// TestWorkDrain checks that it ends when no job is ready, after the jobs that its own commands
// enqueue, and that --once reports that there was none.
func TestWorkDrain(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	c.Put("low", "1", "1")
	c.Put("high", "3")
	c.Must(kit.Msg{"op": "enqueue", "queue": "low", "payload": "1", "delay_ms": 3_600_000})
	s.Script("send.sh", fmt.Sprintf(`n=$(cat); echo $QSIDECAR_QUEUE$n >>done
[ $n -le 1 ] || %s enqueue high $((n-1)) >/dev/null`, kit.Binary))
	a.Work("high", "low", "-j", "3", "--drain", "--", "./send.sh").WaitExit(0)
	if done := lines(s, "done"); len(done) != 5 {
		t.Errorf("done: %v, want all that was ready, and what it enqueued", done)
	}
	a.Work("low", "high", "--once", "--", "./send.sh").WaitExit(3)
	c.Put("low", "1")
	c.Put("high", "1")
	a.Work("high", "low", "--order", "strict", "--once", "--", "./send.sh").WaitExit(0)
	if done := lines(s, "done"); len(done) != 6 || done[5] != "high1" {
		t.Errorf("done: %v, want one more, of the first queue", done)
	}
	c.Must(kit.Msg{"op": "pause", "queue": "low"})
	a.Work("low", "--drain", "--", "./send.sh").WaitExit(0)
}
