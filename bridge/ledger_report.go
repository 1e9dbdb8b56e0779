package bridge

import (
	"cmp"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// queuesOf are the queues of the leases' jobs, and the leases of which nothing is known here.
func (l *ledger) queuesOf(leases []backends.Lease) (queues []string, missing []backends.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range leases {
		if h := l.known[lease.Token]; h != nil && h.queue != "" && h.lease.Job == lease.Job {
			queues = append(queues, h.queue)
		} else {
			missing = append(missing, lease)
		}
	}
	return queues, missing
}

// queueHeld is what a session holds of one queue.
type queueHeld struct {
	queue  string
	jobs   int64
	oldest string        // the id of the job that it has held for longest
	age    time.Duration // for how long
}

// heldBy tells what a session holds, by queue.
func (l *ledger) heldBy(s *account, now time.Time) []queueHeld {
	l.mu.Lock()
	defer l.mu.Unlock()
	type held struct {
		jobs   int64
		oldest *holding
	}
	queues := make(map[string]held)
	for _, h := range l.sessions[s] {
		of := queues[h.queue]
		of.jobs++
		if of.oldest == nil || h.since.Before(of.oldest.since) {
			of.oldest = h
		}
		queues[h.queue] = of
	}
	var holds []queueHeld
	for queue, of := range queues {
		h := of.oldest
		holds = append(holds, queueHeld{queue: queue, jobs: of.jobs, oldest: cmp.Or(h.told.id, h.lease.Job), age: max(now.Sub(h.since), 0)})
	}
	return holds
}
