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

// listedSchedules is how many schedules a reply has if the request has no max.
const listedSchedules = 100

// schedules lists the schedules of a queue, or of all queues that the session can see. With a name it is that one, with its payload.
func (s *Session) schedules(req *protocol.Request) finisher {
	p := s.shared.Plan()
	l := backends.ScheduleList{Queue: req.Queue, After: req.After, Max: int(req.Max.Or(listedSchedules))}
	if req.Schedule != nil {
		l.Name = req.Schedule.Name
	}
	if l.Queue != "" {
		if _, wire := p.Inspectable(l.Queue); wire != nil {
			return fail(wire)
		}
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, done := s.beginInspection(protocol.OpSchedules)
		if ctx.Err() != nil {
			return s.failure(ErrDraining), done
		}
		all, err := s.schedulesOf(ctx, p, l)
		if err != nil {
			return s.failure(err), done
		}
		views := []protocol.Schedule{}
		for i := range all {
			views = append(views, wirejob.ScheduleView(&all[i]))
		}
		reply := &protocol.Reply{Schedules: views}
		if l.Name == "" {
			reply.Schedules = views[:pageEnd(views, s.replyLimit().FitSchedules(views[:min(l.Max, len(views))]))]
			if n := len(reply.Schedules); n < len(views) {
				reply.After = views[n-1].Name
			}
		}
		return reply, done
	})}
}

// pageEnd returns the end of a page of about n schedules. Schedules of several databases that have the same name are on one page,
// because the next one begins behind the name.
func pageEnd(all []protocol.Schedule, n int) int {
	for n = max(n, 1); n < len(all) && all[n].Name == all[n-1].Name; {
		n++
	}
	return min(n, len(all))
}

// schedulesOf returns the schedules that l selects and that the session can see, by name. Of a list it returns one more from each
// database, if there are more.
func (s *Session) schedulesOf(ctx context.Context, p *plan.Plan, l backends.ScheduleList) (all []backends.Schedule, err error) {
	l.Max++
	if l.Queue != "" {
		db, wire := p.Inspectable(l.Queue)
		if wire != nil {
			return nil, wire
		}
		return db.Schedules(ctx, l)
	}
	for _, db := range p.Databases {
		if !db.Served || !db.Inspectable() {
			continue
		}
		part, err := s.schedulesIn(ctx, db, l)
		if err != nil {
			return nil, fmt.Errorf("database %s: %w", db.Name, err)
		}
		all = append(all, part...)
	}
	slices.SortStableFunc(all, func(a, b backends.Schedule) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// schedulesIn returns the first schedules of a database that the session can see.
func (s *Session) schedulesIn(ctx context.Context, db *plan.Database, l backends.ScheduleList) (seen []backends.Schedule, err error) {
	g := s.granted()
	for {
		part, err := db.Schedules(ctx, l)
		if err != nil {
			return nil, err
		}
		for i := range part {
			if len(seen) < l.Max && g.Queue(protocol.OpSchedules, part[i].Queue) {
				seen = append(seen, part[i])
			}
		}
		if len(part) < l.Max || len(seen) == l.Max {
			return seen, nil
		}
		l.After = part[len(part)-1].Name
	}
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
