package adopted

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// A right, or a default of a column, that a table never had isn't an obstacle: what needs it is unsupported. Its owner can still add it
// while the sidecar runs. So something that is refused for that reason makes the Store describe the table again, rarely. An enqueue
// leaves its group commit for that, so that no other write waits. What isn't refused costs nothing.

// describeEvery is how old the description of a table is at least when something that it refuses renews it.
const describeEvery = 5 * time.Second

// descriptions are when the tables were described last, by queue.
type descriptions struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (d *descriptions) begin(queue string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at == nil {
		d.at = map[string]time.Time{}
	}
	d.at[queue] = now
}

// old reports whether the table of a queue can be described again.
func (d *descriptions) old(queue string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return now.Sub(d.at[queue]) >= describeEvery
}

// refusesJobs reports whether the table of a queue takes no jobs, as far as its description shows.
func (s *Store) refusesJobs(queue string) bool {
	q := s.queues()[queue]
	return q != nil && !q.TakesJobs()
}

// describeForJobs describes the tables again that refuse new jobs of a write.
func (s *Store) describeForJobs(ctx context.Context, w backends.Write) {
	for _, j := range core.JobsOf(w) {
		if s.refusesJobs(j.Queue) {
			s.describeOld(ctx, j.Queue)
		}
	}
}

// describeOld describes the table of a queue again, unless it was described a short time ago.
func (s *Store) describeOld(ctx context.Context, queue string) {
	if !s.described.old(queue, s.ObstacleSet().Time()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recheckTimeout)
	defer cancel()
	_ = s.recheckTable(ctx, queue) // after an error the last description counts
}

// Recheck implements backends.Rechecker. It describes the tables again that refuse something, and makes obstacles of tables due.
func (s *Store) Recheck(ctx context.Context) {
	if r, ok := s.Engine.(backends.Rechecker); ok {
		r.Recheck(ctx)
	}
	var all sync.WaitGroup
	for _, q := range s.sortedQueues() {
		if !q.TakesJobs() || !q.Deletes() {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, recheckTimeout)
				defer cancel()
				_ = s.recheckTable(ctx, q.Queue) // after an error the last description counts
			})
		}
	}
	all.Wait()
	for _, o := range s.ObstacleSet().Obstacles() {
		if o.Job == "" && s.Adopted(o.Queue) && slices.Contains([]string{backends.DoingClaim, backends.DoingSettle, backends.DoingEnqueue}, o.Doing) {
			s.ObstacleSet().RetryNow(o.Queue, o.Doing)
		}
	}
}
