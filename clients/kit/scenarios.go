package main

import (
	"github.com/qsidecar/qsidecar/protocol"
)

// scenario checks one reaction of a client.
type scenario struct {
	name     string
	reaction int // its number in clients/README.md; 0 for the protocol itself
	about    string
	play     func(s *stage)
}

// scenarios are all scenarios except the transcripts. Each checks only its own reaction, so a
// client that lacks another one does not fail twice.
var scenarios = []scenario{
	{"hello", 2, "hello comes first, with version 1 and the events lost and draining", playHello},
	{"out-of-order", 3, "replies are matched to requests by id, in any order", playOutOfOrder},
	{"late", 3, "the client waits for a late reply, or returns its jobs", playLate},
	{"split-frames", 4, "a reply can arrive byte by byte", playSplitFrames},
	{"joined-frames", 4, "several replies can arrive in one read", playJoinedFrames},
	{"unknown-fields", 5, "fields of replies that the client does not know are ignored", playUnknownFields},
	{"unknown-event", 5, "events that the client does not know are ignored", playUnknownEvent},
	{"unknown-code", 5, "an unknown error code is a plain error", playUnknownCode},
	{"bytes", 6, "every byte value passes, in both directions", playBytes},
	{"too-large", 7, "a request over the limits fails and is not repeated", playTooLarge},
	{"away", 8, "calls wait while the sidecar is down", playAway},
	{"back-off", 8, "the pauses between two tries grow, up to a short maximum", playBackOff},
	{"closed-mid-reply", 8, "a partial reply before a close is a lost reply", playClosedMidReply},
	{"bind", 9, "after a reconnect the client binds its leases, without a call of the program", playBind},
	{"bind-again", 9, "the client repeats a bind after a transient error", playBindAgain},
	{"bind-unsettled", 9, "the client doesn't bind a lease after its ack, unless the ack fails", playBindUnsettled},
	{"lost-reported", 10, "the client reports lost leases to the program", playLostReported},
	{"settle-resent", 11, "the client repeats an ack or nack without a reply", playSettleResent},
	{"closed-before-reading", 11, "the client repeats an ack that the sidecar did not read", playClosedBeforeReading},
	{"settled-or-lost", 12, "lease_lost for a repeated settle is a separate outcome", playSettledOrLost},
	{"settle-lost", 12, "lease_lost for a settle that was sent once is lease_lost", playSettleLost},
	{"enqueue-with-key", 13, "the client repeats an enqueue with a key and without a reply", playEnqueueWithKey},
	{"enqueue-on-conflict", 13, "the client sends and repeats on_conflict, and returns the outcome", playEnqueueOnConflict},
	{"enqueue-without-key", 14, "the client reports an enqueue without key and reply as unknown outcome", playEnqueueWithoutKey},
	{"claim-resent", 15, "the client repeats a claim without a reply", playClaimResent},
	{"unknown-outcome-settle", 16, "unknown_outcome: the client repeats an ack", playUnknownOutcomeSettle},
	{"unknown-outcome-enqueue", 17, "unknown_outcome: the client repeats an enqueue with a key, and reports one without", playUnknownOutcomeEnqueue},
	{"unavailable-settle", 18, "unavailable: the client repeats a settle after retry_ms", playUnavailableSettle},
	{"unavailable-enqueue", 19, "unavailable: the client reports the error of an enqueue", playUnavailableEnqueue},
	{"busy", 20, "busy: the client repeats a waiting claim on the same connection", playBusy},
	{"draining", 21, "draining: the client settles its jobs here, and claims again after the restart", playDraining},
	{"close-on-exec", 22, "a child of the worker does not keep its connection open", playCloseOnExec},
	{"goodbye", 23, "a client that is closed returns its jobs without using up an attempt", playGoodbye},
	{"progress", 30, "the client shows the last progress, and repeats a report without a reply", playProgress},
}

// open makes the client connect. A client that connects at its first call gets a claim, whose reply
// has no jobs.
func (s *stage) open() *peer {
	c := s.claim("q")
	p := s.accept()
	p.answerClaim(p.expect(protocol.OpClaim))
	got := s.succeeds(c)
	need(len(got.Jobs) == 0, "no jobs, as in the reply", "%s", cut(got.line))
	return p
}

// claimJobs lets the client claim n jobs.
func (s *stage) claimJobs(p *peer, n int) []fields {
	c := s.command(command{"do": "claim", "queue": "q", "max": n, "wait_ms": 0})
	var jobs []fields
	for range n {
		jobs = append(jobs, s.job([]byte("x")))
	}
	p.answerClaim(p.expect(protocol.OpClaim), jobs...)
	s.wantClaimed(c, jobs...)
	return jobs
}

// wantClaimed waits for a claim's answer and checks its jobs.
func (s *stage) wantClaimed(c *pending, want ...fields) {
	got := s.succeeds(c)
	need(len(got.Jobs) == len(want), "the jobs of the reply", "%s", cut(got.line))
	for i, j := range got.Jobs {
		need(j.ID == id(want[i]), "the job "+id(want[i]), "%s", cut(got.line))
	}
}

func (s *stage) claim(queue string) *pending {
	return s.command(command{"do": "claim", "queue": queue, "max": 1, "wait_ms": 0})
}

// waitingClaim is a claim that waits longer than anything in a scenario.
func (s *stage) waitingClaim() *pending {
	return s.command(command{"do": "claim", "queue": "q", "max": 1, "wait_ms": 4 * s.kit.patience.Milliseconds()})
}

func (s *stage) ack(j fields) *pending { return s.command(command{"do": "ack", "id": id(j)}) }

func (s *stage) enqueue(queue, key string) *pending {
	c := command{"do": "enqueue", "queue": queue, "payload_b64": "eA=="}
	if key != "" {
		c["key"] = key
	}
	return s.command(c)
}

// wantUsable checks that the connection still works: the next request is a claim of the queue "after",
// and its answer arrives.
func (s *stage) wantUsable(p *peer) {
	c := s.claim("after")
	req := p.expectSettle(protocol.OpClaim)
	need(queueOf(req) == "after", "the client to continue", "it sent %v", p.text(req))
	p.answerClaim(req)
	s.succeeds(c)
}

func queueOf(r *request) string {
	if len(r.Queues) == 1 {
		return r.Queues[0]
	}
	return r.Queue
}

// newJob returns the job of an enqueue in either form.
func newJob(r *request) protocol.NewJob {
	if len(r.Jobs) == 1 {
		return r.Jobs[0]
	}
	return r.Job
}

// answerEnqueue answers an enqueue in the form of the request.
func (p *peer) answerEnqueue(req *request, job fields) {
	if req.Jobs != nil {
		p.reply(req, fields{"jobs": []fields{job}})
		return
	}
	p.reply(req, fields{"job": job})
}
