package pipeline

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/dispatch"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Stats queries the depths of a queue, or of all queues if the name is empty.
func (b *Pipeline) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	return b.backend.Stats(ctx, queue)
}

// ReplicaStats is Stats for people and metrics: it reads the replica if the database has one that can answer.
func (b *Pipeline) ReplicaStats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	return b.backend.ReplicaStats(ctx, queue)
}

// ReplicaErr returns why the replica gave no answer last, or nil.
func (b *Pipeline) ReplicaErr() error { return b.backend.ReplicaErr() }

// Obstacles returns what the database refuses, the oldest first.
func (b *Pipeline) Obstacles() []backends.Obstacle {
	all := append(b.backend.Obstacles(), b.committer.refused.obstacles.Obstacles()...)
	slices.SortStableFunc(all, func(x, y backends.Obstacle) int { return x.Since.Compare(y.Since) })
	return all
}

// Peek queries stored jobs.
func (b *Pipeline) Peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	return b.backend.Peek(ctx, p)
}

// Command carries out an operator's command. With an error, count can be above 0, because a command can take several
// transactions.
func (b *Pipeline) Command(ctx context.Context, c backends.Command) (count int64, err error) {
	count, freed, err := b.backend.Command(ctx, c)
	if err != nil && count == 0 {
		return 0, err
	}
	b.committer.events.commanded(&c, count)
	if c.Kind == backends.Reclaim {
		b.Metrics.Load().Queue(c.Queue).Returned.Add(float64(count))
	}
	if freed || c.Kind == backends.Resume {
		b.dispatcher.NotifyReady([]string{c.Queue})
	}
	return count, err
}

// QueuesInDatabase queries the queues of the leases' jobs.
func (b *Pipeline) QueuesInDatabase(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return b.backend.Queues(ctx, leases)
}

// QueuesOf returns the queues of the leases' jobs. For leases that are not in the lease table it queries the
// database, for at most timeout.
func (b *Pipeline) QueuesOf(leases []backends.Lease, timeout time.Duration) ([]string, error) {
	queues, missing := b.leaseTable.QueuesOf(leases)
	if len(missing) == 0 {
		return queues, nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), min(timeout, b.times.Timeout()),
		fmt.Errorf("the queues of the leases: no answer within %v", timeout))
	defer cancel()
	found, err := b.backend.Queues(ctx, missing)
	return append(queues, found...), err
}

// Adopted reports whether the queue lives in a table that another application owns.
func (b *Pipeline) Adopted(queue string) bool { return b.backend.Adopted(queue) }

// ClaimsInTx reports whether claims of the queue hold a transaction open.
func (b *Pipeline) ClaimsInTx(queue string) bool { return b.backend.ClaimsInTx(queue) }

// CurrentInfo returns the Info of the current Backend.
func (b *Pipeline) CurrentInfo() backends.Info { return b.backend.Info() }

// Uses reports whether backend is the current Backend.
func (b *Pipeline) Uses(backend backends.Backend) bool { return b.backend.Is(backend) }

// Replace replaces the Backend and its replica by others of the same database. done, which can be nil, is called when that one
// is replaced or retired in turn and its last call has ended.
func (b *Pipeline) Replace(backend backends.Backend, replica backends.Replica, done func()) {
	b.backend.Replace(backend, replica, done)
}

// Retire ends the use of the Backend. Later calls are unavailable.
func (b *Pipeline) Retire() { b.backend.Retire() }

// SetTimes changes the sidecar timeout and the restart grace.
func (b *Pipeline) SetTimes(timeout, grace time.Duration) { b.times.Set(timeout, grace) }

// RestartGrace returns how long the leases of sessions outlive an orderly exit.
func (b *Pipeline) RestartGrace() time.Duration { return b.times.RestartGrace() }

// Usage returns what the Backends of the database have used so far. It returns false if none of them counts its
// usage.
func (b *Pipeline) Usage() (backends.Usage, bool) { return b.backend.Usage() }

// Leases returns the number of known claims: in flight, held by sessions, or with a timed lease.
func (b *Pipeline) Leases() int { return b.leaseTable.Count() }

// HeldBySessions returns how many leases end with a connection.
func (b *Pipeline) HeldBySessions() int { return b.leaseTable.HeldBySessions() }

// Holds reports whether the session holds a claim.
func (b *Pipeline) Holds(s *quota.Session) bool { return b.leaseTable.Holds(s) }

// Orphan separates the jobs from the session that holds them: no drain waits for them.
func (b *Pipeline) Orphan(s *quota.Session) { b.leaseTable.Orphan(s) }

// HeldBy returns the jobs that a session holds, by queue.
func (b *Pipeline) HeldBy(s *quota.Session, now time.Time) []lease.QueueHeld {
	return b.leaseTable.HeldBy(s, now)
}

// Reachable reports whether the last heartbeat succeeded and is not late.
func (b *Pipeline) Reachable() bool { return b.heartbeat.Reachable() }

// HeartbeatAge returns the time since the last successful heartbeat; negative: there was none.
func (b *Pipeline) HeartbeatAge() time.Duration { return b.heartbeat.Age() }

// Fleet returns the rows of all sidecars of the database and the time since they were read. See heartbeat.Heartbeater.
func (b *Pipeline) Fleet(ctx context.Context) ([]backends.Peer, time.Duration, error) {
	return b.heartbeat.Fleet(ctx)
}

// Identity returns the identity of this sidecar in the database; 0 if it has none.
func (b *Pipeline) Identity() backends.Identity { return b.heartbeat.Identity() }

// SidecarTimeout returns how long this sidecar's session leases outlive its last heartbeat.
func (b *Pipeline) SidecarTimeout() time.Duration { return b.times.Timeout() }

// LastErr returns the error of the last commit of writes, or else of claims, or else of the last heartbeat. It returns
// nil if all of them succeeded.
func (b *Pipeline) LastErr() error {
	for _, loop := range []*commitLoop{&b.committer.writes, &b.committer.claims} {
		if why := loop.lastErr.Load(); why != nil {
			return *why
		}
	}
	return b.heartbeat.Err()
}

// NamedLock is a lock that no part of the pipeline holds for long.
type NamedLock struct {
	Name string
	sync.Locker
}

// Locks returns the locks for the check of the locks.
func (b *Pipeline) Locks() []NamedLock {
	return []NamedLock{{"claims", b.dispatcher.Locker()}, {"writes", &b.committer.mu}, {"leases", b.leaseTable.Locker()}, {"heartbeat", b.heartbeat.Locker()}}
}

// QueueDepths returns the depths of all queues if this sidecar reads them for all. If not, or if the last reading
// failed, known is false. It returns an error if the database has not answered yet.
func (b *Pipeline) QueueDepths() (stats []backends.QueueStats, known bool, err error) {
	b.heartbeat.RequestDepths()
	if !b.Inspectable() || !b.heartbeat.LeadsDepths() {
		return nil, false, nil
	}
	stats, known, err = b.allDepths.Get()
	return stats, known && b.heartbeat.LeadsDepths(), err // it took so long that another sidecar possibly leads now
}

// Inspectable reports whether the backend is a backends.Inspector.
func (b *Pipeline) Inspectable() bool { return b.canInspect }

// readDepths queries the depths of all queues for the metrics.
func (b *Pipeline) readDepths(ctx context.Context) ([]backends.QueueStats, error) {
	m := b.Metrics.Load()
	m.DepthReads.Inc()
	stats, err := b.backend.ReplicaStats(ctx, "")
	if err != nil {
		m.DepthReadFailures.Inc()
		b.Log.Warn("can't read queue statistics", "event", "queue_stats_failed", "error", err)
	}
	return stats, err
}

// readyJobs queries the number of a queue's ready jobs.
func (b *Pipeline) readyJobs(ctx context.Context, name string) (n int64, err error) {
	look, release, err := b.backend.InspectForEnqueue(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	stats, err := look.Stats(ctx, name)
	if err != nil && ctx.Err() != nil {
		return 0, backends.Unavailable(context.Cause(ctx)) // nothing was written
	}
	for _, s := range stats {
		n += s.Ready
	}
	return n, err
}

// Snapshot counts the contents of a pipeline at one moment.
type Snapshot struct {
	dispatch.Snapshot
	QueuedWrites int // that no commit has taken yet
}

// Snapshot counts what the pipeline holds.
func (b *Pipeline) Snapshot() Snapshot {
	return Snapshot{b.dispatcher.Snapshot(), b.committer.queued()}
}
