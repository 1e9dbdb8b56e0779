package session

import (
	"github.com/qsidecar/qsidecar/bridge/internal/replysize"
	"github.com/qsidecar/qsidecar/protocol"
)

// roundTrip is an ack or a nack and the claim that it carries. Both go into the same commit if they can, and each has its
// own result: an error of one changes nothing about the other.
type roundTrip struct {
	settled      settlement
	refused      *protocol.Reply // why nothing is settled; nil: it is
	claim        pendingClaim
	claimRefused *protocol.Reply // why nothing is claimed; nil: it is
	id           protocol.RequestID
	next         *protocol.NextClaim
	started      bool // the claim; otherwise it starts after the settle
}

// settleAndClaim starts an ack or a nack and the claim that it carries.
func (s *Session) settleAndClaim(req *protocol.Request) finisher {
	t := &roundTrip{id: req.ID, claim: pendingClaim{sess: s}, next: req.Claim}
	t.refused = t.settled.start(s, req)
	// A connection that holds as many jobs as it can, or one that must be alone, gets another one only after the settle.
	if (req.Claim.LeaseMS.Set || s.quota.Jobs.Count() < s.MaxJobs()) && !s.quota.Jobs.Exclusive() {
		t.startClaim()
	}
	return finisher{rest: t}
}

func (r *roundTrip) startClaim() {
	r.started = true
	s := r.claim.sess
	if wire := s.forbidsNext(r.next); wire != nil {
		r.claimRefused = &protocol.Reply{Error: wire}
		return
	}
	r.claimRefused = r.claim.start(s, r.id, r.next, 0)
}

func (r *roundTrip) wait() (reply *protocol.Reply, sent func()) {
	if reply = r.refused; reply == nil {
		reply = r.settled.result(r)
	}
	if r.Late(); !r.started {
		r.startClaim()
	}
	if r.claimRefused != nil {
		reply.ClaimError = r.claimRefused.Error
		return reply, nil
	}
	reply.Join = r.claim.db.Crowded()
	r.claim.beside = replysize.Settled(reply)
	reply.Jobs, reply.ClaimError, _ = r.claim.result() // neither if the client is gone
	return reply, r.claim.sent
}

// Late gives the claimed jobs back if they have waited for the settle for long. Then the claim starts again after the settle.
func (r *roundTrip) Late() {
	if r.started && r.claimRefused == nil && r.claim.dropOld() {
		r.started = false
	}
}

// forbidsNext checks the claim of a settle against the rules of its socket.
func (s *Session) forbidsNext(c *protocol.NextClaim) *protocol.Error {
	if s.granted().All {
		return nil
	}
	return s.forbids(&protocol.Request{Op: protocol.OpClaim, Queue: c.Queue, Queues: c.Queues})
}
