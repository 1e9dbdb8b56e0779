package session

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// schedules lists the schedules of a queue, or of all queues that the session can see. With a name it is that one, with its payload.
func (s *Session) schedules(req *protocol.Request) finisher {
	queue, name, p := req.Queue, "", s.shared.Plan()
	if req.Schedule != nil {
		name = req.Schedule.Name
	}
	if queue != "" {
		if _, wire := p.Inspectable(queue); wire != nil {
			return fail(wire)
		}
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, done := s.beginInspection(protocol.OpSchedules)
		if ctx.Err() != nil {
			return s.failure(ErrDraining), done
		}
		all, err := s.schedulesOf(ctx, p, queue)
		if err != nil {
			return s.failure(err), done
		}
		views := []protocol.Schedule{}
		for i := range all {
			if name == "" || all[i].Name == name {
				views = append(views, wirejob.ScheduleView(&all[i], name != ""))
			}
		}
		return &protocol.Reply{Schedules: views}, done
	})}
}

func (s *Session) schedulesOf(ctx context.Context, p *plan.Plan, queue string) (all []backends.Schedule, err error) {
	if queue != "" {
		db, wire := p.Inspectable(queue)
		if wire != nil {
			return nil, wire
		}
		return db.Schedules(ctx, queue)
	}
	g := s.granted()
	for _, db := range p.Databases {
		if !db.Served || !db.Inspectable() {
			continue
		}
		part, err := db.Schedules(ctx, "")
		if err != nil {
			return nil, fmt.Errorf("database %s: %w", db.Name, err)
		}
		for i := range part {
			if g.Queue(protocol.OpSchedules, part[i].Queue) {
				all = append(all, part[i])
			}
		}
	}
	slices.SortStableFunc(all, func(a, b backends.Schedule) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// declareSchedule stores a definition.
func (s *Session) declareSchedule(req *protocol.Request) finisher {
	db, wire := s.shared.Plan().Inspectable(req.Queue)
	if wire != nil {
		return fail(wire)
	}
	if wire := tooManyHeaders(req.Schedule); wire != nil {
		return fail(wire)
	}
	d, dry := wirejob.Schedule(req), req.DryRun // req holds another request by the time this one ends
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := s.untilGone(protocol.OpSchedule, inspectTimeout)
		defer cancel()
		if ctx.Err() != nil {
			return s.failure(ErrDraining), nil
		}
		got, err := db.DeclareSchedule(ctx, d, dry)
		if err != nil {
			return s.failure(err), nil
		}
		if !dry && got.Outcome != backends.DeclareUnchanged && got.Outcome != backends.DeclareIgnored {
			s.shared.Log.Info("schedule declared", "event", "schedule_declared", s.logKeys(), "schedule", d.Name, "queue", d.Queue, "outcome", got.Outcome)
		}
		return &protocol.Reply{Declared: wirejob.Declared(&got)}, nil
	})}
}

// tooManyHeaders returns an error if a job can't have the headers and those that name its schedule.
func tooManyHeaders(s *protocol.Schedule) *protocol.Error {
	const more = 2
	size := len(backends.ScheduleHeader) + len(s.Name) + len(backends.OccurrenceHeader) + len("2006-01-02T15:04:05Z")
	for k, v := range s.Headers {
		if k == backends.ScheduleHeader || k == backends.OccurrenceHeader {
			return protocol.BadField("headers", "the header %s is set for each job: leave it out", k)
		}
		size += len(k) + len(v)
	}
	if len(s.Headers)+more > protocol.MaxHeaders || size > protocol.MaxHeaderSize {
		return protocol.BadField("headers", "a job has two more headers, and then more than %d headers or %d bytes: leave some out", protocol.MaxHeaders, protocol.MaxHeaderSize)
	}
	return nil
}

// changeSchedule carries out an operator's command on a schedule.
func (s *Session) changeSchedule(req *protocol.Request) finisher {
	db, wire := s.shared.Plan().Inspectable(req.Queue)
	if wire != nil {
		return fail(wire)
	}
	c := backends.ScheduleCommand{Kind: backends.ScheduleCommandKind(req.Do), Queue: req.Queue, Name: req.Schedule.Name}
	if source := req.Schedule.Source; source != "" {
		c.OfSource, c.Source, c.Version = true, source, req.Schedule.Version
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := s.untilGone(protocol.OpChangeSchedule, inspectTimeout)
		defer cancel()
		if ctx.Err() != nil {
			return s.failure(ErrDraining), nil
		}
		job, err := db.ChangeSchedule(ctx, c)
		if err != nil {
			return s.failure(err), nil
		}
		s.shared.Log.Info("schedule changed", "event", "schedule_changed", s.logKeys(), "schedule", c.Name, "queue", c.Queue, "do", c.Kind)
		reply := &protocol.Reply{}
		if c.Kind == backends.ScheduleRun {
			reply.Enqueued = &protocol.EnqueuedJob{ID: job}
		}
		return reply, nil
	})}
}
