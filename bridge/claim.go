package bridge

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// claim starts a claim. beside is the size of what the reply has besides jobs and replyHead; it is read when there are jobs.
func (s *session) claim(req *protocol.Request, beside *int64) finisher {
	queues, single := req.Queues, req.Queues == nil
	if single {
		one := [1]string{req.Queue}
		queues = one[:]
	}
	plan := s.bridge.plan.Load()
	db, wire := plan.databaseOfClaim(queues, single)
	if wire != nil {
		return fail(wire)
	}
	if i := slices.IndexFunc(queues, db.ClaimsInTx); i >= 0 && req.LeaseMS.Set {
		return answerWith(s.failure(&backends.UnsupportedError{Queue: queues[i], What: backends.NoTimedLease, InTx: true}))
	}
	if reply := s.checkClaimLimits(req, len(queues)); reply != nil {
		return answerWith(reply)
	}
	s.mu.Lock()
	worker := s.worker
	s.mu.Unlock()
	w := &pipeline.ClaimRequest{
		Session:  &s.quota,
		Since:    time.Now(),
		Slots:    int(req.Max.Or(1)),
		Template: backends.Slot{Lease: wirejob.Millis(req.LeaseMS.Or(0)), Worker: worker},
		Once:     req.WaitMS == 0,
	}
	if a, answered := db.Claim(w, queues); answered {
		return later(func() (*protocol.Reply, func()) { return s.handOver(db, w, a, beside) })
	}
	ctx, stop := s.claimContext(wirejob.Millis(req.WaitMS))
	open := &openClaim{id: req.ID, stop: stop}
	s.mu.Lock()
	s.claims[open] = struct{}{}
	s.mu.Unlock()
	s.waiting.Add(1)
	named := int64(len(queues))
	s.named.Add(named)
	f := later(func() (*protocol.Reply, func()) {
		a, wire := s.await(ctx, &db, w, single, plan)
		stop()
		s.waiting.Add(-1)
		s.named.Add(-named)
		s.mu.Lock()
		delete(s.claims, open)
		s.mu.Unlock()
		if wire != nil {
			return &protocol.Reply{Error: wire}, nil
		}
		return s.handOver(db, w, a, beside)
	})
	f.waits = req.WaitMS > 0
	return f
}

// checkClaimLimits returns an error reply if the session must not have another claim that names so many queues.
func (s *session) checkClaimLimits(req *protocol.Request, queues int) *protocol.Reply {
	named := s.named.Load()
	switch {
	case s.waiting.Load() >= maxWaiting && req.WaitMS > 0:
		return busyReply("%d claims of this connection wait already: answer or cancel one first", maxWaiting)
	case req.WaitMS > 0 && s.crowded():
		return busyReply("all connections together have more open requests than the sidecar has memory for (limits.buffer_memory in its config), and this one has %d: wait for one, or cancel one, first", len(s.slots)-1)
	case named > 0 && named+int64(queues) > maxNamed:
		return busyReply("open claims of this connection name %d queues, and the limit is %d: wait for one, or cancel one, first", named, maxNamed)
	case !req.LeaseMS.Set && s.quota.Jobs.Count() >= s.MaxJobs():
		return s.failure(s.TooManyJobs())
	}
	return nil
}

func busyReply(format string, args ...any) *protocol.Reply {
	return &protocol.Reply{Error: protocol.Errorf(protocol.CodeBusy, format, args...)}
}

// await waits for the result of a claim. If a reload moved its queues to another database, it continues there.
func (s *session) await(ctx context.Context, db **database, w *pipeline.ClaimRequest, single bool, plan *plan) (pipeline.Answer, *protocol.Error) {
	for {
		if now := s.bridge.plan.Load(); now != plan { // it was queued while the plan changed
			(*db).follow(now)
		}
		a := (*db).AwaitClaim(ctx, w)
		if !errors.Is(a.Err, pipeline.ErrMoved) {
			return a, nil
		}
		plan = s.bridge.plan.Load()
		to, wire := plan.databaseOfClaim(w.Queues, single)
		if wire == nil {
			wire = s.forbidsClaim(w.Queues)
		}
		if wire != nil {
			return a, wire
		}
		*db = to
		*w = pipeline.ClaimRequest{Session: w.Session, Since: w.Since, Slots: w.Slots, Template: w.Template, Once: w.Once, Queues: w.Queues}
		if a, answered := to.Claim(w, w.Queues); answered {
			return a, nil
		}
	}
}

// forbidsClaim checks a waiting claim against the rules of its socket again.
func (s *session) forbidsClaim(queues []string) *protocol.Error {
	if i := s.noClaim(queues); i >= 0 {
		return s.denied(protocol.OpClaim, queues[i])
	}
	return nil
}

// noClaim returns the index of the first queue that the session is not allowed to claim from, or -1.
func (s *session) noClaim(queues []string) int {
	g := s.granted()
	return slices.IndexFunc(queues, func(q string) bool { return !g.Queue(protocol.OpClaim, q) })
}

// handOver calls handOut, and also returns the function to call after the reply is sent.
func (s *session) handOver(db *database, w *pipeline.ClaimRequest, a pipeline.Answer, beside *int64) (*protocol.Reply, func()) {
	reply, given := s.handOut(db, w, a, *beside)
	s.quota.SettleJobs(w.Reserved, min(given, w.Reserved))
	if len(a.Jobs) == 0 {
		return reply, nil
	}
	bytes := quota.JobBytes(a.Jobs)
	return reply, func() { s.quota.AddUnread(-bytes) }
}

// claimContext ends a claim's wait when its time is over, it is cancelled or the client is gone. A claim that does
// not wait ends after one commit.
func (s *session) claimContext(wait time.Duration) (context.Context, context.CancelFunc) {
	if wait == 0 {
		return context.WithCancel(s.gone)
	}
	return context.WithTimeout(s.gone, wait)
}

// handOut records the jobs as the session's and builds the reply. given is the number of jobs in it.
func (s *session) handOut(db *database, w *pipeline.ClaimRequest, a pipeline.Answer, beside int64) (reply *protocol.Reply, given int) {
	if len(a.Jobs) == 0 {
		if a.Err != nil {
			return s.failure(a.Err), 0
		}
		return &protocol.Reply{Jobs: []protocol.Job{}}, 0
	}
	if s.gone.Err() != nil {
		db.ReturnUndelivered(a.Jobs)
		return nil, 0
	}
	jobs, err := db.HandOut(w, &a, func(jobs []backends.Job) int { return s.jobsThatFit(db.Info.Database, jobs, beside) })
	if err != nil {
		return s.failure(err), 0
	}
	reply = &protocol.Reply{Jobs: make([]protocol.Job, len(jobs))}
	for i := range jobs {
		reply.Jobs[i] = wirejob.FromClaim(db.Info.Database, &jobs[i])
	}
	return reply, len(jobs)
}

func (s *session) cancelClaims(req *protocol.Request) finisher {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.claims {
		if !req.Cancel.IsSet() || c.id == req.Cancel {
			c.stop()
		}
	}
	return answerWith(&protocol.Reply{})
}
