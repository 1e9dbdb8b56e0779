package metrics

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/qsidecar/qsidecar/backends"
)

// databaseSet holds the counters of each database, by name.
type databaseSet struct {
	m       *Set
	mu      sync.Mutex
	all     map[string]*Database
	dynamic int // queues with a label of their own that no config named
}

// Database holds the counters of one database.
type Database struct {
	labels *databaseSet
	name   string
	usage  usageCounts

	commit, writes, jobs          prometheus.Observer
	failures                      map[string]prometheus.Counter // by cause
	stale                         prometheus.Counter
	HeartbeatFailures, Evictions  prometheus.Counter
	DepthReads, DepthReadFailures prometheus.Counter

	// Named reports whether the config names a queue, and how many other queues can have labels.
	Named          atomic.Pointer[func(queue string) (named bool, most int)]
	queues         atomic.Pointer[map[string]*Queue] // the map never changes: a new one replaces it
	other, unknown *Queue
}

// Queue holds the counters of one queue. A nil counter counts nothing.
type Queue struct {
	enqueued, claimed, acked, nacked, dead, Returned prometheus.Counter
	second                                           map[backends.Outcome]prometheus.Counter // enqueues whose key returned another job
	lost                                             map[backends.Cause]prometheus.Counter
	claimWait, jobWait, run                          prometheus.Observer
}

// causes are those for which deliveries are lost.
var causes = []backends.Cause{backends.CauseDisconnected, backends.CauseTimedOut, backends.CauseLeaseEnded, backends.CauseSidecarLost, backends.CauseTooLarge,
	backends.CauseTxLost, backends.CauseCancelled, backends.CauseExpired}

// The causes for which commits fail.
const (
	failUnavailable = "unavailable"
	failEvicted     = "evicted"
	failUnknown     = "unknown_outcome"
	failRefused     = "refused"
)

// Of returns the counters of the database of that name.
func (d *databaseSet) Of(name string) *Database {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x := d.all[name]; x != nil {
		return x
	}
	m := d.m
	x := &Database{
		labels: d, name: name,
		commit: m.commit.WithLabelValues(name), writes: m.writes.WithLabelValues(name), jobs: m.jobs.WithLabelValues(name),
		failures: make(map[string]prometheus.Counter), stale: m.stale.WithLabelValues(name),
		HeartbeatFailures: m.heartbeatFailures.WithLabelValues(name), Evictions: m.evictions.WithLabelValues(name),
		DepthReads: m.reads.WithLabelValues(name), DepthReadFailures: m.readFailures.WithLabelValues(name),
	}
	for _, cause := range []string{failUnavailable, failEvicted, failUnknown, failRefused} {
		x.failures[cause] = m.failures.WithLabelValues(name, cause)
	}
	x.other, x.unknown = m.queue(name, labelOther), m.unknown(name)
	x.queues.Store(&map[string]*Queue{})
	none := func(string) (bool, int) { return false, 0 }
	x.Named.Store(&none)
	if d.all == nil {
		d.all = make(map[string]*Database)
	}
	d.all[name] = x
	return x
}

func (s *Set) queue(database, queue string) *Queue {
	q := &Queue{
		enqueued: s.enqueued.WithLabelValues(database, queue), second: make(map[backends.Outcome]prometheus.Counter, len(s.second)),
		claimed: s.claimed.WithLabelValues(database, queue), acked: s.acked.WithLabelValues(database, queue),
		nacked: s.nacked.WithLabelValues(database, queue), dead: s.dead.WithLabelValues(database, queue),
		Returned: s.returned.WithLabelValues(database, queue), lost: make(map[backends.Cause]prometheus.Counter, len(causes)),
		claimWait: s.claimWait.WithLabelValues(database, queue), jobWait: s.jobWait.WithLabelValues(database, queue),
		run: s.run.WithLabelValues(database, queue),
	}
	for o, c := range s.second {
		q.second[o] = c.WithLabelValues(database, queue)
	}
	for _, c := range causes {
		q.lost[c] = s.lost.WithLabelValues(database, queue, string(c))
	}
	return q
}

// unknown counts acks only. For everything else the database returns the queue.
func (s *Set) unknown(database string) *Queue {
	return &Queue{acked: s.acked.WithLabelValues(database, labelUnknown)}
}

// Queue returns the counters of a queue: its own, or those that it shares with others.
func (d *Database) Queue(name string) *Queue {
	if d == nil {
		return nil
	}
	if q := (*d.queues.Load())[name]; q != nil {
		return q
	}
	return d.addQueue(name)
}

// addQueue is Queue for a queue that has no counters yet.
func (d *Database) addQueue(name string) *Queue {
	named, most := (*d.Named.Load())(name)
	l := d.labels
	l.mu.Lock()
	defer l.mu.Unlock()
	have := *d.queues.Load()
	if q := have[name]; q != nil {
		return q
	}
	if !named {
		if l.dynamic >= most {
			return d.other // not stored: by the next call the config can name the queue
		}
		l.dynamic++
	}
	d.store(name)
	return (*d.queues.Load())[name]
}

// AddQueues creates the counters of queues that the config names. Each call copies the map of all queues once.
func (d *Database) AddQueues(names ...string) {
	d.labels.mu.Lock()
	defer d.labels.mu.Unlock()
	d.store(names...)
}

// store creates the counters of those queues that have none. labels.mu is held.
func (d *Database) store(names ...string) {
	next := maps.Clone(*d.queues.Load())
	for _, name := range names {
		if next[name] == nil {
			next[name] = d.labels.m.queue(d.name, name)
		}
	}
	d.queues.Store(&next)
}

// label is the queue's label.
func (d *Database) label(queue string) string {
	if d.Queue(queue) == d.other {
		return labelOther
	}
	return queue
}

// CountCommit counts a commit.
func (d *Database) CountCommit(took time.Duration, writes, asks int, claims []backends.ClaimResult, err error) {
	switch {
	case err == nil:
		d.commit.Observe(took.Seconds())
		if writes > 0 {
			d.writes.Observe(float64(writes))
		}
		if asks > 0 {
			n := 0
			for i := range claims {
				n += len(claims[i].Jobs)
				d.CountFailed(claims[i].Failed, true)
			}
			d.jobs.Observe(float64(n))
		}
	case errors.Is(err, backends.ErrEvicted):
		d.failures[failEvicted].Inc()
	case backends.Retryable(err):
		d.failures[failUnavailable].Inc()
	case errors.Is(err, backends.ErrUnknownOutcome):
		d.failures[failUnknown].Inc()
	default:
		d.failures[failRefused].Inc()
	}
}

// RunOf returns the counters of the queue of a write's lease, or nil, and how long the worker had the job. A negative
// time means that it is unknown.
type RunOf func(lease int) (queue *Queue, took time.Duration)

// CountWrite counts the effects of a committed write. unseen means that no worker had its jobs.
func (d *Database) CountWrite(write backends.Write, runs RunOf, unseen bool, res *backends.WriteResult) {
	if d == nil || res.Err != nil {
		return
	}
	switch w := write.(type) {
	case backends.Enqueue:
		d.countStored(w.Jobs, res.Stored)
	case backends.Ack:
		d.countStored(w.Enqueue, res.Stored)
		d.countSettled(runs, w.Leases, res.Lost, true)
	case backends.Nack:
		d.countSettled(runs, w.Leases, res.Lost, false)
	case backends.Extend:
		d.stale.Add(float64(len(res.Lost)))
	}
	d.CountFailed(res.Failed, unseen)
	d.CountPending(res.Pending)
}

// CountPending counts pending jobs that became jobs of their own.
func (d *Database) CountPending(all []backends.StoredPending) {
	for i := range all {
		if q := d.Queue(all[i].Queue); q != nil {
			q.enqueued.Inc()
		}
	}
}

func (d *Database) countStored(jobs []backends.NewJob, stored []backends.Stored) {
	var q *Queue
	for i := range stored {
		if i == 0 || jobs[i].Queue != jobs[i-1].Queue {
			q = d.Queue(jobs[i].Queue)
		}
		if stored[i].Duplicate {
			q.second[stored[i].Outcome].Inc()
		} else {
			q.enqueued.Inc()
		}
	}
}

func (d *Database) countSettled(runs RunOf, leases, lost []backends.Lease, acked bool) {
	for i := range leases {
		if len(lost) > 0 && slices.Contains(lost, leases[i]) {
			d.stale.Inc()
			continue
		}
		queue, took := runs(i)
		if queue == nil {
			queue, took = d.unknown, -1
		}
		if acked {
			queue.acked.Inc()
		}
		if took >= 0 {
			queue.run.Observe(took.Seconds())
		}
	}
}

// CountFailed counts jobs whose claims ended without an ack. unseen means that no worker had them.
func (d *Database) CountFailed(all backends.FailedCounts, unseen bool) {
	if d == nil {
		return
	}
	for _, f := range all {
		q, n := d.Queue(f.Queue), float64(f.Jobs)
		switch {
		case f.Cause == backends.CauseNacked:
			q.nacked.Add(n)
		case f.Cause != "":
			if c := q.lost[f.Cause]; c != nil { // a later version can use more causes
				c.Add(n)
			}
		case !unseen:
			q.Returned.Add(n)
		}
		if f.Dead {
			q.dead.Add(n)
		}
	}
}

// CountHandOut counts jobs that a worker got at now, after its claim waited for that time.
func (d *Database) CountHandOut(jobs []backends.Job, now time.Time, waited time.Duration) {
	if d == nil {
		return
	}
	var q *Queue
	for i := range jobs {
		if i == 0 || jobs[i].Queue != jobs[i-1].Queue {
			q = d.Queue(jobs[i].Queue)
		}
		if i == 0 {
			q.claimWait.Observe(waited.Seconds())
		}
		q.claimed.Inc()
		if jobs[i].Attempt == 1 {
			q.jobWait.Observe(max(now.Sub(jobs[i].EnqueuedAt), 0).Seconds())
		}
	}
}

// Totals returns how many jobs of a queue this sidecar stored, and how many its workers acked, since its start. ok is
// false if the queue has no counters of its own.
func (d *Database) Totals(queue string) (enqueued, acked int64, ok bool) {
	q := (*d.queues.Load())[queue]
	if q == nil {
		return 0, 0, false
	}
	return valueOf(q.enqueued), valueOf(q.acked), true
}

// EachHistory calls f with the counters of each queue, and of those that share a label, for the history. failed counts
// attempts that ended without an ack.
func (d *Database) EachHistory(f func(queue string, enqueued, acked, failed int64, runs [backends.RunBuckets]int64)) {
	each := func(name string, q *Queue) {
		acked, failed := valueOf(q.acked), valueOf(q.nacked)
		for _, c := range q.lost {
			failed += valueOf(c)
		}
		f(name, valueOf(q.enqueued), acked, failed, runsOf(q.run))
	}
	for name, q := range *d.queues.Load() {
		each(name, q)
	}
	each(labelOther, d.other)
}

// runsOf returns how many observations of a histogram are in each bucket alone.
func runsOf(h prometheus.Observer) (runs [backends.RunBuckets]int64) {
	metric, ok := h.(prometheus.Metric)
	var m dto.Metric
	if !ok || metric.Write(&m) != nil {
		return runs // a histogram is a metric without an error
	}
	below := int64(0)
	for i, b := range m.GetHistogram().GetBucket() {
		runs[i] = int64(b.GetCumulativeCount()) - below
		below += runs[i]
	}
	runs[backends.RunBuckets-1] = int64(m.GetHistogram().GetSampleCount()) - below
	return runs
}

func valueOf(c prometheus.Counter) int64 {
	var m dto.Metric
	_ = c.Write(&m) // a counter has no error
	return int64(m.GetCounter().GetValue())
}

// ObstaclesByLabel counts the obstacles of queues that share a label. A known queue without any has 0.
func (d *Database) ObstaclesByLabel(all []backends.Obstacle) map[string]int {
	n := make(map[string]int)
	for queue := range *d.queues.Load() {
		n[queue] = 0
	}
	for i := range all {
		n[d.label(all[i].Queue)]++
	}
	return n
}

// CountLimited counts a claim that a limit of the queue stopped. Queues without limits have no such counter.
func (d *Database) CountLimited(queue string, byRate bool) {
	limit := "max_claimed"
	if byRate {
		limit = "rate"
	}
	d.labels.m.limited.WithLabelValues(d.name, d.label(queue), limit).Inc()
}

// SumByLabel adds up the depths of queues that share a label. A known queue without rows has depth 0.
func (d *Database) SumByLabel(all []backends.QueueStats) map[string]*backends.QueueStats {
	sum := make(map[string]*backends.QueueStats)
	for i := range all {
		label := d.label(all[i].Queue)
		s := sum[label]
		if s == nil {
			s = &backends.QueueStats{Queue: label}
			sum[label] = s
		}
		s.Ready += all[i].Ready
		s.Blocked += all[i].Blocked
		s.Scheduled += all[i].Scheduled
		s.Claimed += all[i].Claimed
		s.Dead += all[i].Dead
		s.Done += all[i].Done
		s.Paused = s.Paused || all[i].Paused
		if label == all[i].Queue { // limits of several queues have no sum
			s.Limits = all[i].Limits
		}
		s.OldestReady = max(s.OldestReady, all[i].OldestReady)
		s.OldestClaimed = max(s.OldestClaimed, all[i].OldestClaimed)
	}
	for queue := range *d.queues.Load() {
		if sum[queue] == nil {
			sum[queue] = &backends.QueueStats{Queue: queue}
		}
	}
	return sum
}
