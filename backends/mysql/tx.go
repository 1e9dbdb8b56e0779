package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// tx is a transaction under way: statements queue up and go to the server in one
// packet.
type tx struct {
	script
	s     *Store
	c     *conn
	begun bool
	wrote bool // there is something to commit
	sent  int  // packets

	patient bool // it waits for other programs' locks as long as for sidecars'

	expect int64 // how many rows the last statement must have changed; 0: it does not matter

	now   instant // of the transaction, where it asked for it
	backs []cursor.GiveBack
	named []string // queues that this transaction registers

	namedAt time.Time // before the first of them
}

// send has the server carry out what is queued, in one round trip.
func (t *tx) send(ctx context.Context) error {
	p := t.script
	t.script = script{}
	if p.sql.Len() == 0 {
		return nil
	}
	sql, args := p.plain()
	t.sent++
	defer t.s.meter.RoundTrip(time.Now())
	if !t.begun {
		sql = begin + ";\n" + sql
		t.begun = true
		if wait := t.lockWait(); t.c.wait != wait {
			sql = fmt.Sprintf("SET innodb_lock_wait_timeout = %d;\n%s", int(wait.Seconds()), sql)
			t.c.wait = wait
		}
	}
	return t.c.query(ctx, sql, args, p.reads)
}

func (t *tx) lockWait() time.Duration {
	if t.patient {
		return lockWait
	}
	return rowWait
}

// roomy sends what is queued where more bytes would make the packet too large.
func (t *tx) roomy(ctx context.Context, more int64) error {
	if t.bytes()+more > t.s.server.packet-packetRoom {
		return t.send(ctx)
	}
	return nil
}

const (
	begin       = "START TRANSACTION"
	maxTries    = 8
	retryPause  = 2 * time.Millisecond // doubles with each try
	rollbackFor = 2 * time.Second

	// joinEvery is how often a line's row is made sure of, which goes where nobody does.
	joinEvery = time.Hour
)

// A work is what one transaction does: it queues statements and sends those whose
// answers it needs; what is left goes out with COMMIT. It is called anew where the
// transaction is tried again.
type work func(ctx context.Context, t *tx) error

// write runs f in a transaction until it is committed, or certainly is not.
func (s *Store) write(ctx context.Context, f work) error {
	ctx, done := s.bound(ctx)
	defer done()
	for try := 1; ; try++ {
		err := s.attempt(ctx, f)
		if err == nil || try == maxTries || ctx.Err() != nil || !s.transient(err) && !s.mend(ctx, err) {
			return s.outcome(ctx, err)
		}
		s.meter.Retry(retryCause(err))
		s.log.Debug("a transaction is tried again", "place", s.place, "error", err)
		if !batch.Pause(ctx, retryPause<<try) {
			return s.outcome(ctx, err)
		}
	}
}

// outcome gives the error of a call its kind. ctx's end is told by what ended it.
func (s *Store) outcome(ctx context.Context, err error) error {
	if err == nil || batch.Known(err) {
		return err
	}
	if ctx.Err() != nil && !fromServer(err) {
		return batch.Ended(ctx, "waiting for "+s.place)
	}
	return s.explain(err)
}

// take gets a connection that is ready for a transaction.
func (s *Store) take(ctx context.Context, p *pool) (*conn, *line, error) {
	c, l, err := p.get(ctx, &s.meter)
	if err != nil || c != nil {
		return c, l, err
	}
	if c, err = s.open(ctx, l); err != nil {
		p.put(nil, l)
		return nil, nil, err
	}
	return c, l, nil
}

// open opens a connection for a line. A session that still works for the line is
// ended first: its locks would be in the way.
func (s *Store) open(ctx context.Context, l *line) (*conn, error) {
	c, err := s.dial(ctx, l)
	if err != nil {
		return nil, err
	}
	if l.stray != "" {
		if err = c.kill(ctx, l.stray); err == nil {
			l.stray = ""
		}
	}
	if err == nil {
		err = c.exec(ctx, "DO GET_LOCK(?, 0)", c.name)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// killTries is how often a session is interrupted, and then given a second to end, before it
// is killed.
const killTries = 2

// kill ends the session that holds the named lock, if one does. Its client is gone.
//
// The session gets KILL QUERY, and ends by itself when it finds its client gone. KILL is for a
// session that idles because a cut cable hides that from it. MySQL (seen on 9.7.4, not on
// MariaDB) closes the killed session's socket in the thread that runs KILL. A session that is
// about to write its answer then writes it to the next connection that gets the same file
// descriptor: that one reads another session's answer, or finds its commands out of sync.
func (c *conn) kill(ctx context.Context, name string) error {
	for try := 0; ; try++ {
		id, err := c.number(ctx, "SELECT IS_USED_LOCK(?)", name)
		if err != nil || id == 0 {
			return err
		}
		if try == killTries {
			return unlessEnded(c.exec(ctx, fmt.Sprintf("KILL %d", id)))
		}
		if err := unlessEnded(c.exec(ctx, fmt.Sprintf("KILL QUERY %d", id))); err != nil {
			return err
		}
		if ended, err := c.number(ctx, "SELECT GET_LOCK(?, 1)", name); err != nil {
			return err
		} else if ended == 1 {
			return c.exec(ctx, "DO RELEASE_LOCK(?)", name)
		}
	}
}

// unlessEnded is the error of a KILL, without that of a session that ended before.
func unlessEnded(err error) error {
	if isCode(err, 1094) {
		return nil
	}
	return err
}

// number is the answer of a query that has one; NULL is 0.
func (c *conn) number(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = c.query(ctx, sql, args, []func(r *result) error{func(r *result) error {
		if ok, err := r.next(); err != nil || !ok {
			return err
		}
		n = r.int(0)
		return nil
	}})
	return n, err
}

// attempt runs f once. An error that is not ErrUnknownOutcome: nothing was written.
func (s *Store) attempt(ctx context.Context, f work) (err error) {
	c, l, err := s.take(ctx, &s.pool)
	if err != nil {
		return err
	}
	defer func() {
		if c.bad && l.stray == "" {
			l.stray = c.name
		}
		s.pool.put(c, l)
	}()
	if time.Since(c.joined) > joinEvery {
		if err := c.exec(ctx, s.sql.joinLine, l.handle, int64(l.number)); err != nil {
			return err
		}
		c.joined = time.Now()
	}
	t := &tx{s: s, c: c, patient: true}
	if err = f(ctx, t); err != nil {
		t.rollback(ctx)
		return t.lockedOut(err)
	}
	if err = s.commit(ctx, t); err == nil {
		s.cursors.Back(t.backs)
		s.queues.add(t.named, t.namedAt, c.server)
	}
	return t.lockedOut(err)
}

// rollback leaves the transaction where the connection is still good. It has
// time of its own: ctx may be over.
func (t *tx) rollback(ctx context.Context) {
	if t.c.bad || !t.begun {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	if err := t.c.exec(ctx, "ROLLBACK"); err != nil {
		t.c.bad = true
		t.s.log.Debug("rolling back", "place", t.s.place, "error", err) // the connection is closed, and the server does it
	}
}

// commit sends what is left, with COMMIT. The number of the commit is written in
// the same transaction: where the answer gets lost, it tells what became of it.
func (s *Store) commit(ctx context.Context, t *tx) error {
	if !t.begun && t.sql.Len() == 0 {
		return nil
	}
	l := t.c.line
	switch {
	case t.expect > 0:
		t.add(s.sql.markIf, t.expect, int64(l.number), int64(l.number+1), l.handle)
	case t.wrote:
		t.add(s.sql.mark, int64(l.number), int64(l.number+1), l.handle)
	}
	t.add("COMMIT")
	hook := s.fault.Load()
	if hook != nil {
		(*hook)(t.c, true)
	}
	err := t.send(ctx)
	if hook != nil && err == nil {
		(*hook)(t.c, false)
		if t.c.bad {
			err = errors.New("the connection was cut by the test")
		}
	}
	switch {
	case err == nil:
		if t.wrote {
			l.number++
		}
		return nil
	case !t.wrote, fromServer(err) && !endsSession(err), errors.Is(err, errPacket):
		t.rollback(ctx)
		if t.expect > 0 && isCode(err, codeRange) {
			return errNotLean // or the line's number is not what it should be, which the next try tells
		}
		return err
	}
	l.stray = t.c.name
	return s.findOut(ctx, l, err)
}

// findOut learns the outcome of a commit whose answer got lost. The session that
// ran it is ended; then the number of the last commit on its line tells. A no is
// sealed with a number of its own: what may still be on its way to the server
// finds that one, and fails.
func (s *Store) findOut(ctx context.Context, l *line, cause error) error {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		happened, err := s.look(ctx, l)
		if err == nil {
			s.log.Warn("the outcome of a commit was found out", "place", s.place, "happened", happened, "error", cause)
			if happened {
				return nil
			}
			return backends.Unavailable(fmt.Errorf("%s: the connection broke before the commit: %w", s.place, cause))
		}
		if !batch.Pause(ctx, wait) {
			s.log.Error("the outcome of a commit stays unknown", "place", s.place, "error", errors.Join(cause, err))
			stray := l.stray
			*l = *newLine()
			l.stray = stray
			return backends.ErrUnknownOutcome
		}
	}
}

// look asks once.
func (s *Store) look(ctx context.Context, l *line) (happened bool, err error) {
	c, err := s.dial(ctx, l)
	if err != nil {
		return false, err
	}
	defer c.close()
	if err := c.kill(ctx, l.stray); err != nil {
		return false, err
	}
	found, last := false, uint64(0)
	if err := c.query(ctx, begin+"; "+s.sql.marked, []any{l.handle}, []func(r *result) error{func(r *result) error {
		ok, err := r.next()
		if ok {
			found, last = true, uint64(r.int(0))
		}
		return err
	}}); err != nil {
		return false, err
	}
	switch {
	case !found: // a failover that lost it lost the rest too
		l.number += 2
		return false, nil
	case last == l.number+1:
		l.number++
		return true, nil
	}
	if last <= l.number { // else it is an earlier look's seal, whose answer got lost
		last = l.number + 2
		if err := c.exec(ctx, s.sql.seal+"; COMMIT", int64(last), l.handle); err != nil {
			return false, err
		}
	}
	l.number = last
	return false, nil
}

// read runs f outside of any transaction that writes, on one connection.
func (s *Store) read(ctx context.Context, f work) error {
	ctx, done := s.bound(ctx)
	defer done()
	for try := 1; ; try++ {
		err := s.readOnce(ctx, f)
		if err == nil || try == maxTries || ctx.Err() != nil || !s.transient(err) || !batch.Pause(ctx, retryPause<<try) {
			return s.outcome(ctx, err)
		}
	}
}

func (s *Store) readOnce(ctx context.Context, f work) error {
	c, l, err := s.take(ctx, &s.pool)
	if err != nil {
		return err
	}
	defer func() { s.pool.put(c, l) }()
	t := &tx{s: s, c: c, begun: true} // each statement is its own
	if err := f(ctx, t); err != nil {
		return err
	}
	return t.send(ctx)
}
