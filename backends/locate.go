package backends

import "context"

// Locator is a Backend that tells in which queues claimed jobs are: whether somebody may
// settle a job goes by the queue of its row.
type Locator interface {
	// Queues are the queues of the leases' jobs, in any order; a job that is not there is
	// left out. Whether the leases are valid is not looked at.
	Queues(ctx context.Context, leases []Lease) ([]string, error)
}
