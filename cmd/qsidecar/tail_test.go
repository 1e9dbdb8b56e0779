package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// lines returns the lines of a running program that have all texts.
func (r *running) lines(texts ...string) (found []string) {
	for line := range strings.Lines(r.out.String()) {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(line, text)
		}
		if all {
			found = append(found, line)
		}
	}
	return found
}

// TestTail checks the lines of tail, that it follows one queue, a restart of the sidecar, and the end by a signal.
func TestTail(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := h.start(strings.NewReader(""), "tail", "mail")
	r.waitForOutput("DETAIL\n")
	h.must(exitOK, "enqueue", "other", "x")
	h.must(exitOK, "enqueue", "mail", "x", "--delay", "1h")
	h.must(exitOK, "enqueue", "mail", "x", "--max-attempts", "1")
	lease := h.claimed("mail")
	h.must(exitOK, "nack", lease, "--error", "421\ntry again")
	h.must(exitOK, "retry", "mail", "3")
	r.waitForOutput("retried")
	for _, want := range [][]string{{" mail ", " 2 ", " enqueued ", "due in 1h00m"}, {" 3 ", " enqueued "}, {" 3 ", " claimed ", " 1/1 "}, {" 3 ", " dead ", " 1/1 ", "  421 try again\n"},
		{" 3 ", " retried ", " operator\n"}} {
		if len(r.lines(want...)) != 1 {
			t.Errorf("no line has %q", want)
		}
	}
	if len(r.lines("other")) > 0 || len(r.lines()) != 6 {
		t.Errorf("there are other lines:\n%s", r.out)
	}
	if code := s.stop(); code != exitOK {
		t.Fatalf("the sidecar ended with %d", code)
	}
	testwait.Until(t, "tail reports the outage", func() bool { return strings.Contains(r.errOut.String(), "the sidecar is gone (") })
	h.serve()
	testwait.Until(t, "tail is connected again", func() bool {
		return strings.Contains(r.errOut.String(), "connected again: events from before are missing")
	})
	testwait.Until(t, "an event after the restart", func() bool {
		h.must(exitOK, "enqueue", "mail", "again") // the first ones can come before the watch
		return len(r.lines(" enqueued ")) > 2
	})
	if code := r.stop(); code != exitInterrupted {
		t.Errorf("exit code %d after a signal", code)
	}
}

// claimed claims a job with a timed lease, and returns the lease.
func (h *host) claimed(queue string) string {
	h.t.Helper()
	var job struct{ Lease string }
	if err := json.Unmarshal([]byte(h.must(exitOK, "claim", queue)), &job); err != nil {
		h.t.Fatal(err)
	}
	return job.Lease
}

// TestTailEndsWithItsReader checks that tail ends as soon as its stdout has no reader, without an event.
func TestTailEndsWithItsReader(t *testing.T) {
	h := newHost(t)
	h.serve()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	code := make(chan int, 1)
	go func() { code <- h.app(strings.NewReader(""), out, newText(), nil).main([]string{"tail"}) }()
	if line, err := bufio.NewReader(in).ReadString('\n'); err != nil || !strings.HasPrefix(line, "UTC") {
		t.Fatalf("%q, %v", line, err)
	}
	in.Close()
	if got := testwait.Receive(t, "the end of tail", code); got != exitFailure {
		t.Errorf("exit code %d", got)
	}
}

// TestTailThatReadsSlowly checks that a reader that stops delays no producer, and gets the number of the events that it missed.
func TestTailThatReadsSlowly(t *testing.T) {
	h := newHost(t)
	h.serve()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	stop, code := make(chan os.Signal, 1), make(chan int, 1)
	go func() {
		defer out.Close()
		code <- h.app(strings.NewReader(""), out, newText(), stop).main([]string{"tail", "--json"})
	}()
	c, err := qsidecar.Dial(testwait.Context(t), qsidecar.Options{Socket: h.socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	jobs := make([]protocol.NewJob, 1000)
	for i := range jobs {
		jobs[i] = protocol.NewJob{Queue: "mail"}
	}
	enqueue := func() {
		t.Helper()
		if _, err := c.EnqueueMany(testwait.Context(t), jobs); err != nil {
			t.Fatal(err)
		}
	}
	testwait.Until(t, "the pipe is full", func() bool { enqueue(); return isFull(t, out) })
	const more = 8
	for range more {
		enqueue()
	}
	lines := bufio.NewScanner(in)
	got, missed := 0, 0
	for missed == 0 && lines.Scan() {
		var line struct {
			Event  string
			ID     string
			Missed int
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || (line.Event != "enqueued" || line.ID == "") && line.Missed == 0 {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		got++
		missed = line.Missed
	}
	if missed < more*len(jobs)-4096 {
		t.Errorf("%d events were missed", missed)
	}
	stop <- os.Interrupt
	if got := testwait.Receive(t, "the end of tail", code); got != exitInterrupted {
		t.Errorf("exit code %d", got)
	}
}

// TestTailIsRefused checks the errors of tail.
func TestTailIsRefused(t *testing.T) {
	h := newHost(t)
	h.must(exitUnavailable, "tail")
	h.must(exitUsage, "tail", "no/such queue")
	file := h.file("config.yaml", fmt.Sprintf("databases: {main: {url: 'sqlite:%s/q.db'}}\nqueues: {'*': {}}\nlisten:\n  - {socket: %s, allow: [{ops: [ping]}]}\n", h.dir, h.socket()))
	h.serve("--config", file)
	if r := h.run("tail"); r.code != exitFailure || !strings.Contains(r.err, "no right to the op watch on this socket") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
}
