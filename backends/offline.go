package backends

import "context"

// Offline stands in for a Backend that isn't open yet, or no longer. Every call returns an *UnavailableError.
type Offline struct {
	About Info         // the result of Info
	Why   func() error // returns why there is no Backend; must not be nil, and must not return nil
}

var (
	_ Backend   = (*Offline)(nil)
	_ Inspector = (*Offline)(nil)
	_ Locator   = (*Offline)(nil)
)

func (a *Offline) err() error {
	why := a.Why()
	if Retryable(why) {
		return why
	}
	return Unavailable(why)
}

// Info implements Backend.
func (a *Offline) Info() Info { return a.About }

// Close implements Backend.
func (*Offline) Close() error { return nil }

// Commit implements Backend.
func (a *Offline) Commit(context.Context, CommitContent) (Results, error) { return Results{}, a.err() }

// Heartbeat implements Backend.
func (a *Offline) Heartbeat(context.Context, Heartbeat) (HeartbeatResult, error) {
	return HeartbeatResult{}, a.err()
}

// ClaimedBy implements Backend.
func (a *Offline) ClaimedBy(context.Context, Identity, string, int) ([]ClaimedJob, error) {
	return nil, a.err()
}

// Maintain implements Backend.
func (a *Offline) Maintain(context.Context, Maintenance) (MaintenanceResult, error) {
	return MaintenanceResult{}, a.err()
}

// Stats implements Inspector.
func (a *Offline) Stats(context.Context, string) ([]QueueStats, error) { return nil, a.err() }

// Peek implements Inspector.
func (a *Offline) Peek(context.Context, Peek) ([]View, error) { return nil, a.err() }

// Command implements Inspector.
func (a *Offline) Command(context.Context, Command) (int64, bool, error) { return 0, false, a.err() }

// Queues implements Locator.
func (a *Offline) Queues(context.Context, []Lease) ([]string, error) { return nil, a.err() }
