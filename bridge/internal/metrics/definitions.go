package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/backends"
)

func secondsOf(bounds []time.Duration) (seconds []float64) {
	for _, b := range bounds {
		seconds = append(seconds, b.Seconds())
	}
	return seconds
}

// Set has all counters of a sidecar.
type Set struct {
	enqueued, claimed, acked, nacked, dead, returned *prometheus.CounterVec                      // by database, queue
	second                                           map[backends.Outcome]*prometheus.CounterVec // enqueues whose key returned another job, by database, queue
	lost                                             *prometheus.CounterVec                      // by database, queue, cause
	limited                                          *prometheus.CounterVec                      // by database, queue, limit
	claimWait, jobWait, run                          *prometheus.HistogramVec

	commit, writes, jobs                              *prometheus.HistogramVec // by database
	failures                                          *prometheus.CounterVec   // by database, cause
	stale                                             *prometheus.CounterVec   // settles with lost leases, by database
	heartbeatFailures, evictions, reads, readFailures *prometheus.CounterVec
	Sessions, Refused                                 prometheus.Counter
	Databases                                         databaseSet
	all                                               []prometheus.Collector
}

// Labels. A queue without a label of its own counts as labelOther. An ack of a lease that this sidecar has no record
// of, because another sidecar claimed it, counts as labelUnknown.
const (
	LabelDatabase = "database"
	LabelQueue    = "queue"
	labelCause    = "cause"

	labelOther   = "_other"
	labelUnknown = "_unknown"
)

var (
	// waitBuckets are for times without a bound, from a millisecond to an hour. The history of the queues has the same.
	waitBuckets = secondsOf(backends.RunBounds[:])
	// commitBuckets are for round trips to the database.
	commitBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	sizeBuckets   = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000}
)

// New returns counters that are 0.
func New() *Set {
	m := &Set{}
	queue, database := []string{LabelDatabase, LabelQueue}, []string{LabelDatabase}
	m.enqueued = m.counters("jobs_enqueued_total", "Jobs stored by this sidecar's clients, with acks too.", queue)
	m.second = map[backends.Outcome]*prometheus.CounterVec{
		"":                       m.counters("jobs_duplicate_total", "Enqueues that stored nothing, because a job with their key is remembered.", queue),
		backends.OutcomeReplaced: m.counters("jobs_replaced_total", "Enqueues that replaced the content of a waiting job with their key.", queue),
		backends.OutcomePending:  m.counters("jobs_pending_total", "Enqueues that wait for the end of a claimed job with their key.", queue),
	}
	m.claimed = m.counters("jobs_claimed_total", "Deliveries: jobs handed to a worker. A retried job counts again.", queue)
	m.acked = m.counters("jobs_acked_total", "Jobs that their workers acked, as committed by the database; queue=\"_unknown\": claimed through another sidecar.", queue)
	m.nacked = m.counters("jobs_nacked_total", "Jobs that their workers nacked, as failed or as snoozed, as committed by the database.", queue)
	m.dead = m.counters("jobs_dead_total", "Jobs that died: out of attempts, nacked as dead, too large, expired, or cancelled while they were claimed.", queue)
	m.returned = m.counters("jobs_returned_total", "Jobs that went back to their queue unfinished, from connections that ended in order or by an operator's reclaim. No attempt is used up.", queue)
	m.lost = m.counters("jobs_lost_total", "Deliveries that ended without an ack or nack, by cause; counted by the sidecar that took the job back. "+
		"too_large: not delivered, but dead. expired: not delivered, but dead or deleted.", []string{LabelDatabase, LabelQueue, labelCause})
	m.limited = m.counters("claims_limited_total", "Claims that got fewer jobs than they asked for because of a limit of the queue: max_claimed or rate.", []string{LabelDatabase, LabelQueue, "limit"})
	m.claimWait = m.histograms("claim_wait_duration_seconds", "How long a claim that got jobs waited for them, by the first job's queue.", waitBuckets, queue)
	m.jobWait = m.histograms("job_wait_duration_seconds", "The age of a job when its first attempt was delivered: since its enqueue, a delay that it was given included. "+
		"The database's clock is compared with this host's.", waitBuckets, queue)
	m.run = m.histograms("job_run_duration_seconds", "How long workers had jobs, from the delivery to the ack or nack that was committed.", waitBuckets, queue)

	m.commit = m.histograms("commit_duration_seconds", "Duration of successful commits: each is a group of writes and claims.", commitBuckets, database)
	m.writes = m.histograms("commit_writes", "Writes (enqueues, acks, nacks, and returns of jobs) in one commit.", sizeBuckets, database)
	m.jobs = m.histograms("commit_claimed_jobs", "Jobs claimed by one commit, of the commits with claims.", sizeBuckets, database)
	m.failures = m.counters("commit_failures_total", "Commits that failed. unavailable: retried; evicted: the claims in it are repeated with a new identity; "+
		"unknown_outcome: it can have happened; refused: its members are retried alone.", []string{LabelDatabase, labelCause})
	m.stale = m.counters("stale_settles_total", "Leases that had ended when a worker settled or extended them.", database)
	m.heartbeatFailures = m.counters("heartbeat_failures_total", "Heartbeats that did not reach the database.", database)
	m.evictions = m.counters("evictions_total", "How often other sidecars declared this one dead. Its workers lost their jobs.", database)
	m.reads = m.counters("queue_stats_reads_total", "How often this sidecar read the statistics of the queues.", database)
	m.readFailures = m.counters("queue_stats_read_failures_total", "How often this sidecar failed to read the statistics of the queues.", database)
	m.Sessions = m.counter("sessions_opened_total", "Connections that were served.")
	m.Refused = m.counter("sessions_refused_total", "Connections that were refused because there were too many.")
	m.Databases.m = m
	return m
}

func (s *Set) counters(name, help string, labels []string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "qsidecar", Name: name, Help: help}, labels)
	s.all = append(s.all, v)
	return v
}

func (s *Set) counter(name, help string) prometheus.Counter {
	v := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "qsidecar", Name: name, Help: help})
	s.all = append(s.all, v)
	return v
}

func (s *Set) histograms(name, help string, buckets []float64, labels []string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "qsidecar", Name: name, Help: help, Buckets: buckets}, labels)
	s.all = append(s.all, v)
	return v
}

// Gauge describes a gauge that is computed when metrics are scraped.
func Gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("qsidecar_"+name, help, labels, nil)
}
