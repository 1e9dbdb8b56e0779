// Package sqlite is the Backend on an SQLite database file. It uses a driver
// without cgo. One writer in WAL mode syncs each commit, and readers work at the
// same time. Several sidecars and other programs can use one file on one machine.
//
// It uses the machine's clock.
package sqlite

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Options configure which database Open opens, and how.
type Options struct {
	// Path of the database file. If the file is missing, Open creates it with mode
	// 0660 less the umask, because programs that insert jobs need to write it. If
	// the folder is missing too, Open creates it with mode 0700.
	Path string

	// ReadOnly opens the database only for examination. Open then creates and changes
	// nothing, and the file need not exist.
	ReadOnly bool

	// Log gets events that no caller gets as an error, such as repairs. Defaults to discarding them.
	Log *slog.Logger

	// Now replaces the database's clock, for tests.
	Now func() time.Time

	later []string // set by tests: migrations that follow the latest one
}

// Store is an open database. It is a backends.Backend, a backends.Inspector and
// a backends.Examiner.
type Store struct {
	core.Store

	path     string
	file     fs.FileInfo // the file that was opened
	log      *slog.Logger
	now      func() time.Time
	later    []string // Options.later
	database string
	handle   int64 // identifies this Store in qsidecar_commits
	sql      *statements

	gate          gate    // admits one writer; guards the next four fields
	writer        *conn   // nil if it must be opened
	heartbeatConn *conn   // nil if it must be opened
	number        int64   // of the last commit
	walSize       int64   // as makeRoom left it
	read          readers // connections for transactions that write nothing

	closing sync.Once
	closed  error

	fault atomic.Pointer[func(before bool) error] // set by tests to make commits fail
	waits atomic.Pointer[func()]                  // set by tests: called while another program's lock delays a write
}

// access is the Store as the core uses it.
type access struct{ *Store }

var _ core.Driver = access{}

var _ interface {
	backends.Backend
	backends.Inspector
} = (*Store)(nil)

// Open opens the database, creates or migrates its tables, and checks that its
// commits are durable. Errors name the path and a fix.
func Open(ctx context.Context, o Options) (*Store, error) {
	find := prepare
	if o.ReadOnly {
		find = placed
	}
	path, file, err := find(o.Path)
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, file: file, log: o.Log, now: o.Now, later: o.later, handle: random(), sql: render()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.Init(access{s}, path, s.log)
	s.read.init(path)
	if o.ReadOnly {
		return s, nil
	}
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(s.withKind(err), s.Close())
	}
	return s, nil
}

// random returns a number that no other run of the program has.
func random() int64 {
	var b [8]byte
	rand.Read(b[:]) // it never fails: without randomness the program crashes
	return int64(binary.LittleEndian.Uint64(b[:]))
}

// Info implements backends.Backend.
func (s *Store) Info() backends.Info {
	return backends.Info{Engine: "sqlite", Version: lib.SQLITE_VERSION, Address: s.path, Database: s.database, Prefetch: true, Progress: true}
}

// Close implements backends.Backend. It waits at most 5 s for a commit that is
// being synced. A second Close does nothing.
func (s *Store) Close() error {
	s.closing.Do(func() { s.closed = s.shut() })
	return s.closed
}

func (s *Store) shut() error {
	s.Stop(backends.Unavailable(fmt.Errorf("%s: %w", filepath.Base(s.path), errClosed)))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := s.read.close(ctx)
	if e := s.gate.acquire(ctx, true); e != nil {
		return errors.Join(err, fmt.Errorf("%s: a write is still under way: %w", s.path, e))
	}
	// Keep the gate locked, so that no write opens these connections again.
	for _, c := range []**conn{&s.writer, &s.heartbeatConn} {
		if *c != nil {
			err = errors.Join(err, (*c).close())
			*c = nil
		}
	}
	return err
}

// openWriter opens the connection that commits, and ensures that its commits are durable.
func (s *Store) openWriter() (*conn, error) {
	c, err := connect(s.path, "busy_timeout=0", "journal_mode=WAL", "synchronous=FULL", "temp_store=MEMORY", "journal_size_limit=67108864", "cache_size=-32000", "wal_autocheckpoint=4000")
	if err != nil {
		return nil, err
	}
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "encoding": "UTF-8"} {
		got := ""
		err := c.query(context.Background(), "PRAGMA "+pragma, func(r row) error {
			got = fmt.Sprint(r[0])
			return nil
		})
		if err == nil && got != want {
			err = fmt.Errorf("%s: PRAGMA %s is %q and will not become %q: this file cannot hold the jobs", s.path, pragma, got, want)
		}
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

// openBeater opens the connection for heartbeats. If a power cut loses a heartbeat,
// its sidecar is gone too. So a heartbeat waits neither for its own sync nor for that
// of a checkpoint. It leaves checkpoints to the writer, unless the writer is idle.
func (s *Store) openHeartbeatConn() (*conn, error) {
	return connect(s.path, "busy_timeout=0", "synchronous=NORMAL", "wal_autocheckpoint=8000")
}

// readers is a small pool of connections that only read.
type readers struct {
	path string
	free chan *conn // contains nil for each connection that can still be opened
}

const maxReaders = 4

func (r *readers) init(path string) {
	r.path, r.free = path, make(chan *conn, maxReaders)
	for range maxReaders {
		r.free <- nil
	}
}

func (r *readers) get(ctx context.Context) (*conn, error) {
	select {
	case c := <-r.free:
		if c != nil {
			return c, nil
		}
	case <-ctx.Done():
		return nil, ended(ctx, "waiting for a connection that reads")
	}
	c, err := connect(r.path, "busy_timeout=2000", "query_only=1")
	if err != nil {
		r.free <- nil
	}
	return c, err
}

// put returns c to the pool, or closes it if it is broken.
func (r *readers) put(c *conn, broken bool) (err error) {
	if broken {
		err, c = c.close(), nil
	}
	r.free <- c
	return err
}

// close waits for all connections, until ctx ends, and closes them.
func (r *readers) close(ctx context.Context) (err error) {
	for range maxReaders {
		select {
		case c := <-r.free:
			if c != nil {
				err = errors.Join(err, c.close())
			}
		case <-ctx.Done():
			return errors.Join(err, fmt.Errorf("%s: a query is still running: %w", r.path, context.Cause(ctx)))
		}
	}
	return err
}

// Traits implements core.Driver.
func (access) Traits() core.Traits {
	return core.Traits{FastDeliver: true, Progress: true, Pending: true}
}

// MadeReady implements core.Driver. SQLite has no notifications.
func (access) MadeReady([]string) {}

// Usage implements backends.Metered. A round trip is a transaction.
func (s *Store) Usage() backends.Usage { return s.Meter.Usage() }
