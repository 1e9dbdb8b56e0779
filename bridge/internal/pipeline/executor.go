package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/dispatch"
	"github.com/qsidecar/qsidecar/bridge/internal/failurelog"
	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Bounds of the queue of writes. It is bounded by bytes, with a price for each write's own size, so that back-pressure reaches
// the clients before memory runs out.
const (
	queueBytes   = 96 << 20  // of enqueues; must exceed the largest frame (64 MiB)
	settleBytes  = 32 << 20  // of settles, which do not wait for memory behind enqueues
	largeSettle  = 256 << 10 // a settle with more bytes than that besides its leases waits behind enqueues too
	writePrice   = 4 << 10   // minimum for each write
	retryInitial = 20 * time.Millisecond
	retryMax     = time.Second
)

// executor is the group commit of one database. It asks its scheduler, and the dispatcher, what the next commit has, carries
// out the commit, and answers its members.
type executor struct {
	executorConfig
	failures   failurelog.Log
	refused    refusedReleases
	admissions admissions
	number     atomic.Uint64 // of the last token

	enqueueMemory *semaphore.Weighted // queueBytes
	settleMemory  *semaphore.Weighted // settleBytes
	timers        sync.Pool           // of *time.Timer
	outcomes      sync.Pool           // of chan Outcome

	mu        sync.Mutex
	scheduler scheduler
	locking   sync.WaitGroup // of commitLocked
	own       int            // goroutines of commitOwn
	crowded   atomic.Bool    // a copy of scheduler.crowded
	ended     bool           // no commit takes another write
}

// executorConfig has what an executor needs.
type executorConfig struct {
	info       backends.Info
	backend    *backendref.Ref
	loops      *loops
	dispatcher *dispatch.Dispatcher
	gates      *gates
	heartbeat  *heartbeat.Heartbeater
	leases     *lease.Table
	memory     *quota.Memory
	stalls     *stalls
	times      *heartbeat.Times     // the sidecar timeout bounds one commit, and one settle
	clock      func() time.Duration // stands still while the machine is suspended, and is cheap
	policy     func(queue string) (backends.Policy, bool)
	jitter     backends.Jitter
	maxPayload func() int64
	claimBytes func() int64 // of payload, in one claim's answer
	metrics    func() *metrics.Database
	events     *jobEvents
	batches    *batchEnds
	log        *slog.Logger
}

func newExecutor(c executorConfig) *executor {
	return &executor{
		executorConfig: c,
		refused:        refusedReleases{obstacles: backends.ObstacleSet{Log: c.log, Address: c.info.Address}, all: make(map[backends.Token]*refusedRelease)},
		enqueueMemory:  semaphore.NewWeighted(queueBytes),
		settleMemory:   semaphore.NewWeighted(settleBytes),
		scheduler:      newScheduler(c.info),
		admissions: admissions{begin: c.dispatcher.MarkAdmitting, end: c.dispatcher.Admitted, admit: func(ctx context.Context, groups []backends.Group) []string {
			ctx, cancel := backendref.WithTimeout(ctx, c.times.Timeout())
			defer cancel()
			return c.backend.Admit(ctx, groups)
		}},
	}
}

// wake wakes a loop. Its capacity is 1: one pending wake-up is enough.
type wake chan struct{}

func newWake() wake { return make(wake, 1) }

func (w wake) poke() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// loops are the two sequences of commits: one of writes, which possibly include claims, and one of claims alone.
type loops struct {
	writes, claims commitLoop
	own            commitLoop  // not a sequence: the own commits of wait queues
	locked         commitLoop  // of the writes whose rows, keys or tables others have locked
	joined         atomic.Bool // a copy of scheduler.joined
}

// commitLoop is one sequence of commits.
type commitLoop struct {
	wake
	name    string                // in the log
	lastErr atomic.Pointer[error] // why the loop's last commit failed; nil: it succeeded
}

func newLoops(info backends.Info) *loops {
	l := &loops{writes: commitLoop{name: "writes", wake: newWake()}, claims: commitLoop{name: "claims", wake: newWake()}, own: commitLoop{name: "claims apart"}, locked: commitLoop{name: "locked writes"}}
	l.joined.Store(joinJobs(info) > 0)
	return l
}

// WakeClaims makes the loop that commits claims check for claims to include.
func (l *loops) WakeClaims() {
	if l.joined.Load() {
		l.writes.poke()
	} else {
		l.claims.poke()
	}
}

// reserve waits for memory for p, a session's write, whose request keeps beside more bytes. The caller pushes or
// drops the write.
func (e *executor) reserve(ctx context.Context, p *PendingWrite, beside int64) error {
	p.size = sizeOf(p.write)
	if p.Done, _ = e.outcomes.Get().(chan Outcome); p.Done == nil {
		p.Done = make(chan Outcome, 1)
	}
	most, bytes := int64(queueBytes), p.size.bytes+beside
	p.room = e.enqueueMemory
	if len(backends.LeasesOf(p.write)) > 0 && bytes <= largeSettle {
		p.room, most = e.settleMemory, settleBytes
	}
	p.price = min(max(bytes+int64(p.size.jobs)*256, writePrice), most)
	if p.room.TryAcquire(p.price) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.times.Timeout())
	defer cancel()
	if err := p.room.Acquire(ctx, p.price); err != nil {
		return e.unavailable("more than %d MiB of writes wait for the database", most>>20)
	}
	return nil
}

// errEnded is the error of a write that comes after the last commit.
var errEnded = errors.New("this sidecar doesn't use the database any more")

// push queues a reserved write. It never blocks. The caller can have locks that the end of the write needs.
func (e *executor) push(p *PendingWrite) {
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		go e.finish(p, Outcome{Err: backends.Unavailable(errEnded)})
		return
	}
	enough := e.scheduler.push(p)
	e.mu.Unlock()
	if enough {
		e.loops.writes.poke()
	}
}

// pushFree queues a write that no session waits for, and that must not wait for memory: a release of jobs that a
// session or a lost commit left behind, or the record of hand-outs. The number of leases bounds these writes.
func (e *executor) pushFree(p *PendingWrite) *PendingWrite {
	p.free()
	e.push(p)
	return p
}

// free prepares a write for pushFree.
func (p *PendingWrite) free() {
	p.size, p.pushed, p.Done = sizeOf(p.write), time.Now(), make(chan Outcome, 1)
}

// wait returns the outcome of a pushed write. If no commit has taken the write after patience, wait takes it out
// of the queue: nothing was written. While it waits, it calls beside.Late from time to time; nil: nothing.
func (e *executor) wait(p *PendingWrite, patience time.Duration, beside Waiter) (backends.WriteResult, error) {
	timer := e.timer(patience)
	defer func() {
		timer.Stop() // since Go 1.23 the channel receives nothing after Stop
		e.timers.Put(timer)
	}()
	for left := patience; left > 0; {
		part := left
		if beside != nil {
			part = min(left, answerAge/2)
			timer.Reset(part)
		}
		select {
		case o := <-p.Done:
			e.outcomes.Put(p.Done)
			return o.Result, o.Err
		case <-timer.C:
		}
		if left -= part; beside != nil {
			beside.Late()
		}
	}
	e.mu.Lock()
	abandons := e.scheduler.expire(p)
	e.mu.Unlock()
	if abandons {
		e.drop(p)
		p.endTry()
		return backends.WriteResult{}, e.unavailable("the database did not take it within %v", patience)
	}
	o := <-p.Done // in a commit, which has its own deadline
	e.outcomes.Put(p.Done)
	if errors.Is(o.Err, errOverdue) {
		o.Err = e.unavailable("the database did not take it within %v", patience)
	}
	return o.Result, o.Err
}

// timer returns a pooled timer. Each write needs one.
func (e *executor) timer(d time.Duration) *time.Timer {
	t, ok := e.timers.Get().(*time.Timer)
	if !ok {
		return time.NewTimer(d)
	}
	t.Reset(d)
	return t
}

// drop returns the memory of a write that has ended or was not pushed.
func (e *executor) drop(p *PendingWrite) {
	if p.room != nil {
		p.room.Release(p.price)
	}
}

// finish ends a write.
func (e *executor) finish(p *PendingWrite, o Outcome) {
	e.drop(p)
	if p.onEnd != nil {
		p.onEnd(o)
	}
	p.endTry()
	p.Done <- o
}

// putBack queues the writes of a failed commit again. It ends those whose time is over.
func (e *executor) putBack(writes []*PendingWrite) {
	for _, p := range writes {
		p.endTry()
	}
	e.mu.Lock()
	over := e.scheduler.putBack(writes)
	e.mu.Unlock()
	e.finishOverdue(over)
}

// finishOverdue ends writes whose commit failed after their time was over.
func (e *executor) finishOverdue(writes []*PendingWrite) {
	for _, p := range writes {
		e.finish(p, Outcome{Err: errOverdue})
	}
}

// errOverdue ends a write whose commit failed after its time was over.
var errOverdue = errors.New("its time is over")

// answerAll ends every queued write with err, at the end of the commits.
func (e *executor) answerAll(err error) {
	e.mu.Lock()
	e.ended = true
	left := e.scheduler.takeAll()
	e.mu.Unlock()
	for _, p := range left {
		e.finish(p, Outcome{Err: err})
	}
}

// queued counts the writes that no commit has taken yet.
func (e *executor) queued() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.scheduler.queued()
}

// unavailable is the error for a write that failed because the database is unreachable. It includes why the last
// commit of writes failed.
func (e *executor) unavailable(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if why := e.loops.writes.lastErr.Load(); why != nil {
		cause := *why
		if u, ok := errors.AsType[*backends.UnavailableError](cause); ok {
			cause = u.Err // the new error already contains "unavailable"
		}
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return backends.Unavailable(err)
}

// runWrites commits writes, and the claims that the scheduler includes. It ends when ctx is done and the queue is empty, or
// when hard is done.
func (e *executor) runWrites(ctx, hard context.Context) error {
	ended := make(chan *writeCommit, e.scheduler.writeCommits)
	pace := retrier{loop: &e.loops.writes, log: e.log, hard: hard, delay: retryInitial}
	linger := time.NewTimer(time.Hour)
	defer e.locking.Wait()
	underWay := 0
	end := func(c *writeCommit) error {
		underWay--
		if err := pace.after(c.err); err != nil {
			for ; underWay > 0; underWay-- {
				<-ended
			}
			e.answerAll(err)
			return err
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.scheduler.ended(c, e.clock())
		return nil
	}
	for {
		c, until := e.next()
		if c != nil {
			if b, commitEnds := e.fill(hard, c); len(b.writes)+len(b.claims) > 0 {
				underWay++
				go func() {
					c.err = e.commit(hard, b)
					c.end = e.clock()
					commitEnds()
					ended <- c
				}()
				continue
			}
		}
		if linger.Stop(); until > 0 {
			linger.Reset(until - e.clock())
		}
		select {
		case c := <-ended:
			if err := end(c); err != nil {
				return err
			}
			continue
		case <-e.loops.writes.wake:
			continue
		case <-linger.C:
			continue
		case <-ctx.Done():
		}
		e.mu.Lock()
		e.scheduler.stopped = true
		left, aside := len(e.scheduler.queue), e.scheduler.lockedLeft+e.own
		e.ended = underWay+left+aside == 0
		e.mu.Unlock()
		switch {
		case underWay > 0:
			if err := end(<-ended); err != nil {
				return err
			}
		case left > 0:
		case aside == 0:
			return nil
		default:
			<-e.loops.writes.wake // the database can come back
		}
	}
}

// next asks the scheduler for the next commit.
func (e *executor) next() (c *writeCommit, until time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, until = e.scheduler.next(e.clock(), e.sparesConnection)
	e.crowded.Store(e.scheduler.crowded())
	e.loops.joined.Store(e.scheduler.joined)
	return c, until
}

// sparesConnection reports whether the pool has a free connection for a commit beside another one, and one more. The
// last one is for claims, however many requests operators send.
func (e *executor) sparesConnection() bool {
	u, ok := e.backend.Usage()
	return !ok || u.Max == 0 || u.Max-u.InUse >= 2
}

// fill adds the claims of a commit of writes, if it includes claims. It sets writes aside that the database refused before. The
// caller calls commitEnds after the commit. A commit that has nothing to do has ended.
func (e *executor) fill(hard context.Context, c *writeCommit) (b batch, commitEnds func()) {
	c.writes = slices.DeleteFunc(c.writes, func(p *PendingWrite) bool {
		if p.aside {
			e.setLockedAside(hard, p)
		}
		return p.aside
	})
	b.writes = c.writes
	if c.separates {
		e.loops.claims.poke()
	}
	commitEnds = func() {}
	if c.claims {
		for _, p := range c.writes { // the same commit can claim their jobs
			e.dispatcher.Announce(readyQueues(p.write), readyJobs(p.write))
		}
		groups, reserved := e.gatherClaims(hard)
		b.claims, b.announced = groups, true
		commitEnds = func() {
			if !e.endClaims(reserved) {
				e.loops.claims.poke()
			}
		}
	}
	if len(b.writes)+len(b.claims) == 0 {
		commitEnds()
		e.mu.Lock()
		e.scheduler.cancel(c)
		e.mu.Unlock()
	}
	return b, commitEnds
}

// runClaims commits claims that have commits of their own, until ctx is done.
func (e *executor) runClaims(ctx, hard context.Context) error {
	r := retrier{loop: &e.loops.claims, log: e.log, hard: hard, delay: retryInitial}
	for {
		groups, reserved := e.separateClaims(hard)
		if len(groups) > 0 {
			err := e.commit(hard, batch{claims: groups})
			e.endClaims(reserved)
			if err := r.after(err); err != nil {
				return err
			}
			continue
		}
		select {
		case <-e.loops.claims.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// separateClaims chooses the claims of a commit without writes. If commits of writes include the claims, it wakes their loop.
func (e *executor) separateClaims(hard context.Context) (groups []dispatch.Group, reserved int64) {
	e.mu.Lock()
	begins, joined := e.scheduler.separateClaims(), e.scheduler.joined
	e.mu.Unlock()
	if begins {
		if groups, reserved = e.gatherClaims(hard); len(groups) > 0 {
			return groups, reserved
		}
		joined = e.endClaims(reserved)
	}
	if joined {
		e.loops.writes.poke() // it possibly found that a commit has claims
	}
	return nil, 0
}

// gatherClaims chooses the claims of the next commit, and reserves memory for their jobs. It also begins commits for the claims of
// wait queues that have their own.
func (e *executor) gatherClaims(hard context.Context) (groups []dispatch.Group, reserved int64) {
	groups, reserved, own := e.gather(false)
	for own {
		group, bytes, _ := e.gather(true)
		if own = len(group) > 0; own {
			e.commitOwn(hard, group, bytes)
		}
	}
	return groups, reserved
}

// gather chooses claims of one kind, and reports whether there are some for own commits.
func (e *executor) gather(own bool) (groups []dispatch.Group, reserved int64, ownDue bool) {
	id := e.heartbeat.Fresh()
	if id == 0 {
		e.heartbeat.SendNow()
		e.dispatcher.FailOnce(heartbeatLate(e.heartbeat))
		return nil, 0, false
	}
	budget := dispatch.Budget{Whole: max(e.claimBytes(), e.maxPayload())}
	reserved = e.memory.ReserveClaims(budget.Whole)
	budget.Left = reserved
	if number := func() uint64 { return e.number.Add(1) }; own {
		groups = e.dispatcher.GatherOwn(id, number, &budget)
	} else {
		groups, ownDue = e.dispatcher.Gather(id, number, &budget)
	}
	e.memory.ReturnClaims(budget.Left)
	if budget.Short {
		e.memory.WakeWhenFree(e.loops)
	}
	asked := e.stalls.begin()
	for i := range groups {
		groups[i].Asked = asked
		e.leases.Expect(groups[i].Slots)
	}
	return groups, reserved - budget.Left, ownDue
}

// commitOwn commits the claims of one wait queue beside the other commits. After an error, the next commit for the same claims
// waits as long as that of a loop.
func (e *executor) commitOwn(hard context.Context, group []dispatch.Group, reserved int64) {
	e.mu.Lock()
	e.own++
	e.mu.Unlock()
	go func() {
		err := e.commit(hard, batch{claims: group, own: true, settles: e.gates.settles(group[0].Queues())})
		e.memory.ReleaseClaims(reserved)
		r := retrier{loop: &e.loops.own, log: e.log, hard: hard, delay: retryMax}
		_ = r.after(err) // if the time to stop is over, the other loops report it
		e.dispatcher.EndOwn(group[0])
		e.mu.Lock()
		e.own--
		e.mu.Unlock()
		e.loops.writes.poke() // it possibly waits for the last one
	}()
}

// endClaims ends the commit with claims, and the reservation for them. Their jobs count for their sessions by then. It
// reports whether commits of writes include the next claims.
func (e *executor) endClaims(reserved int64) (joined bool) {
	e.mu.Lock()
	joined = e.scheduler.endClaims()
	e.mu.Unlock()
	if reserved > 0 {
		e.memory.ReleaseClaims(reserved)
	}
	return joined
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
