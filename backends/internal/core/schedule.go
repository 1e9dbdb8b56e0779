package core

import (
	"context"
	"errors"
	"fmt"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/schedules"
)

// schedules returns the schedules of the database, for queues that are not in adopted tables. They need the Dialect of the engine,
// whose Store its Driver embeds.
func (s *Store) schedules() (*schedules.Table, error) {
	s.schedulesOnce.Do(func() {
		if engine, ok := s.driver.(backends.Adopter); ok {
			s.scheduleTable = &schedules.Table{Engine: engine, Dialect: engine.Dialect(), Peek: s.Peek}
		}
	})
	if s.scheduleTable == nil {
		return nil, fmt.Errorf("schedules on %s: %w", s.address, errors.ErrUnsupported)
	}
	return s.scheduleTable, nil
}

// Schedules implements backends.Scheduler.
func (s *Store) Schedules(ctx context.Context, l backends.ScheduleList) ([]backends.Schedule, error) {
	t, err := s.schedules()
	if err != nil {
		return nil, err
	}
	return t.Schedules(ctx, l)
}

// DeclareSchedule implements backends.Scheduler.
func (s *Store) DeclareSchedule(ctx context.Context, d backends.Schedule, dry bool) (backends.Declared, error) {
	t, err := s.schedules()
	if err != nil {
		return backends.Declared{}, err
	}
	return t.DeclareSchedule(ctx, d, dry)
}

// ChangeSchedule implements backends.Scheduler.
func (s *Store) ChangeSchedule(ctx context.Context, c backends.ScheduleCommand) (string, error) {
	t, err := s.schedules()
	if err != nil {
		return "", err
	}
	return t.ChangeSchedule(ctx, c)
}

// FireSchedules implements backends.Scheduler.
func (s *Store) FireSchedules(ctx context.Context, expiry backends.QueueExpiry) (backends.FiredSchedules, error) {
	t, err := s.schedules()
	if err != nil {
		return backends.FiredSchedules{}, err
	}
	return t.FireSchedules(ctx, expiry)
}
