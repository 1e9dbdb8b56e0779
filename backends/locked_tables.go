package backends

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// OwnTables is a set of tables of the sidecar itself.
type OwnTables uint32

// The tables, as far as calls can do without some of them. OwnGroups and OwnGates are several tables.
const (
	OwnJobs OwnTables = 1 << iota
	OwnKeys
	OwnFailures
	OwnSidecars
	OwnQueues
	OwnLeases
	OwnCancelled
	OwnSchedules
	OwnGroups
	OwnGates
	OwnCommits
	OwnPrunable
	OwnPending

	// What needs a right on a table, where the table itself is in order.
	OwnNewJobs // enqueues
	OwnClaims  // claims of managed queues
	OwnSettles // what a worker or the sidecar does with a claimed job of a managed queue

	AllOwnTables = OwnSettles<<1 - 1
)

// OwnTableNames are the names of the tables. An engine can lack some of them.
var OwnTableNames = map[string]OwnTables{
	"qsidecar_jobs": OwnJobs, "qsidecar_keys": OwnKeys, "qsidecar_failures": OwnFailures, "qsidecar_sidecars": OwnSidecars, "qsidecar_queues": OwnQueues,
	"qsidecar_leases": OwnLeases, "qsidecar_cancelled": OwnCancelled, "qsidecar_schedules": OwnSchedules,
	"qsidecar_admissions": OwnGroups, "qsidecar_stripes": OwnGroups, "qsidecar_admitted": OwnGroups, "qsidecar_gates": OwnGates, "qsidecar_capped": OwnGates,
	"qsidecar_commits": OwnCommits, "qsidecar_requeues": OwnQueues, "qsidecar_prunable": OwnPrunable, "qsidecar_pending": OwnPending,
}

// TableOutage is why a table of the sidecar can't be used now.
type TableOutage struct {
	Of  OwnTables // what needs the table, or the right on it
	Err error     // a RightError: a right is missing
}

// LockedTables are the tables of the sidecar itself that other sessions keep locked, for example by an ALTER, and the calls that
// could wait for them. Tables without a right that the sidecar needs are among them. The zero value is ready for use. Its methods can
// be called concurrently.
type LockedTables struct {
	locked    atomic.Pointer[map[string]TableOutage] // by table; nil: none is locked
	suspected atomic.Bool                            // see Suspect

	mu      sync.Mutex
	last    int
	running map[int]tableUser
}

// tableUser is a call that can need tables.
type tableUser struct {
	need  OwnTables
	since time.Time
	end   context.CancelCauseFunc
}

// Some reports whether tables are locked. It costs nothing.
func (l *LockedTables) Some() bool { return l.locked.Load() != nil }

// Of returns why a call that needs tables can't succeed now; nil: it can, as far as it is known.
func (l *LockedTables) Of(need OwnTables) error {
	all := l.locked.Load()
	if all == nil {
		return nil
	}
	for _, table := range slices.Sorted(maps.Keys(*all)) {
		if x := (*all)[table]; x.Of&need != 0 {
			return &UnavailableError{Table: table, Err: x.Err}
		}
	}
	return nil
}

// Set replaces the locked tables. Calls under way that need a newly locked one end.
func (l *LockedTables) Set(locked map[string]TableOutage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var fresh OwnTables
	var before map[string]TableOutage
	if all := l.locked.Load(); all != nil {
		before = *all
	}
	for table, x := range locked {
		if !LacksRight(x.Err) { // a call without a right ends by itself
			fresh |= x.Of &^ before[table].Of
		}
	}
	if len(locked) == 0 {
		l.locked.Store(nil)
		return
	}
	l.locked.Store(&locked)
	why := l.Of(fresh)
	for _, u := range l.running {
		if u.need&fresh != 0 {
			u.end(why)
		}
	}
}

// Enter returns the context of a call that can need tables. It ends when one of them turns out to be locked, and LockedTable then
// returns the table of its cause. The caller calls leave at the end of the call.
func (l *LockedTables) Enter(ctx context.Context, need OwnTables) (_ context.Context, leave func()) {
	ctx, end := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running == nil {
		l.running = map[int]tableUser{}
	}
	l.last++
	id := l.last
	l.running[id] = tableUser{need, time.Now(), end}
	return ctx, func() {
		l.mu.Lock()
		delete(l.running, id)
		l.mu.Unlock()
		end(nil)
	}
}

// Suspect records that a call failed because of a lock, of a row or of a whole table.
func (l *LockedTables) Suspect() { l.suspected.Store(true) }

// Suspected reports whether a lock of a whole table is possibly in the way of calls: one of them has taken longer than patience, or
// Suspect was called since the last Suspected.
func (l *LockedTables) Suspected(patience time.Duration) bool {
	if l.suspected.Swap(false) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.running {
		if time.Since(u.since) > patience {
			return true
		}
	}
	return false
}

// LockedTable returns the table of the sidecar that another session keeps locked, if that is the reason of err.
func LockedTable(err error) string {
	for err != nil {
		u, ok := errors.AsType[*UnavailableError](err)
		if !ok || u.Table != "" {
			return tableOf(u)
		}
		err = u.Err
	}
	return ""
}

func tableOf(u *UnavailableError) string {
	if u == nil {
		return ""
	}
	return u.Table
}
