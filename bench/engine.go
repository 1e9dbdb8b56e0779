package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// engine is a kind of database. All that the benchmark knows of it is here: one
// file for each, and no branches elsewhere.
type engine struct {
	name string
	// start runs a server of its own; fast: without syncing, for tests of the benchmark.
	// errNotHad: there is none just now, and that is no fault of this repository.
	start func(ctx context.Context, fast bool) (server, error)
	aims  []aim
	// What -rows and -held are where nobody says: what is asked of the engine, or as
	// much as leaves a run of all engines within some ten minutes.
	rows, held int
	// drivers: other languages' clients are measured here, beside their drivers of it.
	drivers bool
}

// errNotHad is that a server cannot be had at this moment.
var errNotHad = errors.New("NOT MEASURED, its server cannot be had")

// engines are those that can be measured.
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
	// PID is the server's first process, whose children are its too; 0: it has none
	// that could be measured.
	PID() int
	// Database makes an empty database.
	Database(ctx context.Context, name string) (database, error)
	Stop() error
}

// database is one that a sidecar and its rivals share.
type database interface {
	// URL is what the sidecar gets.
	URL() string
	// Open opens it as the sidecar does.
	Open(ctx context.Context) (backends.Backend, error)
	// Count tells what the server has carried out in it so far.
	Count(ctx context.Context) (counts, error)
	// Rivals are the ways to work a queue without a sidecar, on a table of their own.
	Rivals() []rival
	// Fill makes the rivals' table anew, with that many ready jobs.
	Fill(ctx context.Context, jobs int) error
	// Backlog puts that many ready jobs of the queue, as many that are scheduled for
	// tomorrow, and as many dead ones into the sidecar's tables.
	Backlog(ctx context.Context, queue string, rows int) error
	// Finished puts that many done jobs of the queue and as many dead ones, each with a
	// failure, into the sidecar's tables: the first has its time after first, the last
	// span later.
	Finished(ctx context.Context, queue string, rows int, first, span time.Duration) error
	// Hold opens a transaction that keeps its snapshot until release.
	Hold(ctx context.Context) (release func() error, err error)
	Close() error
}

// counts are a server's own; known is false where it keeps none.
type counts struct {
	known        bool
	statements   int64 // BEGIN and COMMIT too
	transactions int64 // that wrote
}

// rival is direct SQL. Its key names it in aims.
type rival struct {
	key, name string
	workers   int
	part      float64 // of the jobs of a measurement: slow ones get fewer
	// session opens a connection. work takes and settles jobs, and returns how many;
	// 0: there are no more.
	session func(ctx context.Context) (work func() (int, error), end func() error, err error)
}

// aim is a ratio of two rates that is to be reached.
type aim struct {
	of, to string // keys
	least  float64
}

// The keys of what is measured on the sidecar; the rivals have their own.
const (
	keyEnqueueMany = "enqueue-many"
	keyEnqueueOne  = "enqueue-one"
	keyOne         = "one"
	keyMany        = "many"

	keyTwo  = "two"  // two short transactions a job
	keyBest = "best" // the best SQL for one job
	keyRaw  = "raw"  // one connection, a thousand at a time
)
