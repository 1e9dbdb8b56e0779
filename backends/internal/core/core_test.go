package core_test

import (
	"errors"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
)

// TestExampleEngine: the example engine, whose tables are maps, does everything that package backends promises.
func TestExampleEngine(t *testing.T) {
	t.Parallel()
	backendtest.Run(t, func(*testing.T) *backendtest.Database {
		db := &database{t: newTables(), now: time.Now(), refuse: map[string]string{}}
		e := newEngine(db)
		return &backendtest.Database{
			Lacks:       []string{"Limits", "Groups", "GroupWalk", "GroupReady", "GroupHistories", "Schedules", "Progress", "Batches", "Expiry", "OwnRetention", "Conflicts"},
			Backend:     e,
			OpenAnother: func() backends.Backend { return newEngine(db) },
			AdvanceClock: func(d time.Duration) {
				db.mu.Lock()
				defer db.mu.Unlock()
				db.now = db.now.Add(d)
			},
			LoseCommit: func(before bool) {
				if before {
					e.before = backends.Unavailable(errors.New("the connection broke before the commit"))
				} else {
					e.after = backends.ErrUnknownOutcome
				}
			},
			RefuseJobs: func(queue, reason string) { db.refuse[queue] = reason },
			RefuseChanges: func(r backendtest.Refusal) (allow func()) {
				db.refuseChanges = append(db.refuseChanges, r)
				return func() { db.refuseChanges = nil }
			},
		}
	})
}
