package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

func playHello(s *stage) {
	c := s.claim("q")
	p := s.acceptRaw()
	req := p.next("a hello")
	need(req.Op == protocol.OpHello, "hello before anything else", "%s", p.text(req))
	need(req.Version.Or(1) == 1, "version 1", "%s", p.text(req))
	need(slices.Contains(req.Events, protocol.EventLost) && slices.Contains(req.Events, protocol.EventDraining),
		"the events lost and draining asked for", "%s", p.text(req))
	p.reply(req, s.helloReply())
	p.answerClaim(p.expect(protocol.OpClaim))
	s.succeeds(c)
}

// playOutOfOrder has three open calls and answers the last one first.
func playOutOfOrder(s *stage) {
	p := s.open()
	want := map[string]string{} // queue → id in the reply
	calls := map[string]*pending{}
	for _, tag := range []string{"a", "b", "c"} {
		calls[tag] = s.command(command{"do": "enqueue", "queue": "q-" + tag, "payload_b64": "eA==", "tag": tag})
		want["q-"+tag] = "id-" + tag
	}
	var reqs []*request
	for range calls {
		req := p.next("three enqueues, open at once (the adapter carries out commands with a tag side by side)")
		need(req.Op == protocol.OpEnqueue, "an enqueue", "%s", p.text(req))
		reqs = append(reqs, req)
	}
	need(!slices.ContainsFunc(reqs[1:], func(r *request) bool { return r.ID == reqs[0].ID }) && reqs[1].ID != reqs[2].ID,
		"an id of its own in each open request", "%s %s %s", p.text(reqs[0]), p.text(reqs[1]), p.text(reqs[2]))
	// First, the reply to a request that was not sent.
	p.send(p.frame(fields{"id": 4_000_000_000, "ok": true, "job": fields{"id": "of no request"}}))
	for _, req := range slices.Backward(reqs) {
		p.answerEnqueue(req, fields{"id": want[newJob(req).Queue]})
	}
	for tag, c := range calls {
		got := s.succeeds(c)
		need(got.ID == "id-"+tag, "the enqueue to queue q-"+tag+" to be answered with its own reply, id-"+tag, "%s", cut(got.line))
	}
	s.wantUsable(p)
}

// playLate answers a claim after its wait, with a job.
func playLate(s *stage) {
	p := s.open()
	c := s.command(command{"do": "claim", "queue": "q", "max": 1, "wait_ms": 50})
	req := p.expect(protocol.OpClaim)
	<-after(800 * time.Millisecond) // the scenario checks what the client does in this time
	gaveUp := c.ready()
	job := s.job([]byte("late"))
	p.answerClaim(req, job)
	if !gaveUp {
		got := s.answer(c)
		if *got.OK && len(got.Jobs) == 1 {
			return
		}
	}
	for {
		back := p.next("the jobs of an abandoned claim to be returned, with nack and snooze: true")
		switch {
		case back.Op == protocol.OpCancelClaim:
			p.reply(back, fields{})
		case back.Op == protocol.OpNack && slices.Contains(back.leases(), lease(job)) && back.Snooze:
			p.answerSettle(back)
			return
		default:
			fail("the late job to be returned with nack and snooze: true", "%s", p.text(back))
		}
	}
}

func playSplitFrames(s *stage) {
	p := s.open()
	c := s.claim("q")
	job := s.job([]byte("é€😀")) // multi-byte characters are split too
	req := p.expect(protocol.OpClaim)
	for _, b := range p.frame(okReply(req, fields{"jobs": []fields{job}})) {
		p.send([]byte{b})
		<-after(100 * time.Microsecond) // gives the reader a chance to see each byte
	}
	s.wantClaimed(c, job)
	s.wantUsable(p)
}

func playJoinedFrames(s *stage) {
	p := s.open()
	var calls []*pending
	for _, tag := range []string{"a", "b", "c"} {
		calls = append(calls, s.command(command{"do": "enqueue", "queue": "q", "payload_b64": "eA==", "tag": tag}))
	}
	var all []byte
	for i := range calls {
		req := p.expect(protocol.OpEnqueue)
		job := fields{"id": fmt.Sprintf("id-%d", i)}
		if req.Jobs != nil {
			all = append(all, p.frame(okReply(req, fields{"jobs": []fields{job}}))...)
		} else {
			all = append(all, p.frame(okReply(req, fields{"job": job}))...)
		}
	}
	p.send(all)
	for _, c := range calls {
		s.succeeds(c)
	}
	s.wantUsable(p)
}

// strange are fields of a later version, of every type.
var unknownFields = fields{
	"zz_text": "é", "zz_int": 1 << 40, "zz_map": fields{"a": []int{1, 2}, "b": nil}, "zz_list": []any{fields{}, "x", false}, "zz_null": nil,
}

func with(f fields, more fields) fields {
	out := fields{}
	maps.Copy(out, f)
	maps.Copy(out, more)
	return out
}

func playUnknownFields(s *stage) {
	s.hello = with(unknownFields, fields{"features": []string{"of-a-later-version"}})
	p := s.open()
	c := s.enqueue("q", "")
	req := p.expect(protocol.OpEnqueue)
	p.reply(req, with(unknownFields, storedFields(req, with(unknownFields, fields{"id": "7"}))))
	got := s.succeeds(c)
	need(got.ID == "7", "the id 7", "%s", cut(got.line))

	c = s.claim("q")
	job := with(s.job([]byte("x")), unknownFields)
	p.reply(p.expect(protocol.OpClaim), with(unknownFields, fields{"jobs": []fields{job}}))
	s.wantClaimed(c, job)

	done := s.ack(job)
	ack := p.expect(protocol.OpAck)
	p.reply(ack, with(unknownFields, fields{"acked": 1, "lost": []string{}}))
	s.succeeds(done)

	c = s.claim("nowhere")
	p.refuse(p.expect(protocol.OpClaim), "unknown_queue", unknownFields)
	s.fails(c, "unknown_queue")
	s.wantUsable(p)
}

func storedFields(req *request, job fields) fields {
	if req.Jobs != nil {
		return fields{"jobs": []fields{job}}
	}
	return fields{"job": job}
}

func playUnknownEvent(s *stage) {
	p := s.open()
	c := s.claim("q")
	req := p.expect(protocol.OpClaim)
	p.send(p.frame(with(unknownFields, fields{"event": "of-a-later-version", "leases": []string{"1.kit.9"}})))
	job := s.job([]byte("x"))
	p.answerClaim(req, job)
	s.wantClaimed(c, job)
	s.wantUsable(p)
}

func playUnknownCode(s *stage) {
	p := s.open()
	c := s.enqueue("q", "k")
	p.refuse(p.expect(protocol.OpEnqueue), "of_a_later_version", nil)
	s.fails(c, "of_a_later_version", "internal")
	s.wantUsable(p)
}

// playBytes sends payloads and results that are text, and others that are not.
func playBytes(s *stage) {
	p := s.open()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for _, b := range [][]byte{every, []byte("é😀\x00\n\"\\"), {}, {0xff}} {
		b64 := base64.StdEncoding.EncodeToString(b)
		c := s.command(command{"do": "enqueue", "queue": "q", "payload_b64": b64})
		req := p.expect(protocol.OpEnqueue)
		need(bytes.Equal(newJob(req).Payload, b), fmt.Sprintf("the payload %q unchanged", b), "%q", newJob(req).Payload)
		p.answerEnqueue(req, fields{"id": "1"})
		s.succeeds(c)

		c = s.claim("q")
		job := s.job(b)
		p.answerClaim(p.expect(protocol.OpClaim), job)
		got := s.succeeds(c)
		need(len(got.Jobs) == 1 && bytes.Equal(got.Jobs[0].PayloadB64, b), fmt.Sprintf("a job with the payload %q", b), "%s", cut(got.line))

		c = s.command(command{"do": "ack", "id": id(job), "result_b64": b64})
		ack := p.expect(protocol.OpAck)
		need(bytes.Equal(ack.Result, b), fmt.Sprintf("the result %q unchanged", b), "%q", ack.Result)
		p.answerSettle(ack)
		s.succeeds(c)
	}
	s.wantUsable(p)
}

// playTooLarge is a sidecar with lower limits than the default.
func playTooLarge(s *stage) {
	s.hello = fields{"max_frame": 64 << 10, "max_payload": 48 << 10, "max_reply": 512 << 10}
	p := s.open()
	c := s.command(command{
		"do": "enqueue", "queue": "q", "key": "k",
		"payload_b64": base64.StdEncoding.EncodeToString(make([]byte, 200<<10)),
	})
	// A client can know the limit and not send the request.
	next := s.command(command{"do": "claim", "queue": "after", "max": 1, "wait_ms": 0})
	req := p.next("an enqueue that is too large, or the next call")
	if req.Op == protocol.OpEnqueue {
		// A sidecar can't read such a frame or its id, and closes.
		p.send(p.frame(fields{"ok": false, "error": fields{"code": "too_large", "message": "the frame has more than max_frame bytes"}}))
		p.close()
		s.fails(c, "too_large")
		p = s.accept()
		req = p.next("the next call")
	} else {
		s.fails(c, "too_large")
	}
	need(req.Op == protocol.OpClaim && queueOf(req) == "after", "the next call, and no second large enqueue", "%s", p.text(req))
	p.answerClaim(req)
	s.succeeds(next)
}
