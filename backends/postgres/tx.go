package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// tx is a transaction under way: statements queue up and go to the server together.
type tx struct {
	s     *Store
	c     *pgx.Conn
	batch *pgx.Batch
	last  ending // what the last round's endSQL said
	epoch string // see epoch.go
	began cursor.Event
	sent  int // round trips

	passedOver bool              // a row that had to be stored was not
	backs      []cursor.GiveBack // what is given back
}

// ending is the answer to endSQL.
type ending struct {
	xid     string // empty: nothing was written
	alive   bool   // the host that the transaction claims for
	xmin    int64
	left    bool // a lean claim took nothing, because not all of it fitted
	returns []int64
}

// add queues a statement. read gets its rows; nil: they are of no interest. What
// read finds wrong with them counts only if they all came: where the connection
// broke on the way, that is what happened.
func (t *tx) add(sql string, read func(rows pgx.Rows) error, args ...any) {
	q := t.batch.Queue(sql, args...)
	if read == nil {
		return
	}
	q.Query(func(rows pgx.Rows) error {
		err := read(rows)
		rows.Close()
		if broken := rows.Err(); broken != nil {
			return broken
		}
		return err
	})
}

// each queues a statement and calls f for each of its rows.
func (t *tx) each(sql string, f func(rows pgx.Rows) error, args ...any) {
	t.add(sql, func(rows pgx.Rows) error {
		for rows.Next() {
			if err := f(rows); err != nil {
				return err
			}
		}
		return nil
	}, args...)
}

// send has the server carry out what is queued, in one round trip.
func (t *tx) send(ctx context.Context) error {
	b := t.batch
	t.batch = &pgx.Batch{}
	t.sent++
	defer t.s.meter.RoundTrip(time.Now())
	return t.c.SendBatch(ctx, b).Close()
}

// A work is what one transaction does. It is called with round 0, then 1, … and
// queues statements each time; they are sent between. It returns false when it
// has nothing to add. It is called anew, from 0, where the transaction is tried again.
type work func(t *tx, round int) (more bool, err error)

// scope is what endSQL is asked about, and how the commit is made.
type scope struct {
	host     *int64   // claims are for this one: it must live
	queues   []string // whose returns are of interest
	unsynced bool     // the commit need not be on disk when it is answered

	before, after func(ctx context.Context, t *tx) error // around the work, in its transaction; nil: nothing
}

const (
	maxTries    = 8
	retryPause  = 2 * time.Millisecond // doubles with each try
	rollbackFor = 2 * time.Second
)

// write runs f in a transaction until it is committed, or certainly is not.
func (s *Store) write(ctx context.Context, sc scope, f work) error {
	ctx, done := s.bound(ctx)
	defer done()
	for try := 1; ; try++ {
		err := s.attempt(ctx, sc, f)
		if err == nil || try == maxTries || ctx.Err() != nil || !transient(err) {
			return s.outcome(ctx, err)
		}
		s.meter.Retry(retryCause(err))
		s.log.Debug("a transaction is tried again", "place", s.place, "error", err)
		if !pause(ctx, retryPause<<try) {
			return s.outcome(ctx, err)
		}
	}
}

// outcome gives the error of a call its kind. ctx's end is told by what ended it.
func (s *Store) outcome(ctx context.Context, err error) error {
	if err == nil || known(err) {
		return err
	}
	if ctx.Err() != nil && !fromServer(err) {
		return ended(ctx, "waiting for "+s.place)
	}
	return s.explain(err)
}

// attempt runs f once. An error that is not ErrUnknownOutcome: nothing was written.
func (s *Store) attempt(ctx context.Context, sc scope, f work) (err error) {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release() // a connection in the midst of a transaction is closed by it
	if err := s.orphans.end(ctx, c.Conn()); err != nil {
		return err
	}
	s.mindEpoch(ctx, c.Conn())
	epoch := sessionOf(c.Conn()).epoch
	t := &tx{s: s, c: c.Conn(), batch: &pgx.Batch{}, epoch: epoch, began: s.beganIn(epoch)}
	t.add(s.sql.begin, nil)
	if s.pooled {
		t.add(s.o.setting(true), nil)
		t.seeEpoch()
	}
	if sc.unsynced {
		t.add(s.sql.unsynced, nil)
	}
	if err = t.run(ctx, sc, f); err != nil {
		if t.c.IsClosed() && !fromServer(err) {
			s.orphans.add(t.c)
		}
		t.rollback(ctx)
		if readOnly(err) {
			discard(ctx, t.c) // the next one leads to the server that can be written to
		}
		return err
	}
	if s.pooled && t.epoch == "" {
		s.epochs.missing.Store(true)
	}
	if s.pooled {
		s.enter(t.epoch)
	}
	if err = s.commit(ctx, c.Release, t); err == nil {
		s.cursors.Back(t.backs)
		if xid, wrong := strconv.ParseInt(t.last.xid, 10, 64); wrong == nil { // else it wrote nothing
			s.cursors.Numbered(t.began, xid)
		}
	}
	return err
}

func (t *tx) run(ctx context.Context, sc scope, f work) error {
	if sc.before != nil {
		if err := sc.before(ctx, t); err != nil {
			return err
		}
	}
	for round := 0; ; round++ {
		more, err := f(t, round)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if err := t.conclude(ctx, sc); err != nil {
			return err
		}
	}
	if sc.after == nil {
		return nil
	}
	if err := sc.after(ctx, t); err != nil {
		return err
	}
	return t.conclude(ctx, sc)
}

// conclude sends what is queued, and learns what there is to know before the COMMIT.
func (t *tx) conclude(ctx context.Context, sc scope) error {
	t.end(sc)
	if err := t.send(ctx); err != nil {
		return err
	}
	if sc.host != nil && !t.last.alive {
		return backends.ErrEvicted
	}
	return nil
}

func (t *tx) end(sc scope) {
	l := &t.last
	if sc.host == nil {
		t.each(t.s.sql.end, func(rows pgx.Rows) error { return rows.Scan(&l.xid) })
		return
	}
	sql := t.s.sql.endMany
	if len(sc.queues) == 1 {
		sql = t.s.sql.endOne
	}
	t.each(sql, func(rows pgx.Rows) error {
		return rows.Scan(&l.xid, &l.alive, &l.xmin, &l.left, &l.returns)
	}, *sc.host, sc.queues)
}

// rollback leaves the transaction where the connection is still good. It has
// time of its own: ctx may be over.
func (t *tx) rollback(ctx context.Context) {
	if t.c.IsClosed() || t.c.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	if _, err := t.c.Exec(ctx, "ROLLBACK"); err != nil {
		t.s.log.Debug("rolling back", "place", t.s.place, "error", err) // the connection is closed, and the server does it
	}
}

// commit makes the transaction durable. Its number is known by now: where the
// answer gets lost, the server is asked what became of it. free gives the
// connection back.
func (s *Store) commit(ctx context.Context, free func(), t *tx) error {
	hook := s.fault.Load()
	if hook != nil {
		(*hook)(t.c, true)
	}
	tag, err := t.c.Exec(ctx, "COMMIT")
	if hook != nil && err == nil {
		(*hook)(t.c, false)
		err = t.c.Ping(ctx)
	}
	var said *pgconn.PgError
	switch {
	case t.last.xid == "":
		return nil // it wrote nothing
	case err == nil && tag.String() == "COMMIT":
		return nil
	case err == nil:
		return fmt.Errorf("COMMIT was answered with %s", tag)
	case errors.As(err, &said) && said.SeverityUnlocalized == "ERROR": // Severity is in the server's language
		return err // as a deferred constraint does
	}
	free() // to have one to ask with
	return s.findOut(ctx, t, err)
}

// read runs f on one state of the database.
func (s *Store) read(ctx context.Context, f func(ctx context.Context, t *tx) error) error {
	return s.again(ctx, func(ctx context.Context) error { return s.readOnce(ctx, f) })
}

// again calls f until it succeeds, or trying again is of no use.
func (s *Store) again(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, done := s.bound(ctx)
	defer done()
	for try := 1; ; try++ {
		err := f(ctx)
		if err == nil || try == maxTries || ctx.Err() != nil || !transient(err) || !pause(ctx, retryPause<<try) {
			return s.outcome(ctx, err)
		}
		s.meter.Retry(retryCause(err))
	}
}

func (s *Store) readOnce(ctx context.Context, f func(ctx context.Context, t *tx) error) error {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	t := &tx{s: s, c: c.Conn(), batch: &pgx.Batch{}}
	t.add(s.sql.beginRead, nil)
	if s.pooled {
		t.add(s.o.setting(true), nil)
	}
	if err := f(ctx, t); err != nil {
		t.rollback(ctx)
		return err
	}
	t.add("COMMIT", nil)
	return t.send(ctx)
}

// rows runs one query and calls f for each of its rows. It is one statement where
// the session is the Store's own; a pooler's gets its settings first.
func (s *Store) rows(ctx context.Context, f func(rows pgx.Rows) error, sql string, args ...any) error {
	if s.pooled {
		return s.readOnce(ctx, func(_ context.Context, t *tx) error {
			t.each(sql, f, args...)
			return nil
		})
	}
	defer s.meter.RoundTrip(time.Now())
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
