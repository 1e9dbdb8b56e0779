package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// inspectTimeout bounds a look into the database that a person waits for.
const inspectTimeout = 30 * time.Second

// finisher is what becomes of a request that was started: its reply, or what waits for it.
type finisher struct {
	reply *protocol.Reply
	// A nil reply: nobody is left to read it. sent, if not nil, is called when the reply
	// was given to the connection.
	wait func() (reply *protocol.Reply, sent func())
	// keeps: it keeps a good part of the request, so that the next one is read after it.
	keeps bool
	waits bool // for up to an hour: it is a claim's wait
}

// keepsIDs is how many ids a request may have that is carried out beside others.
const keepsIDs = 16

func later(wait func() (*protocol.Reply, func())) finisher { return finisher{wait: wait} }

// start begins a request in the order of arrival: what it returns only waits.
// It does not keep req, which is used again for the next one.
func (s *session) start(req *protocol.Request) finisher {
	if wire := s.forbids(req); wire != nil {
		return fail(wire)
	}
	switch req.Op {
	case protocol.OpHello:
		return s.hello(req)
	case protocol.OpEnqueue:
		return s.enqueue(req)
	case protocol.OpClaim:
		return s.claim(req)
	case protocol.OpAck, protocol.OpNack, protocol.OpExtend:
		return s.settle(req)
	case protocol.OpCancel:
		return s.cancel(req)
	case protocol.OpStats:
		return s.stats(req)
	case protocol.OpPeek:
		return s.peek(req)
	case protocol.OpRetry, protocol.OpDelete, protocol.OpRelease, protocol.OpPurge, protocol.OpPause, protocol.OpResume:
		return s.command(req)
	case protocol.OpReload:
		return s.reloadConfig()
	case protocol.OpStatus:
		return s.status()
	case protocol.OpPing:
		return answerWith(&protocol.Reply{})
	}
	return fail(protocol.Errorf(protocol.CodeUnknownOp, "no op %q", req.Op))
}

func answerWith(r *protocol.Reply) finisher { return finisher{reply: r} }

func fail(err *protocol.Error) finisher { return answerWith(&protocol.Reply{Error: err}) }

func (s *session) failure(err error) *protocol.Reply {
	return &protocol.Reply{Error: toClient(err, s.log)}
}

func (s *session) hello(req *protocol.Request) finisher {
	s.mu.Lock()
	s.worker = req.Worker
	s.wants = make(map[string]bool, len(req.Events))
	for _, e := range req.Events {
		s.wants[e] = true
	}
	s.mu.Unlock()
	l := s.limits
	return answerWith(&protocol.Reply{Hello: &protocol.HelloReply{
		Version:    min(req.Version.Or(protocol.Version), protocol.Version),
		Server:     s.bridge.plan.Load().opts.Server,
		Session:    s.id,
		Features:   []string{},
		MaxFrame:   int64(l.MaxFrame),
		MaxPayload: int64(l.MaxPayload),
		MaxReply:   int64(l.MaxReply),
	}})
}

func (s *session) enqueue(req *protocol.Request) finisher {
	jobs := req.Jobs
	single := jobs == nil
	if single {
		jobs = []protocol.NewJob{req.Job}
	}
	plan := s.bridge.plan.Load()
	bank, stored, wire := plan.newJobs(jobs, "jobs", single)
	if wire != nil {
		return fail(wire)
	}
	if err := s.roomForJobs(plan, bank, jobs); err != nil {
		return answerWith(s.failure(err))
	}
	p, err := bank.submit(s, backends.Enqueue{Jobs: stored})
	if err != nil {
		return answerWith(s.failure(err))
	}
	return later(func() (*protocol.Reply, func()) {
		res, err := bank.committer.wait(p, enqueueWait)
		if err != nil {
			return s.failure(err), nil
		}
		all := storedReplies(res.Stored)
		if single {
			return &protocol.Reply{Enqueued: &all[0]}, nil
		}
		return &protocol.Reply{EnqueuedAll: all}, nil
	})
}

func storedReplies(stored []backends.Stored) []protocol.EnqueuedJob {
	out := make([]protocol.EnqueuedJob, len(stored))
	for i, st := range stored {
		out[i] = protocol.EnqueuedJob{ID: st.ID, Duplicate: st.Duplicate, State: protocol.State(st.State)}
	}
	return out
}

// submit queues a write for the group commit.
func (b *bank) submit(s *session, w backends.Write) (*pending, error) {
	p, err := b.committer.reserve(context.Background(), s, w)
	if err != nil {
		return nil, err
	}
	b.committer.push(p)
	return p, nil
}

func (s *session) claim(req *protocol.Request) finisher {
	queues, single := req.Queues, req.Queues == nil
	if single {
		one := [1]string{req.Queue}
		queues = one[:]
	}
	plan := s.bridge.plan.Load()
	bank, wire := plan.bankOfClaim(queues, single)
	if wire != nil {
		return fail(wire)
	}
	if i := slices.IndexFunc(queues, bank.link.holds); i >= 0 && req.LeaseMS.Set {
		return answerWith(s.failure(&backends.UnsupportedError{Queue: queues[i], What: backends.NoTimedLease, Held: true}))
	}
	if s.waiting.Load() >= maxWaiting && req.WaitMS > 0 {
		return fail(protocol.Errorf(protocol.CodeBusy, "%d claims of this connection wait already: answer or cancel one first", maxWaiting))
	}
	if req.WaitMS > 0 && s.crowded() {
		return fail(protocol.Errorf(protocol.CodeBusy, "all connections together have more open requests than the sidecar has memory for (limits.buffered in its config), and this one has %d: wait for one, or cancel one, first", len(s.slots)-1))
	}
	if n := s.named.Load(); n > 0 && n+int64(len(queues)) > maxNamed {
		return fail(protocol.Errorf(protocol.CodeBusy, "open claims of this connection name %d queues, and together they may name %d: wait for one, or cancel one, first", n, maxNamed))
	}
	if !req.LeaseMS.Set && s.places.count() >= plan.opts.Limits.Held {
		return fail(s.tooMany())
	}
	s.mu.Lock()
	worker := s.worker
	s.mu.Unlock()
	w := &waiter{
		sess:  s,
		since: time.Now(),
		slots: int(req.Max.Or(1)),
		lease: backends.Slot{Lease: millis(req.LeaseMS.Or(0)), Worker: worker},
		once:  req.WaitMS == 0,
	}
	if a, answered := bank.broker.add(w, queues); answered {
		return later(func() (*protocol.Reply, func()) { return s.handOver(bank, w, a) })
	}
	ctx, stop := s.claimContext(millis(req.WaitMS))
	open := &openClaim{id: req.ID, stop: stop}
	s.mu.Lock()
	s.claims[open] = struct{}{}
	s.mu.Unlock()
	s.waiting.Add(1)
	named := int64(len(queues))
	s.named.Add(named)
	f := later(func() (*protocol.Reply, func()) {
		a, wire := s.await(ctx, &bank, w, single, plan)
		stop()
		s.waiting.Add(-1)
		s.named.Add(-named)
		s.mu.Lock()
		delete(s.claims, open)
		s.mu.Unlock()
		if wire != nil {
			return &protocol.Reply{Error: wire}, nil
		}
		return s.handOver(bank, w, a)
	})
	f.waits = req.WaitMS > 0
	return f
}

// await waits for the waiter's answer, and goes on with another database where a reload
// moved its queues there.
func (s *session) await(ctx context.Context, bank **bank, w *waiter, single bool, plan *plan) (answer, *protocol.Error) {
	for {
		if now := s.bridge.plan.Load(); now != plan { // it was queued while the plan changed
			(*bank).follow(now)
		}
		a := (*bank).broker.wait(ctx, w)
		if !errors.Is(a.err, errMoved) {
			return a, nil
		}
		plan = s.bridge.plan.Load()
		to, wire := plan.bankOfClaim(w.queues, single)
		if wire == nil {
			wire = s.mayClaim(w.queues)
		}
		if wire != nil {
			return a, wire
		}
		*bank = to
		*w = waiter{sess: w.sess, since: w.since, slots: w.slots, lease: w.lease, once: w.once, queues: w.queues}
		if a, answered := to.broker.add(w, w.queues); answered {
			return a, nil
		}
	}
}

// mayClaim holds a claim that waits against the rules of its socket.
func (s *session) mayClaim(queues []string) *protocol.Error {
	if i := s.noClaim(queues); i >= 0 {
		return s.denied(protocol.OpClaim, queues[i])
	}
	return nil
}

// noClaim is the first of the queues of which the session may not claim; -1: there is none.
func (s *session) noClaim(queues []string) int {
	g := s.granted()
	return slices.IndexFunc(queues, func(q string) bool { return !g.queue(protocol.OpClaim, q) })
}

// handOver is handOut, and what there is to do when its reply is sent.
func (s *session) handOver(bank *bank, w *waiter, a answer) (*protocol.Reply, func()) {
	reply, given := s.handOut(bank, w, a)
	s.placed(w.places, min(given, w.places))
	if len(a.jobs) == 0 {
		return reply, nil
	}
	bytes := jobBytes(a.jobs)
	return reply, func() { s.owe(-bytes) }
}

// claimContext ends a claim's wait: its time is over, it is cancelled, or nobody is left.
// A claim that does not wait ends with its one look.
func (s *session) claimContext(wait time.Duration) (context.Context, context.CancelFunc) {
	if wait == 0 {
		return context.WithCancel(s.gone)
	}
	return context.WithTimeout(s.gone, wait)
}

// handOut makes the jobs the session's and tells it of them. given is how many became so.
func (s *session) handOut(bank *bank, w *waiter, a answer) (reply *protocol.Reply, given int) {
	if len(a.jobs) == 0 {
		if a.err != nil {
			return s.failure(a.err), 0
		}
		return &protocol.Reply{Jobs: []protocol.Job{}}, 0
	}
	host := a.jobs[0].Token.Host
	if s.gone.Err() != nil {
		bank.committer.giveBack(host, a.jobs)
		return nil, 0
	}
	// Asked again, as late as can be: this process may have been suspended since
	// the commit, and others may have the jobs by now.
	if bank.keeper.fresh() != host {
		bank.committer.giveBack(host, a.jobs)
		return s.failure(backends.Unavailable(errBeatLate)), 0
	}
	if !bank.ledger.give(a.jobs, s, w.lease.Lease > 0) {
		return s.failure(backends.Unavailable(errBeatLate)), 0
	}
	if a.ahead {
		bank.ledger.remember(a.jobs, w.lease.Worker, bank.broker.clock())
		bank.attendant.wake()
	}
	bank.metrics.Load().handed(a.jobs, time.Since(w.since))
	reply = &protocol.Reply{Jobs: make([]protocol.Job, len(a.jobs))}
	for i := range a.jobs {
		reply.Jobs[i] = wireJob(bank.info.Database, &a.jobs[i])
	}
	return reply, len(a.jobs)
}

func (s *session) cancel(req *protocol.Request) finisher {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.claims {
		if !req.Cancel.IsSet() || c.id == req.Cancel {
			c.stop()
		}
	}
	return answerWith(&protocol.Reply{})
}

func (s *session) stats(req *protocol.Request) finisher {
	queue, plan := req.Queue, s.bridge.plan.Load()
	if queue != "" {
		if _, wire := plan.bankOfQueue(queue); wire != nil {
			return fail(wire)
		}
	}
	return later(func() (*protocol.Reply, func()) {
		s.looking.Lock()
		ctx, cancel := context.WithTimeoutCause(context.Background(), inspectTimeout, fmt.Errorf("stats: no answer within %v", inspectTimeout))
		defer cancel()
		stats, err := plan.stats(ctx, queue)
		if err != nil {
			return s.failure(err), s.looking.Unlock
		}
		return &protocol.Reply{Queues: s.seen(stats)}, s.looking.Unlock
	})
}

func (s *session) peek(req *protocol.Request) finisher {
	plan := s.bridge.plan.Load()
	bank, wire := plan.inspectable(req.Queue)
	if wire != nil {
		return fail(wire)
	}
	state := req.State
	if state == "" {
		state = protocol.StateReady
	}
	p := backends.Peek{
		Queue:    req.Queue,
		IDs:      slices.Clone(req.IDs),
		State:    backends.State(state),
		Max:      int(req.Max.Or(10)),
		After:    req.After,
		MaxBytes: int64(s.limits.MaxReply) / 4, // base64, headers and failures must fit too
	}
	f := later(func() (*protocol.Reply, func()) {
		s.looking.Lock()
		done, wire := s.bridge.buffers.look(s, copies*p.MaxBytes)
		if wire != nil {
			return &protocol.Reply{Error: wire}, s.looking.Unlock
		}
		defer done()
		ctx, cancel := context.WithTimeoutCause(context.Background(), inspectTimeout, fmt.Errorf("peek: no answer within %v", inspectTimeout))
		defer cancel()
		look, release := bank.link.inspector()
		views, err := look.Peek(ctx, p)
		release()
		if err != nil {
			return s.failure(err), s.looking.Unlock
		}
		reply, bytes := &protocol.Reply{Views: make([]protocol.JobView, len(views))}, int64(0)
		for i := range views {
			bytes += int64(len(views[i].Payload) + len(views[i].Result))
			reply.Views[i] = wireView(&views[i], plan.maxAttempts(views[i].Queue))
		}
		s.owe(bytes)
		return reply, func() {
			s.owe(-bytes)
			s.looking.Unlock()
		}
	})
	f.keeps = len(p.IDs) > keepsIDs
	return f
}

func (s *session) command(req *protocol.Request) finisher {
	plan := s.bridge.plan.Load()
	bank, wire := plan.inspectable(req.Queue)
	if wire != nil {
		return fail(wire)
	}
	if req.Op == protocol.OpPause { // it is kept in the database
		if err := s.roomForName(plan, req.Queue); err != nil {
			return answerWith(s.failure(err))
		}
	}
	kinds := map[protocol.Op]backends.CommandKind{
		protocol.OpRetry: backends.Retry, protocol.OpDelete: backends.Delete, protocol.OpRelease: backends.ForceRelease,
		protocol.OpPurge: backends.Purge, protocol.OpPause: backends.Pause, protocol.OpResume: backends.Resume,
	}
	op := req.Op // req is another request by the time this one ends
	c := backends.Command{
		Kind:  kinds[req.Op],
		Queue: req.Queue,
		IDs:   slices.Clone(req.IDs),
		All:   req.All,
		State: backends.State(req.State),
	}
	f := later(func() (*protocol.Reply, func()) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), inspectTimeout, fmt.Errorf("%s: not done within %v", op, inspectTimeout))
		defer cancel()
		look, release := bank.link.inspector()
		count, freed, err := look.Command(ctx, c)
		release()
		if err != nil {
			return s.failure(err), nil
		}
		s.logCommanded(op, &c, count)
		if c.Kind == backends.ForceRelease {
			bank.metrics.Load().queue(c.Queue).returned.Add(float64(count))
		}
		if freed || c.Kind == backends.Resume {
			bank.broker.hint([]string{c.Queue})
		}
		reply := &protocol.Reply{}
		if c.Kind != backends.Pause && c.Kind != backends.Resume {
			reply.Count = protocol.Some(count)
		}
		return reply, nil
	})
	f.keeps = len(c.IDs) > keepsIDs
	return f
}
