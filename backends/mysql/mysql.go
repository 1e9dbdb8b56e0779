// Package mysql is the Backend on MySQL 8.0.13 and later and MariaDB 10.3 and
// later. Its clock is the server's. A transaction is two or three packets of
// statements: what it reads and locks, then what follows from that, with COMMIT.
package mysql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Options say which database to open, and how.
type Options struct {
	// URL is mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE. Parameters: socket=PATH
	// (in place of host and port), tls=preferred, true, skip-verify or false, and
	// ca=FILE, whose certificates are the ones to trust. Without tls it is preferred,
	// and false on a socket and on this host.
	URL string

	// Password replaces the URL's, where it is not empty.
	Password string

	// MaxConnections is how many connections are open at most, the beats' own
	// included: at least 3, defaults to 8.
	MaxConnections int

	// MaxPayload is how many bytes a payload may have: 4 MiB where it is 0. Where the
	// server takes no packet with one, opening logs a warning that says what to set.
	MaxPayload int64

	// Look opens the database only to be examined: nothing is made or changed in it.
	Look bool

	// Log gets what no caller is told. Defaults to discarding it.
	Log *slog.Logger

	clock   string                  // the expression for the present instant; tests put another one in its place
	connect time.Duration           // for a connection, login and all; tests wait less
	wrap    func(net.Conn) net.Conn // tests end contexts at a chosen read or write
}

const (
	defaultMaxConnections = 8
	minConnections        = 3
	defaultMaxPayload     = 4 << 20
	clock                 = "UTC_TIMESTAMP(6)"
)

// Store is an open database. It is a backends.Backend and a backends.Inspector.
type Store struct {
	core.Store

	o        Options
	log      *slog.Logger
	place    string
	server   server
	database string
	sql      *statements

	config  *driver.Config // of every connection
	pool    pool
	beats   pool
	clocks  clocks
	queues  registered
	janitor janitor
	alive   aliveHosts
	again   atomic.Int64 // transactions tried again
	locks   atomic.Int64 // of them: for a deadlock or a lock that did not come

	aside   sync.WaitGroup // proofs under way
	proof   sync.Mutex     // guards what follows, and aside against the end of life
	proving bool
	proved  time.Time // when the last one ended
	closing sync.Once
	fault   atomic.Pointer[func(c *conn, before bool)] // tests break commits with it
}

// access is how the core uses a Store.
type access struct{ *Store }

var _ core.Driver = access{}

// Traits implements core.Driver.
func (access) Traits() core.Traits { return core.Traits{} }

// MadeReady implements core.Driver. MySQL has no notifications.
func (access) MadeReady([]string) {}

var _ interface {
	backends.Backend
	backends.Inspector
} = (*Store)(nil)

func (o *Options) complete() error {
	if o.MaxConnections == 0 {
		o.MaxConnections = defaultMaxConnections
	}
	if o.MaxConnections < minConnections {
		return fmt.Errorf("max_connections is %d: MySQL needs at least %d (claims and settles, beats, looks)", o.MaxConnections, minConnections)
	}
	if o.MaxPayload == 0 {
		o.MaxPayload = defaultMaxPayload
	}
	if o.clock == "" {
		o.clock = clock
	}
	if o.connect == 0 {
		o.connect = connectTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// CheckURL reports what is wrong with an address of Options.URL, without its password.
func CheckURL(url string) error {
	_, err := configure(&Options{URL: url, Log: slog.New(slog.DiscardHandler)})
	return err
}

// Open opens the database and makes its tables where they are missing. Errors
// name the place, never the password.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	config, err := configure(&o)
	if err != nil {
		return nil, err
	}
	s := &Store{o: o, log: o.Log, place: placeOf(config), config: config}
	s.Init(access{s}, s.place, o.Log)
	s.Cursors.Unproven = true // see margin
	if err := s.greet(ctx); err != nil {
		return nil, s.withKind(err)
	}
	s.settings()
	s.sql = render(o.clock, s.server)
	s.pool.fill(o.MaxConnections - 1)
	s.beats.fill(1)
	if o.Look {
		return s, nil
	}
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(s.withKind(err), s.Close())
	}
	s.warnOfPackets()
	return s, nil
}

// Info implements backends.Backend.
func (s *Store) Info() backends.Info {
	return backends.Info{Engine: "mysql", Version: s.server.text, Address: s.place, Database: s.database, Prefetch: true, Concurrent: true}
}

// Retries tells how many transactions were tried again so far, and how many of
// them because of a deadlock or of a lock that did not come in time.
func (s *Store) Retries() (all, locks int64) { return s.again.Load(), s.locks.Load() }

// Close implements backends.Backend. Calls under way end with an error.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.proof.Lock()
		s.Stop(backends.Unavailable(fmt.Errorf("%s: %w", s.place, errClosed)))
		s.proof.Unlock()
		s.aside.Wait()
		s.pool.close()
		s.beats.close()
	})
	return nil
}

// warnOfPackets: a payload travels in one packet, in which each byte may need two.
func (s *Store) warnOfPackets() {
	if need := 2*s.o.MaxPayload + packetRoom; s.server.packet < need {
		s.log.Warn("the server takes no packet with the largest payload that this sidecar does: such a job will be refused; raise max_allowed_packet",
			"place", s.place, "max_allowed_packet", s.server.packet, "needed", need, "max_payload", s.o.MaxPayload)
	}
}

// clocks remembers the latest instant that the server named.
type clocks struct {
	mu     sync.Mutex
	latest int64 // µs
}

// back notes an instant and reports whether the server's clock was set back, by
// more than cursors can bear.
func (c *clocks) back(now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	set := now < c.latest-margin.Microseconds()
	if set || now > c.latest {
		c.latest = now
	}
	return set
}

// registered are the queues that qsidecar_queues was seen to name, and when. Its rows
// go when nothing is scheduled for long (janitor): so that is believed for a while only.
// Another server, which may have taken over without the rows, is not believed to have them.
type registered struct {
	mu     sync.Mutex
	server string
	have   map[string]time.Time
}

const (
	maxRegistered = 100_000
	// believedFor is far below idleQueue.
	believedFor = time.Hour
)

func (r *registered) missing(queues []string, server string) (missing []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range queues {
		if at, ok := r.have[q]; !ok || server != r.server || time.Since(at) > believedFor {
			missing = append(missing, q)
		}
	}
	return missing
}

// add notes queues that a transaction on a server has registered, which began after from.
func (r *registered) add(queues []string, from time.Time, server string) {
	if len(queues) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.have == nil || r.server != server || len(r.have) > maxRegistered {
		r.have, r.server = map[string]time.Time{}, server
	}
	for _, q := range queues {
		r.have[q] = from
	}
}

// margin is how long a row that has its position usually takes at most until it is in
// the index, where others see at least its lock. It is no proof: a statement may be held
// up for longer, a peer of a cluster may have a clock that is behind, and a clock may be
// set back. So claims look below their floors now and then (cursor.Set.Unproven).
const margin = 300 * time.Millisecond
