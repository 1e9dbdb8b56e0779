package pipeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Stats asks the database for the depths of a queue, or of all.
func (b *Pipeline) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	return b.backend.Stats(ctx, queue)
}

// Peek asks the database for jobs.
func (b *Pipeline) Peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	return b.backend.Peek(ctx, p)
}

// Command carries out an operator's command. With an error count may be above 0: each transaction of many is one
// of its own.
func (b *Pipeline) Command(ctx context.Context, c backends.Command) (count int64, err error) {
	count, freed, err := b.backend.Command(ctx, c)
	if err != nil && count == 0 {
		return 0, err
	}
	if c.Kind == backends.Reclaim {
		b.Metrics.Load().Queue(c.Queue).Returned.Add(float64(count))
	}
	if freed || c.Kind == backends.Resume {
		b.dispatcher.NotifyReady([]string{c.Queue})
	}
	return count, err
}

// QueuesInDatabase asks in which queues the leases' jobs are.
func (b *Pipeline) QueuesInDatabase(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return b.backend.Queues(ctx, leases)
}

// QueuesOf are the queues of the leases' jobs: as they are known here, or else asked of the database, for
// timeout at the most.
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

// ClaimsInTx reports whether the queue's jobs are held in transactions.
func (b *Pipeline) ClaimsInTx(queue string) bool { return b.backend.ClaimsInTx(queue) }

// CurrentInfo is the present Backend's.
func (b *Pipeline) CurrentInfo() backends.Info { return b.backend.Info() }

// Uses reports whether that is the present Backend.
func (b *Pipeline) Uses(backend backends.Backend) bool { return b.backend.Is(backend) }

// Replace puts another Backend of the same database in the place of the present one. done, if not nil, is called
// when the last call of that Backend has ended, after a later replace or retire.
func (b *Pipeline) Replace(backend backends.Backend, done func()) { b.backend.Replace(backend, done) }

// Retire ends the use of the Backend.
func (b *Pipeline) Retire() { b.backend.Retire() }

// SetTimes changes the sidecar timeout and the restart grace.
func (b *Pipeline) SetTimes(timeout, grace time.Duration) { b.times.Set(timeout, grace) }

// RestartGrace is how long the leases of sessions outlive an orderly exit.
func (b *Pipeline) RestartGrace() time.Duration { return b.times.RestartGrace() }

// Usage is what the database's Backends have used so far; false: none of them counts it.
func (b *Pipeline) Usage() (backends.Usage, bool) { return b.backend.Usage() }

// Leases is how many claims are known: on their way, held, and timed ones.
func (b *Pipeline) Leases() int { return b.leaseTable.Count() }

// HeldBySessions is how many leases end with a connection, those on their way to one included.
func (b *Pipeline) HeldBySessions() int { return b.leaseTable.HeldBySessions() }

// Holds reports whether the session holds a claim.
func (b *Pipeline) Holds(s *quota.Session) bool { return b.leaseTable.Holds(s) }

// HeldBy is what a session holds, by queue.
func (b *Pipeline) HeldBy(s *quota.Session, now time.Time) []lease.QueueHeld {
	return b.leaseTable.HeldBy(s, now)
}

// Reachable reports whether the last heartbeat reached the database, and claims may be handed out.
func (b *Pipeline) Reachable() bool { return b.heartbeat.Reachable() }

// HeartbeatAge is the time since the last heartbeat that reached the database; negative: none has.
func (b *Pipeline) HeartbeatAge() time.Duration { return b.heartbeat.Age() }

// SidecarTimeout is how long this sidecar's session leases outlive its last heartbeat.
func (b *Pipeline) SidecarTimeout() time.Duration { return b.times.Timeout() }

// Trouble is why the last commit or the last heartbeat failed; nil: they did not.
func (b *Pipeline) Trouble() error {
	if why := b.committer.trouble.Load(); why != nil {
		return *why
	}
	return b.heartbeat.Err()
}

// NamedLock is one that no part of the pipeline holds for long.
type NamedLock struct {
	Name string
	sync.Locker
}

// Locks are for who wants to know whether the pipeline goes on.
func (b *Pipeline) Locks() []NamedLock {
	return []NamedLock{{"claims", &b.dispatcher.mu}, {"writes", &b.committer.mu}, {"leases", b.leaseTable.Locker()}, {"beat", b.heartbeat.Locker()}}
}

// QueueDepths returns the depths of all queues, where this sidecar is the one that reads them for all; known is
// false where it is not, or the last reading failed. The error is that the database has not answered yet.
func (b *Pipeline) QueueDepths() (stats []backends.QueueStats, known bool, err error) {
	b.heartbeat.WantDepths()
	if !b.Inspectable() || !b.heartbeat.LeadsDepths() {
		return nil, false, nil
	}
	stats, known, err = b.allDepths.Get()
	return stats, known && b.heartbeat.LeadsDepths(), err // it took so long that another one may have taken over
}

// Inspectable reports whether the backend can be looked into.
func (b *Pipeline) Inspectable() bool { return b.canInspect }

// readDepths asks the database for the depths of all queues.
func (b *Pipeline) readDepths(ctx context.Context) ([]backends.QueueStats, error) {
	m := b.Metrics.Load()
	m.DepthReads.Inc()
	stats, err := b.backend.Stats(ctx, "")
	if err != nil {
		m.DepthReadFailures.Inc()
		b.Log.Warn("the depths of the queues could not be read for the metrics", "error", err)
	}
	return stats, err
}

// readyJobs asks the database for the number of a queue's ready jobs.
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
