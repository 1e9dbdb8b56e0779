package top

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestQueues checks the list of queues: its order, its filter and its size.
func TestQueues(t *testing.T) {
	s := newSidecar(t)
	c := s.client()
	fill(t, c, "x", "mail", "sms", "sms")
	v := newView(s)
	v.until("1 Queues 2", "2 Workers 2", "3 Databases 1", "ready 3  claimed 0  dead 0", "every 10ms")
	v.fits(80, 24)
	if lines := strings.Split(v.screen(), "\n"); !strings.HasPrefix(lines[2], "QUEUE* ") || !strings.HasPrefix(lines[3], "mail ") || !strings.HasPrefix(lines[4], "sms ") {
		t.Errorf("by name:\n%s", v.screen())
	}
	v.press("down", "s")
	if lines := strings.Split(v.screen(), "\n"); !strings.Contains(lines[2], " READY* ") || !strings.HasPrefix(lines[3], "sms ") {
		t.Errorf("by ready jobs:\n%s", v.screen())
	}
	if v.m.tables[queuesScreen].selected() != "sms" {
		t.Error("the cursor does not follow its queue")
	}
	v.press("S")
	if lines := strings.Split(v.screen(), "\n"); !strings.HasPrefix(lines[3], "mail ") {
		t.Errorf("in reverse:\n%s", v.screen())
	}
	v.press("/", "A", "i", "enter")
	if out := v.screen(); strings.Contains(out, "sms") || !strings.Contains(out, "filter: Ai") || !strings.Contains(out, "\nmail ") {
		t.Errorf("filtered:\n%s", out)
	}
	v.press("/", "z")
	v.until("/Aiz")
	v.press("enter")
	v.until("nothing matches the filter")
	v.press("esc")
	v.until("\nsms ")
	v.press("?")
	v.until("retry all dead jobs of the queue", "Any key closes this help")
	v.fits(80, 24)
	v.press("x")
	for _, size := range []tea.WindowSizeMsg{{Width: 200, Height: 50}, {Width: 20, Height: 6}} {
		v.update(size)
		v.fits(size.Width, size.Height)
	}
}

// TestThousandQueues checks that the cursor reaches the end of a long list and stays in view.
func TestThousandQueues(t *testing.T) {
	s := newSidecar(t)
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("queue-%04d", i)
	}
	fill(t, s.client(), "x", names...)
	v := newView(s)
	v.until("1 Queues 1000", "queue-0000 ", "queue-0018 ")
	v.fits(80, 24)
	v.press("end")
	v.until("queue-0999 ", "queue-0981 ")
	v.press("pgup", "pgup")
	v.until("queue-0959 ")
	v.press("/", "7", "7", "7", "enter")
	v.until("filter: 777", "\nqueue-0777 ")
	if v.m.tables[queuesScreen].selected() != "queue-0777" {
		t.Errorf("the cursor is on %q", v.m.tables[queuesScreen].selected())
	}
}

// TestActions checks that pause, resume and retry need a confirmation, and what they do.
func TestActions(t *testing.T) {
	s := newSidecar(t)
	c := s.client()
	fill(t, c, "x", "mail", "mail", "mail")
	for range 3 {
		kill(t, c, "mail", "no route")
	}
	v := newView(s)
	v.until("dead 3", "\nmail ")
	v.press("p")
	v.until("Pause mail on every host? (y/N)")
	v.press("n")
	v.until("nothing was done", " open")
	v.press("p", "y")
	v.until("paused mail", " paused\n")
	v.press("p")
	v.until("Resume mail on every host? (y/N)")
	v.press("y")
	v.until("resumed mail", " open")

	v.press("enter")
	v.until("no job is ready", " dead 3 ")
	v.press("r")
	v.press("tab", "tab", "tab")
	v.until("DIED", "nacked", "no route")
	v.press("down", "r")
	v.until("Retry job 2 of mail? (y/N)")
	v.press("y")
	v.until("retried job 2 of mail", " ready 1 ", " dead 2 ")
	v.press("R")
	v.until("Retry all 2 dead jobs of mail? (y/N)")
	v.press("y")
	v.until("retried 2 jobs of mail", " ready 3 ", " dead 0 ")
	v.press("R")
	v.until("mail has no dead job")
}

// TestJob checks that a job's payload and failed attempts are shown, without control characters.
func TestJob(t *testing.T) {
	s := newSidecar(t)
	c := s.client()
	fill(t, c, `{"to":"ada","tags":["a"]}`, "mail")
	fill(t, c, "\x1b[31mred\x00", "mail")
	kill(t, c, "mail", "no route\n\x1b[2Jto host")
	v := newView(s)
	v.until("dead 1")
	v.press("enter")
	v.until("PAYLOAD", `\x1b[31mred\x00`)
	v.press("enter")
	v.until("\nstate        ready", "\npayload      \uFFFD[31mred\uFFFD")
	v.press("r")
	v.until("only a dead job can be retried: this one is ready")
	v.press("esc", "tab", "tab", "tab")
	v.until("DIED", `no route\n`)
	v.press("enter")
	v.until("job 1 of mail", "\npayload      {", "\n               \"to\": \"ada\",", "\nfailed       attempt 1 at 20", "\n             no route\n             \uFFFD[2Jto host")
	v.fits(80, 24)
	if _, err := c.Delete(testwait.Context(t), "mail", []string{"1"}); err != nil {
		t.Fatal(err)
	}
	v.until("Job 1 is gone: it was deleted, or it is done and not kept.")
	v.press("esc")
	v.until("no job is dead")
}

// TestJobPages checks the pages of a long list of jobs.
func TestJobPages(t *testing.T) {
	s := newSidecar(t)
	queues := make([]string, 30)
	for i := range queues {
		queues[i] = "mail"
	}
	c := s.client()
	fill(t, c, "x", queues...)
	v := newView(s)
	v.until("ready 30")
	v.press("enter")
	v.until("\n1 ", "\n19 ")
	v.press("n")
	v.until("(not the first page)", "\n20 ", "\n30 ")
	if _, err := c.Delete(testwait.Context(t), "mail", []string{"19"}); err != nil {
		t.Fatal(err)
	}
	v.until("the last job of the page before is gone: this is the first page", "\n1 ", "\n20 ")
}

// TestWorkersAndDatabases checks the other two lists and their details.
func TestWorkersAndDatabases(t *testing.T) {
	s := newSidecar(t)
	c := s.client()
	fill(t, c, "x", "mail")
	if _, err := c.Claim(testwait.Context(t), qsidecar.Claim{Queues: []string{"mail"}, Wait: time.Minute}); err != nil {
		t.Fatal(err)
	}
	v := newView(s)
	v.press("2")
	v.until("\ntester ", "mail:1")
	v.fits(80, 24)
	v.press("/", "t", "e", "s", "enter", "enter")
	v.until("\nworker       tester\n", "mail: 1, the oldest is job 1 for ")
	v.press("esc", "tab")
	v.until("\nmain ", "sqlite", " ok")
	v.fits(80, 24)
	v.press("enter")
	v.until("\ndatabase     main\n", "\nstate        ok")
	c.Close()
	v.press("esc", "1")
	v.until("ready 1  claimed 0")
}

// TestRestart checks that the view shows an outage, and goes on after it.
func TestRestart(t *testing.T) {
	s := newSidecar(t)
	fill(t, s.client(), "x", "mail")
	v := newView(s)
	v.until("ready 1", "every 10ms")
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.end()
		<-s.ended
	}()
	v.until("disconnected, trying again", "\nmail ")
	testwait.Closed(t, "the sidecar's end", stopped)
	s.start()
	v.until("every 10ms", "ready 1")
	fill(t, s.client(), "x", "mail")
	v.until("ready 2")
}

// TestRates checks the jobs per second, on a clock of the test.
func TestRates(t *testing.T) {
	var r rates
	start := time.Unix(1000, 0)
	want := func(what, in, out string) {
		t.Helper()
		if got := r.of("q"); rateText(got.in) != in || rateText(got.out) != out {
			t.Errorf("%s: in %s, out %s; want %s and %s", what, rateText(got.in), rateText(got.out), in, out)
		}
	}
	add := func(after time.Duration, in, out int64) {
		r.add(start.Add(after), []protocol.QueueStat{{Queue: "q", Enqueued: protocol.Some(in), Acked: protocol.Some(out)}})
	}
	r.add(start, nil)
	want("one sample", "-", "-")
	add(time.Second, 30, 12)
	want("a new queue", "30", "12")
	for i := range 40 {
		add(time.Duration(i+8)*time.Second/4, 30, 12)
	}
	if want("no jobs", "0", "0"); len(r.samples) > 12 {
		t.Errorf("there are %d samples", len(r.samples))
	}
	add(12*time.Second, 55, 13)
	want("some jobs", "2.5", "0.1")
	add(13*time.Second, 3, 13)
	want("the counters of a sidecar that began again", "-", "0.1")
	r.add(start.Add(14*time.Second), []protocol.QueueStat{{Queue: "q"}})
	want("a queue without counters", "-", "-")
}

// TestColumnsFit checks that no number is wider than its column, because a cut number is another one.
func TestColumnsFit(t *testing.T) {
	for _, n := range []int64{0, 9_999, 99_999, 100_000, 9_999_999, 10_000_000, 99_999_999} {
		if got := count(n, true); len(got) > 6 {
			t.Errorf("%d is %s", n, got)
		}
	}
	for _, n := range []float64{-1, 0, 0.001, 0.1, 9.94, 9.96, 99_999, 99_999.7, 9_999_000} {
		if got := rateText(n); len(got) > 5 {
			t.Errorf("%v is %s", n, got)
		}
	}
}

// TestWorkersOfQueues checks the number of sessions that have jobs of each queue, and the order by it.
func TestWorkersOfQueues(t *testing.T) {
	s := newSidecar(t)
	c := s.client()
	fill(t, c, "x", "idle", "mail", "mail", "mail")
	for range 2 {
		if _, err := s.client().Claim(testwait.Context(t), qsidecar.Claim{Queues: []string{"mail"}, Wait: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	v := newView(s)
	v.until("1 Queues 2", "claimed 2")
	v.fits(80, 24)
	for range 8 {
		v.press("s")
	}
	fields := strings.Fields(strings.Split(v.screen(), "\n")[3])
	if len(fields) != 10 || fields[0] != "mail" || fields[8] != "2" || !strings.Contains(v.screen(), " WORKER* ") {
		t.Errorf("by workers:\n%s", v.screen())
	}
}

// TestBlockedJobs checks that jobs that wait for their group have a column and a tab.
func TestBlockedJobs(t *testing.T) {
	s := newSidecar(t)
	c := s.client()
	fill(t, c, "x", "mail")
	v := newView(s)
	v.until("\nmail ")
	if strings.Contains(v.screen(), "BLOCK") {
		t.Errorf("without blocked jobs:\n%s", v.screen())
	}
	jobs := make([]protocol.NewJob, 4)
	for i := range jobs {
		jobs[i] = protocol.NewJob{Queue: "sms", Group: "ada", Payload: []byte("y")}
	}
	if _, err := c.EnqueueMany(testwait.Context(t), jobs); err != nil {
		t.Fatal(err)
	}
	v.until("READY  BLOCK", "\nsms ", "     1      3")
	v.press("s", "s")
	v.until("BLOCK*")
	if lines := strings.Split(v.screen(), "\n"); !strings.HasPrefix(lines[3], "sms ") {
		t.Errorf("sorted by the blocked jobs:\n%s", v.screen())
	}
	v.fits(80, 24)
	v.press("up", "enter")
	v.until(" ready 1 ", " blocked 3 ")
	v.press("tab")
	v.until("AGE", "\n3 ", "\n4 ", "\n5 ")
	v.fits(80, 24)
}
