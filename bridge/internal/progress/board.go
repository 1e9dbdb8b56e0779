// Package progress keeps what workers report of their running jobs, and writes the last report of each job to the database, at
// most once a second.
//
// Nothing waits for a write but the jobs that have a report: one that goes back to the queue waits until the report is saved,
// for a limited time. A report about a lease that this sidecar doesn't have is written at once, to find out whether the lease is valid.
//
// A row of a job that ended here is deleted within a second. The rows of other ended jobs are found by a query, each ten minutes.
//
// Start reading at Board.Report.
package progress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	// WriteEvery is the shortest time between two writes of a job's progress.
	WriteEvery = time.Second
	// SweepEvery is the time between two queries for rows of jobs that have ended.
	SweepEvery = 10 * time.Minute

	batch      = 250         // reports in one write, and jobs in one query
	maxUnsaved = 32 << 20    // bytes of all reports that wait for a write
	overhead   = 200         // bytes of a report besides its data
	idleAfter  = time.Minute // a lease that this sidecar doesn't have is forgotten this long after the last report

	writeTimeout = 5 * time.Second
)

// The errors of Report and Confirm.
var (
	ErrLost = errors.New("the lease is not valid")
	ErrBusy = errors.New("the database is too slow for the progress of this sidecar's jobs: report it less often")
)

// Config configures a Board.
type Config struct {
	Save   func(ctx context.Context, all []backends.LeaseProgress) ([]backends.ProgressOutcome, error)
	Forget func(ctx context.Context, ids []string) error
	List   func(ctx context.Context, after string, limit int) ([]string, error)
	// Has reports whether the lease is one of this sidecar's.
	Has func(lease backends.Lease) bool
	Log *slog.Logger
}

// Board has the reports of a database.
type Board struct {
	Config
	used atomic.Bool   // entries isn't empty
	wake chan struct{} // has one if Run has something to do
	turn chan struct{} // has one while a write runs

	mu      sync.Mutex
	entries map[backends.Token]*entry
	unsaved int64    // bytes of reports that wait for a write
	ended   []string // jobs that have ended and possibly have a row
	failing bool     // the last write failed
}

// entry is the last report about a lease.
type entry struct {
	lease   backends.Lease
	last    backends.Progress // without its data after it was saved
	version uint64            // grows with each report
	unsaved bool
	stored  bool      // a row possibly has a report
	valid   bool      // a write found the lease valid
	lost    bool      // a write found it lost
	at      time.Time // of the last report
}

func (e *entry) size() int64 { return int64(len(e.last.Data)) + overhead }

// New returns an empty Board.
func New(c Config) *Board {
	return &Board{Config: c, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1), entries: map[backends.Token]*entry{}}
}

// Report replaces the last report about a lease. If confirm is true, it isn't known whether the lease is valid, and the caller
// calls Confirm.
func (b *Board) Report(lease backends.Lease, p backends.Progress) (confirm bool, err error) {
	has := b.Has(lease)
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[lease.Token]
	switch {
	case e != nil && (e.lost || e.lease != lease):
		return false, ErrLost
	case e == nil:
		e = &entry{lease: lease}
	case e.unsaved:
		b.unsaved -= e.size()
	}
	confirm = !has && !e.valid
	if e.unsaved = false; b.unsaved+int64(len(p.Data))+overhead > maxUnsaved {
		e.last = backends.Progress{}
		return false, ErrBusy
	}
	e.last, e.unsaved, e.at = p, true, time.Now()
	e.version++
	b.unsaved += e.size()
	b.entries[lease.Token] = e
	b.used.Store(true)
	b.poke()
	return confirm, nil
}

func (b *Board) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Confirm writes the report about a lease, and returns ErrLost if the lease is not valid.
func (b *Board) Confirm(ctx context.Context, lease backends.Lease) error {
	err := b.flush(ctx, []backends.Lease{lease})
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[lease.Token]
	switch {
	case e == nil || e.lost:
		return ErrLost
	case e.valid:
		return nil
	case err == nil:
		err = backends.Unavailable(errors.New("another transaction has locked the job's row"))
	}
	b.drop(e)
	return err
}

// Used reports whether there is any report.
func (b *Board) Used() bool { return b.used.Load() }

// Unsaved reports whether a report about one of the leases waits for a write.
func (b *Board) Unsaved(leases []backends.Lease) bool {
	if !b.Used() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(leases, func(l backends.Lease) bool {
		e := b.entries[l.Token]
		return e != nil && e.unsaved
	})
}

// Flush writes the reports about leases whose jobs go back to their queues. It returns when they are saved, can't be, or ctx is done.
func (b *Board) Flush(ctx context.Context, leases []backends.Lease) {
	_ = b.flush(ctx, leases) // it logs the error
}

// Ended forgets a lease. job is its job, if that has possibly ended too.
func (b *Board) Ended(token backends.Token, job string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[token]
	if e == nil {
		return
	}
	if e.stored && job != "" {
		b.ended = append(b.ended, job)
		b.poke()
	}
	b.drop(e)
}

// drop removes an entry. b.mu is held.
func (b *Board) drop(e *entry) {
	if e.unsaved {
		b.unsaved -= e.size()
	}
	delete(b.entries, e.lease.Token)
	b.used.Store(len(b.entries) > 0)
}

// Run writes reports until ctx is done.
func (b *Board) Run(ctx context.Context) {
	tick, sweep := time.NewTicker(WriteEvery), time.NewTicker(SweepEvery)
	defer tick.Stop()
	defer sweep.Stop()
	for {
		select {
		case <-b.wake: // the first report waits for a tick, too: most jobs that end soon need no write
			tick.Reset(WriteEvery)
			select {
			case <-tick.C:
				b.write(ctx)
			case <-ctx.Done():
				return
			}
		case <-sweep.C:
			b.dropIdle()
			b.sweep(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// Close writes the last reports.
func (b *Board) Close(ctx context.Context) { b.write(ctx) }

// write writes the reports that wait, and deletes rows of ended jobs.
func (b *Board) write(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, writeTimeout, fmt.Errorf("no answer within %v", writeTimeout))
	defer cancel()
	err := b.flush(ctx, nil)
	b.mu.Lock()
	more := b.unsaved > 0
	ended := b.ended
	b.ended = nil
	b.mu.Unlock()
	for ids := range slices.Chunk(ended, batch) {
		if err == nil { // a sweep finds the others
			err = b.Forget(ctx, ids)
			b.log(ctx, err)
		}
	}
	if more {
		b.poke()
	}
}

// dropIdle forgets the leases that this sidecar doesn't have and that had no report for a while.
func (b *Board) dropIdle() {
	var idle []*entry
	now := time.Now()
	b.mu.Lock()
	for _, e := range b.entries {
		if !e.unsaved && now.Sub(e.at) > idleAfter {
			idle = append(idle, e)
		}
	}
	b.mu.Unlock()
	for _, e := range idle {
		if b.Has(e.lease) {
			continue
		}
		b.mu.Lock()
		if b.entries[e.lease.Token] == e && !e.unsaved {
			b.drop(e)
		}
		b.mu.Unlock()
	}
}

// sweep deletes the rows of jobs that ended without this sidecar.
func (b *Board) sweep(ctx context.Context) {
	for after := ""; ; {
		ids, err := b.List(ctx, after, batch)
		if err == nil && len(ids) > 0 {
			err = b.Forget(ctx, ids)
		}
		if b.log(ctx, err); err != nil || len(ids) < batch {
			return
		}
		after = ids[len(ids)-1]
	}
}

// flush writes all reports that wait for it, those about the leases first.
func (b *Board) flush(ctx context.Context, first []backends.Lease) error {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return backends.Unavailable(context.Cause(ctx))
	}
	all := b.waiting(first)
	for part := range slices.Chunk(all, batch) {
		if err := b.save(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// report is a copy of an entry's report.
type report struct {
	backends.LeaseProgress
	of      *entry
	version uint64
}

func (b *Board) waiting(first []backends.Lease) (all []report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	add := func(e *entry) {
		all = append(all, report{backends.LeaseProgress{Lease: e.lease, Progress: e.last}, e, e.version})
	}
	for _, l := range first {
		if e := b.entries[l.Token]; e != nil && e.unsaved {
			add(e)
		}
	}
	for _, e := range b.entries {
		if e.unsaved && !slices.Contains(first, e.lease) {
			add(e)
		}
	}
	return all
}

// save writes reports. If the database refuses to, it writes each one alone, and forgets those that are refused.
func (b *Board) save(ctx context.Context, all []report) error {
	items := make([]backends.LeaseProgress, len(all))
	for i := range all {
		items[i] = all[i].LeaseProgress
	}
	outcomes, err := b.Save(ctx, items)
	if backends.IsRefused(err) && len(all) > 1 {
		for i := range all {
			if err := b.save(ctx, all[i:i+1]); err != nil && !backends.IsRefused(err) {
				return err
			}
		}
		return nil
	}
	b.log(ctx, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, r := range all {
		e := r.of
		outcome := backends.ProgressLocked
		switch {
		case err == nil:
			outcome = outcomes[i]
		case backends.IsRefused(err):
			b.written(r) // it is refused again and again
		}
		unknown := errors.Is(err, backends.ErrUnknownOutcome)
		if e.stored = e.stored || unknown || outcome == backends.ProgressSaved; b.entries[e.lease.Token] != e {
			if e.stored { // the lease ended at the same time, and so perhaps the job
				b.ended = append(b.ended, e.lease.Job)
				b.poke()
			}
			continue
		}
		switch outcome {
		case backends.ProgressSaved:
			e.valid = true
			b.written(r)
		case backends.ProgressLost:
			e.lost = true
			b.written(r)
		}
	}
	return err
}

// written notes that a report needs no write any more. b.mu is held.
func (b *Board) written(r report) {
	if e := r.of; e.unsaved && e.version == r.version {
		b.unsaved -= e.size()
		e.unsaved, e.last = false, backends.Progress{}
	}
}

// log logs the first of several errors, and the end of them.
func (b *Board) log(ctx context.Context, err error) {
	b.mu.Lock()
	was := b.failing
	b.failing = err != nil
	b.mu.Unlock()
	switch {
	case err != nil && !was && context.Cause(ctx) == nil:
		b.Log.Warn("can't write the progress of jobs", "event", "progress_failed", "error", err)
	case err == nil && was:
		b.Log.Info("the progress of jobs is written again", "event", "progress_recovered")
	}
}
