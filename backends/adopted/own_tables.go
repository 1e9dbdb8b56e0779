package adopted

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Another session can lock a table of the sidecar itself, for example by an ALTER. Adopted queues don't need qsidecar_jobs, but
// they share commits and maintenance with managed queues. If maintenance takes long, it finds out whether such a lock is the
// reason. Then it ends the transactions that wait for the lock. Until the lock is gone, commits leave managed jobs out.

// ownTables are the tables that managed queues need and adopted ones don't.
var ownTables = []string{"qsidecar_jobs", "qsidecar_keys", "qsidecar_failures", "qsidecar_schedules"}

const (
	// ownPatience is how long the engine's maintenance takes before maintenance searches for locks.
	ownPatience = time.Second
	// ownEvery is how often it does that again.
	ownEvery = 5 * time.Second
)

// ownGuard is the state of the sidecar's own tables.
type ownGuard struct {
	locked atomic.Pointer[backends.UnavailableError] // why managed jobs are left out; nil: they aren't

	mu      sync.Mutex
	last    int
	running map[int]context.CancelCauseFunc // the engine's transactions for managed jobs
}

// enter returns the context of a transaction for managed jobs. The caller calls leave at its end.
func (o *ownGuard) enter(ctx context.Context) (_ context.Context, leave func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running == nil {
		o.running = map[int]context.CancelCauseFunc{}
	}
	o.last++
	id := o.last
	o.running[id] = cancel
	return ctx, func() {
		cancel(nil)
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.running, id)
	}
}

// close leaves managed jobs out because of why.
func (o *ownGuard) close(why *backends.UnavailableError) {
	o.locked.Store(why)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, cancel := range o.running {
		cancel(why)
	}
}

// ownLocked returns why a managed queue can't be used; nil: it can.
func (s *Store) ownLocked(queue string) error {
	if why := s.own.locked.Load(); why != nil {
		return &backends.UnavailableError{Queue: queue, Err: why.Err}
	}
	return nil
}

// findOwnLocks finds out whether another session has locked one of the ownTables. It notes that, or that none is locked.
func (s *Store) findOwnLocks(ctx context.Context) (found bool) {
	for _, table := range ownTables {
		ctx, cancel := context.WithTimeout(ctx, recheckTimeout)
		err := s.Query(ctx, &backends.Statement{Text: "SELECT " + s.dialect.ToText("count(*)") + " FROM " + s.dialect.SidecarTable(table) + " WHERE 1 = 0", Row: func([][]byte) error { return nil }})
		cancel()
		if !isLocked(err) {
			continue
		}
		why := fmt.Errorf("another session has locked the whole table %s: %w", table, errors.Unwrap(err))
		s.ObstacleSet().Note(backends.Obstacle{Table: table, Doing: backends.DoingMaintain, Err: why})
		if table == ownTables[0] {
			s.own.close(&backends.UnavailableError{Err: why})
		}
		return true
	}
	s.own.locked.Store(nil)
	s.ObstacleSet().Clear("", "", backends.DoingMaintain)
	return false
}

// maintainOwn is the engine's maintenance, as long as no lock keeps it waiting.
func (s *Store) maintainOwn(ctx context.Context, m backends.Maintenance) (r backends.MaintenanceResult, err error) {
	set, none := s.ObstacleSet(), backends.MaintenanceResult{Reaped: map[backends.Cause]int{}, Next: -1}
	if set.Find("", "", backends.DoingMaintain) != nil && (set.Waits("", "", backends.DoingMaintain) || s.findOwnLocks(ctx)) {
		return none, nil
	}
	run, leave := s.own.enter(ctx)
	defer leave()
	stop := make(chan struct{})
	var watch sync.WaitGroup
	found := false
	watch.Go(func() {
		timer := time.NewTimer(ownPatience)
		defer timer.Stop()
		for !found {
			select {
			case <-stop:
				return
			case <-timer.C:
				if found = s.findOwnLocks(ctx); found {
					leave()
				}
				timer.Reset(ownEvery)
			}
		}
	})
	r, err = s.Engine.Maintain(run, m)
	close(stop)
	watch.Wait()
	if found {
		return none, nil
	}
	return r, err
}
