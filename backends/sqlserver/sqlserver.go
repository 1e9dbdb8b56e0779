// Package sqlserver is the Backend on SQL Server 2016 and later and on Azure SQL.
// Its SQL is meant for Babelfish (Aurora PostgreSQL's SQL Server face), too, but no run
// there has shown that it works: no MERGE, no updatable CTE, no CREATE OR ALTER, no
// UPDATE or DELETE with an OUTPUT that JOINs or computes, and nothing whose
// exclusiveness rests on a table hint alone.
//
// No SQL Server can be had where this package is made, and none has run it yet. What
// stands in for one: every statement as it is sent lies in testdata/golden, parsed by
// two grammars of T-SQL, with each column it names, and the types that it compares,
// looked up in the tables' own definitions; the rules that matter for claims are
// checked on those. The suite of all engines runs on the very batches, which
// testdata/tsql/translate.py turns into PostgreSQL's SQL: that shows what the
// statements mean, and nothing of what only SQL Server does, as its locks and plans.
// Errors are real mssql.Error values. On a real server the suite runs where
// QSIDECAR_TEST_SQLSERVER names one, as the workflow ci.yml has it do.
//
// Its clock is the server's. Every change is a few statements over lists, which go
// as OPENJSON documents, many statements in one batch; no batch relies on what its
// session was set to before.
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
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// Options say which database to open, and how.
type Options struct {
	// URL is a sqlserver:// URL as go-mssqldb reads it:
	// sqlserver://USER@HOST:PORT?database=NAME or sqlserver://USER@HOST/INSTANCE?database=NAME.
	URL string

	// Password replaces the URL's, where it is not empty.
	Password string

	// Schema holds the tables. Letters, digits and _, not beginning with a digit,
	// at most 48 bytes. Defaults to "qsidecar".
	Schema string

	// MaxConnections is how many connections are open at most, the beats' included:
	// at least 3, defaults to 8.
	MaxConnections int

	// ApplicationName is shown in sys.dm_exec_sessions. Defaults to "qsidecar".
	ApplicationName string

	// Look opens the database for Examine alone: nothing in it is made or changed.
	Look bool

	// Log gets what no caller is told. Defaults to discarding it.
	Log *slog.Logger

	dialer  mssql.Dialer                            // tests cut connections with it
	driver  func(*mssql.Connector) driver.Connector // tests put another server behind the driver's face
	connect time.Duration                           // for a connection, login and all; tests wait less
}

const (
	defaultSchema         = "qsidecar"
	defaultMaxConnections = 8
	minConnections        = 3
)

var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,47}$`)

// Store is an open database. It is a backends.Backend and a backends.Inspector.
type Store struct {
	meter    backends.Meter
	o        Options
	log      *slog.Logger
	place    string
	server   server
	database string
	sql      *statements

	db       *sql.DB // commits, sweeps and looks
	beats    *sql.DB // one connection, for beats alone
	handle   int64   // this Store in qsidecar_commits
	opened   time.Time
	lanes    chan *lane
	made     atomic.Int32 // lanes
	cursors  cursor.Set
	owners   ownersLook
	counts   batch.Estimates
	hintless atomic.Bool // statements of adopted tables have no hints; see withoutHints

	life    context.Context // ends with Close
	end     context.CancelCauseFunc
	closing sync.Once
	closed  error                             // of the first Close
	fault   atomic.Pointer[func(before bool)] // tests break commits with it
}

var _ interface {
	backends.Backend
	backends.Inspector
} = (*Store)(nil)

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
		return fmt.Errorf("max_connections is %d: SQL Server needs at least %d (claims and settles, beats, looks)", o.MaxConnections, minConnections)
	}
	if o.ApplicationName == "" {
		o.ApplicationName = "qsidecar"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.connect == 0 {
		o.connect = connectTimeout
	}
	return nil
}

// Open opens the database and makes or migrates its tables where they are
// missing or old. Errors name the place, never the password.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	config, err := configure(&o)
	if err != nil {
		return nil, err
	}
	s := &Store{o: o, log: o.Log, place: placeOf(config), handle: random(), opened: time.Now(), sql: render(o.Schema)}
	s.cursors.Unproven = true // see settled
	s.life, s.end = context.WithCancelCause(context.Background())
	s.connect(config)
	err = s.greet(ctx)
	if err == nil && !o.Look {
		err = s.migrate(ctx)
	}
	if err != nil {
		return nil, errors.Join(s.explain(err), s.Close())
	}
	return s, nil
}

// Info implements backends.Backend.
func (s *Store) Info() backends.Info {
	return backends.Info{Engine: "sqlserver", Version: s.server.version, Address: s.place, Database: s.database, Prefetch: true, Concurrent: true}
}

// Close implements backends.Backend. Calls under way end with an error.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.end(backends.Unavailable(fmt.Errorf("%s: %w", s.place, errClosed)))
		s.closed = errors.Join(s.db.Close(), s.beats.Close())
	})
	return s.closed
}

// bound is ctx, ending also when the Store is closed.
func (s *Store) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// ownersLook says when the claims' owners were last compared with the hosts.
type ownersLook struct {
	mu   sync.Mutex
	next time.Time
}

// random is a number that no other run will have.
func random() int64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: the program ends where there is no randomness
	return int64(binary.LittleEndian.Uint64(b[:]))
}
