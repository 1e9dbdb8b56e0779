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
	next         *protocol.NextClaim // to claim after the settle; nil: the claim was started
}

// settleAndClaim starts an ack or a nack and the claim that it carries.
func (s *Session) settleAndClaim(req *protocol.Request) finisher {
	t := &roundTrip{id: req.ID, claim: pendingClaim{sess: s}}
	t.refused = t.settled.start(s, req)
	// A connection that holds as many jobs as it can, or one that must be alone, gets another one only after the settle.
	if !req.Claim.LeaseMS.Set && s.quota.Jobs.Count() >= s.MaxJobs() || s.quota.Jobs.Exclusive() {
		t.next = req.Claim
	} else {
		t.startClaim(req.Claim)
	}
	return finisher{rest: t}
}

func (r *roundTrip) startClaim(c *protocol.NextClaim) {
	s := r.claim.sess
	if wire := s.forbidsNext(c); wire != nil {
		r.claimRefused = &protocol.Reply{Error: wire}
		return
	}
	r.claimRefused = r.claim.start(s, r.id, c, 0)
}

func (r *roundTrip) wait() (reply *protocol.Reply, sent func()) {
	if reply = r.refused; reply == nil {
		reply = r.settled.result()
	}
	if r.next != nil {
		r.startClaim(r.next)
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

// forbidsNext checks the claim of a settle against the rules of its socket.
func (s *Session) forbidsNext(c *protocol.NextClaim) *protocol.Error {
	if s.granted().All {
		return nil
	}
	return s.forbids(&protocol.Request{Op: protocol.OpClaim, Queue: c.Queue, Queues: c.Queues})
}
