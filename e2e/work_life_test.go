package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lines are the lines of a file of the site.
func (s *site) lines(name string) []string {
	s.t.Helper()
	return strings.Fields(s.read(name))
}

// TestWorkCrash: `qsidecar work` is killed in the middle of many jobs, and the next
// one does what is left.
func TestWorkCrash(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.started("a")
	c := a.dial()
	ids := c.enqueueN("q", size(10_000))
	s.script("send.sh", "echo $QSIDECAR_JOB >>done")
	w := a.works("q", "-j", "8", "--", "./send.sh")
	eventually(t, patience, "a third is done", func() bool { return len(s.lines("done")) > len(ids)/3 })
	w.signal(syscall.SIGKILL)
	<-w.exited
	a.works("q", "-j", "8", "--drain", "--", "./send.sh").ends(0)
	// What was killed twice in a row comes after the back-off.
	eventually(t, patience, "nothing is left", func() bool { return c.stat("q").total() == 0 })
	done := s.lines("done")
	figure(t, "%d jobs, killed in the middle: %d commands ran", len(ids), len(done))
	for _, id := range ids {
		if !slices.Contains(done, id) {
			t.Errorf("job %s was never worked", id)
		}
	}
	if most := len(ids) + 8; len(done) > most {
		t.Errorf("%d commands ran, want %d at most: 8 may run twice", len(done), most)
	}
}

// TestWorkStopped: SIGTERM in the middle lets commands finish; no job is lost,
// charged or worked twice.
func TestWorkStopped(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.started("a")
	c := a.dial()
	ids := c.enqueueN("q", 300)
	s.script("send.sh", "read -r x <release; echo $QSIDECAR_JOB >>done")
	fifo := s.fifo("release")
	w := a.works("q", "-j", "4", "--", "./send.sh")
	for range 20 {
		fifo.release()
	}
	eventually(t, patience, "20 are done", func() bool { return len(s.lines("done")) == 20 })
	w.signal(syscall.SIGTERM)
	for range 60 { // for those that run; one that claimed on would wait for more
		fifo.release()
	}
	w.ends(0)
	done := s.lines("done")
	slices.Sort(done)
	if len(slices.Compact(slices.Clone(done))) != len(done) {
		t.Errorf("a job was worked twice: %v", done)
	}
	if left := s.jobsInFile(t); len(left)+len(done) != len(ids) {
		t.Errorf("%d jobs done and %d left, of %d", len(done), len(left), len(ids))
	}
	// What the sidecar had claimed ahead is back within a second.
	eventually(t, patience, "no job is claimed", func() bool { return c.stat("q").Claimed == 0 })
	if st := c.stat("q"); st.Ready != len(ids)-len(done) || st.total() != st.Ready {
		t.Errorf("the queue has %+v, want %d ready and nothing else", st, len(ids)-len(done))
	}
	for _, j := range c.must(msg{"op": "peek", "queue": "q", "max": 1000}).Jobs {
		if j.Attempt != 0 || len(j.Errors) != 0 {
			t.Fatalf("job %s shows %d attempts, want it uncharged", j.ID, j.Attempt)
		}
	}
}

// TestWorkSecondSignal: it ends the commands, and their jobs go back uncharged.
func TestWorkSecondSignal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.started("a")
	c := a.dial()
	id := c.put("q", "x")[0]
	s.script("send.sh", `trap '' TERM
sleep 1000 & echo $! $$ >pids.tmp; mv pids.tmp pids; wait`)
	w := a.works("q", "--", "./send.sh")
	eventually(t, patience, "the command runs", func() bool { return s.read("pids") != "" })
	w.signal(syscall.SIGTERM)
	// The first signal is acted upon once the worker claims no more.
	late := c.put("q", "late")[0]
	w.signal(syscall.SIGINT)
	w.ends(130)
	s.gone("pids", 2)
	for _, id := range []string{id, late} {
		if j := c.view("q", id); j.State != "ready" || j.Attempt != 0 {
			t.Errorf("the job is %+v, want it ready and uncharged", j)
		}
	}
}

// TestWorkLost: the command of a job that was taken back is stopped, and settles nothing.
func TestWorkLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.started("a")
	c := a.dial()
	id := c.put("q", "x")[0]
	s.script("send.sh", `[ -e pids ] && exit 0
sleep 1000 & echo $! $$ >pids.tmp; mv pids.tmp pids; wait`)
	w := a.works("q", "--", "./send.sh")
	eventually(t, patience, "the command runs", func() bool { return s.read("pids") != "" })
	if n := c.must(msg{"op": "release", "queue": "q", "ids": []string{id}}).Count; n != 1 {
		t.Fatalf("released %d", n)
	}
	s.gone("pids", 2)
	eventually(t, patience, "the job is done by its second run", func() bool { return c.stat("q").total() == 0 })
	w.signal(syscall.SIGTERM)
	w.ends(0)
	if !strings.Contains(w.diag.String(), "the job was taken back") {
		t.Errorf("it said %q", w.diag)
	}
}

// TestWorkSidecarRestarts: the sidecar is restarted under a command that takes three
// lease periods; its job is acked, and was delivered once.
func TestWorkSidecarRestarts(t *testing.T) {
	for name, stop := range map[string]func(*sidecar){
		"SIGTERM": func(sc *sidecar) {
			sc.signal(syscall.SIGTERM)
			sc.exit(patience)
		},
		"SIGKILL": (*sidecar).kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.hostLease = 3 * time.Second
			s.extra = "drain_timeout: 300ms\n"
			a := s.started("a")
			a.dial().put("q", "x")
			s.script("send.sh", fmt.Sprintf("echo $QSIDECAR_ATTEMPT >>runs; sleep %d", 3*s.hostLease/time.Second))
			w := a.works("q", "-j", "2", "--", "./send.sh")
			eventually(t, patience, "the command runs", func() bool { return s.read("runs") != "" })
			stop(a)
			a.start()
			c := a.dial()
			eventually(t, patience, "the job is done", func() bool { return c.stat("q").total() == 0 })
			w.signal(syscall.SIGTERM)
			w.ends(0)
			if got := s.read("runs"); got != "1\n" {
				t.Errorf("it ran as attempts %q, want once", got)
			}
			if left := s.jobsInFile(t); len(left) > 0 {
				t.Errorf("jobs %v are left", left)
			}
		})
	}
}

// TestWorkSidecarAway: a command ends while there is no sidecar; its job is acked by
// the next one, and was delivered once.
func TestWorkSidecarAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.started("a")
	a.dial().put("q", "x")
	s.script("send.sh", "echo $QSIDECAR_ATTEMPT >>runs; read -r x <release; echo >ended")
	fifo := s.fifo("release")
	w := a.works("q", "--", "./send.sh")
	eventually(t, patience, "the command runs", func() bool { return s.read("runs") != "" })
	a.kill()
	fifo.release()
	eventually(t, patience, "the command has ended", func() bool { return s.read("ended") != "" })
	w.signal(syscall.SIGTERM) // it stays for the ack
	a.start()
	w.ends(0)
	if left := s.jobsInFile(t); len(left) > 0 || s.read("runs") != "1\n" {
		t.Errorf("jobs %v are left, and it ran as attempts %q, want once", left, s.read("runs"))
	}
}

// TestWorkDrain: it ends when nothing is ready, after what its own commands enqueue,
// and --once says that there was nothing.
func TestWorkDrain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.started("a")
	c := a.dial()
	c.put("low", "1", "1")
	c.put("high", "3")
	c.must(msg{"op": "enqueue", "queue": "low", "payload": "1", "delay_ms": 3_600_000})
	s.script("send.sh", fmt.Sprintf(`n=$(cat); echo $QSIDECAR_QUEUE$n >>done
[ $n -le 1 ] || %s enqueue high $((n-1)) >/dev/null`, binary))
	a.works("high", "low", "-j", "3", "--drain", "--", "./send.sh").ends(0)
	if done := s.lines("done"); len(done) != 5 {
		t.Errorf("done: %v, want all that was ready, and what it enqueued", done)
	}
	a.works("low", "high", "--once", "--", "./send.sh").ends(3)
	c.put("low", "1")
	c.put("high", "1")
	a.works("high", "low", "--once", "--", "./send.sh").ends(0)
	if done := s.lines("done"); len(done) != 6 || done[5] != "high1" {
		t.Errorf("done: %v, want one more, of the first queue", done)
	}
	c.must(msg{"op": "pause", "queue": "low"})
	a.works("low", "--drain", "--", "./send.sh").ends(0)
}
