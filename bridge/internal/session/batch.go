package session

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// listedBatches is how many batches a reply has at most: their jobs are counted.
const listedBatches = 50

// noBatches returns an error if the queue is in an adopted table.
func noBatches(db *plan.Database, op protocol.Op, queue string) *protocol.Error {
	if !db.Adopted(queue) {
		return nil
	}
	return withField(protocol.Errorf(protocol.CodeUnsupported, "%s: the queue %s is in an adopted table, whose jobs can't be in a batch or be a callback of one", op, queue), "queue", -1)
}

// openBatch stores a batch.
func (s *Session) openBatch(req *protocol.Request) finisher {
	p := s.shared.Plan()
	db, wire := p.Inspectable(req.Queue)
	if wire == nil {
		wire = noBatches(db, req.Op, req.Queue)
	}
	if wire == nil {
		wire = batchHeaders(&req.Job, backends.CallbackHeader, backends.BatchDoneHeader, backends.BatchFailedHeader)
	}
	if wire != nil {
		return fail(wire)
	}
	if err := s.roomForName(p, req.Queue); err != nil {
		return answerWith(s.failure(err))
	}
	b := wirejob.NewBatch(req)
	b.Expire = p.Queue(req.Queue).RetainBatch
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := s.untilGone(protocol.OpOpenBatch, inspectTimeout)
		defer cancel()
		if ctx.Err() != nil {
			return s.failure(ErrDraining), nil
		}
		id, existing, err := db.OpenBatch(ctx, b)
		if err != nil {
			return s.failure(err), nil
		}
		return &protocol.Reply{Batch: &protocol.Batch{ID: id, Duplicate: existing}}, nil
	})}
}

// batchHeaders returns an error if a job can't have its headers and those that name its batch.
func batchHeaders(j *protocol.NewJob, names ...string) *protocol.Error {
	const number = 20 // bytes of a value
	if j.Batch != "" {
		names = append(names, backends.BatchHeader)
	}
	size := 0
	for _, name := range names {
		if _, has := j.Headers[name]; has {
			return protocol.BadField("headers", "the header %s is set for each job of a batch: leave it out", name)
		}
		size += len(name) + number
	}
	for k, v := range j.Headers {
		size += len(k) + len(v)
	}
	if len(names) > 0 && (len(j.Headers)+len(names) > protocol.MaxHeaders || size > protocol.MaxHeaderSize) {
		return protocol.BadField("headers", "the batch adds %d headers, and then the job has more than %d headers or %d bytes: leave some out", len(names), protocol.MaxHeaders, protocol.MaxHeaderSize)
	}
	return nil
}

// closeBatch closes a batch.
func (s *Session) closeBatch(req *protocol.Request) finisher {
	db, wire := s.shared.Plan().Inspectable(req.Queue)
	if wire != nil {
		return fail(wire)
	}
	queue, id := req.Queue, req.Batch
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := s.untilGone(protocol.OpCloseBatch, inspectTimeout)
		defer cancel()
		if ctx.Err() != nil {
			return s.failure(ErrDraining), nil
		}
		if err := db.CloseBatch(ctx, queue, id); err != nil {
			return s.failure(err), nil
		}
		return &protocol.Reply{}, nil
	})}
}

// cancelBatch cancels the jobs of a batch.
func (s *Session) cancelBatch(req *protocol.Request) finisher {
	db, wire := s.shared.Plan().Inspectable(req.Queue)
	if wire != nil {
		return fail(wire)
	}
	queue, id := req.Queue, req.Batch
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := s.untilGone(protocol.OpCancelBatch, inspectTimeout)
		defer cancel()
		if ctx.Err() != nil {
			return s.failure(ErrDraining), nil
		}
		r, err := db.CancelBatch(ctx, queue, id)
		if err != nil {
			return s.failure(err), nil
		}
		s.shared.Log.Info("batch cancelled", "event", "batch_cancelled", s.logKeys(), "batch", id, "queue", queue, "jobs", r.Jobs)
		return &protocol.Reply{Count: protocol.Some(r.Jobs)}, nil
	})}
}

// waitForBatch waits until a batch has ended. It doesn't delay a drain.
func (s *Session) waitForBatch(req *protocol.Request, db *plan.Database) finisher {
	queue, id, wait := req.Queue, req.Batch, wirejob.Millis(req.WaitMS)
	return finisher{waits: wait > 0, rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), max(wait, time.Millisecond), context.DeadlineExceeded)
		defer cancel()
		for _, end := range []context.Context{s.gone, s.shared.Stopping()} {
			defer context.AfterFunc(end, cancel)()
		}
		b, err := db.WaitForBatch(ctx, func() (context.Context, func()) { return s.beginInspection(protocol.OpWait) }, queue, id)
		if err != nil {
			return s.failure(err), nil
		}
		view := wirejob.BatchView(&b)
		view.Left = protocol.Opt[int64]{}
		if !b.State.Ended() {
			view.Done, view.Failed = protocol.Opt[int64]{}, protocol.Opt[int64]{}
		}
		return &protocol.Reply{Batch: &view}, nil
	})}
}

// batches lists batches. With an id it is that one, with its jobs.
func (s *Session) batches(req *protocol.Request) finisher {
	p := s.shared.Plan()
	l := backends.BatchList{Queue: req.Queue, ID: req.Batch, Active: !req.All && req.Batch == "", After: req.After, Max: int(min(req.Max.Or(listedBatches), listedBatches))}
	if l.Queue != "" {
		if _, wire := p.Inspectable(l.Queue); wire != nil {
			return fail(wire)
		}
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, done := s.beginInspection(protocol.OpBatches)
		if ctx.Err() != nil {
			return s.failure(ErrDraining), done
		}
		all, more, err := s.batchesOf(ctx, p, l)
		if err != nil {
			return s.failure(err), done
		}
		reply := &protocol.Reply{Batches: []protocol.Batch{}}
		for i := range all {
			reply.Batches = append(reply.Batches, wirejob.BatchView(&all[i]))
		}
		if n := s.replyLimit().FitBatches(reply.Batches); n < len(reply.Batches) {
			reply.Batches, more = reply.Batches[:max(n, 1)], true
		}
		if n := len(reply.Batches); more && n > 0 && l.ID == "" {
			reply.After = reply.Batches[n-1].ID
		}
		return reply, done
	})}
}

// batchesOf returns the batches that l selects and that the session can see, by id. more: there are others.
func (s *Session) batchesOf(ctx context.Context, p *plan.Plan, l backends.BatchList) (all []backends.Batch, more bool, err error) {
	most := l.Max
	l.Max++
	if l.Queue != "" {
		db, wire := p.Inspectable(l.Queue)
		if wire != nil {
			return nil, false, wire
		}
		all, err = db.Batches(ctx, l)
	} else {
		g := s.granted()
		for _, db := range p.Databases {
			if !db.Served || !db.Inspectable() {
				continue
			}
			for part := l; ; {
				some, err := db.Batches(ctx, part)
				if err != nil {
					return nil, false, fmt.Errorf("database %s: %w", db.Name, err)
				}
				seen := slices.DeleteFunc(slices.Clone(some), func(b backends.Batch) bool { return !g.Queue(protocol.OpBatches, b.Queue) })
				if all = append(all, seen...); len(some) < l.Max || len(seen) > 0 {
					break
				}
				part.After = some[len(some)-1].ID
			}
		}
		slices.SortStableFunc(all, func(a, b backends.Batch) int {
			return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID)) // as numbers
		})
	}
	if err == nil && len(all) > most {
		all, more = all[:most], true
	}
	return all, more, err
}
