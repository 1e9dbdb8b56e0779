package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/schedules"
)

// Schedules implements backends.Scheduler.
func (b *Backend) Schedules(ctx context.Context, l backends.ScheduleList) (all []backends.Schedule, err error) {
	err = b.do(ctx, func() error {
		for _, name := range slices.Sorted(maps.Keys(b.schedules)) {
			s := *b.schedules[name]
			if len(all) == l.Max || l.Queue != "" && s.Queue != l.Queue || l.Name != "" && name != l.Name || name <= l.After {
				continue
			}
			if l.Name == "" {
				s.Payload, s.Headers = nil, nil
			}
			schedules.Describe(&s, b.instant())
			all = append(all, s)
		}
		return nil
	})
	return all, err
}

// instant is the time of the transaction as a schedule has it.
func (b *Backend) instant() time.Time { return b.now.UTC().Truncate(time.Millisecond) }

// DeclareSchedule implements backends.Scheduler.
func (b *Backend) DeclareSchedule(ctx context.Context, s backends.Schedule, dry bool) (d backends.Declared, err error) {
	if err := schedules.Check(&s); err != nil {
		return d, err
	}
	err = b.do(ctx, func() error {
		next, declared, err := schedules.Declare(b.schedules[s.Name], s, b.instant())
		if d = declared; err == nil && !dry {
			b.schedules[s.Name] = &next
		}
		return err
	})
	return d, err
}

// ChangeSchedule implements backends.Scheduler.
func (b *Backend) ChangeSchedule(ctx context.Context, c backends.ScheduleCommand) (job string, err error) {
	err = b.do(ctx, func() (err error) {
		s := b.schedules[c.Name]
		if !schedules.Allows(&c, s) {
			return backends.ErrNoSuchSchedule
		}
		switch c.Kind {
		case backends.ScheduleRun:
			job, err = b.fire(s, b.instant(), c.Expiry)
		case backends.SchedulePause:
			s.Paused, s.NextAt = true, time.Time{}
		case backends.ScheduleResume:
			if s.Paused {
				s.Paused = false
				s.NextAt, err = schedules.Resume(s, b.instant())
			}
		case backends.ScheduleDelete:
			delete(b.schedules, c.Name)
		}
		return err
	})
	return job, err
}

// fire stores the job of an occurrence.
func (b *Backend) fire(s *backends.Schedule, at time.Time, expiry backends.QueueExpiry) (id string, err error) {
	j := schedules.Job(s, at)
	j.Expiry = expiry.Of(s.Queue)
	if err := b.refuse(j); err != nil {
		return "", backends.Refused(err)
	}
	s.LastAt, s.LastJob = at, b.store([]backends.NewJob{j})[0].ID
	return s.LastJob, nil
}

// FireSchedules implements backends.Scheduler.
func (b *Backend) FireSchedules(ctx context.Context, expiry backends.QueueExpiry) (r backends.FiredSchedules, err error) {
	if err := b.fault(); err != nil {
		return r, err
	}
	err = b.do(ctx, func() error {
		var first error
		for _, s := range slices.SortedFunc(maps.Values(b.schedules), func(x, y *backends.Schedule) int {
			return cmp.Or(x.NextAt.Compare(y.NextAt), cmp.Compare(x.Name, y.Name))
		}) {
			if s.NextAt.IsZero() || s.NextAt.After(b.instant()) {
				continue
			}
			one, err := b.fireDue(s, expiry)
			if err != nil {
				first = cmp.Or(first, err)
				continue
			}
			r.Fired = append(r.Fired, one)
			if len(one.Jobs) > 0 && !slices.Contains(r.Ready, s.Queue) {
				r.Ready = append(r.Ready, s.Queue)
			}
		}
		return first
	})
	if err == nil && len(r.Fired) > 0 {
		err = b.after(backends.CommitContent{})
	}
	return r, err
}

func (b *Backend) fireDue(s *backends.Schedule, expiry backends.QueueExpiry) (one backends.FiredSchedule, err error) {
	p, err := schedules.Plan(s, b.instant())
	if err != nil {
		return one, err
	}
	one = backends.FiredSchedule{Name: s.Name, Queue: s.Queue, Missed: p.Missed}
	if s.Overlap == backends.OverlapSkip && len(p.Occurrences) > 0 {
		keep := 1
		if j := b.jobs[s.LastJob]; j != nil && j.state != backends.StateDone && j.state != backends.StateDead {
			keep = 0
		}
		one.Overlapped = len(p.Occurrences) > keep
		p.Occurrences = p.Occurrences[len(p.Occurrences)-keep:]
	}
	for _, at := range p.Occurrences {
		id, err := b.fire(s, at, expiry)
		if err != nil {
			return one, err
		}
		one.Jobs = append(one.Jobs, id)
	}
	s.NextAt = p.Next
	return one, nil
}

// nextSchedule returns the time of the first schedule; nil: there is none.
func (b *Backend) nextSchedule() (first *time.Time) {
	for _, s := range b.schedules {
		if !s.NextAt.IsZero() && (first == nil || s.NextAt.Before(*first)) {
			first = &s.NextAt
		}
	}
	return first
}
