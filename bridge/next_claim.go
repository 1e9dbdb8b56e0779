package bridge

import (
	"github.com/qsidecar/qsidecar/protocol"
)

// settleAndClaim starts an ack or a nack and the claim that it carries. Both go into the same commit if they can, and
// each has its own result: an error of one changes nothing about the other.
func (s *session) settleAndClaim(req *protocol.Request) finisher {
	settle := s.settle(req)
	c := &protocol.Request{ID: req.ID, Op: protocol.OpClaim, Queue: req.Claim.Queue, Queues: req.Claim.Queues, Max: req.Claim.Max, LeaseMS: req.Claim.LeaseMS}
	var claim finisher
	// A connection that holds as many jobs as it can gets another one only after the settle.
	after := !c.LeaseMS.Set && s.quota.Jobs.Count() >= s.MaxJobs()
	var beside int64
	if !after {
		claim = s.nextClaim(c, &beside)
	}
	f := later(func() (*protocol.Reply, func()) {
		reply, _ := settle.result()
		if after {
			claim = s.nextClaim(c, &beside)
		}
		beside = settledSize(reply)
		claimed, sent := claim.result()
		if claimed != nil { // nil: the client is gone
			reply.Jobs, reply.ClaimError = claimed.Jobs, claimed.Error
		}
		return reply, sent
	})
	f.keeps = settle.keeps
	return f
}

func (s *session) nextClaim(c *protocol.Request, beside *int64) finisher {
	if wire := s.forbids(c); wire != nil {
		return fail(wire)
	}
	return s.claim(c, beside)
}

// settledSize returns an upper bound of the bytes of the lists in the reply to a settle.
func settledSize(r *protocol.Reply) (n int64) {
	if r.Settled != nil {
		n = escaped * textBytes(r.Settled.Lost)
	}
	for i := range r.EnqueuedAll {
		n += escaped*int64(len(r.EnqueuedAll[i].ID)) + enqueuedText
	}
	return n
}

// result waits for the reply.
func (f *finisher) result() (*protocol.Reply, func()) {
	if f.wait == nil {
		return f.reply, nil
	}
	return f.wait()
}
