package session

import (
	"slices"

	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// start begins a request in the order of arrival. The returned finisher only waits for the result. start does not
// keep req, because a request of another client can use it next.
func (s *Session) start(req *protocol.Request) finisher {
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
	case protocol.OpHistory:
		return s.history(req)
	case protocol.OpPeek:
		return s.peek(req)
	case protocol.OpRetry, protocol.OpChange, protocol.OpDelete, protocol.OpReclaim, protocol.OpCancel, protocol.OpPurge, protocol.OpPause, protocol.OpResume,
		protocol.OpLimit:
		return s.command(req)
	case protocol.OpSchedules:
		return s.schedules(req)
	case protocol.OpSchedule:
		return s.declareSchedule(req)
	case protocol.OpChangeSchedule:
		return s.changeSchedule(req)
	case protocol.OpOpenBatch:
		return s.openBatch(req)
	case protocol.OpCloseBatch:
		return s.closeBatch(req)
	case protocol.OpCancelBatch:
		return s.cancelBatch(req)
	case protocol.OpBatches:
		return s.batches(req)
	case protocol.OpWatch:
		return s.watchJobs(req)
	case protocol.OpWait:
		return s.waitForJobs(req)
	case protocol.OpProgress:
		return s.reportProgress(req)
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

func (s *Session) hello(req *protocol.Request) finisher {
	s.mu.Lock()
	s.worker = req.Worker
	s.subscribed = slices.Compact(slices.Sorted(slices.Values(req.Events)))
	s.mu.Unlock()
	l := s.limits
	return answerWith(&protocol.Reply{Hello: &protocol.HelloReply{
		Version:    min(req.Version.Or(protocol.Version), protocol.Version),
		Server:     s.shared.Plan().Server,
		Session:    s.id,
		Features:   []string{},
		MaxFrame:   int64(l.MaxFrame),
		MaxPayload: int64(l.MaxPayload),
		MaxReply:   int64(l.MaxReply),
	}})
}

// watchJobs returns the job events since the last watch of the session.
func (s *Session) watchJobs(req *protocol.Request) finisher {
	err := s.watch.begin(&s.shared.Events, req.Queue, func(queue string) bool {
		g := s.granted()
		return g.Everywhere(protocol.OpWatch) || queue != "" && g.Queue(protocol.OpWatch, queue)
	})
	if err != nil {
		return answerWith(s.failure(err))
	}
	wait := wirejob.Millis(req.WaitMS)
	return finisher{waits: wait > 0, rest: later(func() (*protocol.Reply, func()) {
		events, missed := s.watch.next(s.gone.Done(), wait, s.limits.MaxReply)
		return &protocol.Reply{JobEvents: events, Missed: protocol.Some(missed)}, nil
	})}
}
