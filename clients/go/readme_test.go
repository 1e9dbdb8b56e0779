package qsidecar_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// readmeClient is the README's example of a client.
func readmeClient(ctx context.Context) error {
	c, err := qsidecar.Dial(ctx, qsidecar.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	job, err := qsidecar.NewJob("mail", Mail{To: "ada"}) // stored as JSON; for bytes: protocol.NewJob{Queue: "mail", Payload: b}
	if err != nil {
		return err
	}
	job.Key = "welcome-ada"                                       // a second enqueue with it stores nothing
	job.Priority = 10                                             // a higher one comes first
	job.DelayMS = protocol.Some((5 * time.Second).Milliseconds()) // or RunAt: milliseconds since 1970, as time.Time.UnixMilli returns
	job.MaxAttempts = protocol.Some[int64](3)                     // an Opt is absent, or Some
	stored, err := c.Enqueue(ctx, job)
	if err != nil || stored.ID == "" {
		return errors.Join(err, errors.New("no id"))
	}
	jobs, err := c.Claim(ctx, qsidecar.Claim{Queues: []string{"mail", "resize"}, Max: 10, Wait: 30 * time.Second})
	if err != nil {
		return err
	}
	var mail Mail
	err = qsidecar.Decode(&jobs[0], &mail) // jobs[0].Payload has the bytes
	if err != nil {
		return err
	}
	err = c.Ack(ctx, jobs[0].Lease)
	return err
}

// Mail is the payload of the README's example.
type Mail struct{ To string }

// readmeOutcomes are the outcomes in the README's example of a worker.
var readmeOutcomes = []func() error{
	func() error {
		return &qsidecar.DeadError{Err: errors.New("no such picture")} // no more attempts
	},
	func() error {
		return &qsidecar.RetryError{Err: errors.New("the disk is full"), Delay: time.Minute} // failed: tried again in a minute
	},
	func() error {
		return &qsidecar.SnoozeError{Delay: time.Hour} // not now: uses up no attempt
	},
}

// TestReadme checks that the README's code is the code in this file. TestGoExample runs the
// README's example.
func TestReadme(t *testing.T) {
	var texts [2]string
	for i, name := range []string{"README.md", "readme_test.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	spaces := regexp.MustCompile(`\s+`)
	here := spaces.ReplaceAllString(texts[1], " ")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(texts[0], -1)
	if len(blocks) != 3 {
		t.Fatalf("the README has %d blocks of Go, want 3", len(blocks))
	}
	for _, b := range blocks[1:] {
		for line := range strings.Lines(b[1]) {
			if line = spaces.ReplaceAllString(strings.TrimSpace(line), " "); !strings.Contains(here, line) {
				t.Errorf("the README has the line %q, which no test runs", line)
			}
		}
	}
	s := listen(t)
	t.Setenv("QSIDECAR_SOCKET", s.socket)
	done := later(func() (struct{}, error) { return struct{}{}, readmeClient(t.Context()) })
	p := s.accept()
	enqueue := p.expect(protocol.OpEnqueue)
	if got := enqueue.Job; got.Priority != 10 || got.DelayMS.Or(0) != 5000 || got.MaxAttempts.Or(0) != 3 {
		t.Errorf("the job is %+v, want the README's options", got)
	}
	p.reply(enqueue, &protocol.Reply{OK: true, Enqueued: &protocol.EnqueuedJob{ID: "17"}})
	p.jobs(p.expect(protocol.OpClaim), "L1")
	p.settled(p.expect(protocol.OpAck), "acked", 1)
	if _, err := done.wait(t); err != nil {
		t.Error(err)
	}
	for _, outcome := range readmeOutcomes {
		if outcome() == nil {
			t.Error("an outcome of the README is nil")
		}
	}
}
