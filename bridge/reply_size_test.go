package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/protocol"
)

// sized receives a reply that must not be longer than the sidecar announced.
func (c *client) sized(most int) reply {
	c.t.Helper()
	line, err := c.line()
	if err != nil {
		c.t.Fatal(err)
	}
	if len(line)-1 > most {
		c.t.Errorf("a reply has %d bytes, and max_reply is %d: %.100s", len(line)-1, most, line)
	}
	return parse(c.t, line)
}

// storeLarge enqueues jobs without a sidecar, each with a payload and headers.
func storeLarge(t *testing.T, b backends.Backend, n int, payload string, headers map[string]string) {
	t.Helper()
	jobs := make([]backends.NewJob, n)
	for i := range jobs {
		jobs[i] = backends.NewJob{Queue: "q", Payload: []byte(payload), Headers: headers}
	}
	if _, err := b.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}}); err != nil {
		t.Fatal(err)
	}
}

// TestReplyFitsMaxReply shows that with a small max_frame no reply exceeds the max_reply that follows from it,
// whatever the jobs contain. Jobs that don't fit are released without using up an attempt.
func TestReplyFitsMaxReply(t *testing.T) {
	const frame, jobs = 64 << 10, 50
	limits := protocol.NewLimits(frame)
	for what, job := range map[string]struct {
		payload string
		headers map[string]string
	}{
		"payloads":           {strings.Repeat("x", limits.MaxPayload/2), nil},
		"escaped payloads":   {strings.Repeat("\x01", limits.MaxPayload), nil},
		"headers":            {"", map[string]string{"a": strings.Repeat("x", protocol.MaxHeaderSize-1)}},
		"many escaped bytes": {"\x02", map[string]string{"a": strings.Repeat("\x01", protocol.MaxHeaderSize-1)}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := memory.New()
				o := options(db)
				o.MaxFrame = frame
				s := start(t, o)
				storeLarge(t, db, jobs, job.payload, job.headers)
				c := s.dial(t)
				c.send(`{"op":"peek","queue":"q","max":1000}`)
				if r := c.sized(limits.MaxReply); len(r.Jobs) == 0 {
					t.Errorf("peek shows no job: %+v", r.Error)
				}
				seen := make(map[string]bool)
				for len(seen) < jobs {
					c.send(`{"op":"claim","queue":"q","max":1000,"wait_ms":60000}`)
					r := c.sized(limits.MaxReply)
					if len(r.Jobs) == 0 {
						t.Fatalf("after %d jobs: %+v", len(seen), r.Error)
					}
					for _, j := range r.Jobs {
						if seen[j.ID] || j.Attempt != 1 {
							t.Fatalf("job %s, seen before: %v, attempt %d", j.ID, seen[j.ID], j.Attempt)
						}
						seen[j.ID] = true
					}
				}
			})
		})
	}
}

// TestReportsFitMaxReply shows that replies about all queues or sessions don't exceed max_reply either.
func TestReportsFitMaxReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		o := options(db)
		o.MaxFrame = 64 << 10
		s := start(t, o)
		most := protocol.NewLimits(o.MaxFrame).MaxReply
		queues := make([]string, 5000)
		for i := range queues {
			queues[i] = fmt.Sprintf("%s%d", strings.Repeat("q", 120), i)
		}
		store(t, db, queues...)
		c := s.dial(t)
		c.send(`{"op":"stats"}`)
		if r := c.sized(most); r.Error.Code != "unsupported" || !strings.Contains(r.Error.Message, "max_reply") {
			t.Errorf("stats of %d queues: %+v", len(queues), r.Error)
		}
		for range 2500 {
			conn := s.net.dial(t, s.path)
			defer conn.Close()
			if _, err := fmt.Fprintf(conn, `{"op":"hello","worker":"%s"}`+"\n", strings.Repeat("w", 128)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		c.send(`{"op":"status"}`)
		if r := c.sized(most); !r.OK {
			t.Errorf("status: %+v", r.Error)
		}
	})
}

// manyChanges is a process whose reload changes much, or fails for many reasons.
type manyChanges struct {
	Control
	texts []string
	fails bool
}

func (m *manyChanges) Reload(context.Context) (changes []string, why string, err error) {
	if m.fails {
		return nil, "", errors.New(strings.Join(m.texts, "\n"))
	}
	return m.texts, "", nil
}

// TestReloadFitsMaxReply shows the same for the reply to a reload with many changes, or whose config has many errors.
func TestReloadFitsMaxReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.MaxFrame = 64 << 10
		b := newFor(t, o, testLog(t))
		control := &manyChanges{}
		for i := range 10_000 {
			control.texts = append(control.texts, fmt.Sprintf("queues.%s%d.max_attempts: 3 → 4", strings.Repeat("q", 110), i))
		}
		b.SetControl(control)
		c := run(t, b).dial(t)
		most := protocol.NewLimits(o.MaxFrame).MaxReply
		for _, control.fails = range []bool{false, true} {
			c.send(`{"op":"reload"}`)
			if r := c.sized(most); r.OK == control.fails {
				t.Errorf("fails %v: %+v", control.fails, r.Error)
			}
		}
	})
}

// TestLostEventsFitMaxReply shows that a session that loses all of its jobs at once gets each of them in an event,
// and that no event exceeds max_reply.
func TestLostEventsFitMaxReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.MaxFrame = 64 << 10
		s := start(t, o)
		c := s.dial(t)
		c.call(`{"op":"hello","events":["lost"]}`)
		db := s.config.Load().databases[0]
		lost := make([]lease.Held, 10_000)
		for i := range lost {
			lost[i].Lease.Job = fmt.Sprintf("%020d", i)
		}
		for x := range s.sessions {
			x.ReportLost(db.Pipeline, lost, "")
		}
		for got := 0; got < len(lost); {
			r := c.sized(protocol.NewLimits(o.MaxFrame).MaxReply)
			if got += len(r.Leases); r.Event != "lost" {
				t.Fatalf("after %d leases: %+v", got, r.Error)
			}
		}
	})
}

// TestClaimAfterMaxFrameWasRaised shows that a client that connected before gets a job that is larger than the
// max_reply that hello returned to it.
func TestClaimAfterMaxFrameWasRaised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.MaxFrame = 64 << 10
		s := start(t, o)
		old := s.dial(t)
		old.call(`{"op":"ping"}`)
		s.reloads(t, with(o, func(o *Options) { o.MaxFrame = 4 << 20 }))
		s.dial(t).call(`{"op":"enqueue","queue":"q","payload":"%s"}`, strings.Repeat("x", 1<<20))
		old.call(`{"op":"ack","lease":%q}`, old.claim1("q").Lease)
	})
}
