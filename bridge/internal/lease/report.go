package lease

import (
	"cmp"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// QueuesOf returns the queues of the leases' jobs, and the leases that are not in the table.
func (t *Table) QueuesOf(leases []backends.Lease) (queues []string, missing []backends.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lease := range leases {
		if h := t.entries[lease.Token]; h != nil && h.queue != "" && h.lease.Job == lease.Job {
			queues = append(queues, h.queue)
		} else {
			missing = append(missing, lease)
		}
	}
	return queues, missing
}

// QueueHeld describes the jobs of one queue that a session holds.
type QueueHeld struct {
	Queue  string
	Jobs   int64
	Oldest string        // the id of the job that it has held for longest
	Age    time.Duration // for how long
}

// HeldBy returns the jobs that a session holds, by queue.
func (t *Table) HeldBy(s *quota.Session, now time.Time) []QueueHeld {
	t.mu.Lock()
	defer t.mu.Unlock()
	type held struct {
		jobs   int64
		oldest *Entry
	}
	queues := make(map[string]held)
	for h := range t.heldBy(s) {
		of := queues[h.queue]
		of.jobs++
		if of.oldest == nil || h.since.Before(of.oldest.since) {
			of.oldest = h
		}
		queues[h.queue] = of
	}
	var holds []QueueHeld
	for queue, of := range queues {
		h := of.oldest
		holds = append(holds, QueueHeld{Queue: queue, Jobs: of.jobs, Oldest: cmp.Or(h.info.ID, h.lease.Job), Age: max(now.Sub(h.since), 0)})
	}
	return holds
}

// Locker is the lock of the table, for the check of the locks.
func (t *Table) Locker() sync.Locker { return &t.mu }
