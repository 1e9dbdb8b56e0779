package bridge

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// stats asks the database for the depths of a queue, or of all.
func (b *pipeline) stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	return b.link.stats(ctx, queue)
}

// peek asks the database for jobs.
func (b *pipeline) peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	return b.link.peek(ctx, p)
}

// command carries out an operator's command. With an error count may be above 0: each transaction of many is one
// of its own.
func (b *pipeline) command(ctx context.Context, c backends.Command) (count int64, err error) {
	count, freed, err := b.link.command(ctx, c)
	if err != nil && count == 0 {
		return 0, err
	}
	if c.Kind == backends.Reclaim {
		b.metrics.Load().queue(c.Queue).returned.Add(float64(count))
	}
	if freed || c.Kind == backends.Resume {
		b.broker.hint([]string{c.Queue}, someJobs)
	}
	return count, err
}

// queuesInDatabase asks in which queues the leases' jobs are.
func (b *pipeline) queuesInDatabase(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return b.link.queues(ctx, leases)
}

// queuesOf are the queues of the leases' jobs: as they are known here, or else asked of the database, for
// timeout at the most.
func (b *pipeline) queuesOf(leases []backends.Lease, timeout time.Duration) ([]string, error) {
	queues, missing := b.ledger.queuesOf(leases)
	if len(missing) == 0 {
		return queues, nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), min(timeout, b.times.patience()),
		fmt.Errorf("the queues of the leases: no answer within %v", timeout))
	defer cancel()
	found, err := b.link.queues(ctx, missing)
	return append(queues, found...), err
}

// adopted reports whether the queue lives in a table that another application owns.
func (b *pipeline) adopted(queue string) bool { return b.link.adopted(queue) }

// claimsInTx reports whether the queue's jobs are held in transactions.
func (b *pipeline) claimsInTx(queue string) bool { return b.link.holds(queue) }

// currentInfo is the present Backend's.
func (b *pipeline) currentInfo() backends.Info { return b.link.info() }

// uses reports whether that is the present Backend.
func (b *pipeline) uses(backend backends.Backend) bool { return b.link.is(backend) }

// replace puts another Backend of the same database in the place of the present one. done, if not nil, is called
// when the last call of that Backend has ended, after a later replace or retire.
func (b *pipeline) replace(backend backends.Backend, done func()) { b.link.replace(backend, done) }

// retire ends the use of the Backend.
func (b *pipeline) retire() { b.link.finish() }

// setTimes changes the host lease and the restart grace.
func (b *pipeline) setTimes(timeout, grace time.Duration) { b.times.set(timeout, grace) }

// restartGrace is how long the leases of sessions outlive an orderly exit.
func (b *pipeline) restartGrace() time.Duration { return b.times.restart() }

// usage is what the database's Backends have used so far; false: none of them counts it.
func (b *pipeline) usage() (backends.Usage, bool) { return b.link.usage() }

// leases is how many claims are known: on their way, held, and timed ones.
func (b *pipeline) leases() int { return b.ledger.count() }

// heldBySessions is how many leases end with a connection, those on their way to one included.
func (b *pipeline) heldBySessions() int { return b.ledger.heldBySessions() }

// holds reports whether the session holds a claim.
func (b *pipeline) holds(s *account) bool { return b.ledger.holds(s) }

// heldBy is what a session holds, by queue.
func (b *pipeline) heldBy(s *account, now time.Time) []queueHeld { return b.ledger.heldBy(s, now) }

// reachable reports whether the last beat reached the database, and claims may be handed out.
func (b *pipeline) reachable() bool { return b.keeper.reaches() }

// beatAge is the time since the last beat that reached the database; negative: none has.
func (b *pipeline) beatAge() time.Duration { return b.keeper.age() }

// hostLease is how long this sidecar's session leases outlive its last beat.
func (b *pipeline) hostLease() time.Duration { return b.times.patience() }

// snapshot is what a pipeline holds at one moment.
type snapshot struct {
	claims       int  // that wait
	idleClaims   int  // of them, those for which the database had nothing when it was asked last
	waitQueues   int  // lists of queues that are known, with waiting claims or without
	prefetched   int  // jobs that are claimed ahead
	queuedWrites int  // that no commit has taken yet
	stopped      bool // every claim is refused
}

// snapshot counts what the pipeline holds.
func (b *pipeline) snapshot() snapshot {
	s := b.broker.snapshot()
	s.queuedWrites = b.committer.queued()
	return s
}

// trouble is why the last commit or the last beat failed; nil: they did not.
func (b *pipeline) trouble() error {
	if why := b.committer.trouble.Load(); why != nil {
		return *why
	}
	return b.keeper.failure()
}

// lock is one that no part of the pipeline holds for long.
type namedLock struct {
	name string
	sync.Locker
}

// locks are for who wants to know whether the pipeline goes on.
func (b *pipeline) locks() []namedLock {
	return []namedLock{{"claims", &b.broker.mu}, {"writes", &b.committer.mu}, {"leases", &b.ledger.mu}, {"beat", &b.keeper.mu}}
}

// queueDepths returns the depths of all queues, where this sidecar is the one that reads them for all; known is
// false where it is not, or the last reading failed. The error is that the database has not answered yet.
func (b *pipeline) queueDepths() (stats []backends.QueueStats, known bool, err error) {
	b.keeper.asksFor()
	if !b.inspectable() || !b.keeper.reads() {
		return nil, false, nil
	}
	stats, known, err = b.census.take()
	return stats, known && b.keeper.reads(), err // it took so long that another one may have taken over
}

// inspectable reports whether the backend can be looked into.
func (b *pipeline) inspectable() bool { return b.canInspect }

// readDepths asks the database for the depths of all queues.
func (b *pipeline) readDepths(ctx context.Context) ([]backends.QueueStats, error) {
	m := b.metrics.Load()
	m.reads.Inc()
	stats, err := b.link.stats(ctx, "")
	if err != nil {
		m.readFailures.Inc()
		b.log.Warn("the depths of the queues could not be read for the metrics", "error", err)
	}
	return stats, err
}

// readyJobs asks the database for the number of a queue's ready jobs.
func (b *pipeline) readyJobs(ctx context.Context, name string) (n int64, err error) {
	look, release, err := b.link.depth(ctx)
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
