// Package measure has what all measurements share: what an engine and its server are (engine.go), the setup of a run (setup.go), a
// sidecar and its connections (sidecar.go, wire.go), workers (work.go), CPU and counters (usage.go), and the report.
package measure

import (
	"context"
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Engine is a kind of database. Each engine has one file, and no other code depends on the engine.
type Engine struct {
	Name string
	// start starts a new server. fast disables syncing, for tests of the benchmark. The error is
	// errUnavailable if the server is unavailable for a reason outside of this repository.
	Start func(ctx context.Context, fast bool) (Server, error)
	Aims  []Aim
	// Defaults of -rows and -held: the size that the engine must handle, or one that takes some minutes.
	Rows, Held int
	Holds      []Hold // that are measured
	// measure other queues on this engine, and other languages' clients beside their drivers
	Drivers bool
}

// ErrUnavailable means that a server is unavailable now.
var ErrUnavailable = errors.New("NOT MEASURED, its server is unavailable")

// Server is a running database server.
type Server interface {
	Version() string
	// CPU returns the time that the server's processes have used.
	CPU() (time.Duration, error)
	// Database creates an empty database.
	Database(ctx context.Context, name string) (Database, error)
	Stop() error
}

// Database is a database that a sidecar and its rivals share.
type Database interface {
	// URL returns the URL for the sidecar.
	URL() string
	// Open opens the database as the sidecar does.
	Open(ctx context.Context) (backends.Backend, error)
	// Count returns what the server has carried out in the database.
	Count(ctx context.Context) (Counts, error)
	// Rivals returns the ways to use a queue without a sidecar, on their own table.
	Rivals() []Rival
	// Fill creates the rivals' table again, with that many ready jobs.
	Fill(ctx context.Context, jobs int) error
	// Backlog adds that many ready jobs of the queue, as many that are scheduled for tomorrow, and
	// as many dead ones to the sidecar's tables.
	Backlog(ctx context.Context, queue string, rows int) error
	// Finished adds that many done jobs of the queue and as many dead ones, each with a failure, to
	// the sidecar's tables. The first expires after first, the last span later.
	Finished(ctx context.Context, queue string, rows int, first, span time.Duration) error
	// Hold opens a transaction that keeps its snapshot until release, and carries out sql in it.
	Hold(ctx context.Context, sql string) (release func() error, err error)
	Close() error
}

// Hold is a transaction that stays open while jobs are worked.
type Hold struct{ Name, SQL string }

// SnapshotOnly is a hold that writes nothing.
var SnapshotOnly = Hold{"a held snapshot", "SELECT 1"}

// Counts are a server's own counters. known is false if it has none.
type Counts struct {
	Known        bool
	Connections  int   // to the database, now; 0: not counted
	Statements   int64 // including BEGIN and COMMIT
	Transactions int64 // only those that wrote
}

// Rival is direct SQL. Its key identifies it in aims.
type Rival struct {
	Key, Name string
	Workers   int
	Part      float64 // share of a measurement's jobs: slow rivals get fewer
	// session opens a connection. work claims and settles jobs and returns how many. 0 means that
	// there are no more.
	Session func(ctx context.Context) (work func() (int, error), end func() error, err error)
}

// Aim is a ratio of two rates that must be reached.
type Aim struct {
	Of, To string // keys
	Least  float64
}

// The keys of the sidecar's measurements. Rivals have their own keys.
const (
	KeyEnqueueMany = "enqueue-many"
	KeyEnqueueOne  = "enqueue-one"
	KeyOne         = "one"
	KeyMany        = "many"

	KeyTwo  = "two"  // two short transactions for each job
	KeyBest = "best" // the best SQL for one job
	KeyRaw  = "raw"  // one connection, a thousand jobs at a time
)
