package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// downtime is how long the sidecar is down in these scenarios: several tries of a client.
const downtime = 250 * time.Millisecond

func playAway(s *stage) {
	p := s.open()
	s.unlisten()
	p.close()
	c := s.enqueue("q", "k") // with a key, because the client may not have noticed yet
	<-after(downtime)
	need(!c.ready(), "a call to wait while the sidecar is down", "it ended at once")
	s.listen()
	p = s.accept()
	p.answerEnqueue(p.expect(protocol.OpEnqueue), fields{"id": "1"})
	s.succeeds(c)
	s.wantUsable(p)
}

// playBackOff closes each connection for a while, as a starting sidecar does, and counts the
// connections.
func playBackOff(s *stage) {
	p := s.open()
	p.close()
	const most = 40
	tries := 0
	for until := time.Now().Add(downtime); ; tries++ {
		must(s.ln.SetDeadline(until))
		conn, err := s.ln.Accept()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		must(err)
		must(conn.Close())
	}
	s.note("sidecar: closed %d connections in %v", tries, downtime)
	need(tries <= most, fmt.Sprintf("at most %d tries in %v", most, downtime), "%d", tries)
	p = s.accept()
	s.wantUsable(p)
}

func playClosedMidReply(s *stage) {
	p := s.open()
	c := s.waitingClaim()
	req := p.expect(protocol.OpClaim)
	half := p.frame(okReply(req, fields{"jobs": []fields{s.job([]byte("in the half that comes"))}}))
	p.send(half[:len(half)*3/4])
	p.close()
	p = s.accept()
	req = p.expectSettle(protocol.OpClaim)
	job := s.job([]byte("whole"))
	p.answerClaim(req, job)
	s.wantClaimed(c, job)
	s.wantUsable(p)
}

// bindOf waits for the bind on a new connection and checks its leases.
func (p *peer) bindOf(jobs ...fields) *request {
	var want []string
	for _, j := range jobs {
		want = append(want, lease(j))
	}
	slices.Sort(want)
	what := fmt.Sprintf("extend with bind: true of the leases held, %v, without a call by the program", want)
	req := p.next(what)
	got := slices.Sorted(slices.Values(req.leases()))
	need(req.Op == protocol.OpExtend && req.Bind && !req.LeaseMS.Set && slices.Equal(got, want), what, "%s", p.text(req))
	return req
}

func playBind(s *stage) {
	p := s.open()
	jobs := s.claimJobs(p, 3)
	done := s.ack(jobs[2])
	p.answerSettle(p.expect(protocol.OpAck))
	s.succeeds(done)

	// The program makes no call. The sidecar is down for a moment.
	s.unlisten()
	p.close()
	<-after(downtime)
	s.listen()
	p = s.accept()
	p.answerSettle(p.bindOf(jobs[0], jobs[1]))

	// Again, after one of the two was settled on the new connection.
	done = s.ack(jobs[0])
	p.answerSettle(p.expect(protocol.OpAck))
	s.succeeds(done)
	p.close()
	p = s.accept()
	p.answerSettle(p.bindOf(jobs[1]))
	done = s.ack(jobs[1])
	p.answerSettle(p.expect(protocol.OpAck))
	s.succeeds(done)
}

// firstBind waits for a bind if this client sends one. The scenario bind covers clients that do
// not.
func (s *stage) firstBind(p *peer) *request {
	req, err := p.read(s.kit.patience)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.note("the client sent no bind: see the scenario bind")
		return nil
	}
	need(err == nil, "the connection to stay", "%v", err)
	need(req.Op == protocol.OpExtend && req.Bind, "extend with bind: true", "%s", p.text(req))
	return req
}

func playBindAgain(s *stage) {
	p := s.open()
	jobs := s.claimJobs(p, 1)
	p.close()
	p = s.accept()
	req := s.firstBind(p)
	if req == nil {
		return
	}
	p.refuse(req, "unavailable", fields{"retry_ms": 20})
	p.refuse(p.bindOf(jobs[0]), "unknown_outcome", nil)
	p.answerSettle(p.bindOf(jobs[0]))
	done := s.ack(jobs[0])
	p.answerSettle(p.expect(protocol.OpAck))
	s.succeeds(done)
	s.wantLost()
}

// playBindUnsettled lets a job end while the sidecar is down. A sidecar that carries out the ack and then a bind of its lease
// would report that lease as lost.
func playBindUnsettled(s *stage) {
	p := s.open()
	jobs := s.claimJobs(p, 2)
	s.unlisten()
	p.close()
	done := s.ack(jobs[0])
	<-after(downtime)
	s.listen()
	p = s.accept()
	var ack *request
	var bound []string
	for ack == nil {
		switch req := p.next("the ack that waited, and a bind of the other lease"); req.Op {
		case protocol.OpAck:
			ack = req
		case protocol.OpExtend:
			bound = append(bound, req.leases()...)
			p.answerSettle(req)
		default:
			fail("ack or extend", "%s", p.text(req))
		}
	}
	if !slices.Contains(bound, lease(jobs[1])) {
		req := s.firstBind(p)
		if req == nil {
			return
		}
		need(!slices.Contains(req.leases(), lease(jobs[0])), "a lease whose ack was sent not to be bound", "%s", p.text(req))
		p.answerSettle(req)
	}
	p.refuse(ack, "internal", nil)
	s.fails(done, "internal")
	if !slices.Contains(bound, lease(jobs[0])) { // a slow client can bind both leases before it gets the kit's command
		p.answerSettle(p.bindOf(jobs[0]))
	}
	done = s.ack(jobs[0])
	p.answerSettle(p.expect(protocol.OpAck))
	s.succeeds(done)
}

// wantLost checks which leases the client reported as lost. It asks until there are enough.
func (s *stage) wantLost(jobs ...fields) answer {
	want := []string{}
	for _, j := range jobs {
		want = append(want, id(j))
	}
	slices.Sort(want)
	for deadline := time.Now().Add(s.kit.patience); ; {
		got := s.succeeds(s.command(command{"do": "lost"}))
		if slices.Equal(slices.Compact(slices.Sorted(slices.Values(got.IDs))), want) {
			return got
		}
		need(!over(deadline), fmt.Sprintf("the program to get the lost leases %v", want), "%v", got.IDs)
		<-after(5 * time.Millisecond)
	}
}

// wantCancelled checks that the first of these lost jobs was reported as cancelled, and no other one.
func (s *stage) wantCancelled(jobs ...fields) {
	got, want := s.wantLost(jobs...).Cancelled, id(jobs[0])
	need(slices.Equal(slices.Compact(got), []string{want}), "only the job "+want+" to be reported as cancelled", "%v", got)
}

func playLostReported(s *stage) {
	p := s.open()
	jobs := s.claimJobs(p, 5)
	p.send(p.frame(fields{"event": "lost", "leases": []string{lease(jobs[0]), "1.kit.unknown"}, "reason": "cancelled"}))
	s.wantCancelled(jobs[0])
	p.send(p.frame(fields{"event": "lost", "leases": []string{lease(jobs[3])}, "reason": "kit_of_a_later_version"}))
	p.send(p.frame(fields{"event": "lost", "leases": []string{lease(jobs[4])}}))
	s.wantCancelled(jobs[0], jobs[3], jobs[4])
	p.close()
	p = s.accept()
	if req := s.firstBind(p); req != nil {
		need(!slices.Contains(req.leases(), lease(jobs[0])), "a lost lease not to be bound", "%s", p.text(req))
		p.answerSettle(req, lease(jobs[1]))
		s.wantCancelled(jobs[0], jobs[1], jobs[3], jobs[4])
	}
	done := s.ack(jobs[2])
	p.answerSettle(p.expect(protocol.OpAck))
	s.succeeds(done)
}

// playCloseOnExec kills the worker. Its child survives with all inherited descriptors.
func playCloseOnExec(s *stage) {
	p := s.open()
	s.claimJobs(p, 1)
	child := s.succeeds(s.command(command{"do": "exec"})).PID
	need(child > 1, "the pid of a child", "%d", child)
	s.atEnd(func() { _ = syscall.Kill(child, syscall.SIGKILL) }) // the child of the adapter, which belongs to the kit
	worker, err := parentOf(child)
	must(err)
	s.note("kit: kills the worker, process %d; its child %d survives", worker, child)
	must(syscall.Kill(worker, syscall.SIGKILL))
	err = p.ended(s.kit.patience)
	need(err == nil, "the connection to end with the worker", "a child of the worker keeps it open (%v)", err)
}

// parentOf returns the parent process of a child. A wrapper can have started the adapter, and the
// kit must kill the client's own process.
func parentOf(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "PPid:"); ok {
			parent, err := strconv.Atoi(strings.TrimSpace(v))
			if err == nil && parent <= 1 {
				err = fmt.Errorf("process %d isn't a child of the adapter", pid)
			}
			return parent, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no PPid", pid)
}

// playGoodbye closes a client that holds a job.
func playGoodbye(s *stage) {
	p := s.open()
	jobs := s.claimJobs(p, 1)
	c := s.command(command{"do": "close"})
	back := false
	for !back {
		req := p.next("bye, or nack with snooze: true, of a claimed job")
		switch {
		case req.Op == protocol.OpBye:
			p.reply(req, fields{})
			p.close()
			s.succeeds(c)
			return
		case req.Op == protocol.OpNack && slices.Contains(req.leases(), lease(jobs[0])) && req.Snooze:
			p.answerSettle(req)
			back = true
		case req.Op == protocol.OpCancelClaim:
			p.reply(req, fields{})
		default:
			fail("bye, or nack with snooze: true, of a claimed job", "%s", p.text(req))
		}
	}
	err := p.ended(s.kit.patience)
	need(err == nil, "the connection to end", "%v", err)
	s.succeeds(c)
}
