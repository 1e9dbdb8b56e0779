package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestPayloadSizes checks that a payload at the limit is delivered, one byte more is rejected, and
// a larger row that was inserted directly becomes dead.
func TestPayloadSizes(t *testing.T) {
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	limit := c.Must(kit.Msg{"op": "hello", "version": 1}).MaxPayload
	if limit < 1<<20 {
		t.Fatalf("max_payload is %d", limit)
	}
	most := strings.Repeat("x", limit)
	c.Must(kit.Msg{"op": "enqueue", "queue": "q", "payload": most})
	job := c.ClaimOne("q")
	if job.Payload != most {
		t.Errorf("the largest payload is delivered with %d bytes, want %d", len(job.Payload), limit)
	}
	c.Must(kit.Msg{"op": "ack", "lease": job.Lease})

	over := a.Dial()
	over.MustFail("too_large", kit.Msg{"op": "enqueue", "queue": "q", "payload": most + "x"})
	over.WantClosed()

	s.Exec(t, "INSERT INTO qsidecar_jobs (queue, payload) VALUES ('q', zeroblob(10485760))")
	c.Must(kit.Msg{"op": "enqueue", "queue": "q", "payload": "behind it"})
	if job = c.ClaimOne("q"); job.Payload != "behind it" {
		t.Errorf("got a payload of %d bytes, want the job behind the too large one", len(job.Payload))
	}
	c.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	dead := c.Must(kit.Msg{"op": "peek", "queue": "q", "state": "dead"}).Jobs
	if len(dead) != 1 || len(dead[0].Errors) != 1 || dead[0].Errors[0].Cause != "too_large" {
		t.Errorf("the 10 MiB row is not dead for being too large: %.300v", dead)
	}
	c.Must(kit.Msg{"op": "ping"}) // the session stays open
}

// TestLargeClaimIsSplit checks that a claim of a thousand jobs of 1 MiB gets several limited
// replies, each job once.
func TestLargeClaimIsSplit(t *testing.T) {
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	maxReply := c.Must(kit.Msg{"op": "hello", "version": 1}).MaxReply
	n := kit.Size(1000)
	payload := strings.Repeat("m", 1<<20)
	for range n {
		c.Must(kit.Msg{"op": "enqueue", "queue": "q", "payload": payload})
	}
	seen := map[string]bool{}
	answers := 0
	for len(seen) < n {
		c.Post(kit.Msg{"op": "claim", "queue": "q", "max": 1000, "wait_ms": 5000})
		c.SetLimit()
		line, err := c.In.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var r kit.Reply
		if err := json.Unmarshal(line, &r); err != nil || r.Error != nil {
			t.Fatalf("%v %v", err, r.Error)
		}
		bytes := 0
		var leases []string
		for _, j := range r.Jobs {
			if seen[j.ID] {
				t.Errorf("job %s was delivered twice", j.ID)
			}
			seen[j.ID] = true
			bytes += len(j.Payload)
			leases = append(leases, j.Lease)
		}
		if len(r.Jobs) == 0 || bytes > 4<<20 || len(line) > maxReply {
			t.Fatalf("an answer has %d jobs, %d bytes of payload, %d in all; want some, %d and %d at most", len(r.Jobs), bytes, len(line), 4<<20, maxReply)
		}
		c.Must(kit.Msg{"op": "ack", "leases": leases})
		answers++
	}
	now, peak := a.RSS()
	kit.Figure(t, "%d jobs of 1 MiB came in %d answers; the sidecar has %d MiB, %d at the most", n, answers, now>>20, peak>>20)
	if peak > 512<<20 {
		t.Errorf("the sidecar had %d MiB", peak>>20)
	}
}
