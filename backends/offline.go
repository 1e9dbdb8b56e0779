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
	_ Batcher   = (*Offline)(nil)
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

// SaveProgress implements ProgressKeeper.
func (o *Offline) SaveProgress(context.Context, []LeaseProgress) ([]ProgressOutcome, error) {
	return nil, o.err()
}

// ProgressOf implements ProgressKeeper.
func (o *Offline) ProgressOf(context.Context, []string) (map[string]Progress, error) {
	return nil, o.err()
}

// ForgetProgress implements ProgressKeeper.
func (o *Offline) ForgetProgress(context.Context, []string) error { return o.err() }

// ProgressJobs implements ProgressKeeper.
func (o *Offline) ProgressJobs(context.Context, string, int) ([]string, error) { return nil, o.err() }

// FireSchedules implements Scheduler.
func (o *Offline) FireSchedules(context.Context, QueueExpiry) (FiredSchedules, error) {
	return FiredSchedules{}, o.err()
}

// OpenBatch implements Batcher.
func (o *Offline) OpenBatch(context.Context, NewBatch) (string, bool, error) {
	return "", false, o.err()
}

// CloseBatch implements Batcher.
func (o *Offline) CloseBatch(context.Context, string, string) error { return o.err() }

// CancelBatch implements Batcher.
func (o *Offline) CancelBatch(context.Context, BatchCancel) (CancelledBatch, error) {
	return CancelledBatch{}, o.err()
}

// Batches implements Batcher.
func (o *Offline) Batches(context.Context, BatchList) ([]Batch, error) { return nil, o.err() }

// ResolveBatches implements Batcher.
func (o *Offline) ResolveBatches(context.Context, []string) (ResolvedBatches, error) {
	return ResolvedBatches{}, o.err()
}
