package bridge

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
)

// The gauges of queue depths.
var (
	depthDesc         = metrics.Gauge("queue_jobs", "Jobs in the database, by state; reported by one sidecar of a database. Exact up to 10,000, beyond that an estimate.", metrics.LabelDatabase, metrics.LabelQueue, "state")
	oldestReadyDesc   = metrics.Gauge("queue_oldest_ready_seconds", "Age of the oldest ready job; 0 without one. Reported as queue_jobs is.", metrics.LabelDatabase, metrics.LabelQueue)
	oldestClaimedDesc = metrics.Gauge("queue_oldest_claimed_seconds", "Age of the longest running delivery; 0 without one. Reported as queue_jobs is.", metrics.LabelDatabase, metrics.LabelQueue)
	pausedDesc        = metrics.Gauge("queue_paused", "1: the queue's jobs are not handed out. Reported as queue_jobs is.", metrics.LabelDatabase, metrics.LabelQueue)
	leaderDesc        = metrics.Gauge("queue_stats_leader", "1: this sidecar reports the statistics of the queues, for all sidecars; 0: another one does, or they could not be read.", metrics.LabelDatabase)
)

// collectDepths sends the gauges of a database's queues if this sidecar is the one that reads them.
func (b *database) collectDepths(name string, to chan<- prometheus.Metric, emit func(d *prometheus.Desc, v float64, labels ...string)) {
	stats, reads, err := b.QueueDepths()
	if err != nil {
		to <- prometheus.NewInvalidMetric(depthDesc, fmt.Errorf("database %s: %w", name, err))
		return
	}
	emit(leaderDesc, oneIf(reads), name)
	if !reads {
		return
	}
	for queue, s := range b.Metrics.Load().SumByLabel(stats) {
		for state, n := range map[backends.State]int64{backends.StateReady: s.Ready, backends.StateScheduled: s.Scheduled,
			backends.StateClaimed: s.Claimed, backends.StateDead: s.Dead, backends.StateDone: s.Done} {
			emit(depthDesc, float64(n), name, queue, string(state))
		}
		emit(oldestReadyDesc, s.OldestReady.Seconds(), name, queue)
		emit(oldestClaimedDesc, s.OldestClaimed.Seconds(), name, queue)
		emit(pausedDesc, oneIf(s.Paused), name, queue)
	}
}
