package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// tx is a transaction. It queues statements and sends them to the server in one packet.
type tx struct {
	session.Script
	s         *Store
	c         *session.Conn
	ctx       context.Context // of the call; makeRoom uses it to send a full packet before the Flush
	err       error           // of such a packet
	o         core.TxOptions
	begun     bool
	wrote     bool // there is something to commit
	committed bool // COMMIT succeeded, and a statement after it can still fail
	sent      int  // number of packets

	keys  int   // how many keys it has locked to store jobs
	acked int64 // how many rows the last statement, an Ack, must have deleted; 0: it is not an Ack
	check bool  // a queued statement compares that number, and must be answered before the COMMIT

	now      session.Instant // the transaction's time, if asked
	asked    bool            // now was queried
	expiring map[int64]*job  // what LockExpired has locked
	named    []string        // queues that this transaction registers
	then     []func()        // callbacks that the next Flush runs after the answers

	namedAt time.Time // before the first of named
}

var (
	_ core.Tx         = (*tx)(nil)
	_ core.OwnClaimer = (*tx)(nil)
)

// checkAck queues a statement that compares how many rows the last Ack deleted. If no statement follows
// the Ack, commit compares the number in its own statement.
func (t *tx) checkAck() {
	want := t.acked
	t.acked, t.check = 0, true
	t.Query(func(r *session.Result) error {
		ok, err := r.Next()
		if ok && r.Int(0) != want {
			return core.ErrNotAll
		}
		return err
	}, t.s.sql.rowCount)
}

// send sends the queued statements in one round trip.
func (t *tx) send(ctx context.Context) error {
	p := t.Script
	t.Script, t.check = session.Script{}, false
	if p.Empty() {
		return nil
	}
	t.sent++
	defer t.s.Meter.RoundTrip(time.Now())
	wait := t.c.Wait
	if !t.begun {
		p.Prepend(t.s.sql.begin)
		t.begun = true
		if wait = t.lockWait(); t.c.Wait != wait {
			p.Prepend(setWait(wait))
		}
	}
	err := t.c.Run(ctx, &p)
	if !errors.Is(err, session.ErrPacket) { // then nothing was sent
		t.c.Wait = wait
		return err
	}
	return errors.Join(err, t.s.dialer.CheckWritable(ctx, t.c)) // finds out whether the limit has changed
}

// setWait limits how long the session waits for locks on rows, and on tables that their owners alter.
func setWait(wait time.Duration) string {
	table := wait
	if wait == session.LockWait {
		table = session.SchemaWait
	}
	return fmt.Sprintf("SET innodb_lock_wait_timeout = %d, lock_wait_timeout = %d", int(wait.Seconds()), int(table.Seconds()))
}

func (t *tx) lockWait() time.Duration {
	if t.o.LimitsLockWaits() && !t.o.WaitForLocks {
		return t.s.o.rowWait
	}
	return session.LockWait
}

// makeRoom sends the queued statements if `more` bytes would make the packet too large.
func (t *tx) makeRoom(more int64) {
	if t.err == nil && t.Size()+more > t.c.Packet-session.PacketReserve {
		t.Complete()
		t.err = t.send(t.ctx)
	}
}

// Flush implements core.Tx.
func (t *tx) Flush(ctx context.Context) error {
	for {
		t.Complete()
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
	rollbackFor = 2 * time.Second
)

// Read implements core.Driver.
func (a access) Read(ctx context.Context, f func(ctx context.Context, r core.Reader) error) error {
	return a.readOnce(ctx, func(ctx context.Context, t *tx) error { return f(ctx, t) })
}

// read runs f on one connection, outside of a transaction that writes. It retries errors that can be
// transient.
func (s *Store) read(ctx context.Context, f func(ctx context.Context, t *tx) error) error {
	return s.Again(ctx, func(ctx context.Context) error { return s.readOnce(ctx, f) })
}

func (s *Store) readOnce(ctx context.Context, f func(ctx context.Context, t *tx) error) error {
	c, err := s.pool.Take(ctx, &s.Meter)
	if err != nil {
		return err
	}
	defer s.pool.Put(c)
	t := &tx{s: s, c: c, ctx: ctx, begun: true} // there is no transaction around the statements
	if err := f(ctx, t); err != nil {
		return err
	}
	return t.Flush(ctx)
}

// run sends a script outside of any transaction.
func (s *Store) run(ctx context.Context, p *session.Script) error {
	c, err := s.pool.Take(ctx, &s.Meter)
	if err != nil {
		return err
	}
	defer s.pool.Put(c)
	return c.Run(ctx, p)
}

// Transact implements core.Driver.
func (a access) Transact(ctx context.Context, o core.TxOptions, f func(ctx context.Context, tx core.Tx) error) error {
	var t *tx
	err := core.Transact(ctx, func() (_ *tx, err error) { t, err = a.begin(ctx, o); return t, err }, f)
	if errors.Is(err, session.ErrPacket) && t.c.Old {
		return fmt.Errorf("%w: the server's max_allowed_packet has changed", core.ErrAgain) // a new session has the new one
	}
	return lockedOut(o, err)
}

// begin takes a connection. The transaction itself begins with the first packet.
func (s *Store) begin(ctx context.Context, o core.TxOptions) (*tx, error) {
	c, err := s.pool.Take(ctx, &s.Meter)
	if err != nil {
		return nil, err
	}
	t := &tx{s: s, c: c, ctx: ctx, o: o}
	t.checkSidecar()
	return t, nil
}

// release returns the connection to the pool.
func (t *tx) release() {
	if l := t.c.Counter; t.c.Bad && l.Abandoned == "" {
		l.Abandoned = t.c.Name
	}
	t.s.pool.Put(t.c)
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
	if err == nil && (len(t.then) > 0 || t.check) {
		err = t.Flush(ctx)
	}
	if err != nil {
		t.rollback(ctx)
		return err
	}
	if err = t.s.commit(ctx, t); err == nil {
		t.s.queues.add(t.named, t.namedAt, t.c)
	}
	return err
}

// rollback ends the transaction if the connection is still usable. It uses its own timeout, because ctx
// can be over.
func (t *tx) rollback(ctx context.Context) {
	if t.c.Bad || !t.begun {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	if err := t.c.Exec(ctx, t.s.sql.rollback); err != nil {
		t.c.Bad = true
		t.s.log.Debug("rollback failed", "event", "rollback_failed", "address", t.s.place, "error", err) // the pool closes the connection, and the server rolls back
	}
}

// commit sends the remaining statements and COMMIT. The transaction also writes the number of the commit.
// If the answer gets lost, that number shows whether the commit happened.
func (s *Store) commit(ctx context.Context, t *tx) error {
	if !t.begun && t.Empty() {
		return nil
	}
	l, acked := t.c.Counter, t.acked
	t.BeforeNext, t.acked = nil, 0
	switch {
	case acked > 0:
		t.Add(s.sql.markIf, l.Handle, acked, int64(l.Number+1))
	case t.wrote:
		t.Add(s.sql.mark, l.Handle, int64(l.Number+1))
	}
	if s.dialer.Server.Galera {
		t.addGaleraCommit()
	} else {
		t.Add(s.sql.commit)
	}
	hook := s.fault.Load()
	if hook != nil {
		(*hook)(t.c, true)
	}
	if ctx.Err() != nil { // the driver would send nothing
		t.Script = session.Script{}
		t.rollback(ctx)
		return ctx.Err()
	}
	err := t.send(ctx)
	if hook != nil && err == nil {
		(*hook)(t.c, false)
		if err = errors.New("the connection was cut by the test"); !t.c.Bad {
			err = t.c.Exec(ctx, "DO 0")
		}
	}
	switch {
	case err == nil:
		if t.wrote {
			l.Number++
		}
		return nil
	case !t.wrote, !t.committed && session.NotCommitted(err), errors.Is(err, session.ErrPacket):
		t.rollback(ctx)
		if session.IsCode(err, codeNoSavepoint) {
			return errAborted
		}
		if !t.wrote || !session.IsCode(err, codeRange) {
			return err
		}
		switch again, failed := s.outOfStep(ctx, t.c); {
		case failed != nil:
			return failed
		case again:
			return core.ErrAgain
		case acked > 0:
			return core.ErrNotAll
		}
		return err
	}
	t.c.Close() // the session can be intact
	l.Abandoned = t.c.Name
	return s.findOut(ctx, l, err)
}
