package mysql

import (
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// registered caches which queues have a row in qsidecar_queues, and since when that is known. Maintenance
// deletes the row of a queue that has had no scheduled job for long, so an entry is valid for believedFor
// only. Another server that took over, or a restarted one that had lost commits, can lack the row. So an entry is valid for
// one server, and for connections that were open before its row was registered: a restart would have ended them.
type registered struct {
	mu     sync.Mutex
	server string
	since  map[string]time.Time
}

const (
	maxRegistered = 100_000
	// believedFor is far below idleQueue.
	believedFor = time.Hour
)

// missing returns the queues that a transaction on c must register.
func (r *registered) missing(queues []string, c *session.Conn) (missing []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range queues {
		if at, ok := r.since[q]; !ok || c.Server != r.server || c.Since.After(at) || time.Since(at) > believedFor {
			missing = append(missing, q)
		}
	}
	return missing
}

// forget empties the cache, so that each queue is registered again.
func (r *registered) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = nil
}

// add records queues that a transaction on c registered and committed. Its commit began after from.
func (r *registered) add(queues []string, from time.Time, c *session.Conn) {
	if len(queues) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since == nil || r.server != c.Server || len(r.since) > maxRegistered {
		r.since, r.server = map[string]time.Time{}, c.Server
	}
	for _, q := range queues {
		r.since[q] = from
	}
}

// countReturns counts jobs that are given back, in their queues' rows. It comes last, so that other
// transactions wait for these rows only as long as the COMMIT takes.
func (t *tx) countReturns(queues []string, gaveBack func(queue string, returns int64)) {
	if len(queues) == 0 {
		return
	}
	slices.Sort(queues)
	queues = slices.Compact(queues)
	for _, q := range queues {
		t.Add(t.s.sql.countReturn, q)
	}
	t.Each(func(r *session.Result) {
		gaveBack(r.Text(0), r.Int(1))
	}, t.s.sql.readRequeues, session.Texts(queues))
}

// register adds queues to qsidecar_queues, because maintenance scans only their scheduled jobs. It also
// increments `returns`, which shows the maintenance of all sidecars that the row is in use. Sidecars that
// wait for jobs of the queue then scan it once more than needed.
func (t *tx) register(queues []string) {
	if queues = t.s.queues.missing(queues, t.c); len(queues) == 0 {
		return
	}
	if why := t.s.LockedTables().Of(backends.OwnQueues); why != nil && t.err == nil {
		t.err = &backends.LockedError{Err: why}
	}
	slices.Sort(queues)
	queues = slices.Compact(queues)
	t.wrote = true
	for _, q := range queues {
		t.Add(t.s.sql.register, q)
	}
	if t.namedAt.IsZero() {
		t.namedAt = time.Now()
	}
	t.named = append(t.named, queues...)
}
