package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// engine is a kind of database. Each engine has one file, and no other code depends on the engine.
type engine struct {
	name string
	// start starts a new server. fast disables syncing, for tests of the benchmark. The error is
	// errUnavailable if the server is unavailable for a reason outside of this repository.
	start func(ctx context.Context, fast bool) (server, error)
	aims  []aim
	// Defaults of -rows and -held: the size that the engine must handle, or one that takes some minutes.
	rows, held int
	holds      []hold // that are measured
	// measure other queues on this engine, and other languages' clients beside their drivers
	drivers bool
}

// errUnavailable means that a server is unavailable now.
var errUnavailable = errors.New("NOT MEASURED, its server is unavailable")

// engines are the engines that the benchmark supports.
var engines = []engine{postgresEngine, mysqlEngine, mariadbEngine, sqliteEngine}

func engineNames() string {
	var names []string
	for _, e := range engines {
		names = append(names, e.name)
	}
	return strings.Join(names, ",")
}

func enginesNamed(list string) (found []engine, err error) {
	for name := range strings.SplitSeq(list, ",") {
		n := len(found)
		for _, e := range engines {
			if e.name == name {
				found = append(found, e)
			}
		}
		if len(found) == n {
			return nil, fmt.Errorf("no engine %q: there are %s", name, engineNames())
		}
	}
	return found, nil
}

// server is a running database server.
type server interface {
	Version() string
	// CPU returns the time that the server's processes have used.
	CPU() (time.Duration, error)
	// Database creates an empty database.
	Database(ctx context.Context, name string) (database, error)
	Stop() error
}

// database is a database that a sidecar and its rivals share.
type database interface {
	// URL returns the URL for the sidecar.
	URL() string
	// Open opens the database as the sidecar does.
	Open(ctx context.Context) (backends.Backend, error)
	// Count returns what the server has carried out in the database.
	Count(ctx context.Context) (counts, error)
	// Rivals returns the ways to use a queue without a sidecar, on their own table.
	Rivals() []rival
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

// hold is a transaction that stays open while jobs are worked.
type hold struct{ name, sql string }

// snapshotOnly is a hold that writes nothing.
var snapshotOnly = hold{"a held snapshot", "SELECT 1"}

// counts are a server's own counters. known is false if it has none.
type counts struct {
	known        bool
	connections  int   // to the database, now; 0: not counted
	statements   int64 // including BEGIN and COMMIT
	transactions int64 // only those that wrote
}

// rival is direct SQL. Its key identifies it in aims.
type rival struct {
	key, name string
	workers   int
	part      float64 // share of a measurement's jobs: slow rivals get fewer
	// session opens a connection. work claims and settles jobs and returns how many. 0 means that
	// there are no more.
	session func(ctx context.Context) (work func() (int, error), end func() error, err error)
}

// aim is a ratio of two rates that must be reached.
type aim struct {
	of, to string // keys
	least  float64
}

// The keys of the sidecar's measurements. Rivals have their own keys.
const (
	keyEnqueueMany = "enqueue-many"
	keyEnqueueOne  = "enqueue-one"
	keyOne         = "one"
	keyMany        = "many"

	keyTwo  = "two"  // two short transactions for each job
	keyBest = "best" // the best SQL for one job
	keyRaw  = "raw"  // one connection, a thousand jobs at a time
)
