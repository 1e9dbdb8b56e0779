package main

import (
	"bytes"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// breakAfter reads a request of that op, closes without a reply and returns the next connection.
func (s *stage) breakAfter(p *peer, op protocol.Op) *peer {
	p.expectSettle(op)
	p.close()
	return s.accept()
}

func playSettleResent(s *stage) {
	p := s.open()
	jobs := s.claimJobs(p, 2)
	done := s.ack(jobs[0])
	p = s.breakAfter(p, protocol.OpAck)
	again := p.expectSettle(protocol.OpAck)
	need(again.leases()[0] == lease(jobs[0]), "the same ack again", "%s", p.text(again))
	p.answerSettle(again)
	s.succeeds(done)

	done = s.command(command{"do": "nack", "id": id(jobs[1]), "error": "boom", "delay_ms": 700})
	p = s.breakAfter(p, protocol.OpNack)
	again = p.expectSettle(protocol.OpNack)
	need(again.leases()[0] == lease(jobs[1]) && again.Error == "boom" && again.DelayMS.Or(0) == 700, "the same nack again", "%s", p.text(again))
	p.answerSettle(again)
	s.succeeds(done)
	s.wantUsable(p)
}

// playProgress delivers a job with a progress, and loses the reply to the report of the next one.
func playProgress(s *stage) {
	p := s.open()
	job := s.job([]byte("x"))
	last := fields{"done": 2, "total": 5, "at": 1_800_000_000_000}
	data := []byte("page 7") // the scenario bytes has all other values
	last.bytes("data", data)
	job["progress"] = last
	c := s.claim("q")
	p.answerClaim(p.expect(protocol.OpClaim), job)
	got := s.succeeds(c)
	need(len(got.Jobs) == 1 && got.Jobs[0].Progress.is(2, 5, data), "a job with its progress", "%s", cut(got.line))

	c = s.command(command{"do": "progress", "id": id(job), "done": 3, "total": 5, "data_b64": "cGFnZSA3"})
	p = s.breakAfter(p, protocol.OpProgress)
	again := p.expectSettle(protocol.OpProgress)
	need(again.leases()[0] == lease(job) && again.Done.Or(0) == 3 && again.Total.Or(0) == 5 && bytes.Equal(again.Data, data), "the same report again", "%s", p.text(again))
	p.reply(again, fields{})
	s.succeeds(c)

	c = s.command(command{"do": "progress", "id": id(job), "done": 4})
	p.refuse(p.expectSettle(protocol.OpProgress), "lease_lost", nil)
	s.fails(c, "lease_lost")
	s.wantUsable(p)
}

// is reports whether the progress has these values.
func (p *answerProgress) is(done, total int64, data []byte) bool {
	return p != nil && p.Done != nil && *p.Done == done && p.Total != nil && *p.Total == total && bytes.Equal(p.DataB64, data)
}

// playClosedBeforeReading closes with an unread request, which the client sees as a reset instead
// of an end.
func playClosedBeforeReading(s *stage) {
	p := s.open()
	jobs := s.claimJobs(p, 1)
	done := s.ack(jobs[0])
	p.unread("an ack")
	p.close()
	p = s.accept()
	p.answerSettle(p.expectSettle(protocol.OpAck))
	s.succeeds(done)
	s.wantUsable(p)
}

// playSettledOrLost checks a settle whose first request may have succeeded: the bind and the second
// request both report the lease as lost.
func playSettledOrLost(s *stage) {
	p := s.open()
	jobs := s.claimJobs(p, 2)
	for i, bound := range []bool{true, false} {
		done := s.ack(jobs[i])
		p = s.breakAfter(p, protocol.OpAck)
		p = s.lostTwice(p, done, lease(jobs[i]), bound)
		s.fails(done, "SETTLED_OR_LOST")
	}
	s.wantUsable(p)
}

// lostTwice answers the requests after a reconnect until the settle has its outcome. The bind
// succeeds or not, and the second settle gets lease_lost. A client can rely on the bind and send no
// second settle.
func (s *stage) lostTwice(p *peer, done *pending, lost string, bound bool) *peer {
	for !done.ready() {
		req, err := p.read(50 * time.Millisecond)
		switch {
		case err != nil:
			need(since(s.began) < 4*s.kit.patience, "the same ack again", "no such request")
		case req.Op == protocol.OpPing:
			p.reply(req, fields{})
		case req.Op == protocol.OpExtend && req.Bind && bound:
			p.answerSettle(req)
		case req.Op == protocol.OpExtend && req.Bind, req.Op == protocol.OpAck:
			p.answerSettle(req, lost)
			if req.Op == protocol.OpAck {
				return p
			}
		default:
			fail("the same ack again", "%s", p.text(req))
		}
	}
	return p
}

func playSettleLost(s *stage) {
	p := s.open()
	jobs := s.claimJobs(p, 2)
	done := s.ack(jobs[0])
	ack := p.expect(protocol.OpAck)
	p.answerSettle(ack, lease(jobs[0]))
	s.fails(done, "lease_lost")
	done = s.ack(jobs[1])
	p.answerSettle(p.expect(protocol.OpAck))
	s.succeeds(done)
}

func playEnqueueWithKey(s *stage) {
	p := s.open()
	c := s.enqueue("q", "k")
	p = s.breakAfter(p, protocol.OpEnqueue)
	again := p.expect(protocol.OpEnqueue)
	need(newJob(again).Key == "k", "the same enqueue again", "%s", p.text(again))
	p.answerEnqueue(again, fields{"id": "7", "duplicate": true, "state": "ready"})
	got := s.succeeds(c)
	need(got.ID == "7" && got.Duplicate, "the first job's id and duplicate: true", "%s", cut(got.line))
	s.wantUsable(p)
}

func playEnqueueOnConflict(s *stage) {
	p := s.open()
	c := s.command(command{"do": "enqueue", "queue": "q", "payload_b64": "eA==", "key": "k", "on_conflict": "replace"})
	p = s.breakAfter(p, protocol.OpEnqueue)
	again := p.expect(protocol.OpEnqueue)
	need(newJob(again).Key == "k" && newJob(again).OnConflict == "replace", "the same enqueue again, with on_conflict", "%s", p.text(again))
	p.answerEnqueue(again, fields{"id": "7", "state": "claimed", "outcome": "pending"})
	got := s.succeeds(c)
	need(got.ID == "7" && !got.Duplicate && got.Outcome == "pending", "the first job's id and the outcome", "%s", cut(got.line))
	s.wantUsable(p)
}

func playEnqueueWithoutKey(s *stage) {
	p := s.open()
	c := s.enqueue("q", "")
	p.expect(protocol.OpEnqueue)
	p.close()
	p = s.acceptIdle(c)
	s.fails(c, "UNKNOWN_OUTCOME")
	s.wantUsable(p) // fails if any other request comes before
}

// acceptIdle accepts the next connection of a client that possibly connects only for a request. Then it
// checks whether the client sends c again.
func (s *stage) acceptIdle(c *pending) *peer {
	p := s.accept()
	for !c.ready() {
		req, err := p.read(50 * time.Millisecond)
		if err == nil {
			fail("no repeated enqueue without a key, because it may have been stored", "%s", p.text(req))
		}
		need(since(s.began) < 4*s.kit.patience, "an answer to the enqueue", "none")
	}
	return p
}

func playClaimResent(s *stage) {
	p := s.open()
	c := s.waitingClaim()
	p = s.breakAfter(p, protocol.OpClaim)
	job := s.job([]byte("x"))
	p.answerClaim(p.expect(protocol.OpClaim), job)
	s.wantClaimed(c, job)
	s.wantUsable(p)
}

func playUnknownOutcomeSettle(s *stage) {
	p := s.open()
	jobs := s.claimJobs(p, 2)
	done := s.ack(jobs[0])
	p.refuse(p.expect(protocol.OpAck), "unknown_outcome", nil)
	p.answerSettle(p.expect(protocol.OpAck))
	s.succeeds(done)
	done = s.ack(jobs[1])
	p.refuse(p.expect(protocol.OpAck), "unknown_outcome", nil)
	again := p.expect(protocol.OpAck)
	p.answerSettle(again, lease(jobs[1]))
	s.fails(done, "SETTLED_OR_LOST")
	s.wantUsable(p)
}

func playUnknownOutcomeEnqueue(s *stage) {
	p := s.open()
	c := s.enqueue("q", "k")
	p.refuse(p.expect(protocol.OpEnqueue), "unknown_outcome", nil)
	p.answerEnqueue(p.expect(protocol.OpEnqueue), fields{"id": "7"})
	got := s.succeeds(c)
	need(got.ID == "7", "the id 7", "%s", cut(got.line))
	c = s.enqueue("q", "")
	p.refuse(p.expect(protocol.OpEnqueue), "unknown_outcome", nil)
	s.fails(c, "unknown_outcome", "UNKNOWN_OUTCOME")
	s.wantUsable(p)
}

func playUnavailableSettle(s *stage) {
	const wait = 2 * time.Second // far more than a client's own pauses, also on a busy machine
	p := s.open()
	jobs := s.claimJobs(p, 1)
	done := s.ack(jobs[0])
	req := p.expect(protocol.OpAck)
	refused := time.Now() // before the refusal is sent, so that a slow machine does not shorten the time
	p.refuse(req, "unavailable", fields{"retry_ms": wait.Milliseconds()})
	p.answerSettle(p.expect(protocol.OpAck))
	took := since(refused)
	need(took >= wait*3/4, fmt.Sprintf("the same ack again after %v", wait), "it came after %v", took)
	s.succeeds(done)
	s.wantUsable(p)
}

func playUnavailableEnqueue(s *stage) {
	p := s.open()
	c := s.enqueue("q", "k")
	p.refuse(p.expect(protocol.OpEnqueue), "unavailable", fields{"retry_ms": 20})
	s.fails(c, "unavailable")
	s.wantUsable(p)
}

func playBusy(s *stage) {
	p := s.open()
	c := s.waitingClaim()
	p.refuse(p.expect(protocol.OpClaim), "busy", nil)
	job := s.job([]byte("x"))
	p.answerClaim(p.expect(protocol.OpClaim), job)
	s.wantClaimed(c, job)
	s.wantUsable(p)
}

func playDraining(s *stage) {
	p := s.open()
	jobs := s.claimJobs(p, 1)
	p.send(p.frame(fields{"event": "draining"}))
	done := s.ack(jobs[0])
	p.answerSettle(p.expect(protocol.OpAck)) // on the same connection, which is still open
	s.succeeds(done)

	c := s.waitingClaim()
	p.refuse(p.expect(protocol.OpClaim), "draining", nil)
	most, claims := 40, 0
	for until := time.Now().Add(downtime); !over(until); {
		if req, err := p.read(-since(until)); err == nil && req.Op == protocol.OpClaim {
			p.refuse(req, "draining", nil)
			claims++
		} else if err == nil {
			p.reply(req, fields{})
		}
	}
	need(claims <= most, fmt.Sprintf("at most %d claims in %v", most, downtime), "%d", claims)
	if c.ready() {
		got := s.answer(c)
		fail("a waiting claim to continue after the drain", "it ended: %s", cut(got.line))
	}
	s.unlisten()
	p.close()
	<-after(downtime)
	s.listen()
	p = s.accept()
	job := s.job([]byte("x"))
	p.answerClaim(p.expectSettle(protocol.OpClaim), job)
	s.wantClaimed(c, job)
	s.wantUsable(p)
}
