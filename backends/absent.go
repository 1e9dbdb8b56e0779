package backends

import "context"

// Absent stands where a Backend is not, or not yet, or not any more: whatever is asked of
// it is Unavailable.
type Absent struct {
	About Info         // what Info answers
	Why   func() error // why it is not there; never nil, and its error neither
}

var (
	_ Backend   = (*Absent)(nil)
	_ Inspector = (*Absent)(nil)
	_ Locator   = (*Absent)(nil)
)

func (a *Absent) err() error {
	why := a.Why()
	if Retryable(why) {
		return why
	}
	return Unavailable(why)
}

// Info implements Backend.
func (a *Absent) Info() Info { return a.About }

// Close implements Backend.
func (*Absent) Close() error { return nil }

// Commit implements Backend.
func (a *Absent) Commit(context.Context, Batch) (Results, error) { return Results{}, a.err() }

// Beat implements Backend.
func (a *Absent) Beat(context.Context, Beat) (Pulse, error) { return Pulse{}, a.err() }

// Held implements Backend.
func (a *Absent) Held(context.Context, Identity, string, int) ([]Held, error) { return nil, a.err() }

// Sweep implements Backend.
func (a *Absent) Sweep(context.Context, Sweep) (Swept, error) { return Swept{}, a.err() }

// Stats implements Inspector.
func (a *Absent) Stats(context.Context, string) ([]QueueStats, error) { return nil, a.err() }

// Peek implements Inspector.
func (a *Absent) Peek(context.Context, Peek) ([]View, error) { return nil, a.err() }

// Command implements Inspector.
func (a *Absent) Command(context.Context, Command) (int64, bool, error) { return 0, false, a.err() }

// Queues implements Locator.
func (a *Absent) Queues(context.Context, []Lease) ([]string, error) { return nil, a.err() }
