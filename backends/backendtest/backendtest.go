package backendtest

import (
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest/operator"
)

// Database is an empty database for one test, with the hooks that the test needs.
type Database struct {
	backends.Backend

	// Lacks are the topics of Test whose features the engine answers unsupported. Their tests end without a check.
	Lacks []string

	// OpenAnother opens a second handle, as another sidecar on the same database does. The engine's
	// test closes it at the end.
	OpenAnother func() backends.Backend

	// AdvanceClock moves the database's clock for every handle. The duration can be negative.
	AdvanceClock func(time.Duration)

	// LoseCommit breaks the connection of Backend's next commit, before or after the database
	// carried it out.
	LoseCommit func(before bool)

	// BeforeCommit calls f once, immediately before Backend sends the next COMMIT. It is nil if the engine sends none.
	BeforeCommit func(f func())

	// CommitErrors are errors that a proxy in front of the database can answer a COMMIT with, after it lost its own
	// connection. Each function arms one for Backend's next commit, which the database carries out unless before is
	// true. It is nil if the engine has no network.
	CommitErrors map[string]func(before bool)

	// EmptyTable empties one of SmallTables, which are all tables except those of jobs and of adopted tables' leases. It is nil if the
	// engine has no tables.
	EmptyTable  func(table string)
	SmallTables []string

	// RemoveTable takes one of SmallTables away until the function that it returns is called. It is nil if the engine has no tables,
	// or needs all of them.
	RemoveTable func(table string) (back func())

	// RefuseJobs makes the database refuse every new job of a queue from now on, as a trigger of
	// the owner can. The error contains reason.
	RefuseJobs func(queue, reason string)

	// RefuseChanges makes the database refuse changes and deletions of jobs, until allow is called. It is nil if the engine
	// can't. An engine with it is a backends.Obstructed, and has the method ObstacleSet of backends.Adopter.
	RefuseChanges func(r Refusal) (allow func())

	// InsertJob runs the INSERT that the engine's README documents, outside of the Backend. It is
	// nil if the engine has no SQL.
	InsertJob func(queue, payload string)

	// Producer returns another program, which stops with the test at the latest. It is nil if the
	// engine has no SQL, or allows one writer at a time.
	Producer func() Producer

	// LockRow locks a job's row in an open transaction of another program, until unlock is called or
	// the test ends. It is nil if the engine has no row locks.
	LockRow func(id string) (unlock func())

	// LockGate is LockRow for the gate of a queue with limits, which has one after its first claim: as if a host hung in its claim.
	LockGate func(queue string) (unlock func())

	// LockTable locks one of the sidecar's tables in another session, as an ALTER does, until unlock is called. It is nil if the engine
	// has no such locks.
	LockTable func(table string) (unlock func())

	// Poor returns a Backend of a login that has the rights of a sidecar only. It is nil if the engine has no rights.
	Poor func() *Poor

	// LockStripe is LockRow for the lock that admissions of a group take, which exists after the first one. It is nil if there is no
	// such lock.
	LockStripe func(queue, group string) (unlock func())

	// AdmitsInCommits: a commit that ends a job of a group also admits the next one, if claims found too few.
	AdmitsInCommits bool

	// Application returns another program. lock locks a key in its transaction, as an application does that enqueues
	// with a key; the first one begins it. The error is the server's, such as a deadlock. end commits. Application is
	// nil if the engine has no row locks.
	Application func() (lock func(queue, key string) error, end func())

	// InsertRow runs the InsertSQL of an expression. If old is true, the row bypasses the CHECK
	// constraints, as rows of older tables did. It is nil if the engine has no SQL. InvalidValues
	// lists expressions by column: values that the engine accepts, or nearly accepts, and that a
	// sidecar might be unable to use.
	InsertRow     func(column, expression string, old bool) error
	InvalidValues map[string][]string
}

// Run checks every promise of package backends, each in a new database. open must be safe to call
// from parallel tests.
func Run(t *testing.T, open func(t *testing.T) *Database) {
	for _, topic := range []struct {
		name  string
		tests map[string]func(*kit)
	}{
		{"Values", valueTests}, {"Order", orderTests}, {"Keys", keyTests},
		{"Settle", settleTests}, {"Attempts", attemptTests}, {"Leases", leaseTests},
		{"ClaimLimits", claimLimitTests}, {"Limits", limitTests}, {"Groups", groupTests}, {"GroupWalk", groupWalkTests}, {"GroupReady", groupReadyTests}, {"GroupHistories", groupHistoryTests}, {"Maintenance", maintenanceTests}, {"Retention", retentionTests},
		{"Sidecars", sidecarTests}, {"Prefetch", prefetchTests}, {"Alone", aloneTests}, {"FailedCounts", failedCountTests},
		{"Inspect", inspectTests}, {"Commands", commandTests}, {"Cancel", cancelTests}, {"Progress", progressTests}, {"Expiry", expiryTests}, {"OwnRetention", ownRetentionTests}, {"Conflicts", conflictTests},
		{"Faults", faultTests}, {"Concurrency", concurrencyTests}, {"LateCommits", lateCommitTests},
		{"Schedules", scheduleTests}, {"Batches", batchTests}, {"InvalidValues", invalidValueTests}, {"LockedRows", lockedRowTests}, {"Obstacles", obstacleTests}, {"LockedTables", lockedTableTests}, {"Rights", rightTests},
	} {
		t.Run(topic.name, func(t *testing.T) {
			for name, test := range topic.tests {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					k := &kit{T: t, Database: open(t)}
					ignoreSpeed(k.Backend)
					if another := k.OpenAnother; another != nil {
						k.OpenAnother = func() backends.Backend {
							b := another()
							ignoreSpeed(b)
							return b
						}
					}
					k.join(k.Backend, me)
					if has := map[string]func() bool{"Limits": k.hasLimits, "Groups": k.hasGroups, "GroupWalk": k.hasGroups, "GroupReady": k.hasGroups, "GroupHistories": k.hasGroups, "Schedules": k.hasSchedules, "Progress": k.hasProgress, "Batches": k.hasBatches, "Expiry": k.expires, "OwnRetention": k.retains, "Conflicts": k.replacesContent}[topic.name]; has == nil || has() {
						test(k)
					} else if !slices.Contains(k.Lacks, topic.name) {
						k.Errorf("the engine answers unsupported: build it, or name the topic in Database.Lacks")
					}
				})
			}
		})
	}
	t.Run("Emptied", func(t *testing.T) { emptied(t, open) })
	t.Run("Operators", func(t *testing.T) {
		for name, test := range operator.Tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				k := &kit{T: t, Database: open(t)}
				k.join(k.Backend, me)
				test(&operator.Kit{T: t, Backend: k.Backend, Advance: k.AdvanceClock, OpenAnother: k.OpenAnother})
			})
		}
	})
}
