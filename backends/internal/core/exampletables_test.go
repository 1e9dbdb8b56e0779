package core_test

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// The example engine keeps its tables in maps. It shows the author of a new engine what a
// driver has to do, and it proves that the core needs no more: it passes the conformance
// suite. Transactions run one after the other, each on a copy of the tables that replaces
// them when it commits.

// jobRow is a row of the table of jobs.
type jobRow struct {
	id                           int64
	queue, key                   string
	state                        backends.State
	payload, result              []byte
	headers                      map[string]string
	priority                     int16
	position, fence              int64
	maxAttempts                  int // the job's own; 0: the queue's
	timeout                      time.Duration
	enqueued, ready, runAt       time.Time
	claimed, finished, expires   time.Time
	deadline, due                time.Time // zero: none
	attempts, losses, unrecorded int       // attempts includes recorded deliveries only
	prefetched                   bool
	policy                       backends.Policy // of the claim; MaxAttempts is the effective one
	token                        backends.Token
	owner                        backends.Identity
	lease                        time.Duration
	worker                       string
	failures                     []backends.Failure
}

func (j *jobRow) urgency() int32 { return -int32(j.priority) }

// unclaim removes the claim from the row.
func (j *jobRow) unclaim() {
	j.token, j.owner, j.lease, j.worker, j.prefetched = backends.Token{}, 0, 0, "", false
	j.deadline, j.due, j.claimed = time.Time{}, time.Time{}, time.Time{}
}

type keyRow struct {
	job     int64
	state   backends.State // of a job that ended; empty: see the job
	expires time.Time
}

type queueRow struct {
	paused  bool
	returns int64
}

type sidecarRow struct {
	heartbeats uint64
	last       backends.Heartbeat
	expires    time.Time
	dead, left bool
}

type keyName struct{ queue, key string }

// tables are the database.
type tables struct {
	jobs     map[int64]*jobRow
	keys     map[keyName]keyRow
	queues   map[string]queueRow
	sidecars map[backends.Identity]sidecarRow
	hours    []backends.HourTotals
	notes    map[backends.Identity][]backends.Token // cancelled claims
	last     int64                                  // id or position
}

func newTables() *tables {
	return &tables{jobs: map[int64]*jobRow{}, keys: map[keyName]keyRow{}, queues: map[string]queueRow{}, sidecars: map[backends.Identity]sidecarRow{}, notes: map[backends.Identity][]backends.Token{}}
}

func (t *tables) clone() *tables {
	c := &tables{jobs: make(map[int64]*jobRow, len(t.jobs)), keys: maps.Clone(t.keys), queues: maps.Clone(t.queues), sidecars: maps.Clone(t.sidecars), hours: slices.Clone(t.hours), notes: map[backends.Identity][]backends.Token{}, last: t.last}
	for owner, claims := range t.notes {
		c.notes[owner] = slices.Clone(claims)
	}
	for id, r := range t.jobs {
		row := *r
		row.failures = slices.Clone(r.failures)
		c.jobs[id] = &row
	}
	return c
}

func (t *tables) next() int64 {
	t.last++
	return t.last
}

// find returns rows in an order.
func (t *tables) find(which func(r *jobRow) bool, order func(a, b *jobRow) int) (all []*jobRow) {
	for _, r := range t.jobs {
		if which(r) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *jobRow) int { return cmp.Or(order(a, b), cmp.Compare(a.id, b.id)) })
	return all
}

func inState(queue string, state backends.State) func(r *jobRow) bool {
	return func(r *jobRow) bool { return r.queue == queue && r.state == state }
}

// orderOf returns the order in which jobs of a state are listed.
func orderOf(state backends.State) func(a, b *jobRow) int {
	switch state {
	case backends.StateReady:
		return func(a, b *jobRow) int {
			return cmp.Or(cmp.Compare(a.urgency(), b.urgency()), cmp.Compare(a.position, b.position))
		}
	case backends.StateScheduled:
		return func(a, b *jobRow) int { return a.runAt.Compare(b.runAt) }
	case backends.StateClaimed:
		return func(a, b *jobRow) int { return a.claimed.Compare(b.claimed) }
	}
	return func(a, b *jobRow) int { return a.finished.Compare(b.finished) }
}

// endKey records in the key's row how its job ended.
func (t *tables) endKey(r *jobRow, as backends.State) {
	name := keyName{r.queue, r.key}
	if k, ok := t.keys[name]; ok && r.key != "" && k.job == r.id {
		k.state = as
		t.keys[name] = k
	}
}

func (t *tables) remove(r *jobRow, as backends.State) {
	t.endKey(r, as)
	delete(t.jobs, r.id)
}

// keyTaken reports whether another job has the key now.
func (t *tables) keyTaken(name keyName, id int64, now time.Time) bool {
	k, ok := t.keys[name]
	return ok && k.job != id && (k.state == "" || now.Before(k.expires))
}

func (t *tables) alive(id backends.Identity) bool {
	s, ok := t.sidecars[id]
	return ok && !s.dead
}

// after returns the time d after now, or zero if d is 0.
func after(now time.Time, d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return now.Add(d)
}

// earlier returns the earlier of two times, either of which can be zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
