package pipeline

import (
	"context"

	"github.com/qsidecar/qsidecar/backends"
)

// Schedules returns schedules by name.
func (p *Pipeline) Schedules(ctx context.Context, l backends.ScheduleList) ([]backends.Schedule, error) {
	return p.backend.Schedules(ctx, l)
}

// DeclareSchedule stores a definition.
func (p *Pipeline) DeclareSchedule(ctx context.Context, s backends.Schedule, dry bool) (backends.Declared, error) {
	d, err := p.backend.DeclareSchedule(ctx, s, dry)
	if err == nil && !dry {
		p.maintenance.Wake() // it can be due before maintenance runs again
	}
	return d, err
}

// ChangeSchedule carries out an operator's command on a schedule.
func (p *Pipeline) ChangeSchedule(ctx context.Context, c backends.ScheduleCommand) (job string, err error) {
	c.Expiry = p.maintenance.Expiry
	job, err = p.backend.ChangeSchedule(ctx, c)
	if err == nil && job != "" {
		p.dispatcher.NotifyReady([]string{c.Queue})
	}
	if err == nil && c.Kind == backends.ScheduleResume {
		p.maintenance.Wake()
	}
	return job, err
}
