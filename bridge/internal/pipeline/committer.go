package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/fairshare"
	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Bounds of the group commit. The queue of writes is bounded by bytes, with a price for each write's own size, so
// that back-pressure reaches the clients before memory runs out.
const (
	queueBytes   = 96 << 20  // of enqueues; must exceed the largest frame (64 MiB)
	settleBytes  = 32 << 20  // of settles, which do not wait for memory behind enqueues
	largeSettle  = 256 << 10 // a settle with more bytes than that besides its leases waits behind enqueues too
	writePrice   = 4 << 10   // minimum for each write
	batchWrites  = 1000      // writes in one commit
	batchJobs    = 4000      // jobs or leases in one commit
	batchBytes   = 16 << 20  // payload bytes in one commit, beyond its first write
	retryInitial = 20 * time.Millisecond
	retryMax     = time.Second
)

// committer is the group commit of one database. Writes and claims that queued during one commit go into the next one
// together. An idle committer commits immediately, a busy one in larger groups (see linger.go).
type committer struct {
	backend    *backendref.Ref
	dispatcher *dispatcher
	heartbeat  *heartbeat.Heartbeater
	stalls     *stalls
	leases     *lease.Table
	policy     func(queue string) (backends.Policy, bool)
	jitter     backends.Jitter
	times      *heartbeat.Times // the sidecar timeout bounds one commit, and one settle
	maxPayload func() int64
	claimBytes func() int64 // of payload, in one claim's answer
	metrics    func() *metrics.Database
	log        *slog.Logger
	events     *jobEvents
	failures   failureLog
	refused    refusedReleases

	enqueueMemory *semaphore.Weighted // queueBytes
	settleMemory  *semaphore.Weighted // settleBytes
	timers        sync.Pool           // of *time.Timer
	outcomes      channels[Outcome]
	number        atomic.Uint64

	// If two concurrent commits are worth it, claims and writes have a commit loop each. Otherwise one loop does
	// both, in the same commits; see join.go. The loop of the writes can have several large commits at once; see
	// write_loop.go.
	writes       commitLoop
	claims       commitLoop
	singleLoop   bool           // claims is not used
	joinJobs     int            // up to that many jobs of writes, the loop of the writes includes the claims
	writeCommits int            // of the loop of the writes, at once
	joined       atomic.Bool    // the loop of the writes includes the claims
	claiming     sync.Mutex     // held from the choice of claims to the end of their commit
	beside       sync.WaitGroup // commits of claimBeside

	memory   *quota.Memory
	reserved int64 // memory for the claims of the commit under way; guarded by claiming

	mu              sync.Mutex
	queue           []*PendingWrite // in the order in which they were pushed
	pushed          uint64          // number of pushed writes so far
	fair            fairshare.Share[*quota.Session]
	abandonedWrites int // writes in the queue that were abandoned
	locked          lockedWrites
	arrived         int // number of queued writes so far of sessions within their share; see linger
	wakeAt          int // the number of these writes that causes a wake-up; see linger
	missing         int // units of writes that must come before one of them causes a wake-up; see pays
	underWay        []*writeCommit
	sessions        map[*quota.Session]struct{} // countWaiting and noteCrowd use it
	crowd           int                         // sessions with settles in the last commits; see noteCrowd
	crowded         atomic.Bool
}

// commitLoop is one sequence of commits.
type commitLoop struct {
	name    string                // in the log
	wake    chan struct{}         // capacity 1: one wake-up is enough
	lastErr atomic.Pointer[error] // why the loop's last commit failed; nil: it succeeded
}

func (l *commitLoop) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// newCommitter returns a committer without its connections to the other parts of a Pipeline.
func newCommitter() *committer {
	return &committer{
		enqueueMemory: semaphore.NewWeighted(queueBytes),
		settleMemory:  semaphore.NewWeighted(settleBytes),
		writes:        commitLoop{name: "writes", wake: make(chan struct{}, 1)},
		claims:        commitLoop{name: "claims", wake: make(chan struct{}, 1)},
		writeCommits:  1,
		sessions:      make(map[*quota.Session]struct{}),
	}
}

// The states of a pending write.
const (
	queued    int32 = iota
	taken           // in a commit, or answered
	abandoned       // no session waits: the write will be dropped
	overdue         // in a commit, and must not be tried again
)

// errOverdue ends a write whose commit failed after its time was over.
var errOverdue = errors.New("its time is over")

// WakeClaims makes the commit loop of the claims check for claims to include.
func (c *committer) WakeClaims() {
	if c.joined.Load() {
		c.writes.poke()
	} else {
		c.claims.poke()
	}
}

// unavailable is the error for a write that failed because the database is unreachable. It includes why the last
// commit of writes failed.
func (c *committer) unavailable(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if why := c.writes.lastErr.Load(); why != nil {
		cause := *why
		if u, ok := errors.AsType[*backends.UnavailableError](cause); ok {
			cause = u.Err // the new error already contains "unavailable"
		}
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return backends.Unavailable(err)
}

func (c *committer) finish(p *PendingWrite, o Outcome) {
	c.drop(p)
	if p.onEnd != nil {
		p.onEnd()
	}
	p.endTry()
	if p.ended != nil {
		p.ended(o)
	}
	p.Done <- o
}

// runClaims commits claims until ctx is done.
func (c *committer) runClaims(ctx, hard context.Context) error {
	r := retrier{loop: &c.claims, log: c.log, hard: hard, delay: retryInitial}
	for {
		if groups, commitEnds := c.separateClaims(hard); len(groups) > 0 {
			err := c.commit(hard, nil, groups)
			commitEnds()
			if err := r.after(err); err != nil {
				return err
			}
			continue
		}
		select {
		case <-c.claims.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// retrier paces the commits of a loop while they fail.
type retrier struct {
	loop  *commitLoop
	log   *slog.Logger
	hard  context.Context
	delay time.Duration
}

// after waits before the next commit if err is not nil. It returns an error when the time to stop is over.
func (r *retrier) after(err error) error {
	if err == nil {
		r.delay = retryInitial
		if r.loop.lastErr.Swap(nil) != nil {
			r.log.Info("commits succeed again", "event", "commit_recovered", "loop", r.loop.name)
		}
		return nil
	}
	if r.loop.lastErr.Swap(&err) == nil {
		r.log.Warn("commit failed, retrying", "event", "commit_failed", "loop", r.loop.name, "error", err)
	}
	select { // jitter, so that the hosts of one database do not come back in step
	case <-time.After(r.delay/2 + rand.N(r.delay)):
	case <-r.hard.Done():
		return fmt.Errorf("writes were left when the time to stop was over: %w", err)
	}
	r.delay = min(2*r.delay, retryMax)
	return nil
}

// takeBatch chooses the writes of a commit, in their order, as far as fair share admits them, and adds the commit to
// those under way. All commits under way have each lease at most once, and the writes of a session are in one of them:
// a second write waits for a later commit. beside reports whether another commit is under way.
func (c *committer) takeBatch(w *writeCommit) (beside bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	beside = len(c.underWay) > 0
	c.fair.Begin(len(c.queue), c.work)
	w.writes = c.chooseWrites(w)
	c.fair.End()
	if len(w.writes) == 0 && len(c.queue) > 0 && !beside { // all were over their share: begin again
		c.fair = fairshare.Share[*quota.Session]{}
		w.writes = c.chooseWrites(w)
	}
	if len(w.writes) == 0 && beside {
		c.missing = math.MaxInt // what waits comes after the commits under way
		return true
	}
	c.noteCrowd(w.writes)
	c.underWay = append(c.underWay, w)
	return beside
}

// crowdFrom is from how many sessions on that settle in one commit a message costs more than what a worker gains if it
// doesn't wait for its settle: the processor is the limit then, and not the commits.
const crowdFrom = 64

// noteCrowd counts the sessions that settle in a commit. c.mu is held.
func (c *committer) noteCrowd(writes []*PendingWrite) {
	n := 0
	if len(writes) >= crowdFrom { // otherwise there can't be so many sessions
		defer clear(c.sessions)
		for _, p := range writes {
			if p.session != nil && len(backends.LeasesOf(p.write)) > 0 {
				c.sessions[p.session] = struct{}{}
			}
		}
		n = len(c.sessions)
	}
	c.crowd = max(n, c.crowd-c.crowd/8-1)
	c.crowded.Store(c.crowd >= crowdFrom)
}

// Crowded reports whether so many sessions settle that a worker should send its settle and its next claim in one request.
func (b *Pipeline) Crowded() bool { return b.committer.crowded.Load() }

func (c *committer) chooseWrites(w *writeCommit) []*PendingWrite {
	clear(w.leases)
	clear(w.sessions)
	w.units = 0
	var batch []*PendingWrite
	var sum size
	i, rest := 0, 0
	for ; i < len(c.queue) && len(batch) < batchWrites; i++ {
		p := c.queue[i]
		if len(batch) > 0 && (sum.jobs+p.size.jobs > batchJobs || sum.bytes+p.size.bytes > batchBytes) {
			break
		}
		if p.state.Load() == abandoned {
			continue
		}
		if c.committing(p.session) || !c.fair.Admit(p.session, p.size.units()) {
			c.queue[rest] = p
			rest++
			continue
		}
		if !c.distinct(w, p.write) {
			break
		}
		if !p.state.CompareAndSwap(queued, taken) {
			continue
		}
		sum.jobs += p.size.jobs
		sum.bytes += p.size.bytes
		w.units += p.size.units()
		batch = append(batch, p)
		if c.writeCommits > 1 && p.session != nil {
			w.sessions[p.session] = struct{}{}
		}
	}
	rest += copy(c.queue[rest:], c.queue[i:])
	clear(c.queue[rest:])
	c.queue = c.queue[:rest]
	return batch
}

// committing reports whether a commit under way has writes of the session. c.mu is held.
func (c *committer) committing(s *quota.Session) bool {
	return s != nil && slices.ContainsFunc(c.underWay, func(w *writeCommit) bool {
		_, yes := w.sessions[s]
		return yes
	})
}

// forget frees the memory of an abandoned write. Its commit possibly never ends, and more writes are abandoned behind
// it.
func (c *committer) forget(p *PendingWrite) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.write, p.size = nil, size{}
	if c.abandonedWrites++; c.abandonedWrites > len(c.queue)/2 {
		c.queue = slices.DeleteFunc(c.queue, func(p *PendingWrite) bool { return p.state.Load() == abandoned })
		c.abandonedWrites = 0
	}
}

// distinct adds the leases of a write to those of w. It returns false if a commit has one of them. c.mu is held.
func (c *committer) distinct(w *writeCommit, write backends.Write) bool {
	leases := backends.LeasesOf(write)
	for _, l := range leases {
		if _, dup := w.leases[l.Token]; dup {
			return false
		}
		for _, other := range c.underWay {
			if _, dup := other.leases[l.Token]; dup {
				return false
			}
		}
	}
	for _, l := range leases {
		w.leases[l.Token] = struct{}{}
	}
	return true
}

// putBack queues writes again, in the order in which all of them were pushed.
func (c *committer) putBack(writes []*PendingWrite) {
	writes = c.requeueable(writes)
	slices.SortFunc(writes, func(a, b *PendingWrite) int { return cmp.Compare(a.number, b.number) })
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*PendingWrite, 0, len(writes)+len(c.queue))
	for _, p := range c.queue {
		for len(writes) > 0 && writes[0].number < p.number {
			all, writes = append(all, writes[0]), writes[1:]
		}
		all = append(all, p)
	}
	all = append(all, writes...)
	c.queue = all
}

// requeueable returns the writes of a failed commit to try again. It ends those whose time is over.
func (c *committer) requeueable(writes []*PendingWrite) (again []*PendingWrite) {
	for _, p := range writes {
		p.alone = false
		p.endTry()
		if p.state.CompareAndSwap(taken, queued) {
			again = append(again, p)
		} else {
			c.finish(p, Outcome{Err: errOverdue})
		}
	}
	return again
}

// answerAll ends every queued write with err.
func (c *committer) answerAll(err error) {
	c.mu.Lock()
	left := c.queue
	c.queue = nil
	c.mu.Unlock()
	for _, p := range left {
		if p.state.CompareAndSwap(queued, taken) {
			c.finish(p, Outcome{Err: err})
		}
	}
}

// queued counts the writes that no commit has taken yet.
func (c *committer) queued() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) + len(c.locked.queue)
}

// work returns the session of the i-th queued write, its units, and how many of them are settled jobs. c.mu is held.
func (c *committer) work(i int) (s *quota.Session, units, settled int) {
	p := c.queue[i]
	return p.session, p.size.units(), p.size.settled
}

// countWaiting counts the writes of sessions that waited for this commit: they did not use up their share, and queued
// nothing during it. over is true if a session used up its share.
func (c *committer) countWaiting(writes []*PendingWrite) (n int, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer clear(c.sessions) // it must not keep sessions that end
	for _, p := range c.queue {
		c.sessions[p.session] = struct{}{}
	}
	for _, p := range writes {
		if c.fair.Over(p.session) {
			over = true
		} else if _, goesOn := c.sessions[p.session]; !goesOn {
			n++
		}
	}
	return n, over
}
