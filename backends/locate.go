package backends

import "context"

// Locator is a Backend that finds the queues of claimed jobs. The sidecar needs them because the right to
// settle a job depends on the queue in the job's row.
type Locator interface {
	// Queues returns the queues of the leases' jobs, in any order. Jobs that don't exist are left out. Queues
	// doesn't check whether the leases are valid.
	Queues(ctx context.Context, leases []Lease) ([]string, error)
}
