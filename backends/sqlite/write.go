package sqlite

import (
	"context"
	"errors"
	"fmt"
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

// newSequence is the last number that anything names. It reads whole tables, and is needed only after something emptied
// sqlite_sequence or set it back.
const newSequence = `SELECT max(n) FROM (SELECT 0 AS n UNION ALL SELECT max(max(id, coalesce(position, 0))) FROM qsidecar_jobs
	UNION ALL SELECT max(job) FROM qsidecar_keys UNION ALL SELECT max(job) FROM qsidecar_failures)`

// repairSequence sets the sequence to the last number that anything names, so that no id repeats.
func (t *tx) repairSequence() error {
	err := t.query(newSequence, func(r row) error {
		t.seq = r.int(0)
		return nil
	})
	if err == nil {
		_, err = t.exec("INSERT INTO sqlite_sequence (name, seq) SELECT 'qsidecar_jobs', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'qsidecar_jobs')")
	}
	t.repaired = err == nil
	return err
}

// next returns the next number of the sequence that ids and positions share.
func (t *tx) next() (int64, error) {
	if t.seq < 0 {
		behind := true
		if err := t.query(t.sql.sequence, func(r row) error {
			t.seq, behind = r.int(0), r.int(0) < r.int(1)
			return nil
		}); err != nil {
			return 0, err
		}
		if behind {
			if err := t.repairSequence(); err != nil {
				return 0, err
			}
		}
	}
	t.seq++
	t.moved = true
	return t.seq, nil
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
	if err := s.gate.acquire(ctx, c == &s.heartbeatConn); err != nil {
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
func (d access) Transact(ctx context.Context, o core.TxOptions, f func(ctx context.Context, tx core.Tx) error) error {
	return d.write(ctx, &d.writer, d.openWriter, func(t *tx) error {
		if o.Sidecar != 0 {
			alive, err := t.exists(t.sql.hostAlive, int64(o.Sidecar))
			if err != nil {
				return err
			}
			if !alive {
				return backends.ErrEvicted
			}
		}
		if err := f(ctx, t); err != nil {
			return err
		}
		return t.err
	})
}

// Read implements core.Driver.
func (d access) Read(ctx context.Context, f func(ctx context.Context, r core.Reader) error) error {
	return d.reading(ctx, func(t *tx) error { return f(ctx, t) })
}

// Retry implements core.Driver. It never retries: a transaction waits for the lock before it
// begins, and no other failure is transient.
func (access) Retry(context.Context, error) (again bool, cause int, wait time.Duration) {
	return false, backends.RetryOther, 0
}

// WithKind implements core.Driver.
func (d access) WithKind(err error) error { return d.withKind(err) }

// FromServer implements core.Driver.
func (access) FromServer(err error) bool { return code(err) != 0 }

// Traits implements core.Driver.
func (access) Traits() core.Traits { return core.Traits{FastDeliver: true} }

// MadeReady implements core.Driver. SQLite has no notifications.
func (access) MadeReady([]string) {}

// Usage implements backends.Metered. A round trip is a transaction.
func (s *Store) Usage() backends.Usage { return s.Meter.Usage() }

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
		s.Cursors.Reset() // jobs can have got positions that claims have passed
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

// findOut finds out whether the commit numbered s.number happened although COMMIT
// returned cause. Either the number is in the database, or happened stores the number of a
// later commit, so that it never will be (otherwise a recovery could restore frames
// of an unsynced commit). findOut returns nil if the commit happened.
func (s *Store) findOut(ctx context.Context, cause error) error {
	if s.writer != nil {
		s.discard(&s.writer) // the state of the connection can be wrong
	}
	for try := 0; ; try++ {
		happened, err := s.happened(ctx)
		if err == nil {
			s.log.Warn("commit outcome resolved", "event", "commit_outcome_resolved", "path", s.path, "committed", happened, "error", cause)
			if happened {
				return nil
			}
			return backends.Unavailable(fmt.Errorf("%s: the commit failed: %w", s.path, cause))
		}
		if ctx.Err() != nil {
			s.log.Error("commit outcome unknown", "event", "commit_outcome_unknown", "path", s.path, "error", errors.Join(cause, err))
			return backends.ErrUnknownOutcome
		}
		timer := time.NewTimer(10 * pause(try))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// happened queries the number once. If the commit is missing, it commits a later number: the answer can't change any more.
func (s *Store) happened(ctx context.Context) (happened bool, err error) {
	if err := s.begin(ctx, &s.writer, s.openWriter); err != nil {
		return false, err
	}
	var last int64
	err = s.writer.query(context.Background(), s.sql.marked, func(r row) error {
		last = r.int(0)
		return nil
	}, s.handle)
	if err == nil && last >= s.number { // greater: an earlier call of look stored it, and its COMMIT returned an error too
		s.rollback(&s.writer)
		if last > s.number {
			s.number = last
			return false, nil
		}
		return true, nil
	}
	if err == nil {
		_, err = s.writer.exec(context.Background(), s.sql.mark, s.handle, s.number+1, s.now().UnixMilli())
	}
	if err == nil {
		_, err = s.writer.exec(context.Background(), "COMMIT")
	}
	if err != nil {
		s.discard(&s.writer)
		return false, err
	}
	s.number++
	return false, nil
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
