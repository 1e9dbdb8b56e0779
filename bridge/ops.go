package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// inspectTimeout bounds a database query that a person waits for.
const inspectTimeout = 30 * time.Second

// enqueueWait is how long an enqueue waits for its commit.
const enqueueWait = 5 * time.Second

// keepsIDs is the maximum number of ids of a request that is carried out in its own goroutine.
const keepsIDs = 16

// start begins a request in the order of arrival. The returned finisher only waits for the result. start does not
// keep req, because a request of another client can use it next.
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
		if req.Claim != nil {
			return s.settleAndClaim(req)
		}
		return s.settle(req)
	case protocol.OpCancelClaim:
		return s.cancelClaims(req)
	case protocol.OpStats:
		return s.stats(req)
	case protocol.OpPeek:
		return s.peek(req)
	case protocol.OpRetry, protocol.OpChange, protocol.OpDelete, protocol.OpReclaim, protocol.OpPurge, protocol.OpPause, protocol.OpResume:
		return s.command(req)
	case protocol.OpWatch:
		return s.watchJobs(req)
	case protocol.OpReload:
		return s.reloadConfig()
	case protocol.OpConfig, protocol.OpCheck:
		return s.report(req.Op)
	case protocol.OpFleet:
		return s.fleet()
	case protocol.OpStatus:
		return s.status()
	case protocol.OpPing:
		return answerWith(&protocol.Reply{})
	}
	return fail(protocol.Errorf(protocol.CodeUnknownOp, "no op %q", req.Op))
}

func (s *session) failure(err error) *protocol.Reply {
	return &protocol.Reply{Error: toClient(err, s.log())}
}

func (s *session) hello(req *protocol.Request) finisher {
	s.mu.Lock()
	s.worker = req.Worker
	s.subscribed = slices.Compact(slices.Sorted(slices.Values(req.Events)))
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
	db, stored, wire := plan.newJobs(jobs, "jobs", single)
	if wire != nil {
		return fail(wire)
	}
	if err := s.roomForJobs(plan, db, jobs); err != nil {
		return answerWith(s.failure(err))
	}
	p, err := db.SubmitWrite(&s.quota, backends.Enqueue{Jobs: stored})
	if err != nil {
		return answerWith(s.failure(err))
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		res, err := db.AwaitWrite(p, enqueueWait)
		if err != nil {
			return s.failure(err), nil
		}
		all := wirejob.FromStored(res.Stored)
		if single {
			return &protocol.Reply{Enqueued: &all[0]}, nil
		}
		return &protocol.Reply{EnqueuedAll: all}, nil
	})}
}

// beginInspection waits until no other large reply of the session is in progress, and then reserves that slot until done is
// called. The slot is a channel instead of a lock, because a test on a virtual clock can't wait for a lock. ctx ends
// after inspectTimeout, or when no reply can be sent any more: the end of a session waits for all of its queries, and
// so do the jobs that the client holds.
func (s *session) beginInspection(op protocol.Op) (ctx context.Context, done func()) {
	s.mu.Lock()
	if s.inspecting == nil { // most sessions never need it
		s.inspecting = make(chan struct{}, 1)
	}
	slot := s.inspecting
	s.mu.Unlock()
	slot <- struct{}{}
	ctx, cancel := s.untilGone(op, inspectTimeout)
	return ctx, func() {
		cancel()
		<-slot
	}
}

// untilGone returns a context that ends after limit, or when no reply can be sent any more.
func (s *session) untilGone(op protocol.Op, limit time.Duration) (ctx context.Context, end context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("%s: no answer within %v", op, limit))
	stop := context.AfterFunc(s.gone, func() {
		switch cause := context.Cause(s.gone); {
		case errors.Is(cause, errHangUp):
			cancel()
		case errors.Is(cause, errServer):
			time.AfterFunc(lastReplyTimeout, cancel)
		}
	})
	if cause := context.Cause(s.gone); errors.Is(cause, errHangUp) || errors.Is(cause, errServer) {
		cancel()
	}
	return ctx, func() {
		stop()
		cancel()
	}
}

func (s *session) stats(req *protocol.Request) finisher {
	queue, plan := req.Queue, s.bridge.plan.Load()
	if queue != "" {
		if _, wire := plan.databaseOfQueue(queue); wire != nil {
			return fail(wire)
		}
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, done := s.beginInspection(protocol.OpStats)
		if ctx.Err() != nil {
			return s.failure(errDraining), done
		}
		stats, err := plan.stats(ctx, queue, (*database).ReplicaStats)
		if err != nil {
			return s.failure(err), done
		}
		return &protocol.Reply{Queues: s.seen(stats)}, done
	})}
}

// watchJobs returns the job events since the last watch of the session.
func (s *session) watchJobs(req *protocol.Request) finisher {
	err := s.watch.Begin(&s.bridge.events, req.Queue, func(queue string) bool {
		g := s.granted()
		return g.Everywhere(protocol.OpWatch) || queue != "" && g.Queue(protocol.OpWatch, queue)
	})
	if err != nil {
		return answerWith(s.failure(err))
	}
	wait := wirejob.Millis(req.WaitMS)
	return finisher{waits: wait > 0, rest: later(func() (*protocol.Reply, func()) {
		events, missed := s.watch.Next(s.gone.Done(), wait, s.limits.MaxReply)
		return &protocol.Reply{JobEvents: events, Missed: protocol.Some(missed)}, nil
	})}
}

func (s *session) command(req *protocol.Request) finisher {
	plan := s.bridge.plan.Load()
	db, wire := plan.inspectable(req.Queue)
	if wire != nil {
		return fail(wire)
	}
	if req.Op == protocol.OpPause { // the name is stored in the database
		if err := s.roomForName(plan, req.Queue); err != nil {
			return answerWith(s.failure(err))
		}
	}
	op, c := req.Op, wirejob.Command(req) // req holds another request by the time this one ends
	f := finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		stuck := time.AfterFunc(inspectTimeout, func() { cancel(fmt.Errorf("%s: no progress within %v", op, inspectTimeout)) })
		defer stuck.Stop()
		c.Progress = func() {
			stuck.Reset(inspectTimeout)
			if s.bridge.draining.Load() {
				cancel(errors.New("this sidecar is stopping"))
			}
		}
		count, err := db.Command(ctx, c)
		if err != nil && count == 0 {
			return s.failure(err), nil
		}
		s.logCommanded(op, &c, count)
		if err != nil { // a large command runs as several transactions, and the earlier ones are committed
			wire := toClient(err, s.log())
			return &protocol.Reply{Error: protocol.Errorf(wire.Code, "%d jobs are done; send it again for the others: %v", count, err)}, nil
		}
		reply := &protocol.Reply{}
		if c.Kind != backends.Pause && c.Kind != backends.Resume {
			reply.Count = protocol.Some(count)
		}
		return reply, nil
	})}
	f.keeps = len(c.IDs) > keepsIDs
	return f
}
