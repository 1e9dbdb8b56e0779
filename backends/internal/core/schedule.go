package core

import (
	"context"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/schedules"
)

// schedules returns the schedules of the database, for queues that are not in adopted tables.
func (s *Store) schedules() *schedules.Table {
	s.schedulesOnce.Do(func() {
		engine := s.driver.(backends.Adopter) // it embeds the Store of its engine
		s.scheduleTable = schedules.Table{Engine: engine, Dialect: engine.Dialect(), Peek: s.Peek}
	})
	return &s.scheduleTable
}

// Schedules implements backends.Scheduler.
func (s *Store) Schedules(ctx context.Context, queue string) ([]backends.Schedule, error) {
	return s.schedules().Schedules(ctx, queue)
}

// DeclareSchedule implements backends.Scheduler.
func (s *Store) DeclareSchedule(ctx context.Context, d backends.Schedule, dry bool) (backends.Declared, error) {
	return s.schedules().DeclareSchedule(ctx, d, dry)
}

// ChangeSchedule implements backends.Scheduler.
func (s *Store) ChangeSchedule(ctx context.Context, c backends.ScheduleCommand) (string, error) {
	return s.schedules().ChangeSchedule(ctx, c)
}

// FireSchedules implements backends.Scheduler.
func (s *Store) FireSchedules(ctx context.Context) (backends.FiredSchedules, error) {
	return s.schedules().FireSchedules(ctx)
}
