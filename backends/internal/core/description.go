package core

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	describeEvery  = 10 * time.Second
	describeWithin = 5 * time.Second // a limit for one reading
	logOldEvery    = time.Minute     // a pool tries an old primary several times a second
)

// Description is what Info reports about the cluster. It is read after a heartbeat, but never delays one. Its zero value is ready to
// use.
type Description struct {
	mu     sync.Mutex
	text   string
	began  time.Time // of the latest reading
	closed bool
	tasks  sync.WaitGroup

	loggedOld time.Time // when OldPrimary logged last
}

// Text returns the latest description, and how many connections to an old primary were refused; empty: there is no description yet.
func (d *Description) Text(m *backends.Meter) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := m.Usage().OldPrimaries; n > 0 && d.text != "" {
		return fmt.Sprintf("%s; refused connections to an old primary: %d", d.text, n)
	}
	return d.text
}

// OldPrimary counts a connection that was refused because another server has replaced its primary. It logs at most one a minute, with
// args.
func (d *Description) OldPrimary(m *backends.Meter, log *slog.Logger, args ...any) {
	m.OldPrimary()
	d.mu.Lock()
	due := time.Since(d.loggedOld) >= logOldEvery
	if due {
		d.loggedOld = time.Now()
	}
	d.mu.Unlock()
	if due {
		log.With(args...).Error("old primary refused", "event", "old_primary_refused")
	}
}

// Read reads the description now. If that fails, the earlier one stays.
func (d *Description) Read(ctx context.Context, read func(ctx context.Context) (string, error)) {
	ctx, cancel := context.WithTimeout(ctx, describeWithin)
	defer cancel()
	d.mu.Lock()
	d.began = time.Now()
	d.mu.Unlock()
	text, err := read(ctx)
	if err != nil {
		return // heartbeats report an unreachable database
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.text = text
}

// Refresh starts a reading if the latest one is old.
func (d *Description) Refresh(ctx context.Context, read func(ctx context.Context) (string, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || time.Since(d.began) < describeEvery {
		return
	}
	d.began = time.Now()
	d.tasks.Go(func() { d.Read(ctx, read) })
}

// Expire makes the next Refresh start a reading.
func (d *Description) Expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.began = time.Time{}
}

// Close waits for a reading in progress, and prevents later ones.
func (d *Description) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.tasks.Wait()
}
