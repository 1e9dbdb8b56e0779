// Package postgres is the Backend on PostgreSQL 13 and later. It uses the server's
// clock. Every change is a few statements over arrays, sent together. No statement
// leaves anything in its session, so the server can be behind a pooler that gives
// sessions to other clients between transactions.
package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/hosts"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
)

// Options configure which database Open opens, and how.
type Options struct {
	// URL is a postgres:// URL or a libpq connection string.
	URL string

	// Password replaces the URL's password unless it is empty.
	Password string

	// Schema is the schema of the tables: lower-case letters, digits and _, not
	// beginning with a digit, at most 48 bytes. PostgreSQL folds unquoted names to
	// lower case. Defaults to "qsidecar".
	Schema string

	// MaxConnections limits the open connections, including those for heartbeats
	// and notifications. At least 4; defaults to 8.
	MaxConnections int

	// Notify makes this sidecar notify others of jobs that it enqueues, and listen to their notifications.
	Notify bool

	// ApplicationName is shown in pg_stat_activity. Defaults to "qsidecar".
	ApplicationName string

	// StatementTimeout cancels statements that take longer. 0 keeps the server's own setting.
	StatementTimeout time.Duration

	// ReadOnly opens the database only for examination and statistics, also on a standby. Open then creates and changes nothing in it.
	ReadOnly bool

	// Log gets events that no caller gets as an error. Defaults to discarding them.
	Log *slog.Logger

	migrating func(c *pgx.Conn, sql string) error // set by tests to make migrations fail
	later     []migrate.Migration                 // set by tests: migrations that follow the latest one
	idle      time.Duration                       // set by tests: replaces idleInTransaction and lockIdle
	wrap      func(net.Conn) net.Conn             // set by tests: a proxy around each connection
}

const (
	defaultSchema         = "qsidecar"
	defaultMaxConnections = 8
	minConnections        = 4
	// joinJobs: a commit that only claims does not wait for the log. So two loops do more with large commits, which
	// overlap with that wait. With few jobs the fixed costs of a transaction count more (bench/README.md).
	joinJobs = 8
	// writeCommits: each session of the server is a process, which compresses and writes large payloads on its own.
	writeCommits = 2
)

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

// Store is an open database. It is a backends.Backend, a backends.Inspector, a
// backends.Notifier and a backends.Examiner.
type Store struct {
	core.Store

	o        Options
	log      *slog.Logger
	place    string
	version  string
	database string
	number   int         // the server's version, as 170004
	pooled   bool        // a pooler is in between: a transaction can run in any session
	own      ownSettings // see session.go
	sql      *statements

	tables []string // those of the sidecar's tables that package dialect changes, quoted
	txSQL  string   // the settings of a transaction behind a pooler

	pool      *pgxpool.Pool
	heartbeat heartbeatConn
	orphans   orphans
	epochs    epochs
	primaries primaries
	cluster   core.Description
	writers   writers
	notifier  notifier

	probes  sync.WaitGroup
	closing sync.Once
	closed  error                                          // of the first Close
	fault   atomic.Pointer[func(c *pgx.Conn, before bool)] // set by tests to make commits fail
}

// access is the Store as the core uses it.
type access struct{ *Store }

var _ core.Driver = access{}

// Traits implements core.Driver.
func (access) Traits() core.Traits {
	return core.Traits{Silent: true, FastDeliver: true, Progress: true, Pending: true, WholeChanges: true}
}

// MadeReady implements core.Driver.
func (a access) MadeReady(queues []string) { a.notifier.madeReady(queues) }

var _ interface {
	backends.Backend
	backends.Inspector
	backends.Notifier
} = (*Store)(nil)

func (o *Options) complete() error {
	if o.Schema == "" {
		o.Schema = defaultSchema
	}
	if !schemaName.MatchString(o.Schema) {
		return fmt.Errorf("the schema's name %q must be lower-case letters, digits and _, at most 48 of them, beginning with no digit", o.Schema)
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = defaultMaxConnections
	}
	if o.MaxConnections < minConnections {
		return fmt.Errorf("max_connections is %d: PostgreSQL needs at least %d (claims and settles, heartbeats, notifications, queries)", o.MaxConnections, minConnections)
	}
	if o.ApplicationName == "" {
		o.ApplicationName = "qsidecar"
	}
	o.Notify = o.Notify && !o.ReadOnly
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Open opens the database. It creates missing tables and migrates old ones.
// Errors name the address, never the password.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Store{o: o, log: o.Log}
	config, err := configure(&o, &s.primaries)
	if err != nil {
		return nil, err
	}
	s.place = placeOf(config.ConnConfig)
	s.primaries.refused, s.primaries.changed = s.oldPrimary, s.primaryChanged
	s.Init(access{s}, s.place, o.Log)
	s.sql = render(o.Schema)
	for _, table := range []string{"leases", "schedules", "progress", "jobs", "batches", "batch_members", "batch_notes", "pending", "keys"} {
		s.tables = append(s.tables, in(o.Schema, `{s}."qsidecar_`+table+`" `))
	}
	if hosts.Several(config.ConnConfig) {
		s.primaries.survey(ctx, config.ConnConfig)
	}
	if err := s.checkServer(ctx, config.ConnConfig); err != nil {
		return nil, s.withKind(err)
	}
	s.txSQL = s.setting(true)
	s.settle(config)
	if s.pool, err = pgxpool.NewWithConfig(s.Life(), config); err != nil {
		return nil, s.withKind(err)
	}
	s.heartbeat = heartbeatConn{config: config.ConnConfig.Copy(), free: make(chan *pgx.Conn, 1)}
	s.heartbeat.put(nil)
	s.notifier.start(s)
	if o.ReadOnly {
		return s, nil
	}
	err = s.migrate(ctx)
	if err == nil {
		_, err = s.readEpoch(ctx, s.single())
		s.epochs.entered.Store(true)
	}
	if err != nil {
		return nil, errors.Join(s.withKind(err), s.Close())
	}
	s.cluster.Read(ctx, s.describe)
	s.pool.Reset() // drop sessions that began before the migration
	s.startProbes()
	return s, nil
}

// Info implements backends.Backend.
func (s *Store) Info() backends.Info {
	return backends.Info{Engine: "postgres", Version: s.version, Address: s.place, Database: s.database, Cluster: s.cluster.Text(&s.Meter), Prefetch: true, Concurrent: true, JoinJobs: joinJobs, WriteCommits: writeCommits, Progress: true}
}

// Close implements backends.Backend. Calls in progress end with an error.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.Stop(backends.Unavailable(fmt.Errorf("%s: %w", s.place, errClosed)))
		s.probes.Wait()
		s.cluster.Close()
		s.notifier.stop()
		s.closed = s.heartbeat.close()
		s.closePool()
	})
	return s.closed
}

// closePool waits until the connections are closed, but at most closePatience. Idle connections close
// at once. If a server doesn't respond, pgx tries to cancel its statement for 15 s.
func (s *Store) closePool() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closePatience):
	}
}

// placeOf returns the address without secrets. It names every host that pgx can use.
func placeOf(c *pgx.ConnConfig) string {
	var hosts []string
	add := func(host string, port uint16) {
		if !strings.HasPrefix(host, "/") {
			host = net.JoinHostPort(host, strconv.Itoa(int(port)))
		}
		if !slices.Contains(hosts, host) { // sslmode can list a host twice: with and without TLS
			hosts = append(hosts, host)
		}
	}
	add(c.Host, c.Port)
	for _, f := range c.Fallbacks {
		add(f.Host, f.Port)
	}
	all := strings.Join(hosts, ",")
	if strings.Contains(all, "/") {
		return fmt.Sprintf("postgres://%s@/%s?host=%s", c.User, c.Database, all)
	}
	return fmt.Sprintf("postgres://%s@%s/%s", c.User, all, c.Database)
}

// random returns a string that no other run of the program has.
func random() string {
	var b [8]byte
	rand.Read(b[:]) // it never fails: without randomness the program crashes
	return hex.EncodeToString(b[:])
}

// Usage implements backends.Metered.
func (s *Store) Usage() backends.Usage {
	u, pool := s.Meter.Usage(), s.pool.Stat()
	u.Max, u.InUse, u.Idle = int(pool.MaxConns()), int(pool.AcquiredConns()), int(pool.IdleConns())
	u.Waits, u.Waited = uint64(pool.EmptyAcquireCount()), pool.EmptyAcquireWaitTime()
	return u
}
