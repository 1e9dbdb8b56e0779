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
	// censusWait bounds how long metrics wait for a reading. The reading goes on.
	censusWait = 5 * time.Second
	// censusTimeout bounds one reading.
	censusTimeout = 30 * time.Second
	// censusAge is the largest age of depths that metrics show. They show those of an earlier
	// reading if a later one fails or takes long.
	censusAge = time.Minute
)

// census are the depths of a database's queues as this sidecar read them last.
type census struct {
	wake chan struct{} // has one if a reading is to begin

	mu      sync.Mutex
	began   time.Time     // when the last reading did
	reading chan struct{} // closed at the end of the reading under way; nil: none is
	failed  bool          // the last reading that ended failed
	at      time.Time     // zero: none has succeeded
	stats   []backends.QueueStats
}

// The gauges that come of a census.
var (
	depthDesc         = gauge("queue_jobs", "Jobs in the database, by state; told by one sidecar of a database. Exact up to 10,000, beyond that an estimate.", labelDatabase, labelQueue, "state")
	oldestReadyDesc   = gauge("queue_oldest_ready_seconds", "For how long the oldest ready job has waited; 0: there is none. Told as queue_jobs is.", labelDatabase, labelQueue)
	oldestClaimedDesc = gauge("queue_oldest_claimed_seconds", "For how long the longest running delivery has run; 0: there is none. Told as queue_jobs is.", labelDatabase, labelQueue)
	pausedDesc        = gauge("queue_paused", "1: nothing of the queue is given out. Told as queue_jobs is.", labelDatabase, labelQueue)
	readerDesc        = gauge("depths_reader", "1: this sidecar tells the depths of the queues, for all; 0: another one does, or they could not be read.", labelDatabase)
)

// run reads when take asks for it, until ctx ends.
func (c *census) run(ctx context.Context, b *bank) {
	for {
		select {
		case <-c.wake:
			c.read(ctx, b)
		case <-ctx.Done():
			return
		}
	}
}

// take returns depths not older than censusAge. They are not known if the last reading failed.
// The error is that none has ended since there were any, so that metrics without them would be a
// part that looks like the whole.
func (c *census) take() (stats []backends.QueueStats, known bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reading == nil && time.Since(c.began) >= censusEvery {
		c.began, c.reading = time.Now(), make(chan struct{})
		c.wake <- struct{}{}
	}
	if reading := c.reading; reading != nil {
		c.mu.Unlock()
		timer := time.NewTimer(censusWait)
		select {
		case <-reading:
		case <-timer.C:
		}
		timer.Stop()
		c.mu.Lock()
	}
	switch {
	case !c.at.IsZero() && time.Since(c.at) <= censusAge:
		return c.stats, true, nil
	case c.failed || c.reading == nil:
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("the database has not answered for %v how many jobs its queues have: ask again", time.Since(c.began).Round(time.Second))
}

// read asks the database.
func (c *census) read(ctx context.Context, b *bank) {
	ctx, cancel := context.WithTimeoutCause(ctx, censusTimeout, fmt.Errorf("the depths of the queues: no answer within %v", censusTimeout))
	defer cancel()
	m := b.metrics.Load()
	m.reads.Inc()
	stats, err := b.link.stats(ctx, "")
	if err != nil {
		m.readFailures.Inc()
		b.log.Warn("the depths of the queues could not be read for the metrics", "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed = err != nil; !c.failed {
		c.stats, c.at = stats, time.Now()
	}
	close(c.reading)
	c.reading = nil
}

// tellDepths gives the gauges of a database's queues, where this sidecar is the one that reads them.
func (b *bank) tellDepths(name string, to chan<- prometheus.Metric, tell func(d *prometheus.Desc, v float64, labels ...string)) {
	b.keeper.asksFor()
	var stats []backends.QueueStats
	reads := b.inspectable && b.keeper.reads()
	if reads {
		var known bool
		var err error
		if stats, known, err = b.census.take(); err != nil {
			to <- prometheus.NewInvalidMetric(depthDesc, fmt.Errorf("database %s: %w", name, err))
			return
		}
		reads = known && b.keeper.reads() // it took so long that another one may have taken over
	}
	tell(readerDesc, oneIf(reads), name)
	if !reads {
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
