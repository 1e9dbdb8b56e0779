package dispatch

import (
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Config has what a Dispatcher needs. Its functions must not block. They are called while the Dispatcher is locked.
type Config struct {
	Wake           func()                         // the next commit should include claims
	WakePrefetcher func()                         // TakePrefetched has work, now or soon
	Identity       func() backends.Identity       // 0: the heartbeat is late
	Stalled        func(since time.Duration) bool // reports whether the process stood still since Group.Asked
	Clock          func() time.Duration           // of the pace, and of the age of prefetched jobs
	CanPrefetch    bool                           // the backend supports prefetch
	NoPrefetch     func(queue string) bool        // reports whether jobs of the queue must not be prefetched
	Slow           func(queue string) bool        // reports whether claims of the queue can take long, so that they have commits of their own; only asked if NoPrefetch
	Gated          func(queue string) bool        // reports whether the queue has limits: no prefetch, and claims in commits of their own
	Closed         func(queue string) bool        // reports whether the limits let no job of the queue start now, as far as is known
	Full           func(queue string) bool        // reports whether a job of the queue can start only after a settle, as far as is known
	Memory         *quota.Memory                  // counts the payload of prefetched jobs
	MaxBytes       func() int64                   // payload bytes of an answer
}

// Dispatcher holds the claims of one database that have no answer yet, and decides which of them the next commit
// includes.
//
// A commit includes each claim once when it arrives, so that an empty answer always comes from the database. It
// includes the claim again after a notification, in turn. A notification reports that a queue possibly has ready
// jobs, and about how many.
//
// A Dispatcher is a lock around a matcher. No other file uses the lock.
type Dispatcher struct {
	mu      sync.Mutex
	matcher matcher
}

// New returns a Dispatcher without claims.
func New(c Config) *Dispatcher { return &Dispatcher{matcher: newMatcher(c)} }

// Locker returns the lock, for the check that no one holds it for long.
func (d *Dispatcher) Locker() sync.Locker { return &d.mu }

// Add answers a claim with prefetched jobs. If there are none it queues the claim, and answered is false.
func (d *Dispatcher) Add(r *Request, queues []string) (a Answer, answered bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.matcher.add(r, queues)
}

// Wait returns the answer of a queued claim. If over is closed (the end of the claim's wait, a cancel, a hang-up), it requests
// the answer early: it comes immediately, or with the commit under way and possibly with jobs.
func (d *Dispatcher) Wait(over <-chan struct{}, r *Request) Answer {
	var a Answer
	select {
	case a = <-r.answer:
	case <-over:
		d.leave(r)
		a = <-r.answer
	}
	d.matcher.answers.Put(r.answer)
	return a
}

// Jobs returns the answer of a queued claim if it has come and has jobs. Then Wait must not be called.
func (d *Dispatcher) Jobs(r *Request) (a Answer, ok bool) {
	select {
	case a = <-r.answer:
	default:
		return Answer{}, false
	}
	if len(a.Jobs) == 0 {
		r.answer <- a // for Wait
		return Answer{}, false
	}
	d.matcher.answers.Put(r.answer)
	return a, true
}

func (d *Dispatcher) leave(r *Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.matcher.leave(r)
}

// WhenAnswered calls f, which must not block, as soon as a queued claim has its answer.
func (d *Dispatcher) WhenAnswered(r *Request, f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.queue == nil {
		f()
		return
	}
	r.onAnswered = f
}

// Notify reports that the queues possibly have about that many ready jobs together. If a claim waits for one of them, it causes a
// commit.
func (d *Dispatcher) Notify(queues []string, jobs int) {
	d.notify(queues, jobs, announcement{})
}

// Announce is Notify for the jobs that a commit is about to store, and which its own claims get. The caller chooses these afterwards,
// and calls NotifyOthers after the commit.
func (d *Dispatcher) Announce(queues []string, jobs int) {
	d.announce(queues, jobs, announcement{to: joined})
}

// NotifyOthers is Notify for jobs of Announce that are stored now. The claims that have commits of their own could not find them before.
func (d *Dispatcher) NotifyOthers(queues []string, jobs int) {
	d.notify(queues, jobs, announcement{to: own})
}

// Reopen reports that the limits of a queue possibly let jobs start again. It returns whether a claim waits for that.
func (d *Dispatcher) Reopen(queue string) (wanted bool) {
	return d.notify([]string{queue}, someJobs, announcement{reopened: true})
}

func (d *Dispatcher) notify(queues []string, jobs int, a announcement) (wanted bool) {
	if wanted = d.announce(queues, jobs, a); wanted {
		d.matcher.Wake()
	}
	return wanted
}

// announce returns whether a claim waits for one of the queues.
func (d *Dispatcher) announce(queues []string, jobs int, a announcement) (wanted bool) {
	if len(queues) == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.matcher.announce(queues, jobs, a)
}

// NotifyReady is Notify for an unknown number of jobs.
func (d *Dispatcher) NotifyReady(queues []string) { d.Notify(queues, someJobs*len(queues)) }

// Waiting lists the queues that a claim waits for.
func (d *Dispatcher) Waiting() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.matcher.waiting()
}

// Gather chooses the claims that the next commit includes. number returns the number of each slot's token. It uses as much of
// the budget as it needs. Each group must be passed to Deliver, Fail or FailApart. own reports whether GatherOwn has work.
func (d *Dispatcher) Gather(sidecar backends.Identity, number func() uint64, b *Budget) (groups []Group, own bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	groups = d.matcher.gather(sidecar, number, b, false)
	return groups, d.matcher.hasOwnDue()
}

// GatherOwn chooses the claims of one wait queue with a slow queue, or one with limits, for a commit of their own beside the others. One
// such commit runs for each wait queue, and maxOwn in all. The caller calls EndOwn when it has ended.
func (d *Dispatcher) GatherOwn(sidecar backends.Identity, number func() uint64, b *Budget) []Group {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.matcher.gather(sidecar, number, b, true)
}

// EndOwn allows the next commit for the wait queue of a group of GatherOwn, after Deliver or Fail.
func (d *Dispatcher) EndOwn(g Group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.matcher.endOwn(g.queue)
}

// Deliver ends a claim group with the jobs that the database returned: jobs for its claims first, then those
// prefetched. It returns the jobs to release, which count as returning. There is a result for each part of the group.
func (d *Dispatcher) Deliver(g Group, results ...backends.ClaimResult) (back []backends.Job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.matcher.deliver(g, results)
}

// Fail ends a claim group that the database did not answer. Claims that do not wait get the error. The others
// continue to wait, and get the error only if their wait ends before a later commit succeeds.
func (d *Dispatcher) Fail(g Group, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.matcher.fail(g, err, false)
}

// FailApart is Fail for a claim group that got its own error while the rest of the commit succeeded. Its waiting
// claims are included again after the next notification.
func (d *Dispatcher) FailApart(g Group, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.matcher.fail(g, err, true)
}

// FailOnce answers the claims that do not wait, or no longer: nothing can be claimed now.
func (d *Dispatcher) FailOnce(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.matcher.failOnce(err)
}

// Stop answers every claim with err, now and later.
func (d *Dispatcher) Stop(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.matcher.stop(err)
}

// Reroute ends waits with ErrAgain: those in wait queues that are not served here any more, and those of sessions
// that are not allowed to claim there any more. It returns the jobs prefetched for the former.
func (d *Dispatcher) Reroute(served func(queues []string) bool) (back []backends.Job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.matcher.reroute(served)
}

// NoteGate reports that Config.Gated changed for a queue.
func (d *Dispatcher) NoteGate(queue string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for wq := range d.matcher.byQueue[queue] {
		wq.noPrefetch = d.matcher.isDirect(wq.queues)
	}
}

// NoteClaimTime records how long a commit that claims took, from the choice of its claims.
func (d *Dispatcher) NoteClaimTime(took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.matcher.noteClaimTime(took)
}

// TakePrefetched takes the jobs prefetched before limit (0: all) of all wait queues, and drops the idle ones. It also takes
// jobs that waited long enough to be alone. The jobs count as returning. left is true if some wait queues have jobs or are in
// use, or jobs wait.
func (d *Dispatcher) TakePrefetched(limit time.Duration) (out []backends.Job, left bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.matcher.takePrefetched(limit)
}

// MarkReturning counts jobs that go back to the database. Claims that don't wait, and find no job of their queues, are held
// until Returned.
func (d *Dispatcher) MarkReturning(jobs []backends.Job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.matcher.markReturning(jobs)
}

// Returned reports that jobs of these queues are back. Claims that found none are included in the next commit.
func (d *Dispatcher) Returned(queues []string) {
	wanted := d.announce(queues, 1, announcement{})
	d.mu.Lock()
	held := d.matcher.returned(queues)
	d.mu.Unlock()
	if wanted || held {
		d.matcher.Wake()
	}
}

// MarkAdmitting counts groups of these queues in which jobs are about to be admitted. Claims that don't wait, and find no job of these
// queues, are held until Admitted.
func (d *Dispatcher) MarkAdmitting(queues []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range queues {
		d.matcher.admitting[q]++
	}
}

// Admitted reports that the admissions of MarkAdmitting are over, and that the queues in ready have ready jobs.
func (d *Dispatcher) Admitted(queues, ready []string) {
	wanted := d.announce(ready, someJobs*len(ready), announcement{})
	d.mu.Lock()
	held := d.matcher.admitted(queues)
	d.mu.Unlock()
	if wanted || held {
		d.matcher.Wake()
	}
}

// MarkSettling counts a settle under way that frees slots of the caps of these queues. Claims that don't wait, and find no job of these
// queues, are held until Settled.
func (d *Dispatcher) MarkSettling(queues []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range queues {
		d.matcher.settling[q]++
	}
}

// Settled reports that the settle of MarkSettling has ended, or takes long. If it has freed a slot, Reopen comes first.
func (d *Dispatcher) Settled(queues []string) {
	d.mu.Lock()
	held := d.matcher.settled(queues)
	d.mu.Unlock()
	if held {
		d.matcher.Wake()
	}
}

// Snapshot counts the contents of a Dispatcher at one moment.
type Snapshot struct {
	Claims     int  // waiting claims
	IdleClaims int  // those of them that found no job in the last commit that included them
	WaitQueues int  // lists of queues that are known, with waiting claims or without
	Prefetched int  // jobs that are prefetched, or wait to be alone in a session
	Stopped    bool // every claim is refused
}

// Snapshot counts the waiting claims and the prefetched jobs.
func (d *Dispatcher) Snapshot() Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.matcher.snapshot()
}
