package bridge

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
)

// The gauges of a Bridge.
var (
	sessionsDesc  = metrics.Gauge("sessions", "Connections that are open, by socket; stdio: those without one.", "socket")
	leasesDesc    = metrics.Gauge("leases", "Session leases: jobs that this sidecar's connections have claimed and not settled yet.", metrics.LabelDatabase)
	waitingDesc   = metrics.Gauge("claims_waiting", "Claims that wait for jobs.", metrics.LabelDatabase)
	queuedDesc    = metrics.Gauge("writes_queued", "Writes that wait for the next commit.", metrics.LabelDatabase)
	reachableDesc = metrics.Gauge("database_reachable", "1: the last heartbeat reached the database and is not late; 0: no jobs are handed out.", metrics.LabelDatabase)
	heartbeatDesc = metrics.Gauge("heartbeat_age_seconds", "Time since the last heartbeat that reached the database; the sidecar's uptime if none did.", metrics.LabelDatabase)
	timeoutDesc   = metrics.Gauge("sidecar_timeout_seconds", "sidecar_timeout: after this time without a heartbeat other sidecars declare this one dead.", metrics.LabelDatabase)
	drainingDesc  = metrics.Gauge("draining", "1: the sidecar drains, and hands out no more jobs.")

	obstaclesDesc = metrics.Gauge("obstacles", "What the database refuses although it has to happen, such as giving back a job; see qsidecar status.", metrics.LabelDatabase, metrics.LabelQueue)

	poolDesc    = metrics.Gauge("pool_connections", "Connections of the pool, by what they do: idle or in_use. It does not include the connections of the heartbeat and of jobs claimed in transactions.", metrics.LabelDatabase, "state")
	poolMaxDesc = metrics.Gauge("pool_connections_max", "Maximum number of connections in the pool.", metrics.LabelDatabase)
)

// The gauges of queue depths.
var (
	depthDesc         = metrics.Gauge("queue_jobs", "Jobs in the database, by state; reported by one sidecar of a database. Exact up to 10,000, beyond that an estimate.", metrics.LabelDatabase, metrics.LabelQueue, "state")
	oldestReadyDesc   = metrics.Gauge("queue_oldest_ready_seconds", "Age of the oldest ready job; 0 without one. Reported as queue_jobs is.", metrics.LabelDatabase, metrics.LabelQueue)
	oldestClaimedDesc = metrics.Gauge("queue_oldest_claimed_seconds", "Age of the longest running delivery; 0 without one. Reported as queue_jobs is.", metrics.LabelDatabase, metrics.LabelQueue)
	pausedDesc        = metrics.Gauge("queue_paused", "1: the queue's jobs are not handed out. Reported as queue_jobs is.", metrics.LabelDatabase, metrics.LabelQueue)
	maxClaimedDesc    = metrics.Gauge("queue_max_claimed", "The limit max_claimed of a queue that has it. Reported as queue_jobs is.", metrics.LabelDatabase, metrics.LabelQueue)
	rateDesc          = metrics.Gauge("queue_rate_per_second", "The limit rate of a queue that has it, as jobs in a second. Reported as queue_jobs is.", metrics.LabelDatabase, metrics.LabelQueue)
	leaderDesc        = metrics.Gauge("queue_stats_leader", "1: this sidecar reports the statistics of the queues, for all sidecars; 0: another one does, or they could not be read.", metrics.LabelDatabase)
)

var gauges = []*prometheus.Desc{sessionsDesc, leasesDesc, waitingDesc, queuedDesc, reachableDesc, heartbeatDesc, timeoutDesc, drainingDesc,
	depthDesc, oldestReadyDesc, oldestClaimedDesc, pausedDesc, maxClaimedDesc, rateDesc, leaderDesc,
	obstaclesDesc, poolDesc, poolMaxDesc}

// Metrics returns a collector of the Bridge's metrics, for a registry. A collection queries the databases only for
// the depths of queues; see collectDepths.
func (b *Bridge) Metrics() prometheus.Collector { return collector{b} }

type collector struct{ b *Bridge }

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	c.b.metrics.Describe(to)
	for _, d := range gauges {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	b := c.b
	emit := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	current := b.config.Load()
	for socket, n := range b.sessionsBySocket(current) {
		emit(sessionsDesc, float64(n), socket)
	}
	emit(drainingDesc, oneIf(b.stopping.Err() != nil))
	var depths sync.WaitGroup // all databases at once, so that a slow one delays the collection only once
	for name, db := range current.byName {
		emit(leasesDesc, float64(db.HeldBySessions()), name)
		now := db.Snapshot()
		emit(waitingDesc, float64(now.Claims), name)
		emit(queuedDesc, float64(now.QueuedWrites), name)
		emit(reachableDesc, oneIf(db.Reachable()), name)
		age := db.HeartbeatAge()
		if age < 0 {
			age = time.Since(b.began)
		}
		emit(heartbeatDesc, age.Seconds(), name)
		emit(timeoutDesc, db.SidecarTimeout().Seconds(), name)
		for queue, n := range db.Metrics.Load().ObstaclesByLabel(db.Obstacles()) {
			emit(obstaclesDesc, float64(n), name, queue)
		}
		depths.Go(func() { db.collectDepths(name, to, emit) })
		db.collectPool(name, to)
	}
	depths.Wait()
	for _, db := range current.databases {
		db.account()
	}
	b.metrics.Collect(to)
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// sessionsBySocket counts connections by socket. Those without one count as "stdio".
func (b *Bridge) sessionsBySocket(c *config) map[string]int {
	n := make(map[string]int)
	for _, s := range c.opts.Sockets {
		n[s.Path] = 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.sessions {
		n[cmp.Or(s.Socket, "stdio")]++
	}
	return n
}

// collectDepths sends the gauges of a database's queues if this sidecar is the one that reads them.
func (d *database) collectDepths(name string, to chan<- prometheus.Metric, emit func(desc *prometheus.Desc, v float64, labels ...string)) {
	stats, reads, err := d.QueueDepths()
	if err != nil {
		to <- prometheus.NewInvalidMetric(depthDesc, fmt.Errorf("database %s: %w", name, err))
		return
	}
	emit(leaderDesc, oneIf(reads), name)
	if !reads {
		return
	}
	for queue, s := range d.Metrics.Load().SumByLabel(stats) {
		for state, n := range map[backends.State]int64{backends.StateReady: s.Ready, backends.StateBlocked: s.Blocked, backends.StateScheduled: s.Scheduled,
			backends.StateClaimed: s.Claimed, backends.StateDead: s.Dead, backends.StateDone: s.Done} {
			emit(depthDesc, float64(n), name, queue, string(state))
		}
		emit(oldestReadyDesc, s.OldestReady.Seconds(), name, queue)
		emit(oldestClaimedDesc, s.OldestClaimed.Seconds(), name, queue)
		emit(pausedDesc, oneIf(s.Paused), name, queue)
		if n := s.Limits.MaxClaimed; n > 0 {
			emit(maxClaimedDesc, float64(n), name, queue)
		}
		if r := s.Limits.Rate; r.Jobs > 0 {
			emit(rateDesc, float64(r.Jobs)/r.Per.Seconds(), name, queue)
		}
	}
}

// collectPool sends the current metrics of a database's pool.
func (d *database) collectPool(name string, to chan<- prometheus.Metric) {
	u, ok := d.Usage()
	if !ok || u.Max == 0 {
		return
	}
	emit := func(desc *prometheus.Desc, v int, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(v), append([]string{name}, labels...)...)
	}
	emit(poolDesc, u.Idle, "idle")
	emit(poolDesc, u.InUse, "in_use")
	emit(poolMaxDesc, u.Max)
}
