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

// gone is how long the sidecar of these scenarios is away: some tries of a client.
const gone = 250 * time.Millisecond

func playAway(s *stage) {
	p := s.open()
	s.unlisten()
	p.close()
	c := s.enqueue("q", "k") // with a key: the client may not have noticed yet
	<-after(gone)
	need(!c.ready(), "a call to wait while the sidecar is away", "it ended at once")
	s.listen()
	p = s.accept()
	p.stored(p.expect(protocol.OpEnqueue), fields{"id": "1"})
	s.succeeds(c)
	s.works(p)
}

// playBackOff closes each connection for a while, as a sidecar does that is still
// starting, and counts.
func playBackOff(s *stage) {
	p := s.open()
	p.close()
	const most = 40
	tries := 0
	for until := time.Now().Add(gone); ; tries++ {
		must(s.ln.SetDeadline(until))
		conn, err := s.ln.Accept()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		must(err)
		must(conn.Close())
	}
	s.note("sidecar: closed %d connections in %v", tries, gone)
	need(tries <= most, fmt.Sprintf("at most %d tries in %v", most, gone), "%d", tries)
	p = s.accept()
	s.works(p)
}

func playClosedMidReply(s *stage) {
	p := s.open()
	c := s.waitingClaim()
	req := p.expect(protocol.OpClaim)
	half := p.frame(okReply(req, fields{"jobs": []fields{s.job([]byte("in the half that comes"))}}))
	p.send(half[:len(half)*3/4])
	p.close()
	p = s.accept()
	req = p.settling(protocol.OpClaim)
	job := s.job([]byte("whole"))
	p.gives(req, job)
	s.delivered(c, job)
	s.works(p)
}

// bindOf waits for the bind on a new connection and checks which leases it names.
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
	jobs := s.hold(p, 3)
	done := s.ack(jobs[2])
	p.settled(p.expect(protocol.OpAck))
	s.succeeds(done)

	// The program makes no call. The sidecar is away for a moment.
	s.unlisten()
	p.close()
	<-after(gone)
	s.listen()
	p = s.accept()
	p.settled(p.bindOf(jobs[0], jobs[1]))

	// And once more, after one of the two was settled on the new connection.
	done = s.ack(jobs[0])
	p.settled(p.expect(protocol.OpAck))
	s.succeeds(done)
	p.close()
	p = s.accept()
	p.settled(p.bindOf(jobs[1]))
	done = s.ack(jobs[1])
	p.settled(p.expect(protocol.OpAck))
	s.succeeds(done)
}

// firstBind waits for a bind, if this client does such a thing; the scenario bind
// is for those that do not.
func (s *stage) firstBind(p *peer) *request {
	req, err := p.read(s.kit.patience)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.note("no bind came: see the scenario bind")
		return nil
	}
	need(err == nil, "the connection to stay", "%v", err)
	need(req.Op == protocol.OpExtend && req.Bind, "extend with bind: true", "%s", p.text(req))
	return req
}

func playBindAgain(s *stage) {
	p := s.open()
	jobs := s.hold(p, 1)
	p.close()
	p = s.accept()
	req := s.firstBind(p)
	if req == nil {
		return
	}
	p.refuse(req, "unavailable", fields{"retry_ms": 20})
	p.refuse(p.bindOf(jobs[0]), "unknown_outcome", nil)
	p.settled(p.bindOf(jobs[0]))
	done := s.ack(jobs[0])
	p.settled(p.expect(protocol.OpAck))
	s.succeeds(done)
	s.lostIs()
}

// lostIs checks which leases the program was told lost: it is asked until it knows.
func (s *stage) lostIs(jobs ...fields) {
	want := []string{}
	for _, j := range jobs {
		want = append(want, id(j))
	}
	slices.Sort(want)
	for deadline := time.Now().Add(s.kit.patience); ; {
		got := s.succeeds(s.post(command{"do": "lost"}))
		if slices.Equal(slices.Compact(slices.Sorted(slices.Values(got.IDs))), want) {
			return
		}
		need(!over(deadline), fmt.Sprintf("the program to be told lost %v", want), "%v", got.IDs)
		<-after(5 * time.Millisecond)
	}
}

func playLostTold(s *stage) {
	p := s.open()
	jobs := s.hold(p, 3)
	p.send(p.frame(fields{"event": "lost", "leases": []string{lease(jobs[0]), "1.kit.of-nobody"}}))
	s.lostIs(jobs[0])
	p.close()
	p = s.accept()
	if req := s.firstBind(p); req != nil {
		need(!slices.Contains(req.leases(), lease(jobs[0])), "a lost lease not to be bound", "%s", p.text(req))
		p.settled(req, lease(jobs[1]))
		s.lostIs(jobs[0], jobs[1])
	}
	done := s.ack(jobs[2])
	p.settled(p.expect(protocol.OpAck))
	s.succeeds(done)
}

// playCloseOnExec kills the worker, whose child lives on with all that it inherited.
func playCloseOnExec(s *stage) {
	p := s.open()
	s.hold(p, 1)
	child := s.succeeds(s.post(command{"do": "exec"})).PID
	need(child > 1, "the pid of a child", "%d", child)
	s.atEnd(func() { _ = syscall.Kill(child, syscall.SIGKILL) }) // it is the adapter's, which is ours
	worker, err := parentOf(child)
	must(err)
	s.note("kit: kills the worker, process %d; its child %d lives on", worker, child)
	must(syscall.Kill(worker, syscall.SIGKILL))
	err = p.ended(s.kit.patience)
	need(err == nil, "the connection to end with the worker", "it is held open by a child of the worker (%v)", err)
}

// parentOf is the process that a child belongs to: an adapter may be started by a
// wrapper, and it is the client's own process that has to die.
func parentOf(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "PPid:"); ok {
			parent, err := strconv.Atoi(strings.TrimSpace(v))
			if err == nil && parent <= 1 {
				err = fmt.Errorf("process %d is no child of the adapter", pid)
			}
			return parent, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no PPid", pid)
}

// playGoodbye closes a client that holds a job.
func playGoodbye(s *stage) {
	p := s.open()
	jobs := s.hold(p, 1)
	c := s.post(command{"do": "close"})
	back := false
	for !back {
		req := p.next("bye, or nack with charge: false, of a job that is held")
		switch {
		case req.Op == protocol.OpBye:
			p.reply(req, fields{})
			p.close()
			s.succeeds(c)
			return
		case req.Op == protocol.OpNack && slices.Contains(req.leases(), lease(jobs[0])) && !req.Charge.Or(true):
			p.settled(req)
			back = true
		case req.Op == protocol.OpCancel:
			p.reply(req, fields{})
		default:
			fail("bye, or nack with charge: false, of a job that is held", "%s", p.text(req))
		}
	}
	err := p.ended(s.kit.patience)
	need(err == nil, "the connection to end", "%v", err)
	s.succeeds(c)
}
