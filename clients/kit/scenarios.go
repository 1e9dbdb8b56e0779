package main

import (
	"github.com/qsidecar/qsidecar/protocol"
)

// scenario is one thing that a client must do, and how it is seen.
type scenario struct {
	name     string
	reaction int // its number in clients/README.md; 0: the protocol itself
	about    string
	play     func(s *stage)
}

// scenarios are all but the transcripts. Each looks at its own reaction alone: a
// client that lacks another one is not blamed for it twice.
var scenarios = []scenario{
	{"hello", 2, "hello comes first, with version 1 and the events lost and draining", playHello},
	{"out-of-order", 3, "replies belong to requests by id, in whatever order they come", playOutOfOrder},
	{"late", 3, "an answer that comes late is waited for, or its jobs are given back", playLate},
	{"split-frames", 4, "a reply may come byte by byte", playSplitFrames},
	{"joined-frames", 4, "several replies may come in one piece", playJoinedFrames},
	{"unknown-fields", 5, "fields of replies that the client does not know are ignored", playUnknownFields},
	{"unknown-event", 5, "events that the client does not know are ignored", playUnknownEvent},
	{"unknown-code", 5, "an error code that the client does not know is an error, and no more", playUnknownCode},
	{"bytes", 6, "every byte value goes through, both ways", playBytes},
	{"too-large", 7, "what is over the limits is told, and not sent for ever", playTooLarge},
	{"away", 8, "calls that are made while the sidecar is away wait for it", playAway},
	{"back-off", 8, "the pauses between two tries grow, and are never long", playBackOff},
	{"closed-mid-reply", 8, "half a reply and a close is a lost answer", playClosedMidReply},
	{"bind", 9, "after a reconnect the held leases are bound, without a call by the program", playBind},
	{"bind-again", 9, "a bind that could not be done just now is tried again", playBindAgain},
	{"lost-told", 10, "leases that are lost are told to the program", playLostTold},
	{"settle-resent", 11, "an ack or nack without an answer is sent again", playSettleResent},
	{"closed-before-reading", 11, "an ack that the sidecar never read is sent again", playClosedBeforeReading},
	{"settled-or-lost", 12, "lease_lost for a settle that was sent twice is an outcome of its own", playSettledOrLost},
	{"settle-lost", 12, "lease_lost for one that was sent once is lease_lost", playSettleLost},
	{"enqueue-with-key", 13, "an enqueue with a key and without an answer is sent again", playEnqueueWithKey},
	{"enqueue-without-key", 14, "one without a key is not: its outcome is unknown, and told", playEnqueueWithoutKey},
	{"claim-resent", 15, "a claim without an answer is sent again", playClaimResent},
	{"unknown-outcome-settle", 16, "unknown_outcome: an ack is sent again", playUnknownOutcomeSettle},
	{"unknown-outcome-enqueue", 17, "unknown_outcome: an enqueue with a key is sent again, one without is told", playUnknownOutcomeEnqueue},
	{"unavailable-settle", 18, "unavailable: a settle waits for retry_ms and is sent again", playUnavailableSettle},
	{"unavailable-enqueue", 19, "unavailable: an enqueue is told", playUnavailableEnqueue},
	{"busy", 20, "busy: a claim that waits is asked again on the same connection", playBusy},
	{"draining", 21, "draining: settle here what is held, and claim again when the sidecar is back", playDraining},
	{"close-on-exec", 22, "a child of the worker does not keep its connection open", playCloseOnExec},
	{"goodbye", 23, "a client that is closed in order gives back what it holds, uncharged", playGoodbye},
}

// open makes the client connect, if it does so at its first call only: it claims,
// and there is nothing.
func (s *stage) open() *peer {
	c := s.claim("q")
	p := s.accept()
	p.gives(p.expect(protocol.OpClaim))
	got := s.succeeds(c)
	need(len(got.Jobs) == 0, "no jobs, as the sidecar says", "%s", cut(got.line))
	return p
}

// hold makes the client hold jobs.
func (s *stage) hold(p *peer, n int) []fields {
	c := s.post(command{"do": "claim", "queue": "q", "max": n, "wait_ms": 0})
	var jobs []fields
	for range n {
		jobs = append(jobs, s.job([]byte("x")))
	}
	p.gives(p.expect(protocol.OpClaim), jobs...)
	s.delivered(c, jobs...)
	return jobs
}

// delivered waits for a claim's answer, which must have these jobs.
func (s *stage) delivered(c *pending, want ...fields) {
	got := s.succeeds(c)
	need(len(got.Jobs) == len(want), "the jobs that the sidecar gave", "%s", cut(got.line))
	for i, j := range got.Jobs {
		need(j.ID == id(want[i]), "the job "+id(want[i]), "%s", cut(got.line))
	}
}

func (s *stage) claim(queue string) *pending {
	return s.post(command{"do": "claim", "queue": queue, "max": 1, "wait_ms": 0})
}

// waitingClaim is a claim with time for whatever happens to it.
func (s *stage) waitingClaim() *pending {
	return s.post(command{"do": "claim", "queue": "q", "max": 1, "wait_ms": 4 * s.kit.patience.Milliseconds()})
}

func (s *stage) ack(j fields) *pending { return s.post(command{"do": "ack", "id": id(j)}) }

func (s *stage) enqueue(queue, key string) *pending {
	c := command{"do": "enqueue", "queue": queue, "payload_b64": "eA=="}
	if key != "" {
		c["key"] = key
	}
	return s.post(c)
}

// works checks that the connection is of use still: a claim of the queue "after"
// is the next that comes, and is answered.
func (s *stage) works(p *peer) {
	c := s.claim("after")
	req := p.settling(protocol.OpClaim)
	need(queueOf(req) == "after", "the client to go on", "it sent %v", p.text(req))
	p.gives(req)
	s.succeeds(c)
}

func queueOf(r *request) string {
	if len(r.Queues) == 1 {
		return r.Queues[0]
	}
	return r.Queue
}

// newJob is what an enqueue asks for, in either form.
func newJob(r *request) protocol.NewJob {
	if len(r.Jobs) == 1 {
		return r.Jobs[0]
	}
	return r.Job
}

// stored answers an enqueue, in the form that was asked in.
func (p *peer) stored(req *request, job fields) {
	if req.Jobs != nil {
		p.reply(req, fields{"jobs": []fields{job}})
		return
	}
	p.reply(req, fields{"job": job})
}
