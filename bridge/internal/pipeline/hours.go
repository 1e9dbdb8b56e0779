package pipeline

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	// hoursAge is how old the hours from the database can be. They change about once an hour, and pages ask each second.
	hoursAge = time.Minute
	// hoursTimeout is how long a page waits for them. It shows the last hour without them.
	hoursTimeout = 3 * time.Second
	// hoursKept is for how many queues they are kept.
	hoursKept = 20
)

// hoursCache keeps the totals by hour that the database returned last.
type hoursCache struct {
	ask func(ctx context.Context, queue string) ([]backends.HourTotals, error)

	mu  sync.Mutex
	all map[string]hoursRead // by queue
}

type hoursRead struct {
	at   time.Time
	rows []backends.HourTotals
	err  error
}

// of returns the totals of a queue, or of all. The rows are the caller's.
func (c *hoursCache) of(ctx context.Context, queue string) ([]backends.HourTotals, error) {
	c.mu.Lock()
	read, known := c.all[queue]
	c.mu.Unlock()
	if !known || time.Since(read.at) >= hoursAge {
		limited, cancel := context.WithTimeoutCause(ctx, hoursTimeout, fmt.Errorf("no answer within %v", hoursTimeout))
		read.rows, read.err = c.ask(limited, queue)
		cancel()
		if ctx.Err() != nil && read.err != nil {
			return nil, read.err // of this caller alone
		}
		read.at = time.Now()
		c.mu.Lock()
		if c.all == nil || len(c.all) >= hoursKept {
			c.all = map[string]hoursRead{}
		}
		c.all[queue] = read
		c.mu.Unlock()
	}
	return slices.Clone(read.rows), read.err
}

// forget makes the next call ask.
func (c *hoursCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = nil
}
