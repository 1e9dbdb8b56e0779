package backends

import (
	"context"
	"time"
)

// Offline stands in for a Backend that isn't open yet, or no longer. Every call returns an *UnavailableError.
type Offline struct {
	About Info         // the result of Info
	Why   func() error // returns why there is no Backend; must not be nil, and must not return nil
}

var (
	_ Backend   = (*Offline)(nil)
	_ Inspector = (*Offline)(nil)
	_ Locator   = (*Offline)(nil)
	_ Historian = (*Offline)(nil)
	_ Scheduler = (*Offline)(nil)
)

func (o *Offline) err() error {
	why := o.Why()
	if Retryable(why) {
		return why
	}
	return Unavailable(why)
}

// Info implements Backend.
func (o *Offline) Info() Info { return o.About }

// Close implements Backend.
func (*Offline) Close() error { return nil }

// Commit implements Backend.
func (o *Offline) Commit(context.Context, CommitContent) (Results, error) { return Results{}, o.err() }

// Heartbeat implements Backend.
func (o *Offline) Heartbeat(context.Context, Heartbeat) (HeartbeatResult, error) {
	return HeartbeatResult{}, o.err()
}

// ClaimedBy implements Backend.
func (o *Offline) ClaimedBy(context.Context, Identity, string, int) ([]ClaimedJob, error) {
	return nil, o.err()
}

// Maintain implements Backend.
func (o *Offline) Maintain(context.Context, Maintenance) (MaintenanceResult, error) {
	return MaintenanceResult{}, o.err()
}

// Stats implements Inspector.
func (o *Offline) Stats(context.Context, string) ([]QueueStats, error) { return nil, o.err() }

// Peek implements Inspector.
func (o *Offline) Peek(context.Context, Peek) ([]View, error) { return nil, o.err() }

// Command implements Inspector.
func (o *Offline) Command(context.Context, Command) (int64, bool, error) { return 0, false, o.err() }

// Cancelled implements Inspector.
func (o *Offline) Cancelled(context.Context, Identity) ([]Token, error) { return nil, o.err() }

// AddHistory implements Historian.
func (o *Offline) AddHistory(context.Context, time.Time, []HourTotals) error { return o.err() }

// History implements Historian.
func (o *Offline) History(context.Context, string) ([]HourTotals, error) { return nil, o.err() }

// Queues implements Locator.
func (o *Offline) Queues(context.Context, []Lease) ([]string, error) { return nil, o.err() }

// Schedules implements Scheduler.
func (o *Offline) Schedules(context.Context, ScheduleList) ([]Schedule, error) { return nil, o.err() }

// DeclareSchedule implements Scheduler.
func (o *Offline) DeclareSchedule(context.Context, Schedule, bool) (Declared, error) {
	return Declared{}, o.err()
}

// ChangeSchedule implements Scheduler.
func (o *Offline) ChangeSchedule(context.Context, ScheduleCommand) (string, error) {
	return "", o.err()
}

// FireSchedules implements Scheduler.
func (o *Offline) FireSchedules(context.Context) (FiredSchedules, error) {
	return FiredSchedules{}, o.err()
}
