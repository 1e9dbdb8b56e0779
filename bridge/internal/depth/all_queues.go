package depth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	// ReadEvery is the minimum time between two readings.
	ReadEvery = 15 * time.Second
	// MaxWait is how long metrics wait for a reading. The reading goes on.
	MaxWait = 5 * time.Second
	// ReadTimeout bounds one reading.
	ReadTimeout = 30 * time.Second
	// MaxAge is the largest age of depths that metrics show. They show those of an earlier
	// reading if a later one fails or takes long.
	MaxAge = time.Minute
)

// AllQueues caches the depths of a database's queues for the metrics.
type AllQueues struct {
	ask  func(ctx context.Context) ([]backends.QueueStats, error)
	wake chan struct{} // has one if a reading is to begin

	mu      sync.Mutex
	began   time.Time     // when the last reading did
	reading chan struct{} // closed at the end of the reading under way; nil: none is
	failed  bool          // the last reading that ended failed
	at      time.Time     // zero: none has succeeded
	stats   []backends.QueueStats
}

// NewAllQueues returns an empty cache. ask queries the database.
func NewAllQueues(ask func(ctx context.Context) ([]backends.QueueStats, error)) *AllQueues {
	return &AllQueues{ask: ask, wake: make(chan struct{}, 1)}
}

// Run reads the depths whenever Get requests it, until ctx is done.
func (a *AllQueues) Run(ctx context.Context) {
	for {
		select {
		case <-a.wake:
			a.read(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// Get returns depths that are at most MaxAge old. If the last reading failed, known is false. It returns an error if
// no reading has ended yet, because metrics without the depths would appear complete.
func (a *AllQueues) Get() (stats []backends.QueueStats, known bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reading == nil && time.Since(a.began) >= ReadEvery {
		a.began, a.reading = time.Now(), make(chan struct{})
		a.wake <- struct{}{}
	}
	if reading := a.reading; reading != nil {
		a.mu.Unlock()
		timer := time.NewTimer(MaxWait)
		select {
		case <-reading:
		case <-timer.C:
		}
		timer.Stop()
		a.mu.Lock()
	}
	switch {
	case !a.at.IsZero() && time.Since(a.at) <= MaxAge:
		return a.stats, true, nil
	case a.failed || a.reading == nil:
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("the database has not answered for %v how many jobs its queues have: ask again", time.Since(a.began).Round(time.Second))
}

// read queries the database.
func (a *AllQueues) read(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, ReadTimeout, fmt.Errorf("the depths of the queues: no answer within %v", ReadTimeout))
	defer cancel()
	stats, err := a.ask(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed = err != nil; !a.failed {
		a.stats, a.at = stats, time.Now()
	}
	close(a.reading)
	a.reading = nil
}
