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

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/internal/dial"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/claim"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
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

	// ReadOnly opens the database for an examination or statistics only, also on a replica: Open creates and changes nothing in it.
	ReadOnly bool

	// Log receives what no caller gets as an error. The default discards it.
	Log *slog.Logger

	clock   string                  // the SQL expression for the present time; tests replace it
	connect time.Duration           // limit for a connection with its login; tests use another one
	rowWait time.Duration           // replaces rowWait in tests that let a write wait for a lock
	idle    time.Duration           // set by tests: after which the server ends an idle session
	packet  int64                   // set by tests: a lower limit than the server's max_allowed_packet
	wrap    func(net.Conn) net.Conn // tests end contexts at a chosen read or write
	later   []string                // set by tests: migrations that follow the latest one
}

const (
	defaultMaxConnections = 8
	minConnections        = 3
	joinJobs              = 256 // a commit that only claims waits for the log, too (bench/README.md)
	defaultMaxPayload     = 4 << 20
	clock                 = "UTC_TIMESTAMP(6)"
)

// Store is an open database. It is a backends.Backend and a backends.Inspector.
type Store struct {
	core.Store

	o        Options
	log      *slog.Logger
	place    string
	database string
	sql      *statements

	dialer     session.Dialer
	pool       *session.Pool
	heartbeats *session.Pool
	finder     claim.Finder
	queues     registered
	cleaner    cleaner
	cluster    core.Description
	hintless   atomic.Bool             // statements of adopted tables name no indexes; see withoutHints
	alive      atomic.Pointer[[]int64] // the sidecars that were alive at the previous scan of FindDue

	packet atomic.Int64 // max_allowed_packet of the last session

	probes  sync.WaitGroup
	closing sync.Once
	fault   atomic.Pointer[func(c *session.Conn, before bool)] // tests break commits with it
}

// access is how the core uses a Store.
type access struct{ *Store }

var _ core.Driver = access{}

// Traits implements core.Driver.
func (access) Traits() core.Traits { return core.Traits{Progress: true, Pending: true} }

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
		return fmt.Errorf("max_connections is %d: MySQL needs at least %d (claims and settles, heartbeats, queries)", o.MaxConnections, minConnections)
	}
	if o.MaxPayload == 0 {
		o.MaxPayload = defaultMaxPayload
	}
	if o.clock == "" {
		o.clock = clock
	}
	if o.connect == 0 {
		o.connect = dial.Timeout
	}
	if o.rowWait == 0 {
		o.rowWait = rowWait
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// CheckURL returns an error if the address is invalid as Options.URL. The error does not contain the password.
func CheckURL(url string) error {
	_, err := session.Configure(url, "", slog.New(slog.DiscardHandler))
	return err
}

// Open opens the database and creates missing tables. Errors contain the address without the password.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	config, err := session.Configure(o.URL, o.Password, o.Log)
	if err != nil {
		return nil, err
	}
	s := &Store{o: o, log: o.Log, place: session.Place(config),
		dialer: session.Dialer{Config: config, Timeout: o.connect, Idle: o.idle, ReadOnly: o.ReadOnly, Wrap: o.wrap, Packet: o.packet}}
	s.dialer.Packets = s.warnOfPackets
	s.Init(access{s}, s.place, o.Log)
	bound, done := s.Bound(ctx)
	defer done()
	if err := s.dialer.ReadServer(bound); err != nil {
		return nil, s.withKind(err)
	}
	s.Cursors.Share = cursor.RareShare // see package claim
	if s.dialer.Server.SeveralWriters() {
		s.Cursors.Share = cursor.OftenShare
	}
	s.sql = render(o.clock, s.dialer.Server)
	s.pool, s.heartbeats = session.NewPool(&s.dialer, o.MaxConnections-1), session.NewPool(&s.dialer, 1)
	s.dialer.Moved, s.dialer.Refused, s.dialer.PacketChanged = s.moved, s.refused, s.pool.Retire
	s.finder = claim.Finder{Cursors: &s.Cursors, SQL: s.sql.claims, Skip: s.dialer.Server.SkipLocked, Life: s.Life(), Log: o.Log.With("address", s.place), Run: s.run,
		Now: func() time.Time { return s.LocalTime() }}
	if o.ReadOnly {
		return s, nil
	}
	if err := s.migrate(bound); err != nil {
		return nil, errors.Join(s.withKind(err), s.Close())
	}
	if err := s.checkIDs(bound); err != nil {
		return nil, errors.Join(s.withKind(err), s.Close())
	}
	s.cluster.Read(bound, s.describe)
	s.startProbes()
	return s, nil
}

// Info implements backends.Backend.
func (s *Store) Info() backends.Info {
	v := s.dialer.Server
	info := backends.Info{Engine: "mysql", Version: v.Text, Address: s.place, Database: s.database, Cluster: s.cluster.Text(&s.Meter), Prefetch: true, Concurrent: true, Progress: true}
	if v.SkipLocked && !v.SeveralWriters() { // otherwise claims wait for other sidecars, or fail together
		info.JoinJobs = joinJobs
	}
	return info
}

// Close implements backends.Backend. Calls in progress return an error.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.finder.Close(func() { s.Stop(backends.Unavailable(fmt.Errorf("%s: %w", s.place, errClosed))) })
		s.probes.Wait()
		s.cluster.Close()
		s.pool.Close()
		s.heartbeats.Close()
	})
	return nil
}

// warnOfPackets logs a warning if a session's max_allowed_packet is another one than the last session's, and too small for the largest
// payload. A payload travels in one packet, in which each byte can need two.
func (s *Store) warnOfPackets(limit int64) {
	if need := 2*s.o.MaxPayload + session.PacketReserve; s.packet.Swap(limit) != limit && limit < need && !s.o.ReadOnly {
		s.log.Warn("max_allowed_packet too small", "event", "max_allowed_packet_too_small",
			"address", s.place, "max_allowed_packet", limit, "needed", need, "max_payload", s.o.MaxPayload)
	}
}

// Usage implements backends.Metered.
func (s *Store) Usage() backends.Usage {
	u := s.Meter.Usage()
	u.Max, u.InUse, u.Idle = s.pool.Size()
	return u
}
