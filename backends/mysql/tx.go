package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// tx is a transaction. It queues statements and sends them to the server in one packet.
type tx struct {
	script
	s     *Store
	c     *conn
	ctx   context.Context // of the transaction; makeRoom uses it to send a full packet before the Flush
	err   error           // of such a packet
	o     core.TxOptions
	begun bool
	wrote bool // there is something to commit
	sent  int  // number of packets

	acked int64 // how many rows the Ack that was queued last must have deleted; 0: the last statement is not an Ack

	now   instant  // the transaction's time, if asked
	asked bool     // now was queried
	named []string // queues that this transaction registers
	then  []func() // callbacks that the next Flush runs after the answers

	namedAt time.Time // before the first of named
}

var (
	_ core.Tx         = (*tx)(nil)
	_ core.OwnClaimer = (*tx)(nil)
)

// add queues a statement that returns no rows.
func (t *tx) add(sql string, args ...any) {
	t.checkAck()
	t.script.add(sql, args...)
}

// query queues a statement with a result set, which can be empty.
func (t *tx) query(read func(r *result) error, sql string, args ...any) {
	t.checkAck()
	t.script.query(read, sql, args...)
}

// each queues a statement and calls f for each row that it returns.
func (t *tx) each(f func(r *result) error, sql string, args ...any) {
	t.checkAck()
	t.script.each(f, sql, args...)
}

// checkAck queues a statement that compares how many rows the last Ack deleted. If no statement follows
// the Ack, commit compares the number in its own statement.
func (t *tx) checkAck() {
	if t.acked == 0 {
		return
	}
	want := t.acked
	t.acked = 0
	t.script.each(func(r *result) error {
		if r.int(0) != want {
			return core.ErrNotAll
		}
		return nil
	}, "SELECT ROW_COUNT()")
}

// send sends the queued statements in one round trip.
func (t *tx) send(ctx context.Context) error {
	p := t.script
	t.script = script{}
	if p.sql.Len() == 0 {
		return nil
	}
	sql, args := p.plain()
	t.sent++
	defer t.s.Meter.RoundTrip(time.Now())
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
	if t.o.LimitsLockWaits() && !t.o.WaitForLocks {
		return rowWait
	}
	return lockWait
}

// makeRoom sends the queued statements if `more` bytes would make the packet too large.
func (t *tx) makeRoom(more int64) {
	if t.err == nil && t.bytes()+more > t.s.server.packet-packetRoom {
		t.checkAck()
		t.err = t.send(t.ctx)
	}
}

// Flush implements core.Tx.
func (t *tx) Flush(ctx context.Context) error {
	for {
		t.checkAck()
		if t.err == nil {
			t.err = t.send(ctx)
		}
		if t.err != nil || len(t.then) == 0 {
			return t.err
		}
		then := t.then
		t.then = nil
		for _, f := range then {
			f()
		}
		if len(t.then) == 0 {
			return t.err // statements that the callbacks queued go with the next packet
		}
	}
}

const (
	begin       = "START TRANSACTION"
	rollbackFor = 2 * time.Second

	// joinEvery is how often a connection refreshes its row in qsidecar_commits. The janitor deletes rows
	// that are not refreshed.
	joinEvery = time.Hour
)

// read runs f on one connection, outside of a transaction that writes. It retries errors that can be
// transient.
func (s *Store) read(ctx context.Context, f func(ctx context.Context, t *tx) error) error {
	return s.Again(ctx, func(ctx context.Context) error { return s.readOnce(ctx, f) })
}

func (s *Store) readOnce(ctx context.Context, f func(ctx context.Context, t *tx) error) error {
	c, l, err := s.take(ctx, &s.pool)
	if err != nil {
		return err
	}
	defer func() { s.pool.put(c, l) }()
	t := &tx{s: s, c: c, ctx: ctx, begun: true} // there is no transaction around the statements
	if err := f(ctx, t); err != nil {
		return err
	}
	return t.Flush(ctx)
}

// Read implements core.Driver.
func (d access) Read(ctx context.Context, f func(ctx context.Context, r core.Reader) error) error {
	return d.readOnce(ctx, func(ctx context.Context, t *tx) error { return f(ctx, t) })
}

// write runs f in a transaction.
func (s *Store) write(ctx context.Context, f func(ctx context.Context, t *tx) error) error {
	return s.Write(ctx, core.TxOptions{}, func(ctx context.Context, x core.Tx) error { return f(ctx, x.(*tx)) })
}

// Transact implements core.Driver.
func (d access) Transact(ctx context.Context, o core.TxOptions, f func(ctx context.Context, tx core.Tx) error) error {
	return lockedOut(o, core.Transact(ctx, func() (*tx, error) { return d.begin(ctx, o) }, f))
}

// begin takes a connection. The transaction itself begins with the first packet.
func (s *Store) begin(ctx context.Context, o core.TxOptions) (*tx, error) {
	c, l, err := s.take(ctx, &s.pool)
	if err != nil {
		return nil, err
	}
	t := &tx{s: s, c: c, ctx: ctx, o: o}
	if time.Since(c.joined) > joinEvery {
		if err := c.exec(ctx, s.sql.joinLine, l.handle, int64(l.number)); err != nil {
			t.release()
			return nil, err
		}
		c.joined = time.Now()
	}
	if o.AdoptedClaims && len(o.Queues) == 0 {
		t.requireAlive(o.Sidecar)
	}
	return t, nil
}

// release returns the connection to the pool.
func (t *tx) release() {
	l := t.c.line
	if t.c.bad && l.stray == "" {
		l.stray = t.c.name
	}
	t.s.pool.put(t.c, l)
}

// Rollback implements core.Tx.
func (t *tx) Rollback(ctx context.Context, _ error) {
	t.rollback(ctx)
	t.release()
}

// Commit implements core.Tx.
func (t *tx) Commit(ctx context.Context) error {
	defer t.release()
	return t.finish(ctx)
}

// finish commits. After a commit it records which queues are registered.
func (t *tx) finish(ctx context.Context) error {
	err := t.err
	if err == nil && len(t.then) > 0 {
		err = t.Flush(ctx)
	}
	if err != nil {
		t.rollback(ctx)
		return err
	}
	if err = t.s.commit(ctx, t); err == nil {
		t.s.queues.add(t.named, t.namedAt, t.c.server)
	}
	return err
}

// rollback ends the transaction if the connection is still usable. It uses its own timeout, because ctx
// can be over.
func (t *tx) rollback(ctx context.Context) {
	if t.c.bad || !t.begun {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	if err := t.c.exec(ctx, "ROLLBACK"); err != nil {
		t.c.bad = true
		t.s.log.Debug("rolling back", "place", t.s.place, "error", err) // the pool closes the connection, and the server rolls back
	}
}

// commit sends the remaining statements and COMMIT. The transaction also writes the number of the commit.
// If the answer gets lost, that number shows whether the commit happened.
func (s *Store) commit(ctx context.Context, t *tx) error {
	if !t.begun && t.sql.Len() == 0 {
		return nil
	}
	l, acked := t.c.line, t.acked
	switch {
	case t.acked > 0:
		t.script.add(s.sql.markIf, t.acked, int64(l.number), int64(l.number+1), l.handle)
	case t.wrote:
		t.add(s.sql.mark, int64(l.number), int64(l.number+1), l.handle)
	}
	t.acked = 0
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
		if acked > 0 && isCode(err, codeRange) {
			return core.ErrNotAll // or the line's number in the table is not the expected one, which the next attempt finds out
		}
		return err
	}
	l.stray = t.c.name
	return s.findOut(ctx, l, err)
}

// findOut determines the outcome of a commit whose answer got lost. It ends the session that ran the
// commit, and then reads the number of the last commit of the line. If the commit did not happen, it
// stores a higher number as a seal. A COMMIT that is still on its way to the server then finds that
// number, and fails.
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
		if !core.Pause(ctx, wait) {
			s.log.Error("the outcome of a commit stays unknown", "place", s.place, "error", errors.Join(cause, err))
			stray := l.stray
			*l = *newLine()
			l.stray = stray
			return backends.ErrUnknownOutcome
		}
	}
}

// look makes one attempt to find out.
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
	case !found: // a failover that lost this row lost the commit too
		l.number += 2
		return false, nil
	case last == l.number+1:
		l.number++
		return true, nil
	}
	if last <= l.number { // otherwise it is the seal of an earlier attempt whose answer got lost
		last = l.number + 2
		if err := c.exec(ctx, s.sql.seal+"; COMMIT", int64(last), l.handle); err != nil {
			return false, err
		}
	}
	l.number = last
	return false, nil
}
