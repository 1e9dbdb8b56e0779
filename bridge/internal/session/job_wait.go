package session

import (
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/jobends"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// waitForJobs waits until jobs have ended. It doesn't delay a drain.
func (s *Session) waitForJobs(req *protocol.Request) finisher {
	db, wire := s.shared.Plan().Inspectable(req.Queue)
	if wire != nil {
		return fail(wire)
	}
	if req.Batch != "" {
		return s.waitForBatch(req, db)
	}
	if db.Adopted(req.Queue) {
		return fail(withField(protocol.Errorf(protocol.CodeUnsupported,
			"wait: the queue %s is in an adopted table, which has no index of the jobs that ended last: use peek with ids", req.Queue), "queue", -1))
	}
	w, err := db.Waits.Wait(req.Queue, req.IDs)
	if err != nil {
		return fail(protocol.Errorf(protocol.CodeBusy, "%v", err))
	}
	first, wait := req.Mode == protocol.WaitAny, wirejob.Millis(req.WaitMS)
	return finisher{waits: wait > 0, rest: later(func() (*protocol.Reply, func()) {
		defer w.Close()
		ended, err := s.endsOf(w, first, wait)
		if err != nil && len(ended) == 0 {
			return s.failure(err), nil
		}
		reply := &protocol.Reply{Ended: make([]protocol.EndedJob, len(ended))}
		for i := range ended {
			e := &ended[i]
			reply.Ended[i] = protocol.EndedJob{ID: e.ID, State: protocol.State(e.State), Result: e.Result, LastError: e.LastError}
			if e.LeftOut > 0 {
				reply.Ended[i].LeftOut = protocol.Some(e.LeftOut)
			}
		}
		reply.Ended = s.replyLimit().FitEnded(reply.Ended)
		return reply, nil
	})}
}

// endsOf waits for all jobs, or for the first one that ends. The error goes with the ends that are known.
func (s *Session) endsOf(w *jobends.Wait, first bool, wait time.Duration) (ended []jobends.End, err error) {
	over := time.NewTimer(wait)
	defer over.Stop()
	if err = s.lookAt(w, wait == 0); err != nil {
		ended, _ = w.Ended()
		return ended, err
	}
	for {
		var left int
		if ended, left = w.Ended(); wait == 0 || left == 0 || first && len(ended) > 0 {
			return ended, nil
		}
		select {
		case <-w.C:
		case <-over.C:
			err = s.lookAt(w, true)
			ended, _ = w.Ended()
			return ended, err
		case <-s.gone.Done():
			return ended, ErrDraining
		case <-s.shared.Stopping().Done():
			return ended, ErrDraining
		}
	}
}

// lookAt queries the jobs of a wait. last means that a job which isn't found counts as deleted now.
func (s *Session) lookAt(w *jobends.Wait, last bool) error {
	ctx, done := s.beginInspection(protocol.OpWait)
	defer done()
	if ctx.Err() != nil {
		return ErrDraining
	}
	release, err := s.shared.Memory.ReserveInspection(s.gone.Done(), jobends.ViewBytes)
	if err != nil {
		return busyMemory(err)
	}
	defer release()
	return w.Look(ctx, last)
}
