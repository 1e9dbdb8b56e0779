package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
)

var _ backends.TxClaimer = (*Store)(nil)

// heldTx is a connection of no pool, whose transaction is open for as long as a
// worker works.
type heldTx struct {
	s    *Store
	c    *pgx.Conn
	t    *tx // nil: there is no transaction
	idle time.Duration
}

// NoHold implements backends.TxClaimer.
func (s *Store) NoOpenTx() error { return nil }

// Hold implements backends.TxClaimer.
func (s *Store) OpenTx(ctx context.Context, idle time.Duration) (backends.OpenTx, error) {
	ctx, done := s.bound(ctx)
	defer done()
	c, err := s.beater.open(ctx, s)
	if err != nil {
		return nil, s.outcome(ctx, err)
	}
	return &heldTx{s: s, c: c, idle: idle}, nil
}

// Do implements backends.SQL.
func (h *heldTx) Do(ctx context.Context, statements ...*backends.Statement) error {
	ctx, done := h.s.bound(ctx)
	defer done()
	if h.t == nil {
		h.begin()
	}
	return h.failed(ctx, h.t.Do(ctx, statements...))
}

// begin queues what begins the transaction. Its settings end with it: behind a
// pooler another one may have the session next.
func (h *heldTx) begin() {
	h.t = &tx{s: h.s, c: h.c, batch: &pgx.Batch{}, epoch: sessionOf(h.c).epoch}
	h.t.add(h.s.sql.begin, nil)
	if h.s.pooled {
		h.t.add(h.s.o.setting(true), nil)
		h.t.seeEpoch()
	}
	h.t.add("SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '"+millis(h.idle)+"', true)", nil)
}

// failed gives an error its kind. Before a COMMIT nothing is written.
func (h *heldTx) failed(ctx context.Context, err error) error {
	if err == nil || !h.c.IsClosed() {
		return lockedOut(h.s.outcome(ctx, err))
	}
	if h.t != nil {
		h.s.orphans.add(h.c) // its server may not know it yet
		h.t = nil
	}
	return fmt.Errorf("%w: %w", backends.ErrTxLost, err)
}

const (
	savepoint   = "SAVEPOINT qsidecar"
	toSavepoint = "ROLLBACK TO SAVEPOINT qsidecar"
)

// CommitWith implements backends.Hold.
func (h *heldTx) CommitWith(ctx context.Context, b backends.Batch, also backends.TxHooks) (backends.Results, error) {
	ctx, done := h.s.bound(ctx)
	defer done()
	if h.t == nil {
		return backends.Results{}, backends.ErrTxLost
	}
	k, sc := h.s.with(b, also)
	for try := 1; ; try++ {
		sent := h.t.sent
		h.t.add(savepoint, nil)
		err := h.t.run(ctx, sc, k.rounds(also))
		if err == nil {
			break
		}
		if failed := h.undo(ctx, h.t.sent > sent); failed != nil {
			discard(ctx, h.c)
			return backends.Results{}, h.failed(ctx, errors.Join(failed, err))
		}
		if try == maxTries || ctx.Err() != nil || !transient(err) || !pause(ctx, retryPause<<try) {
			return backends.Results{}, h.failed(ctx, err)
		}
	}
	t := h.t
	h.t = nil
	err := h.s.commit(ctx, func() { discard(ctx, h.c) }, t)
	switch {
	case backends.Retryable(err):
		return backends.Results{}, fmt.Errorf("%w: %w", backends.ErrTxLost, err)
	case err != nil:
		return backends.Results{}, lockedOut(h.s.outcome(ctx, err))
	}
	h.s.cursors.Back(t.backs)
	h.s.tell.freed(k.res.Writes)
	if also.Freed != nil {
		h.s.tell.freed([]backends.WriteResult{{MadeReady: also.Freed()}})
	}
	return k.res, nil
}

// undo takes back what was done since the savepoint; sent: the server knows of that.
// It has time of its own: ctx may be over.
func (h *heldTx) undo(ctx context.Context, sent bool) error {
	if h.c.IsClosed() {
		return errors.New("the connection was lost")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	*h.t = tx{s: h.s, c: h.c, batch: &pgx.Batch{}, epoch: h.t.epoch}
	if !sent {
		return nil
	}
	_, err := h.c.Exec(ctx, toSavepoint)
	return err
}

// Rollback implements backends.Hold.
func (h *heldTx) Rollback(ctx context.Context) error {
	if h.c.IsClosed() {
		return h.failed(ctx, errors.New("it was lost before"))
	}
	if h.c.PgConn().TxStatus() != 'I' {
		ctx, done := h.s.bound(ctx)
		defer done()
		if _, err := h.c.Exec(ctx, "ROLLBACK"); err != nil {
			return h.failed(ctx, err)
		}
	}
	h.t = nil
	return nil
}

// Ping implements backends.Hold.
func (h *heldTx) Ping(ctx context.Context) error {
	ctx, done := h.s.bound(ctx)
	defer done()
	return h.failed(ctx, h.c.Ping(ctx))
}

// Open implements backends.Hold.
func (h *heldTx) Open() bool { return h.t != nil && !h.c.IsClosed() }

// Close implements backends.Hold.
func (h *heldTx) Close() { discard(context.Background(), h.c) }
