package core

import (
	"context"
	"sync"
	"time"
)

const (
	describeEvery  = 10 * time.Second
	describeWithin = 5 * time.Second // a limit for one reading
)

// Description is what Info reports about the cluster. It is read after a heartbeat, but never delays one. Its zero value is ready to
// use.
type Description struct {
	mu     sync.Mutex
	text   string
	began  time.Time // of the latest reading
	closed bool
	tasks  sync.WaitGroup
}

// Text returns the latest description; empty: there is none yet.
func (d *Description) Text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text
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
