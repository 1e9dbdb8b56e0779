package sqlite

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// tx is a transaction.
type tx struct {
	c      *conn
	ctx    context.Context // for reads; Background in a write, which only ends between statements
	alive  func() error    // returns an error if a transaction must stop
	sql    *statements
	now    int64 // milliseconds; one instant for the whole transaction
	micros int64
	seq    int64 // the last id or position that was assigned; -1 until it is read
	moved  bool  // whether seq must be written back

	repaired bool // the sequence was behind
	noNotes  bool // see core.TxOptions.NoNotes

	err error // the first error of a statement of the core.Tx
}

func (t *tx) exec(sql string, args ...any) (int64, error) {
	if err := t.alive(); err != nil {
		return 0, err
	}
	return t.c.exec(t.ctx, sql, args...)
}

// one runs a statement that must change one row. The row exists. So if it wasn't changed,
// a trigger of another program skipped it.
func (t *tx) one(sql string, args ...any) error {
	n, err := t.exec(sql, args...)
	if err == nil && n != 1 {
		err = backends.Refused(errors.New("a trigger on qsidecar_jobs passed the row over (RAISE(IGNORE))"))
	}
	return err
}

func (t *tx) query(sql string, f func(r row) error, args ...any) error {
	if err := t.alive(); err != nil {
		return err
	}
	return t.c.query(t.ctx, sql, f, args...)
}

// exists reports whether the query has a row.
func (t *tx) exists(sql string, args ...any) (found bool, err error) {
	err = t.query(sql, func(row) error {
		found = true
		return errStop
	}, args...)
	return found, err
}

// The phases of a write. A caller can abandon it until its COMMIT begins.
const (
	running int32 = iota
	abandoned
	committing
)

// syncGrace is how long a write whose ctx ended waits for a COMMIT in progress before it
// returns ErrUnknownOutcome.
const syncGrace = 200 * time.Millisecond

// write runs f in a durable transaction on *c. If *c is nil, open reopens it. The
// transaction runs in its own goroutine. If ctx ends while the disk hangs, write
// returns, but the gate stays locked until the transaction ends.
func (s *Store) write(ctx context.Context, c **conn, open func() (*conn, error), f func(t *tx) error) error {
	ctx, done := s.Bound(ctx)
	defer done()
	if ctx.Err() != nil || s.gate.acquire(ctx, c == &s.heartbeatConn) != nil {
		return ended(ctx, "waiting for the write before")
	}
	var phase atomic.Int32
	result := make(chan error, 1)
	go func() {
		began := time.Now()
		err := s.transact(ctx, c, open, &phase, f)
		s.Meter.RoundTrip(began)
		s.gate.release()
		result <- err
	}()
	select {
	case err := <-result:
		return s.withKind(err)
	case <-ctx.Done():
	}
	if phase.CompareAndSwap(running, abandoned) {
		return ended(ctx, "writing to "+s.path)
	}
	timer := time.NewTimer(syncGrace)
	defer timer.Stop()
	select {
	case err := <-result:
		return s.withKind(err)
	case <-timer.C:
		return backends.ErrUnknownOutcome
	}
}

// Transact implements core.Driver.
func (a access) Transact(ctx context.Context, o core.TxOptions, f func(ctx context.Context, tx core.Tx) error) error {
	return a.write(ctx, &a.writer, a.openWriter, func(t *tx) error {
		if o.Sidecar != 0 {
			alive, err := t.exists(t.sql.sidecarAlive, int64(o.Sidecar))
			if err != nil {
				return err
			}
			if !alive {
				return backends.ErrEvicted
			}
		}
		t.noNotes = o.NoNotes
		if err := f(ctx, t); err != nil {
			return err
		}
		return t.err
	})
}

// Read implements core.Driver.
func (a access) Read(ctx context.Context, f func(ctx context.Context, r core.Reader) error) error {
	return a.reading(ctx, func(t *tx) error { return f(ctx, t) })
}

// transact implements write. The caller holds the gate.
func (s *Store) transact(ctx context.Context, c **conn, open func() (*conn, error), phase *atomic.Int32, f func(t *tx) error) (err error) {
	if err := s.inPlace(); err != nil {
		return err
	}
	if err := s.begin(ctx, c, open); err != nil {
		return err
	}
	s.makeRoom()
	now := s.now()
	t := &tx{c: *c, ctx: context.Background(), sql: s.sql, now: now.UnixMilli(), micros: now.UnixMicro(), seq: -1}
	t.alive = func() error {
		if phase.Load() == abandoned {
			return ended(ctx, "writing to "+s.path)
		}
		return nil
	}
	err = f(t)
	if err == nil && t.moved {
		_, err = t.exec(s.sql.setSequence, t.seq)
	}
	marked := c == &s.writer
	if err == nil && marked {
		s.number++
		_, err = t.exec(s.sql.mark, s.handle, s.number, t.now)
	}
	if err == nil && !phase.CompareAndSwap(running, committing) {
		err = t.alive()
	}
	if err != nil {
		s.rollback(c)
		return err
	}
	if t.repaired {
		s.log.Warn("sequence repaired", "event", "sequence_repaired", "path", s.path, "number", t.seq)
	}
	if err = s.commit(*c, marked); err == nil {
		return nil
	}
	s.rollback(c)
	switch {
	case !ambiguous(err):
		return err
	case !marked:
		return backends.ErrUnknownOutcome
	}
	return s.findOut(ctx, err)
}

// begin takes SQLite's write lock. Other programs take it too, and SQLite has no
// queue for it, so begin polls often, at irregular intervals.
func (s *Store) begin(ctx context.Context, c **conn, open func() (*conn, error)) error {
	return s.untilFree(ctx, func() (err error) {
		if *c == nil {
			if *c, err = open(); err != nil {
				return err
			}
		}
		if _, err = (*c).exec(context.Background(), "BEGIN IMMEDIATE"); err != nil && !busy(err) {
			s.discard(c) // the next begin reopens it
		}
		return err
	})
}

// pause returns how long to wait for the lock after a number of tries. It is below 2 ms
// for the first 200 tries, to get past a program that commits continuously. Later it
// is up to 20 ms.
func pause(try int) time.Duration {
	limit := 2 * time.Millisecond
	if try > 200 {
		limit = 20 * time.Millisecond
	}
	return limit/4 + rand.N(limit*3/4)
}

func (s *Store) commit(c *conn, marked bool) error {
	hook := s.fault.Load()
	if hook == nil || !marked {
		_, err := c.exec(context.Background(), "COMMIT")
		return err
	}
	if err := (*hook)(true); err != nil {
		return err
	}
	if _, err := c.exec(context.Background(), "COMMIT"); err != nil {
		return err
	}
	return (*hook)(false)
}

// rollback ends a transaction that failed. Some errors end the transaction themselves. In
// that case, or if the rollback fails, rollback discards the connection.
func (s *Store) rollback(c **conn) {
	if _, err := (*c).exec(context.Background(), "ROLLBACK"); err != nil {
		s.discard(c)
	}
}

func (s *Store) discard(c **conn) {
	if err := (*c).close(); err != nil {
		s.log.Warn("can't close a connection", "event", "connection_close_failed", "path", s.path, "error", err)
	}
	*c = nil
}

// reading runs f on one snapshot of the database, concurrently with writers.
func (s *Store) reading(ctx context.Context, f func(t *tx) error) (err error) {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.read.get(ctx)
	if err != nil {
		return s.withKind(err)
	}
	defer func() {
		if e := s.read.put(c, err != nil); e != nil {
			s.log.Warn("can't close a connection", "event", "connection_close_failed", "path", s.path, "error", e)
		}
	}()
	defer s.Meter.RoundTrip(time.Now())
	now := s.now()
	t := &tx{c: c, ctx: ctx, sql: s.sql, now: now.UnixMilli(), micros: now.UnixMicro(), seq: -1}
	t.alive = func() error {
		if ctx.Err() != nil {
			return ended(ctx, "reading "+s.path)
		}
		return nil
	}
	if _, err = t.exec("BEGIN"); err == nil {
		if err = f(t); err == nil {
			_, err = t.exec("COMMIT")
		}
	}
	if e := t.alive(); err != nil && e != nil {
		return e // more specific than the error of an interrupted statement
	}
	return s.withKind(err)
}

// Flush implements core.Tx.
func (t *tx) Flush(context.Context) error { return t.err }

// do runs f unless an earlier statement failed.
func (t *tx) do(f func() error) {
	if t.err == nil {
		t.err = f()
	}
}
