// Package sqlserver is the Backend on SQL Server 2016 and later and on Azure SQL.
//
// A Store embeds core.Store, which orchestrates. This package implements core.Driver (access)
// and core.Tx (tx): its SQL, its error classes, and how it finds out what became of a commit.
// It uses only packages backends, backends/internal/core and go-mssqldb.
//
// Start reading with tx.go and with type piece in statements.go. The statements are in sql/,
// one file each. Lists go to the server as JSON documents (documents.go).
//
// No SQL Server is available where this package is developed, and none has run it yet. The
// tests replace one as follows:
//   - Each batch is a file in testdata/golden. Two grammars of T-SQL parse it. Each column is
//     looked up in the tables' definitions, the types of comparisons are checked, and so are
//     the rules that make claims exclusive.
//   - The conformance suite runs on the same batches, which testdata/tsql/translate.py turns
//     into PostgreSQL's SQL. That shows what the statements mean. It shows nothing that only
//     SQL Server does, such as its locks and plans.
//   - Errors are real mssql.Error values.
//   - If QSIDECAR_TEST_SQLSERVER names a real server, the suite runs there, too.
//
// The SQL avoids what Babelfish (Aurora PostgreSQL's SQL Server interface) lacks, but no run
// has shown that it works there: no MERGE, no updatable CTE, no CREATE OR ALTER, no UPDATE or
// DELETE with an OUTPUT that JOINs or computes, and nothing that is exclusive only because of
// a table hint.
//
// The clock of all statements is the server's. A batch sets what it needs, except the options
// that filtered indexes need: the driver's logins have these, and begin.sql sets them for a
// transaction.
package sqlserver

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/internal/dial"
)

// Options name the database to open and its settings.
type Options struct {
	// URL is a sqlserver:// URL as go-mssqldb reads it:
	// sqlserver://USER@HOST:PORT?database=NAME or sqlserver://USER@HOST/INSTANCE?database=NAME.
	URL string

	// Password, if not empty, replaces the URL's.
	Password string

	// Schema holds the tables. Letters, digits and _, not beginning with a digit,
	// at most 48 bytes. Defaults to "qsidecar".
	Schema string

	// MaxConnections limits the open connections, including the one for heartbeats. It is
	// at least 3 and defaults to 8.
	MaxConnections int

	// ApplicationName is shown in sys.dm_exec_sessions. Defaults to "qsidecar".
	ApplicationName string

	// ReadOnly opens the database for Examine only: nothing in it is created or changed.
	ReadOnly bool

	// Log receives what is not reported as an error. It defaults to discarding it.
	Log *slog.Logger

	dialer  mssql.Dialer                            // for tests that cut connections
	driver  func(*mssql.Connector) driver.Connector // for tests that replace the server
	connect time.Duration                           // limit of a connect, including the login; shorter in tests
	later   []string                                // set by tests: migrations that follow the latest one
}

const (
	defaultSchema         = "qsidecar"
	defaultMaxConnections = 8
	minConnections        = 3
)

var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,47}$`)

// Store is an open database. It is a backends.Backend and a backends.Inspector.
type Store struct {
	core.Store

	o        Options
	log      *slog.Logger
	place    string
	server   server
	database string
	sql      *statements

	db         *sql.DB // everything but heartbeats
	heartbeats *sql.DB // one connection, for heartbeats alone
	handle     int64   // this Store in qsidecar_commits
	opened     time.Time
	slots      chan *txSlot
	txSlots    atomic.Int32 // number of rows used in qsidecar_commits so far
	unverified atomic.Bool  // a connection is new: the sequence can be behind the ids
	hintless   atomic.Bool  // statements of adopted tables have no hints; see withoutHints

	closing sync.Once
	closed  error                             // of the first Close
	fault   atomic.Pointer[func(before bool)] // for tests that break commits
}

var _ interface {
	backends.Backend
	backends.Inspector
} = (*Store)(nil)

// access is a Store as the core uses it.
type access struct{ *Store }

var _ core.Driver = access{}

// Traits implements core.Driver.
func (access) Traits() core.Traits {
	return core.Traits{Silent: true, AcksAll: true, FastDeliver: true, Progress: true, Pending: true, MaxRows: maxRows}
}

// MadeReady implements core.Driver. SQL Server cannot notify other sidecars.
func (access) MadeReady([]string) {}

func (o *Options) complete() error {
	if o.Schema == "" {
		o.Schema = defaultSchema
	}
	if !schemaName.MatchString(o.Schema) {
		return fmt.Errorf("the schema's name %q must be letters, digits and _, at most 48 of them, beginning with no digit", o.Schema)
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = defaultMaxConnections
	}
	if o.MaxConnections < minConnections {
		return fmt.Errorf("max_connections is %d: SQL Server needs at least %d (claims and settles, heartbeats, queries)", o.MaxConnections, minConnections)
	}
	if o.ApplicationName == "" {
		o.ApplicationName = "qsidecar"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.connect == 0 {
		o.connect = dial.Timeout
	}
	return nil
}

// Open opens the database. It creates its tables if they are missing and migrates them if
// they are old. Errors name the address, never the password.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	config, err := configure(&o)
	if err != nil {
		return nil, err
	}
	s := &Store{o: o, log: o.Log, place: placeOf(config), handle: random(), opened: time.Now(), sql: render(o.Schema)}
	s.Init(access{s}, s.place, o.Log)
	s.Cursors.Share = cursor.RareShare // see settled
	s.connect(config)
	err = s.checkServer(ctx)
	if err == nil && !o.ReadOnly {
		err = s.migrate(ctx)
	}
	if err != nil {
		return nil, errors.Join(s.withKind(err), s.Close())
	}
	return s, nil
}

// Info implements backends.Backend.
func (s *Store) Info() backends.Info {
	return backends.Info{Engine: "sqlserver", Version: s.server.version, Address: s.place, Database: s.database, Prefetch: true, Concurrent: true, Progress: true}
}

// Close implements backends.Backend. Calls under way end with an error.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.Stop(backends.Unavailable(fmt.Errorf("%s: %w", s.place, errClosed)))
		s.closed = errors.Join(closePool(s.db), closePool(s.heartbeats))
	})
	return s.closed
}

// closePool closes a pool. An error of a connection that was cut before is ignored, because that connection is closed.
func closePool(db *sql.DB) error {
	if err := db.Close(); err != nil && !broken(err) {
		return err
	}
	return nil
}

// random returns a number that is unique to this process.
func random() int64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return int64(binary.LittleEndian.Uint64(b[:]))
}

// Usage implements backends.Metered.
func (s *Store) Usage() backends.Usage {
	u, pool := s.Meter.Usage(), s.db.Stats()
	u.Max, u.InUse, u.Idle = pool.MaxOpenConnections, pool.InUse, pool.Idle
	u.Waits, u.Waited = uint64(pool.WaitCount), pool.WaitDuration
	return u
}
