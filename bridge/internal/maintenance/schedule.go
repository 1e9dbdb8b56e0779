package maintenance

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
)

// scheduleSpread is by how much sidecars wake up apart for a schedule. One of them stores the job, and the others find nothing.
const scheduleSpread = 100 * time.Millisecond

// untilSchedule returns when to run maintenance for the first schedule; < 0: there is none.
func untilSchedule(r *backends.MaintenanceResult) time.Duration {
	if r.NextSchedule <= 0 {
		return -1
	}
	return r.NextSchedule + rand.N(scheduleSpread)
}

// fireSchedules stores the jobs of schedules that are due. It reports whether there were some. A schedule that can't be fired is tried
// again about every second.
func (m *Maintainer) fireSchedules(ctx context.Context, most time.Duration) (fired bool, _ error) {
	ctx, cancel := backendref.WithTimeout(ctx, most)
	defer cancel()
	r, err := m.Backend.FireSchedules(ctx, m.Expiry)
	m.Claims.NotifyReady(r.Ready)
	for _, f := range r.Fired {
		m.Log.Debug("schedule fired", "event", "schedule_fired", "schedule", f.Name, "queue", f.Queue, "jobs", f.Jobs)
		if f.Missed > 0 {
			m.Log.Warn("schedule missed occurrences", "event", "schedule_missed", "schedule", f.Name, "queue", f.Queue, "without_job", f.Missed)
		}
		if f.Overlapped {
			m.Log.Info("schedule overlapped", "event", "schedule_overlapped", "schedule", f.Name, "queue", f.Queue)
		}
	}
	return len(r.Fired) > 0, err
}
