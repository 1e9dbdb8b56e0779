package adopted

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/internal/schedules"
)

// schedules returns the schedules of the database, also of adopted queues. Only a sidecar that has a queue's table fires its
// schedules.
func (s *Store) schedules() *schedules.Table {
	return &schedules.Table{Engine: s.Engine, Dialect: s.dialect, Peek: s.Peek, Adopted: s.queueNames(), Insert: s.insertScheduled}
}

// Schedules implements backends.Scheduler.
func (s *Store) Schedules(ctx context.Context, l backends.ScheduleList) ([]backends.Schedule, error) {
	return s.schedules().Schedules(ctx, l)
}

// DeclareSchedule implements backends.Scheduler. The table must be able to store such jobs.
func (s *Store) DeclareSchedule(ctx context.Context, d backends.Schedule, dry bool) (backends.Declared, error) {
	if q := s.queues()[d.Queue]; q != nil {
		var id string
		if _, err := q.Insert(s.scheduled(q, schedules.Job(&d, s.now())), &id); err != nil {
			return backends.Declared{}, s.named(d.Queue, err)
		}
	}
	return s.schedules().DeclareSchedule(ctx, d, dry)
}

// ChangeSchedule implements backends.Scheduler.
func (s *Store) ChangeSchedule(ctx context.Context, c backends.ScheduleCommand) (string, error) {
	id, err := s.schedules().ChangeSchedule(ctx, c)
	if err == nil && id != "" && s.Adopted(c.Queue) {
		s.readyIn(0, c.Queue)
	}
	return id, err
}

// FireSchedules implements backends.Scheduler.
func (s *Store) FireSchedules(ctx context.Context, expiry backends.QueueExpiry) (backends.FiredSchedules, error) {
	r, err := s.schedules().FireSchedules(ctx, expiry)
	for _, queue := range r.Ready {
		if s.Adopted(queue) {
			s.readyIn(0, queue)
		}
	}
	return r, err
}

// insertScheduled stores the job of an occurrence.
func (s *Store) insertScheduled(ctx context.Context, sql backends.SQL, j backends.NewJob) (id string, ready bool, err error) {
	q := s.queues()[j.Queue]
	if q == nil {
		return "", false, s.obstruction(j.Queue, backends.DoingEnqueue)
	}
	st, err := q.Insert(s.scheduled(q, j), &id)
	if err != nil {
		return "", false, err
	}
	if err := s.limited(ctx, true, func(ctx context.Context) error { return sql.Do(ctx, st) }); err != nil {
		return "", false, err
	}
	if st.Matched != 1 {
		return "", false, backends.Refused(fmt.Errorf("%s stored no row, because of a trigger or rule of the table", strings.SplitN(st.Text, " (", 2)[0]))
	}
	return id, true, nil
}

// scheduled returns the job without the headers that name the schedule, as far as the table has no columns for them.
func (s *Store) scheduled(q *statement.Queue, j backends.NewJob) backends.NewJob {
	j.Headers = maps.Clone(j.Headers)
	for _, h := range []string{backends.ScheduleHeader, backends.OccurrenceHeader} {
		if !slices.ContainsFunc(q.Headers, func(c backends.Column) bool { return c.Name == h }) {
			delete(j.Headers, h)
		}
	}
	return j
}
