package bridge

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	// censusEvery is how often the depths are read at most.
	censusEvery = 15 * time.Second
	// censusTimeout bounds one reading, and so how long metrics wait for it.
	censusTimeout = 5 * time.Second
	// censusAge is how old the depths may be that are told; where a reading fails those of the one
	// before are.
	censusAge = time.Minute
)

// census are the depths of a database's queues as this sidecar read them last.
type census struct {
	mu    sync.Mutex
	tried time.Time
	at    time.Time // zero: it has not read them
	stats []backends.QueueStats
}

// The gauges that come of a census.
var (
	depthDesc         = gauge("queue_jobs", "Jobs in the database, by state; told by one sidecar of a database. Exact up to 10,000, beyond that an estimate.", labelDatabase, labelQueue, "state")
	oldestReadyDesc   = gauge("queue_oldest_ready_seconds", "For how long the oldest ready job has waited; 0: there is none. Told as queue_jobs is.", labelDatabase, labelQueue)
	oldestClaimedDesc = gauge("queue_oldest_claimed_seconds", "For how long the longest running delivery has run; 0: there is none. Told as queue_jobs is.", labelDatabase, labelQueue)
	pausedDesc        = gauge("queue_paused", "1: nothing of the queue is given out. Told as queue_jobs is.", labelDatabase, labelQueue)
	readerDesc        = gauge("depths_reader", "1: this sidecar reads the depths of the queues, for all.", labelDatabase)
)

// take is the census of a bank, not older than censusAge; nil: there is none.
func (c *census) take(b *bank) []backends.QueueStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.tried) >= censusEvery {
		c.tried = time.Now()
		c.read(b)
	}
	if time.Since(c.at) > censusAge {
		return nil
	}
	return c.stats
}

// read asks the database. c.mu is held.
func (c *census) read(b *bank) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), censusTimeout, fmt.Errorf("the depths of the queues: no answer within %v", censusTimeout))
	defer cancel()
	m := b.metrics.Load()
	m.reads.Inc()
	stats, err := b.link.stats(ctx, "")
	if err != nil {
		m.readFailures.Inc()
		b.log.Warn("the depths of the queues could not be read for the metrics", "error", err)
		return
	}
	c.stats, c.at = stats, time.Now()
}

// tellDepths gives the gauges of a database's queues, where this sidecar is the one that reads them.
func (b *bank) tellDepths(name string, tell func(d *prometheus.Desc, v float64, labels ...string)) {
	b.keeper.asksFor()
	reads := b.inspectable && b.keeper.reads()
	tell(readerDesc, oneIf(reads), name)
	if !reads {
		return
	}
	stats := b.census.take(b)
	if stats == nil || !b.keeper.reads() { // it took so long that another one may have taken over
		return
	}
	for queue, s := range b.metrics.Load().byLabel(stats) {
		for state, n := range map[backends.State]int64{backends.StateReady: s.Ready, backends.StateScheduled: s.Scheduled,
			backends.StateClaimed: s.Claimed, backends.StateDead: s.Dead, backends.StateDone: s.Done} {
			tell(depthDesc, float64(n), name, queue, string(state))
		}
		tell(oldestReadyDesc, s.OldestReady.Seconds(), name, queue)
		tell(oldestClaimedDesc, s.OldestClaimed.Seconds(), name, queue)
		tell(pausedDesc, oneIf(s.Paused), name, queue)
	}
}

// byLabel adds up the depths of queues that share a label. A queue that is known here and has
// no row any more has none of everything.
func (d *databaseMetrics) byLabel(all []backends.QueueStats) map[string]*backends.QueueStats {
	sum := make(map[string]*backends.QueueStats)
	for i := range all {
		label := d.label(all[i].Queue)
		s := sum[label]
		if s == nil {
			s = &backends.QueueStats{Queue: label}
			sum[label] = s
		}
		s.Ready += all[i].Ready
		s.Scheduled += all[i].Scheduled
		s.Claimed += all[i].Claimed
		s.Dead += all[i].Dead
		s.Done += all[i].Done
		s.Paused = s.Paused || all[i].Paused
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
