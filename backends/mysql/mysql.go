// Package mysql implements backends.Backend on MySQL 8.0.13 and later and MariaDB 10.3 and later. It uses
// the server's clock. A transaction takes two or three packets of statements. The first packets read and
// lock rows. The last packet writes the changes that follow from them, and COMMIT.
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

// Options configure which database to open, and how.
type Options struct {
	// URL is mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE. Its parameters are socket=PATH (replaces host
	// and port), tls=preferred, true, skip-verify or false, and ca=FILE (the certificates to trust). The
	// default of tls is preferred, and false for a socket or a loopback host.
	URL string

	// Password replaces the URL's password if it is not empty.
	Password string

	// MaxConnections is the largest number of open connections, with the one for heartbeats. The minimum
	// is 3. 0 means 8.
	MaxConnections int

	// MaxPayload is the largest payload in bytes. 0 means 4 MiB. If the server rejects a packet with such
	// a payload, Open logs a warning with the setting to change.
	MaxPayload int64

	// Look opens the database for an examination only: Open creates and changes nothing in it.
	Look bool

	// Log receives what no caller gets as an error. The default discards it.
	Log *slog.Logger

	clock   string                  // the SQL expression for the present time; tests replace it
	connect time.Duration           // limit for a connection with its login; tests use a shorter one
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
	again   atomic.Int64 // retried transactions
	locks   atomic.Int64 // those of them that hit a deadlock or a lock wait timeout

	aside   sync.WaitGroup // proofs in progress
	proof   sync.Mutex     // guards the fields below, and aside against Close
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

// CheckURL returns what is wrong with an address for Options.URL. The error lacks the password.
func CheckURL(url string) error {
	_, err := configure(&Options{URL: url, Log: slog.New(slog.DiscardHandler)})
	return err
}

// Open opens the database and creates missing tables. Errors contain the address without the password.
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

// Retries returns how many transactions were retried so far, and how many of them because of a deadlock or
// a lock wait timeout.
func (s *Store) Retries() (all, locks int64) { return s.again.Load(), s.locks.Load() }

// Close implements backends.Backend. Calls in progress return an error.
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

// warnOfPackets logs a warning if max_allowed_packet is too small for the largest payload. A payload
// travels in one packet, in which each byte can need two.
func (s *Store) warnOfPackets() {
	if need := 2*s.o.MaxPayload + packetRoom; s.server.packet < need {
		s.log.Warn("the server takes no packet with the largest payload that this sidecar does: such a job will be refused; raise max_allowed_packet",
			"place", s.place, "max_allowed_packet", s.server.packet, "needed", need, "max_payload", s.o.MaxPayload)
	}
}

// clocks remembers the latest time that the server returned.
type clocks struct {
	mu     sync.Mutex
	latest int64 // µs
}

// back records a time of the server. It reports whether the server's clock was set back by more than
// margin, which cursors can't tolerate.
func (c *clocks) back(now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	set := now < c.latest-margin.Microseconds()
	if set || now > c.latest {
		c.latest = now
	}
	return set
}

// registered caches which queues have a row in qsidecar_queues, and since when that is known. The janitor
// deletes the row of a queue that has had no scheduled job for long, so an entry is valid for believedFor
// only. Entries are valid for one server only: another server that took over can lack the rows.
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

// add records queues that a committed transaction registered on a server. The transaction began after
// from.
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

// margin is how long it usually takes at most until a row that has its position is in the index, where
// other transactions see at least its lock. It is not a guarantee: a statement can be delayed for longer,
// a node of a cluster can have a clock that is behind, and a clock can be set back. So claims also scan
// below the lows of their cursors from time to time (cursor.Set.Unproven).
const margin = 300 * time.Millisecond
