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
func (h *hoursCache) of(ctx context.Context, queue string) ([]backends.HourTotals, error) {
	h.mu.Lock()
	read, known := h.all[queue]
	h.mu.Unlock()
	if !known || time.Since(read.at) >= hoursAge {
		limited, cancel := context.WithTimeoutCause(ctx, hoursTimeout, fmt.Errorf("no answer within %v", hoursTimeout))
		read.rows, read.err = h.ask(limited, queue)
		cancel()
		if ctx.Err() != nil && read.err != nil {
			return nil, read.err // of this caller alone
		}
		read.at = time.Now()
		h.mu.Lock()
		if h.all == nil || len(h.all) >= hoursKept {
			h.all = map[string]hoursRead{}
		}
		h.all[queue] = read
		h.mu.Unlock()
	}
	return slices.Clone(read.rows), read.err
}

// forget makes the next call ask.
func (h *hoursCache) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = nil
}
