package lease

import (
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Table knows the claims that exist under this sidecar's identity: which are on
// their way from the database, which a session holds, which were handed out as
// timed leases. The heartbeater compares it with the database's rows, and a session's
// end takes from it what is to be given back.
//
// mu also orders "this lease belongs to that session now" with the submission of
// the write that makes it so: see bind and takeSession.
type Table struct {
	Metrics func() *metrics.Database     // nil: nobody counts
	trace   func(j *backends.Job) string // the trace id for the log

	mu       sync.Mutex
	entries  map[backends.Token]*Entry
	sessions map[*quota.Session]map[backends.Token]*Entry
	handOuts []handOut // from what was prefetched, not recorded yet, oldest first
	spare    []map[backends.Token]*Entry
}

// maxSpare is how many empty sets are kept for sessions that get a job again.
const maxSpare = 64

// Entry is one known claim.
type Entry struct {
	lease     backends.Lease
	queue     string         // empty: not known here
	counters  *metrics.Queue // the queue's; nil: not known here
	delivered bool           // since is when its worker got it
	since     time.Time      // when the session got it; zero: nobody did
	session   *quota.Session // nil: in flight, or a timed lease
	inFlight  bool           // its commit is not answered yet
	settling  int            // writes under way that may end it
	info      Info           // for the log
}

func NewTable(trace func(j *backends.Job) string) *Table {
	return &Table{
		trace:    trace,
		entries:  make(map[backends.Token]*Entry),
		sessions: make(map[*quota.Session]map[backends.Token]*Entry),
	}
}

// Expect registers tokens before the commit that uses them, so that the heartbeater
// never takes a claim on its way for an unknown one.
func (l *Table) Expect(slots []backends.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range slots {
		l.entries[slots[i].Token] = &Entry{inFlight: true}
	}
}

// Forget removes tokens whose commit brought nothing.
func (l *Table) Forget(slots []backends.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range slots {
		delete(l.entries, slots[i].Token)
	}
}

// Give makes jobs the session's (timed: no session's, but known), which took places for them
// and is told by session.placed that these are theirs now. It reports false,
// and the jobs are still on their way, when the identity they were claimed
// under was dropped since then.
func (l *Table) Give(jobs []backends.Job, sess *quota.Session, timed bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range jobs {
		if l.entries[jobs[i].Token] == nil {
			return false
		}
	}
	now := time.Now()
	for i := range jobs {
		h := l.entries[jobs[i].Token]
		h.lease, h.queue, h.since, h.delivered = jobs[i].Lease(), jobs[i].Queue, now, true
		h.counters, h.info = l.countersOf(h.queue), l.infoOf(&jobs[i])
		h.inFlight = false
		if !timed {
			l.attach(h, sess)
		}
	}
	return true
}

// find finds the claim that the lease is of. One with the token of a claim and another
// job's id is none: whoever sent it must not move or end the claim, which was given to
// somebody else or is still on its way to whoever asked for it. l.mu is held.
func (l *Table) find(lease backends.Lease) *Entry {
	if h := l.entries[lease.Token]; h != nil && h.lease.Job == lease.Job {
		return h
	}
	return nil
}

// attach makes h the session's, which has a place for it. l.mu is held.
func (l *Table) attach(h *Entry, sess *quota.Session) {
	l.detach(h)
	h.session = sess
	set := l.sessions[sess]
	if set == nil {
		if last := len(l.spare) - 1; last >= 0 {
			set, l.spare = l.spare[last], l.spare[:last]
		} else {
			set = make(map[backends.Token]*Entry)
		}
		l.sessions[sess] = set
	}
	set[h.lease.Token] = h
}

// detach takes h from its session. l.mu is held.
func (l *Table) detach(h *Entry) {
	if h.session == nil {
		return
	}
	set := l.sessions[h.session]
	delete(set, h.lease.Token)
	h.session.Jobs.Release(1)
	if len(set) == 0 {
		delete(l.sessions, h.session)
		if len(l.spare) < maxSpare {
			l.spare = append(l.spare, set)
		}
	}
	h.session = nil
}

// BeginSettle marks the leases as being settled, until settled is called with what it
// appended to marked. To runs it appends what is known of each lease's delivery.
func (l *Table) BeginSettle(leases []backends.Lease, marked []*Entry, runs []Run) ([]*Entry, []Run) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range leases {
		r := Run{Took: -1}
		if h := l.find(lease); h != nil {
			h.settling++
			marked = append(marked, h)
			r.Queue, r.Info = h.queue, h.info
			if r.Counters = h.counters; h.delivered {
				r.Took = now.Sub(h.since)
			}
		}
		runs = append(runs, r)
	}
	return marked, runs
}

// countersOf are the queue's counters.
func (l *Table) countersOf(queue string) *metrics.Queue {
	if l.Metrics == nil {
		return nil
	}
	return l.Metrics().Queue(queue)
}

// EndSettle says how a settle ended: gone lists the leases that are no longer held
// (settled or lost).
func (l *Table) EndSettle(marked []*Entry, gone []backends.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range marked {
		h.settling--
	}
	l.drop(gone)
}

// Bind makes the leases the session's and calls submit, as one step: a session
// that ends at the same time either releases them before the bind is submitted
// (which then finds them lost) or no longer has them. They count as on their way
// until bound is called. false: the session would hold more than most.
func (l *Table) Bind(leases []backends.Lease, sess *quota.Session, most int, submit func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	more := 0
	for _, lease := range leases {
		if h := l.entries[lease.Token]; h == nil || h == l.find(lease) && h.session != sess {
			more++
		}
	}
	if !sess.Jobs.Bind(more, most) {
		return false
	}
	for _, lease := range leases {
		h := l.entries[lease.Token]
		if h == nil {
			h = &Entry{lease: lease, since: time.Now()}
			l.entries[lease.Token] = h
		}
		if h != l.find(lease) {
			continue // it is lost, as the database will say
		}
		h.inFlight = true
		if h.session != sess {
			l.attach(h, sess)
		}
	}
	submit()
	return true
}

// EndBind ends a bind: all but the lost leases are held from now on.
func (l *Table) EndBind(leases, lost []backends.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range leases {
		if h := l.find(lease); h != nil {
			h.inFlight = false
		}
	}
	l.drop(lost)
}

// drop forgets leases; those of claims that never got to anybody too, which leaving was
// called with. l.mu is held.
func (l *Table) drop(leases []backends.Lease) {
	for _, lease := range leases {
		h := l.find(lease)
		if left := l.entries[lease.Token]; h == nil && left != nil && left.lease.Job == "" && !left.inFlight {
			h = left
		}
		if h != nil {
			l.detach(h)
			delete(l.entries, lease.Token)
		}
	}
}

// Unbind makes leases timed ones: known, no session's.
func (l *Table) Unbind(leases []backends.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range leases {
		if h := l.find(lease); h != nil {
			l.detach(h)
		}
	}
}

// TakeSession takes all that the session holds and calls submit with it, in one
// step (see bind), and returns it. Nothing held: submit is not called. The claims stay
// known, as being settled, until gone is called with them.
func (l *Table) TakeSession(sess *quota.Session, submit func(leases []backends.Lease)) (held []Held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	set := l.sessions[sess]
	if len(set) == 0 {
		return nil
	}
	leases := make([]backends.Lease, 0, len(set))
	held = make([]Held, 0, len(set))
	for _, h := range set {
		leases, held = append(leases, h.lease), append(held, h.held())
		h.settling++
		h.session = nil
	}
	delete(l.sessions, sess)
	sess.Jobs.Release(len(leases))
	submit(leases)
	return held
}

// BeginReturn marks claims that are given back before anybody got them, until gone is
// called with them.
func (l *Table) BeginReturn(leases []backends.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range leases {
		if h := l.entries[lease.Token]; h != nil {
			h.settling++
			h.inFlight = false
		}
	}
}

// Remove forgets claims that are no longer this sidecar's.
func (l *Table) Remove(leases []backends.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(leases)
}

// HeldByOther reports whether the lease is another session's.
func (l *Table) HeldByOther(lease backends.Lease, sess *quota.Session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.find(lease)
	return h != nil && h.session != sess
}

// HeldBySessions counts the leases that end with a connection, and those on
// their way to one.
func (l *Table) HeldBySessions() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, set := range l.sessions {
		n += len(set)
	}
	return n
}

// Count is how many claims are known, on their way or timed ones too.
func (l *Table) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

// Holds reports whether the session holds a claim.
func (l *Table) Holds(s *quota.Session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sessions[s]) > 0
}

// Info is what the log says of a claimed job beside its lease. It is known where the job was
// claimed, while it is held: not after a restart, and not of other sidecars' claims.
type Info struct {
	ID                   string // empty: the lease names it
	Attempt, MaxAttempts int
	TraceID              string // its traceparent's id; empty: it has none
}

func (l *Table) infoOf(j *backends.Job) Info {
	return Info{ID: j.ID, Attempt: j.Attempt, MaxAttempts: j.MaxAttempts, TraceID: l.trace(j)}
}

// Held is a claim as it was when somebody looked: holdings change.
type Held struct {
	Lease backends.Lease
	Queue string // empty: not known here
	Info  Info
}

func (h *Entry) held() Held { return Held{h.lease, h.queue, h.info} }

// Run is a delivery that a worker settles.
type Run struct {
	Counters *metrics.Queue // nil: not known here
	Took     time.Duration  // by the worker, until it settled; negative: not known here
	Queue    string         // the queue's; empty: not known here
	Info     Info           // for the log
}
