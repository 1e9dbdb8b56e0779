package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/dispatch"
	"github.com/qsidecar/qsidecar/bridge/internal/history"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Stats queries the depths of a queue, or of all queues if the name is empty.
func (p *Pipeline) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	return p.seen(p.backend.Stats(ctx, queue))
}

// ReplicaStats is Stats for people and metrics: it reads the replica if the database has one that can answer.
func (p *Pipeline) ReplicaStats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	return p.seen(p.backend.ReplicaStats(ctx, queue))
}

// seen passes statistics to the history.
func (p *Pipeline) seen(stats []backends.QueueStats, err error) ([]backends.QueueStats, error) {
	if err == nil {
		p.history.Depths(stats)
	}
	return stats, err
}

// countHistory calls each with the counters of every queue.
func (p *Pipeline) countHistory(each func(queue string, c history.Counters)) {
	p.Metrics.Load().EachHistory(func(queue string, enqueued, acked, failed int64, runs [backends.RunBuckets]int64) {
		each(queue, history.Counters{Enqueued: enqueued, Acked: acked, Failed: failed, Runs: runs})
	})
}

// History returns what this sidecar recorded.
func (p *Pipeline) History() *history.Recorder { return p.history }

// Hours returns the totals of the queue by hour, of all sidecars, and of this one also those that are not written yet.
func (p *Pipeline) Hours(ctx context.Context, queue string) ([]backends.HourTotals, error) {
	rows, err := p.hours.of(ctx, queue)
	if err != nil {
		return nil, err
	}
	for _, mine := range p.history.Unwritten(queue) {
		if i := slices.IndexFunc(rows, func(r backends.HourTotals) bool { return r.Hour == mine.Hour && r.Queue == mine.Queue }); i >= 0 {
			rows[i].Add(&mine.Totals)
		} else {
			rows = append(rows, mine)
		}
	}
	slices.SortFunc(rows, func(a, b backends.HourTotals) int {
		return cmp.Or(cmp.Compare(a.Hour, b.Hour), cmp.Compare(a.Queue, b.Queue))
	})
	return rows, nil
}

// ReplicaErr returns why the replica gave no answer last, or nil.
func (p *Pipeline) ReplicaErr() error { return p.backend.ReplicaErr() }

// Obstacles returns what the database refuses, the oldest first.
func (p *Pipeline) Obstacles() []backends.Obstacle {
	all := append(p.backend.Obstacles(), p.executor.refused.obstacles.Obstacles()...)
	slices.SortStableFunc(all, func(x, y backends.Obstacle) int { return x.Since.Compare(y.Since) })
	return all
}

// Peek queries stored jobs.
func (p *Pipeline) Peek(ctx context.Context, peek backends.Peek) ([]backends.View, error) {
	return p.backend.Peek(ctx, peek)
}

// HasWorkers reports whether a worker of this sidecar waits for jobs of the queue, or has one.
func (p *Pipeline) HasWorkers(queue string) bool {
	return slices.Contains(p.dispatcher.Waiting(), queue) || p.executor.leases.HasDelivered(queue)
}

// GroupSlots returns jobs that have a slot of a group.
func (p *Pipeline) GroupSlots(ctx context.Context, g backends.Group, limit int) ([]backends.JobState, error) {
	return p.backend.GroupSlots(ctx, g, limit)
}

// Command carries out an operator's command. With an error, count can be above 0, because a command can take several
// transactions.
func (p *Pipeline) Command(ctx context.Context, c backends.Command) (count int64, err error) {
	ended := 0
	var pending []backends.StoredPending
	c.Ended = func(claims []backends.Token) {
		ended += len(claims)
		p.cancelled(claims) // those of this sidecar; the others find them in the database
	}
	c.Pending = func(all []backends.StoredPending) { pending = append(pending, all...) }
	if c.Kind == backends.Cancel {
		policy, _ := p.executor.policy(c.Queue)
		c.RetainDead = policy.RetainDead
	}
	count, freed, err := p.backend.Command(ctx, c)
	if err != nil && count == 0 {
		return 0, err
	}
	p.commanded(&c, count, ended, freed)
	p.storedPending(pending)
	if c.Kind == backends.Limit && err == nil {
		p.executor.gates.open(c.Queue)
	}
	return count, err
}

// commanded passes on what a command changed: count jobs, of which ended were claimed and are cancelled. freed: others are possibly ready.
func (p *Pipeline) commanded(c *backends.Command, count int64, ended int, freed bool) {
	if ended > 0 {
		p.Metrics.Load().CountFailed(backends.FailedCounts{{Queue: c.Queue, Cause: backends.CauseCancelled, Dead: !c.Remove, Jobs: ended}}, false)
	}
	p.events.commanded(c, count)
	if c.Kind == backends.Reclaim {
		p.Metrics.Load().Queue(c.Queue).Returned.Add(float64(count))
		p.heartbeat.LeasesEnded(c.Queue)
	}
	if freed || c.Kind == backends.Resume {
		p.dispatcher.NotifyReady([]string{c.Queue})
	}
}

// storedPending passes on the pending jobs that became jobs of their own.
func (p *Pipeline) storedPending(all []backends.StoredPending) {
	p.Metrics.Load().CountPending(all)
	p.events.storedPending(all)
}

// QueuesInDatabase queries the queues of the leases' jobs.
func (p *Pipeline) QueuesInDatabase(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return p.backend.Queues(ctx, leases)
}

// QueuesOf returns the queues of the leases' jobs. For leases that are not in the lease table it queries the
// database, for at most timeout.
func (p *Pipeline) QueuesOf(leases []backends.Lease, timeout time.Duration) ([]string, error) {
	queues, missing := p.leaseTable.QueuesOf(leases)
	if len(missing) == 0 {
		return queues, nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), min(timeout, p.times.Timeout()),
		fmt.Errorf("the queues of the leases: no answer within %v", timeout))
	defer cancel()
	found, err := p.backend.Queues(ctx, missing)
	return append(queues, found...), err
}

// Adopted reports whether the queue lives in a table that another application owns.
func (p *Pipeline) Adopted(queue string) bool { return p.backend.Adopted(queue) }

// HasAdopted reports whether the database can have queues in tables that another application owns.
func (p *Pipeline) HasAdopted() bool { return p.backend.HasAdopted() }

// ClaimsInTx reports whether claims of the queue hold a transaction open.
func (p *Pipeline) ClaimsInTx(queue string) bool { return p.backend.ClaimsInTx(queue) }

// CurrentInfo returns the Info of the current Backend.
func (p *Pipeline) CurrentInfo() backends.Info { return p.backend.Info() }

// Uses reports whether backend is the current Backend.
func (p *Pipeline) Uses(backend backends.Backend) bool { return p.backend.Is(backend) }

// Replace replaces the Backend and its replica by others of the same database. done, which can be nil, is called when that one
// is replaced or retired in turn and its last call has ended.
func (p *Pipeline) Replace(backend backends.Backend, replica backends.Replica, done func()) {
	p.backend.Replace(backend, replica, done)
}

// Retire ends the use of the Backend. Later calls are unavailable.
func (p *Pipeline) Retire() { p.backend.Retire() }

// SetTimes changes the sidecar timeout and the restart grace.
func (p *Pipeline) SetTimes(timeout, grace time.Duration) { p.times.Set(timeout, grace) }

// RestartGrace returns how long the leases of sessions outlive an orderly exit.
func (p *Pipeline) RestartGrace() time.Duration { return p.times.RestartGrace() }

// Usage returns what the Backends of the database have used so far. It returns false if none of them counts its
// usage.
func (p *Pipeline) Usage() (backends.Usage, bool) { return p.backend.Usage() }

// Leases returns the number of known claims: in flight, held by sessions, or with a timed lease.
func (p *Pipeline) Leases() int { return p.leaseTable.Count() }

// HeldBySessions returns how many leases end with a connection.
func (p *Pipeline) HeldBySessions() int { return p.leaseTable.HeldBySessions() }

// Holds reports whether the session holds a claim.
func (p *Pipeline) Holds(s *quota.Session) bool { return p.leaseTable.Holds(s) }

// Orphan separates the jobs from the session that holds them: no drain waits for them.
func (p *Pipeline) Orphan(s *quota.Session) { p.leaseTable.Orphan(s) }

// HeldBy returns the jobs that a session holds, by queue.
func (p *Pipeline) HeldBy(s *quota.Session, now time.Time) []lease.QueueHeld {
	return p.leaseTable.HeldBy(s, now)
}

// Reachable reports whether the last heartbeat succeeded and is not late.
func (p *Pipeline) Reachable() bool { return p.heartbeat.Reachable() }

// HeartbeatAge returns the time since the last successful heartbeat; negative: there was none.
func (p *Pipeline) HeartbeatAge() time.Duration { return p.heartbeat.Age() }

// Fleet returns the rows of all sidecars of the database and the time since they were read. See heartbeat.Heartbeater.
func (p *Pipeline) Fleet(ctx context.Context) ([]backends.Peer, time.Duration, error) {
	return p.heartbeat.Fleet(ctx)
}

// Identity returns the identity of this sidecar in the database; 0 if it has none.
func (p *Pipeline) Identity() backends.Identity { return p.heartbeat.Identity() }

// SidecarTimeout returns how long this sidecar's session leases outlive its last heartbeat.
func (p *Pipeline) SidecarTimeout() time.Duration { return p.times.Timeout() }

// LastErr returns the error of the last commit of writes, or else of claims, or else of the last heartbeat. It returns
// nil if all of them succeeded.
func (p *Pipeline) LastErr() error {
	for _, loop := range []*commitLoop{&p.executor.loops.writes, &p.executor.loops.claims} {
		if why := loop.lastErr.Load(); why != nil {
			return *why
		}
	}
	return p.heartbeat.Err()
}

// NamedLock is a lock that no part of the pipeline holds for long.
type NamedLock struct {
	Name string
	sync.Locker
}

// Locks returns the locks for the check of the locks.
func (p *Pipeline) Locks() []NamedLock {
	return []NamedLock{{"claims", p.dispatcher.Locker()}, {"writes", &p.executor.mu}, {"leases", p.leaseTable.Locker()}, {"heartbeat", p.heartbeat.Locker()}}
}

// QueueDepths returns the depths of all queues if this sidecar reads them for all. If not, or if the last reading
// failed, known is false. It returns an error if the database has not answered yet.
func (p *Pipeline) QueueDepths() (stats []backends.QueueStats, known bool, err error) {
	p.heartbeat.RequestDepths()
	if !p.Inspectable() || !p.heartbeat.LeadsDepths() {
		return nil, false, nil
	}
	stats, known, err = p.allDepths.Get()
	return stats, known && p.heartbeat.LeadsDepths(), err // it took so long that another sidecar possibly leads now
}

// Inspectable reports whether the backend is a backends.Inspector.
func (p *Pipeline) Inspectable() bool { return p.canInspect }

// readDepths queries the depths of all queues for the metrics.
func (p *Pipeline) readDepths(ctx context.Context) ([]backends.QueueStats, error) {
	m := p.Metrics.Load()
	m.DepthReads.Inc()
	stats, err := p.ReplicaStats(ctx, "")
	if err != nil {
		m.DepthReadFailures.Inc()
		p.Log.Warn("can't read queue statistics", "event", "queue_stats_failed", "error", err)
	}
	return stats, err
}

// readyJobs queries the number of a queue's ready jobs.
func (p *Pipeline) readyJobs(ctx context.Context, name string) (n int64, err error) {
	look, release, err := p.backend.InspectForEnqueue(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	stats, err := look.Stats(ctx, name)
	if err != nil && ctx.Err() != nil {
		return 0, backends.Unavailable(context.Cause(ctx)) // nothing was written
	}
	p.history.Depths(stats)
	for _, s := range stats {
		n += s.Ready + s.Blocked
	}
	return n, err
}

// Snapshot counts the contents of a pipeline at one moment.
type Snapshot struct {
	dispatch.Snapshot
	QueuedWrites int // that no commit has taken yet
}

// Snapshot counts what the pipeline holds.
func (p *Pipeline) Snapshot() Snapshot {
	return Snapshot{p.dispatcher.Snapshot(), p.executor.queued()}
}

// Crowded reports whether so many sessions settle that a worker should send its settle and its next claim in one request.
func (p *Pipeline) Crowded() bool { return p.executor.crowded.Load() }
