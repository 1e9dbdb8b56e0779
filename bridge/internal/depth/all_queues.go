package depth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	// censusEvery is how often the depths are read at most.
	ReadEvery = 15 * time.Second
	// censusWait bounds how long metrics wait for a reading. The reading goes on.
	MaxWait = 5 * time.Second
	// censusTimeout bounds one reading.
	ReadTimeout = 30 * time.Second
	// censusAge is the largest age of depths that metrics show. They show those of an earlier
	// reading if a later one fails or takes long.
	MaxAge = time.Minute
)

// AllQueues are the depths of a database's queues as this sidecar read them last.
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

func NewAllQueues(ask func(ctx context.Context) ([]backends.QueueStats, error)) *AllQueues {
	return &AllQueues{ask: ask, wake: make(chan struct{}, 1)}
}

// Run reads when take asks for it, until ctx ends.
func (c *AllQueues) Run(ctx context.Context) {
	for {
		select {
		case <-c.wake:
			c.read(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// Get returns depths not older than censusAge. They are not known if the last reading failed.
// The error is that none has ended since there were any, so that metrics without them would be a
// part that looks like the whole.
func (c *AllQueues) Get() (stats []backends.QueueStats, known bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reading == nil && time.Since(c.began) >= ReadEvery {
		c.began, c.reading = time.Now(), make(chan struct{})
		c.wake <- struct{}{}
	}
	if reading := c.reading; reading != nil {
		c.mu.Unlock()
		timer := time.NewTimer(MaxWait)
		select {
		case <-reading:
		case <-timer.C:
		}
		timer.Stop()
		c.mu.Lock()
	}
	switch {
	case !c.at.IsZero() && time.Since(c.at) <= MaxAge:
		return c.stats, true, nil
	case c.failed || c.reading == nil:
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("the database has not answered for %v how many jobs its queues have: ask again", time.Since(c.began).Round(time.Second))
}

// read asks the database.
func (c *AllQueues) read(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, ReadTimeout, fmt.Errorf("the depths of the queues: no answer within %v", ReadTimeout))
	defer cancel()
	stats, err := c.ask(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed = err != nil; !c.failed {
		c.stats, c.at = stats, time.Now()
	}
	close(c.reading)
	c.reading = nil
}
