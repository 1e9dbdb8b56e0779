package bridge

import (
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// ledger knows the claims that exist under this sidecar's identity: which are on
// their way from the database, which a session holds, which were handed out as
// timed leases. The keeper compares it with the database's rows, and a session's
// end takes from it what is to be given back.
//
// mu also orders "this lease belongs to that session now" with the submission of
// the write that makes it so: see bind and takeSession.
type ledger struct {
	metrics func() *databaseMetrics      // nil: nobody counts
	trace   func(j *backends.Job) string // the trace id for the log

	mu       sync.Mutex
	known    map[backends.Token]*holding
	sessions map[*account]map[backends.Token]*holding
	handed   []handed // from what was claimed ahead, not recorded yet, oldest first
	spare    []map[backends.Token]*holding
}

// maxSpare is how many empty sets are kept for sessions that get a job again.
const maxSpare = 64

// holding is one known claim.
type holding struct {
	lease    backends.Lease
	queue    string        // empty: not known here
	counts   *queueMetrics // the queue's; nil: not known here
	handed   bool          // since is when its worker got it
	since    time.Time     // when the session got it; zero: nobody did
	sess     *account      // nil: in flight, or a timed lease
	onItsWay bool          // its commit is not answered yet
	settling int           // writes under way that may end it
	told     told          // for the log
}

func newLedger(trace func(j *backends.Job) string) *ledger {
	return &ledger{
		trace:    trace,
		known:    make(map[backends.Token]*holding),
		sessions: make(map[*account]map[backends.Token]*holding),
	}
}

// expect registers tokens before the commit that uses them, so that the keeper
// never takes a claim on its way for an unknown one.
func (l *ledger) expect(slots []backends.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range slots {
		l.known[slots[i].Token] = &holding{onItsWay: true}
	}
}

// forget removes tokens whose commit brought nothing.
func (l *ledger) forget(slots []backends.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range slots {
		delete(l.known, slots[i].Token)
	}
}

// give makes jobs the session's (timed: nobody's, but known), which took places for them
// and is told by session.placed that these are theirs now. It reports false,
// and the jobs are still on their way, when the identity they were claimed
// under was dropped meanwhile.
func (l *ledger) give(jobs []backends.Job, sess *account, timed bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range jobs {
		if l.known[jobs[i].Token] == nil {
			return false
		}
	}
	now := time.Now()
	for i := range jobs {
		h := l.known[jobs[i].Token]
		h.lease, h.queue, h.since, h.handed = jobs[i].Lease(), jobs[i].Queue, now, true
		h.counts, h.told = l.counts(h.queue), l.tellOf(&jobs[i])
		h.onItsWay = false
		if !timed {
			l.attach(h, sess)
		}
	}
	return true
}

// claim finds the claim that the lease is of. One with the token of a claim and another
// job's id is none: whoever sent it must not move or end the claim, which was given to
// somebody else or is still on its way to whoever asked for it. l.mu is held.
func (l *ledger) claim(lease backends.Lease) *holding {
	if h := l.known[lease.Token]; h != nil && h.lease.Job == lease.Job {
		return h
	}
	return nil
}

// attach makes h the session's, which has a place for it. l.mu is held.
func (l *ledger) attach(h *holding, sess *account) {
	l.detach(h)
	h.sess = sess
	set := l.sessions[sess]
	if set == nil {
		if last := len(l.spare) - 1; last >= 0 {
			set, l.spare = l.spare[last], l.spare[:last]
		} else {
			set = make(map[backends.Token]*holding)
		}
		l.sessions[sess] = set
	}
	set[h.lease.Token] = h
}

// detach takes h from its session. l.mu is held.
func (l *ledger) detach(h *holding) {
	if h.sess == nil {
		return
	}
	set := l.sessions[h.sess]
	delete(set, h.lease.Token)
	h.sess.jobs.free(1)
	if len(set) == 0 {
		delete(l.sessions, h.sess)
		if len(l.spare) < maxSpare {
			l.spare = append(l.spare, set)
		}
	}
	h.sess = nil
}

// settling marks the leases as being settled, until settled is called with what it
// appended to marked. To runs it appends what is known of each lease's delivery.
func (l *ledger) settling(leases []backends.Lease, marked []*holding, runs []ran) ([]*holding, []ran) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range leases {
		r := ran{took: -1}
		if h := l.claim(lease); h != nil {
			h.settling++
			marked = append(marked, h)
			r.name, r.told = h.queue, h.told
			if r.queue = h.counts; h.handed {
				r.took = now.Sub(h.since)
			}
		}
		runs = append(runs, r)
	}
	return marked, runs
}

// counts are the queue's counters.
func (l *ledger) counts(queue string) *queueMetrics {
	if l.metrics == nil {
		return nil
	}
	return l.metrics().queue(queue)
}

// settled says how a settle ended: gone lists the leases that are no longer held
// (settled or lost).
func (l *ledger) settled(marked []*holding, gone []backends.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range marked {
		h.settling--
	}
	l.drop(gone)
}

// bind makes the leases the session's and calls submit, as one step: a session
// that ends at the same time either releases them before the bind is submitted
// (which then finds them lost) or no longer has them. They count as on their way
// until bound is called. false: the session would hold more than most.
func (l *ledger) bind(leases []backends.Lease, sess *account, most int, submit func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	more := 0
	for _, lease := range leases {
		if h := l.known[lease.Token]; h == nil || h == l.claim(lease) && h.sess != sess {
			more++
		}
	}
	if !sess.jobs.bind(more, most) {
		return false
	}
	for _, lease := range leases {
		h := l.known[lease.Token]
		if h == nil {
			h = &holding{lease: lease, since: time.Now()}
			l.known[lease.Token] = h
		}
		if h != l.claim(lease) {
			continue // it is lost, as the database will say
		}
		h.onItsWay = true
		if h.sess != sess {
			l.attach(h, sess)
		}
	}
	submit()
	return true
}

// bound ends a bind: all but the lost leases are held from now on.
func (l *ledger) bound(leases, lost []backends.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range leases {
		if h := l.claim(lease); h != nil {
			h.onItsWay = false
		}
	}
	l.drop(lost)
}

// drop forgets leases; those of claims that never got to anybody too, which leaving was
// called with. l.mu is held.
func (l *ledger) drop(leases []backends.Lease) {
	for _, lease := range leases {
		h := l.claim(lease)
		if left := l.known[lease.Token]; h == nil && left != nil && left.lease.Job == "" && !left.onItsWay {
			h = left
		}
		if h != nil {
			l.detach(h)
			delete(l.known, lease.Token)
		}
	}
}

// unbind makes leases timed ones: known, nobody's.
func (l *ledger) unbind(leases []backends.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range leases {
		if h := l.claim(lease); h != nil {
			l.detach(h)
		}
	}
}

// takeSession takes all that the session holds and calls submit with it, in one
// step (see bind), and returns it. Nothing held: submit is not called. The claims stay
// known, as being settled, until gone is called with them.
func (l *ledger) takeSession(sess *account, submit func(leases []backends.Lease)) (held []heldJob) {
	l.mu.Lock()
	defer l.mu.Unlock()
	set := l.sessions[sess]
	if len(set) == 0 {
		return nil
	}
	leases := make([]backends.Lease, 0, len(set))
	held = make([]heldJob, 0, len(set))
	for _, h := range set {
		leases, held = append(leases, h.lease), append(held, h.job())
		h.settling++
		h.sess = nil
	}
	delete(l.sessions, sess)
	sess.jobs.free(len(leases))
	submit(leases)
	return held
}

// leaving marks claims that are given back before anybody got them, until gone is
// called with them.
func (l *ledger) leaving(leases []backends.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range leases {
		if h := l.known[lease.Token]; h != nil {
			h.settling++
			h.onItsWay = false
		}
	}
}

// gone forgets claims that are no longer this sidecar's.
func (l *ledger) gone(leases []backends.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(leases)
}

// others reports whether the lease is another session's.
func (l *ledger) others(lease backends.Lease, sess *account) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.claim(lease)
	return h != nil && h.sess != sess
}

// heldBySessions counts the leases that end with a connection, and those on
// their way to one.
func (l *ledger) heldBySessions() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, set := range l.sessions {
		n += len(set)
	}
	return n
}

// count is how many claims are known, on their way or timed ones too.
func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.known)
}

// holds reports whether the session holds a claim.
func (l *ledger) holds(s *account) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sessions[s]) > 0
}

// dropAll forgets everything: the identity was given up, and the database takes
// all of it back. It returns what each session lost.
func (l *ledger) dropAll() map[*account][]heldJob {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := make(map[*account][]heldJob, len(l.sessions))
	for sess, set := range l.sessions {
		for _, h := range set {
			lost[sess] = append(lost[sess], h.job())
		}
		sess.jobs.free(len(set))
	}
	clear(l.known)
	clear(l.sessions)
	l.handed = nil
	return lost
}

// snapshot lists the tokens that are settled in the ledger (not on their way, not
// being settled): those must be in the database too.
func (l *ledger) snapshot() map[backends.Token]struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[backends.Token]struct{}, len(l.known))
	for token, h := range l.known {
		if !h.onItsWay && h.settling == 0 {
			out[token] = struct{}{}
		}
	}
	return out
}

// unknown filters the rows that nobody here knows of; of the others it learns the queues.
func (l *ledger) unknown(rows []backends.ClaimedJob) []backends.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []backends.Lease
	for i := range rows {
		h := l.known[rows[i].Lease.Token]
		if h == nil {
			out = append(out, rows[i].Lease)
		} else if h.counts == nil && !h.onItsWay { // bound here: another sidecar claimed it
			h.queue, h.counts = rows[i].Queue, l.counts(rows[i].Queue)
		}
	}
	return out
}

// dropMissing forgets tokens that the database no longer has under this host, unless they
// are being settled just now, and returns what each session lost by it.
func (l *ledger) dropMissing(tokens map[backends.Token]struct{}) map[*account][]heldJob {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lost map[*account][]heldJob
	for token := range tokens {
		h := l.known[token]
		if h == nil || h.onItsWay || h.settling > 0 {
			continue
		}
		if h.sess != nil {
			if lost == nil {
				lost = make(map[*account][]heldJob)
			}
			lost[h.sess] = append(lost[h.sess], h.job())
		}
		l.detach(h)
		delete(l.known, token)
	}
	return lost
}

// told is what the log says of a claimed job beside its lease. It is known where the job was
// claimed, while it is held: not after a restart, and not of other sidecars' claims.
type told struct {
	id            string // empty: the lease names it
	attempt, most int
	trace         string // its traceparent's id; empty: it has none
}

func (l *ledger) tellOf(j *backends.Job) told {
	return told{id: j.ID, attempt: j.Attempt, most: j.MaxAttempts, trace: l.trace(j)}
}

// heldJob is a claim as it was when somebody looked: holdings change.
type heldJob struct {
	lease backends.Lease
	queue string // empty: not known here
	told  told
}

func (h *holding) job() heldJob { return heldJob{h.lease, h.queue, h.told} }

// ran is a delivery that a worker settles.
type ran struct {
	queue *queueMetrics // nil: not known here
	took  time.Duration // by the worker, until it settled; negative: not known here
	name  string        // the queue's; empty: not known here
	told  told          // for the log
}
