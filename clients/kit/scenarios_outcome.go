package main

import (
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// broken reads a request of that op, closes without an answer, and gives the next
// connection.
func (s *stage) broken(p *peer, op protocol.Op) *peer {
	p.settling(op)
	p.close()
	return s.accept()
}

func playSettleResent(s *stage) {
	p := s.open()
	jobs := s.hold(p, 2)
	done := s.ack(jobs[0])
	p = s.broken(p, protocol.OpAck)
	again := p.settling(protocol.OpAck)
	need(again.leases()[0] == lease(jobs[0]), "the same ack again", "%s", p.text(again))
	p.settled(again)
	s.succeeds(done)

	done = s.post(command{"do": "nack", "id": id(jobs[1]), "error": "boom", "delay_ms": 700})
	p = s.broken(p, protocol.OpNack)
	again = p.settling(protocol.OpNack)
	need(again.leases()[0] == lease(jobs[1]) && again.Error == "boom" && again.DelayMS.Or(0) == 700, "the same nack again", "%s", p.text(again))
	p.settled(again)
	s.succeeds(done)
	s.works(p)
}

// playClosedBeforeReading closes with a request unread, which the client sees as
// a reset rather than an end.
func playClosedBeforeReading(s *stage) {
	p := s.open()
	jobs := s.hold(p, 1)
	done := s.ack(jobs[0])
	p.unread("an ack")
	p.close()
	p = s.accept()
	p.settled(p.settling(protocol.OpAck))
	s.succeeds(done)
	s.works(p)
}

// playSettledOrLost: the first try may have settled it, and then both the bind and
// the second try say that the lease is lost.
func playSettledOrLost(s *stage) {
	p := s.open()
	jobs := s.hold(p, 2)
	for i, bound := range []bool{true, false} {
		done := s.ack(jobs[i])
		p = s.broken(p, protocol.OpAck)
		p = s.lostTwice(p, done, lease(jobs[i]), bound)
		s.fails(done, "SETTLED_OR_LOST")
	}
	s.works(p)
}

// lostTwice answers what comes after a reconnect until the settle has its outcome:
// the bind well or not, the second try with lease_lost. A client may take the
// bind's word for it and send no second try.
func (s *stage) lostTwice(p *peer, done *pending, lost string, bound bool) *peer {
	for !done.ready() {
		req, err := p.read(50 * time.Millisecond)
		switch {
		case err != nil:
			need(since(s.began) < 4*s.kit.patience, "the same ack again", "nothing of the kind")
		case req.Op == protocol.OpPing:
			p.reply(req, fields{})
		case req.Op == protocol.OpExtend && req.Bind && bound:
			p.settled(req)
		case req.Op == protocol.OpExtend && req.Bind, req.Op == protocol.OpAck:
			p.settled(req, lost)
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
	jobs := s.hold(p, 2)
	done := s.ack(jobs[0])
	ack := p.expect(protocol.OpAck)
	p.settled(ack, lease(jobs[0]))
	s.fails(done, "lease_lost")
	done = s.ack(jobs[1])
	p.settled(p.expect(protocol.OpAck))
	s.succeeds(done)
}

func playEnqueueWithKey(s *stage) {
	p := s.open()
	c := s.enqueue("q", "k")
	p = s.broken(p, protocol.OpEnqueue)
	again := p.expect(protocol.OpEnqueue)
	need(newJob(again).Key == "k", "the same enqueue again", "%s", p.text(again))
	p.stored(again, fields{"id": "7", "duplicate": true, "state": "ready"})
	got := s.succeeds(c)
	need(got.ID == "7" && got.Duplicate, "the first job's id and duplicate: true", "%s", cut(got.line))
	s.works(p)
}

func playEnqueueWithoutKey(s *stage) {
	p := s.open()
	c := s.enqueue("q", "")
	p.expect(protocol.OpEnqueue)
	p.close()
	p = s.acceptIdle(c)
	s.fails(c, "UNKNOWN_OUTCOME")
	s.works(p) // which fails if anything comes before
}

// acceptIdle takes the next connection of a client that may come only when it has
// something to say, and then looks whether it sends c again.
func (s *stage) acceptIdle(c *pending) *peer {
	p := s.accept()
	for !c.ready() {
		req, err := p.read(50 * time.Millisecond)
		if err == nil {
			fail("an enqueue without a key not to be sent again: it may have been stored", "%s", p.text(req))
		}
		need(since(s.began) < 4*s.kit.patience, "an answer to the enqueue", "none")
	}
	return p
}

func playClaimResent(s *stage) {
	p := s.open()
	c := s.waitingClaim()
	p = s.broken(p, protocol.OpClaim)
	job := s.job([]byte("x"))
	p.gives(p.expect(protocol.OpClaim), job)
	s.delivered(c, job)
	s.works(p)
}

func playUnknownOutcomeSettle(s *stage) {
	p := s.open()
	jobs := s.hold(p, 2)
	done := s.ack(jobs[0])
	p.refuse(p.expect(protocol.OpAck), "unknown_outcome", nil)
	p.settled(p.expect(protocol.OpAck))
	s.succeeds(done)
	done = s.ack(jobs[1])
	p.refuse(p.expect(protocol.OpAck), "unknown_outcome", nil)
	again := p.expect(protocol.OpAck)
	p.settled(again, lease(jobs[1]))
	s.fails(done, "SETTLED_OR_LOST")
	s.works(p)
}

func playUnknownOutcomeEnqueue(s *stage) {
	p := s.open()
	c := s.enqueue("q", "k")
	p.refuse(p.expect(protocol.OpEnqueue), "unknown_outcome", nil)
	p.stored(p.expect(protocol.OpEnqueue), fields{"id": "7"})
	got := s.succeeds(c)
	need(got.ID == "7", "the id 7", "%s", cut(got.line))
	c = s.enqueue("q", "")
	p.refuse(p.expect(protocol.OpEnqueue), "unknown_outcome", nil)
	s.fails(c, "unknown_outcome", "UNKNOWN_OUTCOME")
	s.works(p)
}

func playUnavailableSettle(s *stage) {
	const wait = 200 * time.Millisecond
	p := s.open()
	jobs := s.hold(p, 1)
	done := s.ack(jobs[0])
	req := p.expect(protocol.OpAck)
	told := time.Now() // before the client is told, so that a slow machine makes no time shorter
	p.refuse(req, "unavailable", fields{"retry_ms": wait.Milliseconds()})
	p.settled(p.expect(protocol.OpAck))
	took := since(told)
	need(took >= wait*3/4, fmt.Sprintf("the same ack again after %v", wait), "it came after %v", took)
	s.succeeds(done)
	s.works(p)
}

func playUnavailableEnqueue(s *stage) {
	p := s.open()
	c := s.enqueue("q", "k")
	p.refuse(p.expect(protocol.OpEnqueue), "unavailable", fields{"retry_ms": 20})
	s.fails(c, "unavailable")
	s.works(p)
}

func playBusy(s *stage) {
	p := s.open()
	c := s.waitingClaim()
	p.refuse(p.expect(protocol.OpClaim), "busy", nil)
	job := s.job([]byte("x"))
	p.gives(p.expect(protocol.OpClaim), job)
	s.delivered(c, job)
	s.works(p)
}

func playDraining(s *stage) {
	p := s.open()
	jobs := s.hold(p, 1)
	p.send(p.frame(fields{"event": "draining"}))
	done := s.ack(jobs[0])
	p.settled(p.expect(protocol.OpAck)) // on the connection that is still there
	s.succeeds(done)

	c := s.waitingClaim()
	p.refuse(p.expect(protocol.OpClaim), "draining", nil)
	most, claims := 40, 0
	for until := time.Now().Add(gone); !over(until); {
		if req, err := p.read(-since(until)); err == nil && req.Op == protocol.OpClaim {
			p.refuse(req, "draining", nil)
			claims++
		} else if err == nil {
			p.reply(req, fields{})
		}
	}
	need(claims <= most, fmt.Sprintf("at most %d claims in %v", most, gone), "%d", claims)
	if c.ready() {
		got := s.answered(c)
		fail("a claim that waits to outlast the drain", "it ended: %s", cut(got.line))
	}
	s.unlisten()
	p.close()
	<-after(gone)
	s.listen()
	p = s.accept()
	job := s.job([]byte("x"))
	p.gives(p.settling(protocol.OpClaim), job)
	s.delivered(c, job)
	s.works(p)
}
