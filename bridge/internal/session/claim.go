package session

import (
	"errors"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// pendingClaim is a claim that was started.
type pendingClaim struct {
	sess     *Session
	db       *plan.Database
	plan     *plan.Plan // that it was queued under
	single   bool       // its queue comes from the field "queue"
	request  pipeline.ClaimRequest
	answer   pipeline.Answer
	answered bool       // answer is set
	waiting  *claimWait // nil: it does not wait for jobs
	beside   int64      // size of the other lists in the reply
	named    int64      // queues, while it waits
	unread   int64      // bytes of its jobs that count for the session until the reply is sent

	// These save allocations: most claims are for one queue and one job.
	queue [1]string
	job   [1]protocol.Job
}

// claim starts a claim.
func (s *Session) claim(req *protocol.Request) finisher {
	c := &pendingClaim{}
	next := protocol.NextClaim{Queue: req.Queue, Queues: req.Queues, Max: req.Max, LeaseMS: req.LeaseMS, Order: req.Order, Weights: req.Weights}
	if refused := c.start(s, req.ID, &next, req.WaitMS); refused != nil {
		return answerWith(refused)
	}
	return finisher{rest: c, waits: req.WaitMS > 0 && !c.answered}
}

// start queues the claim, or answers it with prefetched jobs. It returns the reply if the claim must not run.
func (p *pendingClaim) start(s *Session, id protocol.RequestID, req *protocol.NextClaim, waitMS int64) *protocol.Reply {
	queues := req.Queues
	p.sess, p.plan, p.single = s, s.shared.Plan(), queues == nil
	if p.single {
		p.queue[0] = req.Queue
		queues = p.queue[:]
	}
	var wire *protocol.Error
	if p.db, wire = p.plan.DatabaseOfClaim(queues, p.single); wire != nil {
		s.logUnknownQueue(wire)
		return &protocol.Reply{Error: wire}
	}
	if req.LeaseMS.Set {
		if i := slices.IndexFunc(queues, p.db.ClaimsInTx); i >= 0 {
			return s.failure(&backends.UnsupportedError{Queue: queues[i], What: backends.NoTimedLease, InTx: true})
		}
	}
	if reply := s.checkClaimLimits(req, waitMS > 0, len(queues)); reply != nil {
		return reply
	}
	s.mu.Lock()
	worker := s.worker
	s.mu.Unlock()
	p.request = pipeline.ClaimRequest{
		Session:  &s.quota,
		Since:    time.Now(),
		Slots:    int(req.Max.Or(1)),
		Template: backends.Slot{Lease: wirejob.Millis(req.LeaseMS.Or(0)), Worker: worker},
		Once:     waitMS == 0,
		Rotate:   req.Order == protocol.OrderRotate,
		Weights:  req.Weights,
	}
	if p.answer, p.answered = p.db.Claim(&p.request, queues); p.answered {
		return nil
	}
	if waitMS > 0 {
		p.waiting = s.waits.add(id, wirejob.Millis(waitMS))
	}
	s.waiting.Add(1)
	p.named = int64(len(p.request.Queues))
	s.named.Add(p.named)
	return nil
}

// whenOver calls run once, in a goroutine of its own, when the claim has its answer or must not wait any longer. So a claim
// that waits has no goroutine, whose stack would be a third of the memory of its connection.
func (p *pendingClaim) whenOver(run func()) {
	p.follow()
	p.waiting.then(func(answered func()) { p.db.WhenAnswered(&p.request, answered) }, func() { go run() })
}

// follow ends the wait if the plan changed while the claim was queued, and the new one serves its queues from another database.
func (p *pendingClaim) follow() {
	if now := p.sess.shared.Plan(); now != p.plan {
		now.Reroute(p.db.Pipeline)
	}
}

func (p *pendingClaim) wait() (*protocol.Reply, func()) {
	jobs, err, ok := p.result()
	if !ok {
		return nil, p.sent
	}
	return &protocol.Reply{Jobs: jobs, Error: err, Join: p.db.Crowded()}, p.sent
}

// result waits for the answer, and hands out its jobs. ok is false if the client is gone.
func (p *pendingClaim) result() (jobs []protocol.Job, err *protocol.Error, ok bool) {
	if !p.answered {
		if wire := p.awaitAnswer(); wire != nil {
			return nil, wire, true
		}
	}
	p.unread = quota.JobBytes(p.answer.Jobs) // before handOut returns those that don't fit
	jobs, err, ok = p.handOut()
	p.sess.quota.SettleJobs(p.request.Reserved, min(len(jobs), p.request.Reserved))
	return jobs, err, ok
}

// dropOld gives the jobs of the answer back if it is old, and reports whether it did.
func (p *pendingClaim) dropOld() bool {
	if !p.answered {
		if p.answer, p.answered = p.db.Jobs(&p.request); p.answered {
			p.endWait()
		}
	}
	return p.answered && p.db.DropOld(&p.request, &p.answer)
}

func (p *pendingClaim) sent() { p.sess.quota.AddUnread(-p.unread) }

// awaitAnswer waits for the answer of a queued claim.
func (p *pendingClaim) awaitAnswer() *protocol.Error {
	defer p.endWait()
	return p.await()
}

// endWait removes a queued claim from those that wait.
func (p *pendingClaim) endWait() {
	if p.waiting != nil {
		p.sess.waits.forget(p.waiting)
	}
	p.sess.waiting.Add(-1)
	p.sess.named.Add(-p.named)
}

const (
	maxWaiting = 256  // waiting claims of one session
	maxNamed   = 4096 // queues that its open claims name in total: each takes some hundred bytes
)

// checkClaimLimits returns an error reply if the session must not have another claim that names so many queues.
func (s *Session) checkClaimLimits(req *protocol.NextClaim, waits bool, queues int) *protocol.Reply {
	named := s.named.Load()
	switch {
	case s.waiting.Load() >= maxWaiting && waits:
		return busyReply("%d claims of this connection wait already: answer or cancel one first", maxWaiting)
	case waits && s.crowded():
		return busyReply("all connections together have more open requests than the sidecar has memory for (limits.buffer_memory in its config), and this one has %d: wait for one, or cancel one, first", len(s.slots)-1)
	case named > 0 && named+int64(queues) > maxNamed:
		return busyReply("open claims of this connection name %d queues, and the limit is %d: wait for one, or cancel one, first", named, maxNamed)
	case !req.LeaseMS.Set && s.quota.Jobs.Count() >= s.MaxJobs():
		return s.failure(s.TooManyJobs())
	}
	return nil
}

// await waits for the answer. If a reload moved the claim's queues to another database, it continues there. If the process stood
// still, it claims again.
func (p *pendingClaim) await() *protocol.Error {
	s, w := p.sess, &p.request
	over := s.gone.Done() // a claim that does not wait ends after one commit
	if p.waiting != nil {
		over = p.waiting.done()
	}
	for {
		p.follow()
		p.answer = p.db.AwaitClaim(over, w)
		if !errors.Is(p.answer.Err, pipeline.ErrAgain) {
			return nil
		}
		p.plan = s.shared.Plan()
		to, wire := p.plan.DatabaseOfClaim(w.Queues, p.single)
		if wire == nil {
			wire = s.forbidsClaim(w.Queues)
		} else {
			s.logUnknownQueue(wire)
		}
		if wire != nil {
			return wire
		}
		p.db = to
		*w = pipeline.ClaimRequest{Session: w.Session, Since: w.Since, Slots: w.Slots, Template: w.Template, Once: w.Once, Rotate: w.Rotate, Weights: w.Weights, Queues: w.Queues}
		if p.answer, p.answered = to.Claim(w, w.Queues); p.answered {
			return nil
		}
	}
}

// handOut records the jobs as the session's, and returns them for the reply. ok is false if the client is gone.
func (p *pendingClaim) handOut() (jobs []protocol.Job, wire *protocol.Error, ok bool) {
	s, a := p.sess, &p.answer
	if len(a.Jobs) == 0 {
		if a.Err != nil {
			return nil, s.toClient(a.Err), true
		}
		return []protocol.Job{}, nil, true
	}
	if s.gone.Err() != nil {
		p.db.ReturnUndelivered(a.Jobs)
		return nil, nil, false
	}
	database := p.db.Info.Database
	p.db.FillProgress(s.gone, a.Jobs)
	given, err := p.db.HandOut(&p.request, a, func(jobs []backends.Job) int { return s.replyLimit().Jobs(database, jobs, p.beside) })
	if err != nil {
		return nil, s.toClient(err), true
	}
	jobs = p.job[:]
	if len(given) != 1 {
		jobs = make([]protocol.Job, len(given))
	}
	for i := range given {
		jobs[i] = wirejob.FromClaim(database, &given[i])
	}
	return jobs, nil, true
}

func (s *Session) cancelClaims(req *protocol.Request) finisher {
	s.waits.cancel(req.Cancel)
	return answerWith(&protocol.Reply{})
}
