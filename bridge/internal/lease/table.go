package lease

import (
	"cmp"
	"iter"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Table records the claims that exist under this sidecar's identity: those in flight from the database, those that
// a session holds, and those handed out with a timed lease. The heartbeater compares it with the rows of the
// database. The end of a session takes from it what the session held.
//
// The lock also orders "this lease belongs to that session" with the submission of the write that makes it so. See
// Bind and TakeSession.
type Table struct {
	Metrics func() *metrics.Database                               // nil: nothing is counted
	trace   func(headers map[string]string) (parent, state string) // see protocol.TraceContext

	mu       sync.Mutex
	entries  map[backends.Token]*Entry
	sessions map[*quota.Session]*Entry // the first claim that the session holds; next has the others
	handOuts []handOut                 // of prefetched jobs, not recorded in the database yet, oldest first
}

// Entry is one known claim. Its fields have these states:
//
//	state                          inFlight  delivered  session  settling  begun by                ended by
//	in flight to the database      yes       no         nil      0         Expect                  Give, Forget, BeginReturn
//	on its way back, not given     no        no         nil      1         BeginReturn             Remove
//	held by a session              no        yes        set      0         Give, EndBind           TakeSession, Unbind, Orphan, EndSettle, DropMissing, Cancel
//	bound, not known yet           yes       any        set      any       Bind                    EndBind
//	timed                          no        yes        nil      0         Give, Unbind, Orphan    EndSettle, DropMissing, Cancel
//	being settled                  no        any        any      1 or more BeginSettle             EndSettle
//	released with its session      no        any        nil      1 or more TakeSession             Remove
//
// An identity that was declared dead ends all of them: DropAll.
type Entry struct {
	lease     backends.Lease
	queue     string         // empty: not known here
	counters  *metrics.Queue // of the queue; nil: not known here
	delivered bool           // a worker has had it since the time in since
	since     time.Time      // when the session got it; zero: no session did
	session   *quota.Session // nil: in flight, or a timed lease
	prev      *Entry         // of the claims that the session holds
	next      *Entry
	alone     bool // see backends.Job.Alone
	inFlight  bool // its commit has not been answered yet
	settling  int  // writes under way that can end it
	info      Info
}

// NewTable returns an empty table. trace returns the traceparent and the tracestate in a job's headers, or empty strings.
func NewTable(trace func(headers map[string]string) (parent, state string)) *Table {
	return &Table{
		trace:    trace,
		entries:  make(map[backends.Token]*Entry),
		sessions: make(map[*quota.Session]*Entry),
	}
}

// Expect registers tokens before the commit that uses them, so that the heartbeater never takes a claim in flight
// for an unknown one.
func (t *Table) Expect(slots []backends.Slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range slots {
		t.entries[slots[i].Token] = &Entry{inFlight: true}
	}
}

// Forget removes tokens for which the commit claimed no job.
func (t *Table) Forget(slots []backends.Slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range slots {
		delete(t.entries, slots[i].Token)
	}
}

// Give records that jobs belong to the session, which has reserved quota for them. A timed lease belongs to no
// session. If the identity of the claims was declared dead, Give returns false and changes nothing.
func (t *Table) Give(jobs []backends.Job, sess *quota.Session, timed bool, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	var few [4]*Entry
	found := few[:0]
	for i := range jobs {
		h := t.entries[jobs[i].Token]
		if h == nil {
			return false
		}
		found = append(found, h)
	}
	for i, h := range found {
		h.lease, h.queue, h.since, h.delivered = jobs[i].Lease(), jobs[i].Queue, now, true
		h.counters, h.info, h.alone = t.countersOf(h.queue), t.infoOf(&jobs[i]), jobs[i].Alone
		h.inFlight = false
		if !timed {
			t.attach(h, sess)
		}
	}
	return true
}

// find returns the claim of the lease, or nil. A lease with a claim's token and another job's id is forged: it
// must not move or end the claim. t.mu is held.
func (t *Table) find(lease backends.Lease) *Entry {
	if h := t.entries[lease.Token]; h != nil && h.lease.Job == lease.Job {
		return h
	}
	return nil
}

// attach assigns h to the session, which has quota for it. t.mu is held.
func (t *Table) attach(h *Entry, sess *quota.Session) {
	t.detach(h)
	h.session, h.next = sess, t.sessions[sess]
	if h.next != nil {
		h.next.prev = h
	}
	t.sessions[sess] = h
	if h.alone {
		sess.Jobs.BindAlone()
	}
}

// detach takes h from its session and releases the quota. t.mu is held.
func (t *Table) detach(h *Entry) {
	if h.session == nil {
		return
	}
	switch {
	case h.prev != nil:
		h.prev.next = h.next
	case h.next != nil:
		t.sessions[h.session] = h.next
	default:
		delete(t.sessions, h.session)
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	h.session.ReleaseJobs(1)
	h.session, h.prev, h.next = nil, nil, nil
}

// heldBy iterates over the claims that a session holds. The loop can detach the current one. t.mu is held.
func (t *Table) heldBy(sess *quota.Session) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for h := t.sessions[sess]; h != nil; {
			next := h.next
			if !yield(h) {
				return
			}
			h = next
		}
	}
}

// BeginSettle marks the leases as being settled until EndSettle. It excludes no other settle of them: the scheduler of package pipeline
// keeps two writes about a lease apart (takenLease). It appends the known claims to marked, and the
// details of each lease's delivery to runs.
func (t *Table) BeginSettle(leases []backends.Lease, marked []*Entry, runs []Run) ([]*Entry, []Run) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lease := range leases {
		r := Run{Took: -1, Held: Held{Lease: lease}}
		if h := t.find(lease); h != nil {
			h.settling++
			marked = append(marked, h)
			r.Held = h.held()
			if r.Counters = h.counters; h.delivered {
				r.Took = now.Sub(h.since)
			}
		}
		runs = append(runs, r)
	}
	return marked, runs
}

// countersOf returns the counters of the queue.
func (t *Table) countersOf(queue string) *metrics.Queue {
	if t.Metrics == nil {
		return nil
	}
	return t.Metrics().Queue(queue)
}

// EndSettle ends a settle. gone are the leases that no session holds any more, settled or lost.
func (t *Table) EndSettle(marked []*Entry, gone []backends.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range marked {
		h.settling--
	}
	t.drop(gone)
}

// Bind assigns the leases to the session and calls submit, in one step. A session that ends at the same time either
// releases them before the bind is submitted, which then finds them lost, or no longer has them. The leases count as
// in flight until EndBind. Bind returns false if the session would hold more than most jobs.
func (t *Table) Bind(leases []backends.Lease, sess *quota.Session, most int, submit func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	more := 0
	for _, lease := range leases {
		if h := t.entries[lease.Token]; h == nil || h == t.find(lease) && h.session != sess {
			more++
		}
	}
	if !sess.Jobs.Bind(more, most) {
		return false
	}
	for _, lease := range leases {
		h := t.entries[lease.Token]
		if h == nil {
			h = &Entry{lease: lease, since: time.Now()}
			t.entries[lease.Token] = h
		}
		if h != t.find(lease) {
			continue // it is lost, which the database will report
		}
		h.inFlight = true
		if h.session != sess {
			t.attach(h, sess)
		}
	}
	submit()
	return true
}

// EndBind ends a bind: the session holds all leases except the lost ones. The jobs of some must be alone.
func (t *Table) EndBind(leases, lost, alone []backends.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lease := range alone {
		if h := t.find(lease); h != nil && h.session != nil {
			h.alone = true
			h.session.Jobs.BindAlone()
		}
	}
	for _, lease := range leases {
		if h := t.find(lease); h != nil {
			h.inFlight = false
		}
	}
	t.drop(lost)
}

// drop removes leases, including those of claims that were never handed out, after BeginReturn. t.mu is held.
func (t *Table) drop(leases []backends.Lease) {
	for _, lease := range leases {
		h := t.entries[lease.Token]
		if h != nil && (h.lease.Job == lease.Job || h.lease.Job == "" && !h.inFlight) {
			t.detach(h)
			delete(t.entries, lease.Token)
		}
	}
}

// Unbind turns leases into timed ones, which belong to no session.
func (t *Table) Unbind(leases []backends.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lease := range leases {
		if h := t.find(lease); h != nil {
			t.detach(h)
		}
	}
}

// Orphan turns all leases that the session holds into timed ones, which belong to no session.
func (t *Table) Orphan(sess *quota.Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for h := range t.heldBy(sess) {
		t.detach(h)
	}
}

// TakeSession takes all leases that the session holds and calls submit with them, in one step (see Bind). With idle, it
// leaves those that are being settled or bound. If there are none, submit is not called. The claims count as being settled until
// Remove.
func (t *Table) TakeSession(sess *quota.Session, idle bool, submit func(leases []backends.Lease, held []Held)) (held []Held) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var leases []backends.Lease
	for h := range t.heldBy(sess) {
		if idle && (h.settling > 0 || h.inFlight) {
			continue
		}
		leases, held = append(leases, h.lease), append(held, h.held())
		h.settling++
		t.detach(h)
	}
	if len(held) > 0 {
		submit(leases, held)
	}
	return held
}

// BeginReturn marks claims whose jobs are released without a hand-out, until Remove.
func (t *Table) BeginReturn(leases []backends.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lease := range leases {
		if h := t.entries[lease.Token]; h != nil {
			h.settling++
			h.inFlight = false
		}
	}
}

// Remove removes claims that are no longer this sidecar's.
func (t *Table) Remove(leases []backends.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(leases)
}

// Has reports whether the lease is one that a worker of this sidecar has.
func (t *Table) Has(lease backends.Lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.find(lease)
	return h != nil && !h.inFlight
}

// HeldByOther reports whether the lease is another session's.
func (t *Table) HeldByOther(lease backends.Lease, sess *quota.Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.find(lease)
	return h != nil && h.session != sess
}

// HeldBySessions counts the leases that sessions hold.
func (t *Table) HeldBySessions() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, h := range t.entries {
		if h.session != nil {
			n++
		}
	}
	return n
}

// HasDelivered reports whether a worker of this sidecar has a job of the queue.
func (t *Table) HasDelivered(queue string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.entries {
		if h.delivered && h.queue == queue {
			return true
		}
	}
	return false
}

// SessionsHold reports whether a session holds a lease of a job of the queue.
func (t *Table) SessionsHold(queue string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.entries {
		if h.session != nil && h.queue == queue {
			return true
		}
	}
	return false
}

// Count returns how many claims are known, including claims in flight and timed leases.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.entries)
}

// Holds reports whether the session holds a claim.
func (t *Table) Holds(s *quota.Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[s] != nil
}

// Info holds the values of a claimed job that logs and job events report besides its lease. Only the sidecar that
// claimed the job has them, and only while the job is held: not after a restart.
type Info struct {
	ID                   string // empty: the lease names it
	Attempt, MaxAttempts int
	TraceParent          string // empty: it has none
	TraceState           string // also
	EnqueuedAt           time.Time
}

func (t *Table) infoOf(j *backends.Job) Info {
	parent, state := t.trace(j.Headers)
	return Info{ID: j.ID, Attempt: j.Attempt, MaxAttempts: j.MaxAttempts, TraceParent: parent, TraceState: state, EnqueuedAt: j.EnqueuedAt}
}

// Held is a copy of a claim that a session holds or held.
type Held struct {
	Lease backends.Lease
	Queue string    // empty: not known here
	Since time.Time // when the session got it; zero: not known here
	Info  Info
}

// ID returns the job's id.
func (h *Held) ID() string { return cmp.Or(h.Info.ID, h.Lease.Job) }

func (e *Entry) held() Held { return Held{e.lease, e.queue, e.since, e.info} }

// Run is a delivery that a worker settles.
type Run struct {
	Held
	Counters *metrics.Queue // nil: not known here
	Took     time.Duration  // by the worker, until it settled; negative: not known here
}
