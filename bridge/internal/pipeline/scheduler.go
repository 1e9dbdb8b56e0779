package pipeline

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/fairshare"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Bounds of a commit.
const (
	batchWrites = 1000     // writes
	batchJobs   = 4000     // jobs or leases
	batchBytes  = 16 << 20 // payload bytes, beyond its first write
)

// Some engines carry out two large commits at once faster than one after the other, because each has a process, or waits
// for the log, of its own (Info.WriteCommits). There another commit of writes begins beside the first one as soon as
// overlapUnits wait (a unit is a job, or 8 KiB of payload: fairshare.Units). For small commits this does not pay: their
// fixed costs are high, so the loop waits until the first one has ended, and takes more writes together.
const overlapUnits = 256

// crowdFrom is from how many sessions on that settle in one commit a message costs more than what a worker gains if it
// doesn't wait for its settle: the processor is the limit then, and not the commits.
const crowdFrom = 64

// scheduler decides which queued writes the next commit has, when it begins, and whether it also claims. Its claims are those
// of dispatch.Dispatcher.
//
// Writes and claims that queued during one commit go into the next one together. An idle database gets a commit immediately,
// a busy one larger groups.
//
// A scheduler is pure: it has no lock, no goroutine and no clock. The executor guards it, reports to it what
// happens and when, and carries out the commits.
type scheduler struct {
	// While commits are small, a commit of writes includes the claims. So both share one transaction and one wait for the
	// log, and a new job is claimed in the commit that stores it. But if the writes have many jobs, these costs are a small
	// part of the commit, and two concurrent commits use two cores. Then claims have commits of their own. The engine
	// decides what is small (Info.JoinJobs). 0: no commit is; math.MaxInt: each is.
	joinJobs     int
	writeCommits int // of large commits of writes, at once

	queue     []*PendingWrite // in the order in which they were pushed
	pushed    uint64          // number of pushed writes so far
	abandoned int             // writes in the queue that were abandoned
	fair      fairshare.Share[*quota.Session]
	underWay  []*writeCommit
	spare     *writeCommit                // that has ended, for the next one; nil: none
	sessions  map[*quota.Session]struct{} // scratch of countWaiting and noteCrowd
	crowd     int                         // sessions with settles in the last commits; see noteCrowd

	locked     []*PendingWrite // those whose rows, or keys, another program keeps locked
	lockedLeft int             // those in locked and those being tried

	joined   bool // commits of writes include the claims
	claiming bool // a commit with claims is under way

	linger  linger
	plan    lingerPlan
	stopped bool // it lingers no more
	arrived int  // number of queued writes so far of sessions within their share
	wakeAt  int  // the number of these writes that causes a wake-up
	missing int  // units of writes that must come before one of them causes a wake-up; see pays
}

// joinJobs returns scheduler.joinJobs for an engine.
func joinJobs(info backends.Info) int {
	if !info.Concurrent { // two commits at once gain nothing, so claims never have their own
		return math.MaxInt
	}
	return info.JoinJobs
}

// newScheduler returns a scheduler for an engine.
func newScheduler(info backends.Info) scheduler {
	return scheduler{
		joinJobs:     joinJobs(info),
		writeCommits: max(1, info.WriteCommits),
		joined:       joinJobs(info) > 0,
		sessions:     make(map[*quota.Session]struct{}),
	}
}

// writeCommit is a commit of writes, and possibly claims.
type writeCommit struct {
	writes     []*PendingWrite
	claims     bool                        // it includes claims
	separates  bool                        // claims have their own commits from now on: their loop must be woken
	leases     map[backends.Token]struct{} // that the writes are about: another commit must not have them
	sessions   map[*quota.Session]struct{} // that sent the writes: their next writes come after this commit
	units      int                         // of the writes
	began, end time.Duration               // end is set by the executor
	err        error                       // set by the executor
}

// push queues a write. It reports whether the loop of the writes must be woken.
func (s *scheduler) push(p *PendingWrite) (wake bool) {
	s.pushed++
	p.position = s.pushed
	s.queue = append(s.queue, p)
	if !s.fair.Over(p.session) {
		s.arrived++
	}
	s.missing -= p.size.units()
	return s.arrived >= s.wakeAt && s.missing <= 0
}

// expire ends the time of a write. If it returns true, nothing was written, and no commit will write it. The memory of the
// write is free then: its commit possibly never ends, and more writes are abandoned behind it.
func (s *scheduler) expire(p *PendingWrite) (abandons bool) {
	if !p.state.expire() {
		return false
	}
	p.write, p.size = nil, size{}
	if s.abandoned++; s.abandoned > len(s.queue)/2 {
		s.queue = slices.DeleteFunc(s.queue, func(p *PendingWrite) bool { return p.state == abandoned })
		s.abandoned = 0
	}
	return true
}

// next returns the next commit if one pays now, or nil. Then the loop waits until a push wakes it, a commit ends, or until,
// if that isn't zero. spare reports whether the database has a connection for a commit beside another one.
//
// A commit without writes includes claims. If there are none, the executor calls cancel.
func (s *scheduler) next(now time.Duration, spare func() bool) (c *writeCommit, until time.Duration) {
	if s.lingers(now) {
		return nil, s.linger.until
	}
	beside := len(s.underWay) > 0
	if !s.pays() {
		return nil, 0
	}
	if beside && !spare() {
		s.missing = math.MaxInt // the end of a commit wakes the loop
		return nil, 0
	}
	c = s.begin(now)
	s.fair.Begin(len(s.queue), s.work)
	s.choose(c)
	s.fair.End()
	if len(c.writes) == 0 && len(s.queue) > 0 && !beside { // all were over their share: begin again
		s.fair = fairshare.Share[*quota.Session]{}
		s.choose(c)
	}
	if len(c.writes) == 0 && beside {
		s.cancel(c)
		s.missing = math.MaxInt // what waits comes after the commits under way
		return nil, 0
	}
	s.noteCrowd(c.writes)
	if s.join(c); len(c.writes) == 0 && !c.claims {
		s.cancel(c)
		return nil, 0
	}
	return c, 0
}

// begin adds an empty commit to those under way.
func (s *scheduler) begin(now time.Duration) *writeCommit {
	c := s.spare
	if s.spare = nil; c == nil {
		c = &writeCommit{leases: make(map[backends.Token]struct{}), sessions: make(map[*quota.Session]struct{})}
	}
	c.began = now
	s.underWay = append(s.underWay, c)
	return c
}

// pays reports whether another commit of writes pays now. If not, it arranges that the loop is woken when enough writes wait.
func (s *scheduler) pays() bool {
	s.missing = 0
	if len(s.underWay) == 0 {
		return true
	}
	if len(s.underWay) >= s.writeCommits {
		s.missing = math.MaxInt // the end of a commit wakes the loop
		return false
	}
	missing := overlapUnits
	for _, p := range s.queue {
		if missing -= p.size.units(); missing <= 0 {
			return true
		}
	}
	s.missing = missing
	return false
}

// choose takes writes that fair share admits. Two writes about the same lease, or two commits' writes of the same session, are
// never in group commits at the same time: the second one waits for a later commit, also if the first one is not in this commit
// because its session used up its share. Writes of others behind it don't wait. A locked write (takeLocked) can be in a commit of
// its own beside them. The locks of its rows then order the two.
func (s *scheduler) choose(c *writeCommit) {
	var sum size
	var left leftInQueue
	i, rest := 0, 0
	for ; i < len(s.queue) && len(c.writes) < batchWrites; i++ {
		p := s.queue[i]
		if len(c.writes) > 0 && (sum.jobs+p.size.jobs > batchJobs || sum.bytes+p.size.bytes > batchBytes) {
			break
		}
		if p.state == abandoned {
			continue
		}
		leases := backends.LeasesOf(p.write)
		if left.precedes(p.session, leases) || s.committing(c, p.session) || s.takenLease(leases) || !s.fair.Admit(p.session, p.size.units()) {
			left.add(p.session, leases)
			s.queue[rest] = p
			rest++
			continue
		}
		p.state.take()
		addLeases(c.leases, leases)
		sum.jobs += p.size.jobs
		sum.bytes += p.size.bytes
		c.units += p.size.units()
		c.writes = append(c.writes, p)
		if s.writeCommits > 1 && p.session != nil {
			c.sessions[p.session] = struct{}{}
		}
	}
	rest += copy(s.queue[rest:], s.queue[i:])
	clear(s.queue[rest:])
	s.queue = s.queue[:rest]
}

// leftInQueue has the sessions and the leases of the writes that a commit leaves in the queue. Later writes of these sessions, or about
// these leases, stay behind them.
type leftInQueue struct {
	sessions map[*quota.Session]struct{}
	leases   map[backends.Token]struct{}
}

func (l *leftInQueue) add(session *quota.Session, leases []backends.Lease) {
	if l.sessions == nil {
		l.sessions, l.leases = map[*quota.Session]struct{}{}, map[backends.Token]struct{}{}
	}
	if session != nil { // releases of different jobs have no order
		l.sessions[session] = struct{}{}
	}
	addLeases(l.leases, leases)
}

func (l *leftInQueue) precedes(session *quota.Session, leases []backends.Lease) bool {
	_, same := l.sessions[session]
	return same || hasLease(l.leases, leases)
}

// committing reports whether a commit under way beside c has writes of the session.
func (s *scheduler) committing(c *writeCommit, session *quota.Session) bool {
	return session != nil && slices.ContainsFunc(s.underWay, func(other *writeCommit) bool {
		_, yes := other.sessions[session]
		return yes && other != c
	})
}

// takenLease reports whether a commit, this one or one under way, has one of the leases.
func (s *scheduler) takenLease(leases []backends.Lease) bool {
	return slices.ContainsFunc(s.underWay, func(c *writeCommit) bool { return hasLease(c.leases, leases) })
}

func addLeases(to map[backends.Token]struct{}, leases []backends.Lease) {
	for i := range leases {
		to[leases[i].Token] = struct{}{}
	}
}

func hasLease(all map[backends.Token]struct{}, leases []backends.Lease) bool {
	return slices.ContainsFunc(leases, func(l backends.Lease) bool { _, has := all[l.Token]; return has })
}

// work returns the session of the i-th queued write, its units, and how many of them are settled jobs.
func (s *scheduler) work(i int) (session *quota.Session, units, settled int) {
	p := s.queue[i]
	return p.session, p.size.units(), p.size.settled
}

// join decides whether the commit includes claims.
func (s *scheduler) join(c *writeCommit) {
	jobs := 0
	for _, p := range c.writes {
		jobs += p.size.jobs
	}
	if s.joinJobs > 0 && jobs > 0 {
		c.separates = s.joined && jobs > s.joinJobs
		s.joined = jobs <= s.joinJobs
	}
	c.claims = s.joined && s.beginClaims()
}

// beginClaims begins the one commit with claims. It returns false if one is under way, after which endClaims wakes the loop.
func (s *scheduler) beginClaims() bool {
	if s.claiming {
		return false
	}
	s.claiming = true
	return true
}

// separateClaims begins a commit of claims alone. It returns false if the commits of writes include them, or if a commit has
// claims already.
func (s *scheduler) separateClaims() bool { return !s.joined && s.beginClaims() }

// endClaims ends the one commit with claims. joined reports whether commits of writes include the next ones.
func (s *scheduler) endClaims() (joined bool) {
	s.claiming = false
	return s.joined
}

// noteCrowd counts the sessions that settle in a commit.
func (s *scheduler) noteCrowd(writes []*PendingWrite) {
	n := 0
	if len(writes) >= crowdFrom { // otherwise there can't be so many sessions
		defer clear(s.sessions)
		for _, p := range writes {
			if p.session != nil && len(backends.LeasesOf(p.write)) > 0 {
				s.sessions[p.session] = struct{}{}
			}
		}
		n = len(s.sessions)
	}
	s.crowd = max(n, s.crowd-s.crowd/8-1)
}

// crowded reports whether so many sessions settle that a worker should send its settle and its next claim in one request.
func (s *scheduler) crowded() bool { return s.crowd >= crowdFrom }

// ended continues after a commit that the executor has carried out. The next one possibly waits a moment; see linger.
func (s *scheduler) ended(c *writeCommit, now time.Duration) {
	others := s.countWaiting(c.writes)
	took, large := c.end-c.began, s.writeCommits > 1 && c.units >= overlapUnits
	if s.cancel(c); len(s.underWay) > 0 || large || s.stopped {
		return
	}
	s.beginLinger(now, others, s.plan.plan(others, took))
}

// cancel ends a commit that had nothing to do.
func (s *scheduler) cancel(c *writeCommit) {
	s.underWay = slices.DeleteFunc(s.underWay, func(other *writeCommit) bool { return other == c })
	if len(s.underWay) == 0 {
		s.missing = 0
	}
	clear(c.leases)
	clear(c.sessions)
	*c = writeCommit{leases: c.leases, sessions: c.sessions}
	s.spare = c
}

// countWaiting counts the writes of sessions that waited for this commit: they did not use up their share, and queued
// nothing during it.
func (s *scheduler) countWaiting(writes []*PendingWrite) (n int) {
	defer clear(s.sessions) // it must not keep sessions that end
	for _, p := range s.queue {
		s.sessions[p.session] = struct{}{}
	}
	for _, p := range writes {
		if _, goesOn := s.sessions[p.session]; !goesOn && !s.fair.Over(p.session) {
			n++
		}
	}
	return n
}

// putBack queues writes of a failed commit again, in the order in which all writes were pushed. It returns those whose time is
// over.
func (s *scheduler) putBack(writes []*PendingWrite) (over []*PendingWrite) {
	again, over := requeue(writes)
	slices.SortFunc(again, func(a, b *PendingWrite) int { return cmp.Compare(a.position, b.position) })
	all := make([]*PendingWrite, 0, len(again)+len(s.queue))
	for _, p := range s.queue {
		for len(again) > 0 && again[0].position < p.position {
			all, again = append(all, again[0]), again[1:]
		}
		all = append(all, p)
	}
	all = append(all, again...)
	s.queue = all
	return over
}

// requeue divides the writes of a failed commit into those that are queued again, and those whose time is over.
func requeue(writes []*PendingWrite) (again, over []*PendingWrite) {
	for _, p := range writes {
		if p.state.putBack() {
			again = append(again, p)
		} else {
			over = append(over, p)
		}
	}
	return again, over
}

// setAside queues a write of a commit among the locked ones. It reports whether it is the first of them, and returns it if its
// time is over.
func (s *scheduler) setAside(p *PendingWrite) (first bool, over []*PendingWrite) {
	again, over := requeue([]*PendingWrite{p})
	s.locked = append(s.locked, again...)
	s.lockedLeft += len(again)
	return s.lockedLeft == 1 && len(again) == 1, over
}

// takeLocked removes the first locked write from their queue, or else the first ones that fit into one commit. It
// returns them without those that no session waits for, and how many it removed. A commit has each lease once. Later writes of
// others don't wait for the next one.
func (s *scheduler) takeLocked(alone bool) (writes []*PendingWrite, n int) {
	leases := map[backends.Token]struct{}{}
	var sum size
	var left leftInQueue
	i, rest := 0, 0
	for ; i < len(s.locked); i++ {
		p := s.locked[i]
		if n > 0 && (alone || n == batchWrites || sum.jobs+p.size.jobs > batchJobs || sum.bytes+p.size.bytes > batchBytes) {
			break
		}
		own := backends.LeasesOf(p.write)
		if left.precedes(p.session, own) || hasLease(leases, own) {
			left.add(p.session, own)
			s.locked[rest] = p
			rest++
			continue
		}
		addLeases(leases, own)
		n++
		if p.state.take() {
			sum.jobs += p.size.jobs
			sum.bytes += p.size.bytes
			writes = append(writes, p)
		}
	}
	rest += copy(s.locked[rest:], s.locked[i:])
	clear(s.locked[rest:])
	s.locked = s.locked[:rest]
	return writes, n
}

// endLocked ends the commit of n locked writes. It reports whether none are left.
func (s *scheduler) endLocked(n int) (done bool) {
	s.lockedLeft -= n
	return s.lockedLeft == 0
}

// takeAll removes every queued write, and returns those that a session waits for.
func (s *scheduler) takeAll() []*PendingWrite {
	all := slices.DeleteFunc(s.queue, func(p *PendingWrite) bool { return !p.state.take() })
	s.queue = nil
	return all
}

// queued counts the writes that no commit has taken yet.
func (s *scheduler) queued() int { return len(s.queue) + len(s.locked) }

// A loop that always commits immediately splits its workers into two halves: one half is in the commit, the other
// comes back during it. Each commit then carries half of what it could. So after a commit of several writes the loop
// lingers: it waits a moment for the next writes of the workers that it has answered. Twice as many jobs share an
// fsync then. On a fully loaded machine the wait costs nothing, because the workers use that time (bench/README.md
// has the figures). If the workers do not come back soon, because their jobs take time, the loop stops lingering. It doesn't
// wait for sessions that queued writes during the commit: their workers don't wait for the replies.
const (
	lingerFrom = 4                    // minimum number of writes in the last commit that counts as a group of workers
	lingerMost = 2 * time.Millisecond // and never longer than twice the last commit
	lingerSkip = 256                  // commits without a wait, at most, after waits in vain
)

// linger is a wait for writes after a commit.
type linger struct {
	until    time.Duration // 0: none
	before   int           // scheduler.arrived at its beginning
	expected int           // writes
}

// beginLinger waits until `wanted` more writes are queued, or the next commit is full, for at most most. Writes of sessions
// that used up their share do not count.
func (s *scheduler) beginLinger(now time.Duration, wanted int, most time.Duration) {
	if most == 0 {
		return
	}
	s.linger = linger{until: now + most, before: s.arrived, expected: max(min(wanted, batchWrites-len(s.queue)), 0)}
	s.wakeAt = s.arrived + s.linger.expected
}

// lingers reports whether the wait goes on. If not, the plan learns from it.
func (s *scheduler) lingers(now time.Duration) bool {
	l := s.linger
	if l.until == 0 {
		return false
	}
	if s.arrived < s.wakeAt && now < l.until && !s.stopped {
		return true
	}
	s.plan.learn(s.arrived-l.before, l.expected)
	s.linger, s.wakeAt = linger{}, 0
	return false
}

// lingerPlan decides whether to linger after a commit.
type lingerPlan struct {
	vain int // number of consecutive waits in vain
	skip int // number of coming commits without a wait
}

// plan returns the maximum time to linger after a commit of that many writes and that duration.
func (l *lingerPlan) plan(writes int, took time.Duration) time.Duration {
	if writes < lingerFrom {
		return 0
	}
	if l.skip > 0 {
		l.skip--
		return 0
	}
	return min(2*took, lingerMost)
}

// learn records how many of the expected writes came. Clients that send at their own pace also send during a wait. Since a
// wait is at most twice as long as the commit, that is up to two thirds of the expected writes. Only more than that shows
// that the answered clients came back.
func (l *lingerPlan) learn(came, wanted int) {
	if 5*came >= 4*wanted {
		l.vain = 0
		return
	}
	l.vain++
	l.skip = min(1<<min(l.vain, 16), lingerSkip)
}
