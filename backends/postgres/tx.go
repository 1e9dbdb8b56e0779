package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// tx is a transaction. It queues statements and sends them to the server together.
type tx struct {
	s       *Store
	c       *pgx.Conn
	release func() // returns the connection to the pool
	o       core.TxOptions
	batch   *pgx.Batch
	asked   bool     // no statement was queued since the last Flush
	status  txStatus // of the last Flush
	epoch   string   // see epoch.go
	began   cursor.Event
	sent    int               // round trips
	present *strings.Replacer // see openTx
	head    int               // how many of the queued statements begin the transaction
	owners  bool              // the search path is that of the role
	fired   bool              // triggers of an adopted table can wait for the COMMIT
	kept    bool              // owners as of the last round trip

	probes []*probe
}

// txStatus is the result of the statement at the end of each Flush.
type txStatus struct {
	xid     string // empty if the transaction wrote nothing
	alive   bool   // whether the sidecar that claims is not declared dead
	xmin    int64
	left    bool // a lean claim returned no jobs, because they didn't all fit
	returns []int64
}

var _ core.Tx = (*tx)(nil)

// add queues a statement. read gets its rows; it is nil if the rows don't matter. An error of
// read counts only if all rows arrived. Otherwise the error is that of the broken connection.
func (t *tx) add(sql string, read func(rows pgx.Rows) error, args ...any) {
	t.setPath(false)
	t.queueText(sql, read, args...)
}

// setPath queues the change of the search path to that of the role, or back.
func (t *tx) setPath(owners bool) {
	if t.owners == owners {
		return
	}
	t.owners = owners
	to := path
	if owners {
		to = t.s.searchPath(t.c)
	}
	t.queueText("SELECT pg_catalog.set_config('search_path', $1, true)", nil, to)
}

func (t *tx) queueText(sql string, read func(rows pgx.Rows) error, args ...any) {
	t.asked = false
	if t.present != nil {
		sql = t.present.Replace(sql)
	}
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

// ask runs the queued statements and then sql, and calls f for each row of sql.
func (t *tx) ask(ctx context.Context, sql string, f func(rows pgx.Rows) error, args ...any) error {
	t.each(sql, f, args...)
	return t.send(ctx)
}

// send sends the queued statements in one round trip.
func (t *tx) send(ctx context.Context) error {
	b, head := t.batch, t.head
	t.batch, t.head = &pgx.Batch{}, 0
	t.sent++
	t.kept = t.owners
	defer t.s.Meter.RoundTrip(time.Now())
	if head > 0 && undescribed(t.c, b) {
		if err := t.c.SendBatch(ctx, &pgx.Batch{QueuedQueries: b.QueuedQueries[:head]}).Close(); err != nil {
			return t.s.unset(err)
		}
		b = &pgx.Batch{QueuedQueries: b.QueuedQueries[head:]}
	}
	return t.c.SendBatch(ctx, b).Close()
}

const (
	describedKey = "qsidecar described statements"
	maxDescribed = 256
)

// undescribed reports whether the connection sees a statement for the first time. pgx then asks the server to describe it before it
// sends the batch. Behind a pooler that must happen in the transaction: before it, the names in it can mean something else.
func undescribed(c *pgx.Conn, b *pgx.Batch) (some bool) {
	data := c.PgConn().CustomData()
	known, _ := data[describedKey].(map[string]struct{})
	if known == nil || len(known) > maxDescribed {
		known = map[string]struct{}{}
		data[describedKey] = known
	}
	for _, q := range b.QueuedQueries {
		if _, ok := known[q.SQL]; !ok {
			known[q.SQL], some = struct{}{}, true
		}
	}
	return some
}

// start queues the beginning of a transaction, with its settings behind a pooler.
func (t *tx) start(begin string) {
	t.add(begin, nil)
	if t.s.pooled {
		t.add(t.s.txSQL, nil)
		t.head = len(t.batch.QueuedQueries)
	}
}

// Flush implements core.Tx. The last statement reads the transaction's status.
func (t *tx) Flush(ctx context.Context) error {
	sql := t.s.sql.status
	if t.o.Sidecar == 0 {
		t.each(sql, func(rows pgx.Rows) error { return rows.Scan(&t.status.xid) })
	} else {
		if sql = t.s.sql.statusOfMany; len(t.o.Queues) == 1 {
			sql = t.s.sql.statusOfOne
		}
		x := &t.status
		t.each(sql, func(rows pgx.Rows) error { return rows.Scan(&x.xid, &x.alive, &x.xmin, &x.left, &x.returns) }, int64(t.o.Sidecar), t.o.Queues)
	}
	if t.fired { // deferred triggers
		t.setPath(true)
	}
	if err := t.send(ctx); err != nil {
		return err
	}
	t.asked = len(t.batch.QueuedQueries) == 0 // what the answers queued goes with the next ones
	if t.o.Sidecar != 0 && !t.status.alive {
		return backends.ErrEvicted
	}
	return nil
}

const rollbackFor = 2 * time.Second

// Transact implements core.Driver.
func (a access) Transact(ctx context.Context, o core.TxOptions, f func(ctx context.Context, tx core.Tx) error) error {
	return lockedOut(core.Transact(ctx, func() (*tx, error) { return a.begin(ctx, o) }, f))
}

// begin takes a connection from the pool and queues the start of a transaction.
func (s *Store) begin(ctx context.Context, o core.TxOptions) (*tx, error) {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.orphans.end(ctx, c.Conn()); err != nil {
		c.Release()
		return nil, err
	}
	s.ensureEpoch(ctx, c.Conn())
	if s.pooled && s.epochs.entered.Swap(false) {
		s.checkSequence(ctx, c.Conn())
	}
	epoch := sessionOf(c.Conn()).epoch
	t := &tx{s: s, c: c.Conn(), release: c.Release, o: o, epoch: epoch, began: s.beganIn(epoch)}
	t.begin()
	if o.Unsynced {
		t.add(s.sql.unsyncedClaim, nil)
	}
	if sql := lockTimeout(o); sql != "" {
		t.add(sql, nil)
	}
	return t, nil
}

// begin queues the start of the transaction.
func (t *tx) begin() {
	t.batch = &pgx.Batch{}
	t.start(t.s.sql.begin)
	if t.s.pooled {
		t.readEpoch()
	}
}

// Rollback implements core.Tx. It has its own time limit, because ctx may have ended.
// The release closes a connection that is still in a transaction.
func (t *tx) Rollback(ctx context.Context, cause error) {
	defer t.release()
	if t.c.IsClosed() && !fromServer(cause) {
		t.s.orphans.add(t.c)
	}
	t.leave(ctx)
	if readOnly(cause) || sessionEnded(cause) {
		discard(ctx, t.c) // the next connection leads to the server that accepts writes, or has the settings of this package
	}
}

// leave rolls back if the connection still works.
func (t *tx) leave(ctx context.Context) {
	if t.c.IsClosed() || t.c.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	if _, err := t.c.Exec(ctx, "ROLLBACK"); err != nil {
		t.s.log.Debug("rollback failed", "event", "rollback_failed", "address", t.s.place, "error", err)
	}
}

// Commit implements core.Tx.
func (t *tx) Commit(ctx context.Context) error {
	if !t.asked {
		if err := t.Flush(ctx); err != nil {
			t.Rollback(ctx, err)
			return err
		}
	}
	defer t.release() // a second release has no effect
	s := t.s
	if s.pooled {
		if t.epoch == "" {
			s.epochs.missing.Store(true)
		}
		s.enter(t.epoch)
	}
	if err := t.commit(ctx); err != nil {
		return err
	}
	if xid, err := strconv.ParseInt(t.status.xid, 10, 64); err == nil { // otherwise it wrote nothing
		s.Cursors.Numbered(t.began, xid)
	}
	for _, p := range t.probes {
		s.Cursors.Advance(p.Proof, p.xmin, p.first)
	}
	return nil
}

// commit makes the transaction durable. Its transaction id is already known. If the reply is lost,
// commit asks the server for the outcome on another connection.
func (t *tx) commit(ctx context.Context) error {
	s := t.s
	hook := s.fault.Load()
	if hook != nil {
		(*hook)(t.c, true)
	}
	tag, err := t.sendCommit(ctx)
	if hook != nil && err == nil {
		(*hook)(t.c, false)
		err = t.c.Ping(ctx)
	}
	switch {
	case t.status.xid == "":
		return nil // it wrote nothing
	case err == nil && tag.String() == "COMMIT":
		return nil
	case err == nil:
		return fmt.Errorf("COMMIT was answered with %s", tag)
	case notCommitted(err):
		return err // from a deferred constraint, for example
	case ctx.Err() != nil && pgconn.SafeToRetry(err): // ctx ended before anything was sent
		t.leave(ctx)
		return err
	}
	if fromServer(err) {
		discard(ctx, t.c)
	}
	t.release()
	if err = s.findOut(ctx, t, err); errors.Is(err, backends.ErrUnknownOutcome) {
		s.orphans.add(t.c) // it can wait for a standby for hours, and each repetition would add a session
	}
	return err
}

// sendCommit sends COMMIT. If the connection breaks or ctx ends, pgx asks the server to cancel the statement, and a commit
// that waits for a synchronous standby would end without it. The server ignores that request if the key is wrong.
func (t *tx) sendCommit(ctx context.Context) (pgconn.CommandTag, error) {
	key := t.c.PgConn().SecretKey()
	right := slices.Clone(key)
	clear(key)
	tag, err := t.c.Exec(ctx, "COMMIT")
	if !t.c.IsClosed() { // otherwise pgx reads the key in a goroutine
		copy(key, right)
	}
	return tag, err
}

// Read implements core.Driver.
func (a access) Read(ctx context.Context, f func(ctx context.Context, r core.Reader) error) error {
	return a.readOnce(ctx, func(ctx context.Context, t *tx) error { return f(ctx, t) })
}

// read runs f on one snapshot of the database. It retries after transient errors.
func (s *Store) read(ctx context.Context, f func(ctx context.Context, t *tx) error) error {
	return s.Again(ctx, func(ctx context.Context) error { return s.readOnce(ctx, f) })
}

func (s *Store) readOnce(ctx context.Context, f func(ctx context.Context, t *tx) error) error {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	t := &tx{s: s, c: c.Conn(), batch: &pgx.Batch{}}
	t.start(s.sql.beginRead)
	if err := f(ctx, t); err != nil {
		t.leave(ctx)
		return err
	}
	t.add("COMMIT", nil)
	return t.send(ctx)
}

// rows runs one query and calls f for each of its rows. If the Store owns its sessions, this
// is one statement. Behind a pooler, the settings precede it in the same transaction.
func (s *Store) rows(ctx context.Context, f func(rows pgx.Rows) error, sql string, args ...any) error {
	if s.pooled {
		return s.readOnce(ctx, func(_ context.Context, t *tx) error {
			t.each(sql, f, args...)
			return nil
		})
	}
	defer s.Meter.RoundTrip(time.Now())
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
