// Package postgres is the Backend on PostgreSQL 13 and later. Its clock is the
// server's. Every change is a handful of statements over arrays, sent together;
// no statement leaves anything in its session, so that a pooler that hands
// sessions round between transactions may stand before the server.
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
)

// Options say which database to open, and how.
type Options struct {
	// URL is a postgres:// URL or a libpq connection string.
	URL string

	// Password replaces the URL's, where it is not empty.
	Password string

	// Schema holds the tables. Letters, digits and _, not beginning with a digit,
	// at most 48 bytes; in lower case, as PostgreSQL folds names that are not
	// quoted. Defaults to "qsidecar".
	Schema string

	// MaxConnections is how many connections are open at most, beats and
	// notifications included: at least 4, defaults to 8.
	MaxConnections int

	// Notify has this sidecar tell others what it enqueued, and hear them.
	Notify bool

	// ApplicationName is shown in pg_stat_activity. Defaults to "qsidecar".
	ApplicationName string

	// StatementTimeout ends statements that take longer; 0: the server's own setting.
	StatementTimeout time.Duration

	// Look opens the database only to be examined: nothing is made or changed in it.
	Look bool

	// Log gets what no caller is told. Defaults to discarding it.
	Log *slog.Logger

	migrating func(c *pgx.Conn, sql string) error // tests break migrations with it
	idle      time.Duration                       // tests put it in the place of idleInTransaction and lockIdle
}

const (
	defaultSchema         = "qsidecar"
	defaultMaxConnections = 8
	minConnections        = 4
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
	pooled   bool // a pooler stands between: sessions change from transaction to transaction
	sql      *statements

	pool    *pgxpool.Pool
	beater  beater
	orphans orphans
	epochs  epochs
	writers writers
	tell    teller

	closing sync.Once
	closed  error                                          // of the first Close
	fault   atomic.Pointer[func(c *pgx.Conn, before bool)] // tests break commits with it
}

// driver is how the core uses a Store.
type driver struct{ *Store }

var _ core.Driver = driver{}

// Traits implements core.Driver.
func (driver) Traits() core.Traits {
	return core.Traits{Silent: true, FastDeliver: true}
}

// MadeReady implements core.Driver.
func (d driver) MadeReady(queues []string) { d.tell.madeReady(queues) }

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
		return fmt.Errorf("max_connections is %d: PostgreSQL needs at least %d (claims and settles, beats, notifications, looks)", o.MaxConnections, minConnections)
	}
	if o.ApplicationName == "" {
		o.ApplicationName = "qsidecar"
	}
	o.Notify = o.Notify && !o.Look
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
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
	s := &Store{o: o, log: o.Log, place: placeOf(config.ConnConfig)}
	s.Init(driver{s}, s.place, o.Log)
	s.sql = render(o.Schema)
	s.epochs.read = in(o.Schema, epochSQL)
	if err := s.greet(ctx, config.ConnConfig); err != nil {
		return nil, s.withKind(err)
	}
	s.settle(config)
	if s.pool, err = pgxpool.NewWithConfig(s.Life(), config); err != nil {
		return nil, s.withKind(err)
	}
	s.beater = beater{config: config.ConnConfig.Copy(), free: make(chan *pgx.Conn, 1)}
	s.beater.put(nil)
	s.tell.start(s)
	if o.Look {
		return s, nil
	}
	err = s.migrate(ctx)
	if err == nil {
		_, err = s.readEpoch(ctx, s.pool)
	}
	if err != nil {
		return nil, errors.Join(s.withKind(err), s.Close())
	}
	s.pool.Reset() // its sessions are from before
	return s, nil
}

// Info implements backends.Backend.
func (s *Store) Info() backends.Info {
	return backends.Info{Engine: "postgres", Version: s.version, Address: s.place, Database: s.database, Prefetch: true, Concurrent: true}
}

// Close implements backends.Backend. Calls under way end with an error.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.Stop(backends.Unavailable(fmt.Errorf("%s: %w", s.place, errClosed)))
		s.tell.stop()
		s.closed = s.beater.close()
		s.closePool()
	})
	return s.closed
}

// closePool waits for the connections' ends, which follow at once, but for those that were in
// the midst of something with a server that says nothing: pgx asks that to cancel it, for 15 s.
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

// placeOf is the address without secrets. It names every host that may be used.
func placeOf(c *pgx.ConnConfig) string {
	var hosts []string
	add := func(host string, port uint16) {
		if !strings.HasPrefix(host, "/") {
			host = net.JoinHostPort(host, strconv.Itoa(int(port)))
		}
		if !slices.Contains(hosts, host) { // it is there twice if sslmode lets it be used without TLS, too
			hosts = append(hosts, host)
		}
	}
	add(c.Host, c.Port)
	for _, f := range c.Fallbacks {
		add(f.Host, f.Port)
	}
	all := strings.Join(hosts, ",")
	if strings.Contains(all, "/") {
		return fmt.Sprintf("postgres://%s/%s?host=%s", c.User, c.Database, all)
	}
	return fmt.Sprintf("postgres://%s@%s/%s", c.User, all, c.Database)
}

// random is a word that no other run will have.
func random() string {
	var b [8]byte
	rand.Read(b[:]) // never fails: the program ends where there is no randomness
	return hex.EncodeToString(b[:])
}
