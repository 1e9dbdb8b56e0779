package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/dialect"
)

var _ backends.TxClaimer = (*Store)(nil)

// openTx is a backends.OpenTx: a connection outside the pool, whose transaction stays open
// while a worker runs its job.
type openTx struct {
	s    *Store
	c    *pgx.Conn
	t    *tx // nil if no transaction is open
	idle time.Duration

	present *strings.Replacer // see present
}

// NoOpenTx implements backends.TxClaimer.
func (s *Store) NoOpenTx() error { return nil }

// OpenTx implements backends.TxClaimer.
func (s *Store) OpenTx(ctx context.Context, idle time.Duration) (backends.OpenTx, error) {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.heartbeat.open(ctx, s)
	if err != nil {
		return nil, s.Outcome(ctx, err)
	}
	return &openTx{s: s, c: c, idle: idle, present: present(s.o.Schema)}, nil
}

// Do implements backends.SQL.
func (h *openTx) Do(ctx context.Context, statements ...*backends.Statement) error {
	ctx, done := h.s.Bound(ctx)
	defer done()
	if h.t == nil {
		h.begin()
	}
	return h.failed(ctx, h.t.Do(ctx, statements...))
}

// begin queues the start of the transaction. Its settings end with the transaction: behind a
// pooler, another client can get the session next.
func (h *openTx) begin() {
	h.t = h.newTx()
	h.t.begin()
	h.t.add("SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '"+millis(h.idle)+"', true), pg_catalog.set_config('lock_timeout', '500', true)", nil)
}

func (h *openTx) newTx() *tx {
	return &tx{s: h.s, c: h.c, release: func() { discard(context.Background(), h.c) }, batch: &pgx.Batch{}, epoch: sessionOf(h.c).epoch, present: h.present}
}

// present returns what makes statements read the time at which they run. qsidecar_now returns when the transaction began, which can be
// long ago.
func present(schema string) *strings.Replacer {
	began := quoteName(schema) + ".qsidecar_now()"
	now := "(" + began + " + (pg_catalog.statement_timestamp() - pg_catalog.now()))"
	return strings.NewReplacer(began, now, dialect.New(schema).SidecarTable("qsidecar_now")+"()", now)
}

// failed classifies an error. A lost connection returns ErrTxLost: nothing is written before COMMIT.
func (h *openTx) failed(ctx context.Context, err error) error {
	if err == nil || !h.c.IsClosed() {
		return lockedOut(h.s.Outcome(ctx, err))
	}
	if h.t != nil {
		h.s.orphans.add(h.c) // the server may not have noticed it yet
		h.t = nil
	}
	return fmt.Errorf("%w: %w", backends.ErrTxLost, err)
}

const (
	savepoint   = "SAVEPOINT qsidecar"
	toSavepoint = "ROLLBACK TO SAVEPOINT qsidecar"
)

// CommitWith implements backends.OpenTx.
func (h *openTx) CommitWith(ctx context.Context, b backends.CommitContent, hooks backends.TxHooks) (backends.Results, error) {
	ctx, done := h.s.Bound(ctx)
	defer done()
	if h.t == nil {
		return backends.Results{}, backends.ErrTxLost
	}
	k := h.s.NewCommit(b, hooks)
	h.t.o = k.Options()
	for try := 1; ; try++ {
		sent := h.t.sent
		h.t.add(savepoint, nil)
		if sql := lockTimeout(h.t.o); sql != "" {
			h.t.add(sql, nil)
		}
		err := k.Run(ctx, h.t)
		if err == nil && !h.t.asked {
			err = h.t.Flush(ctx)
		}
		if err == nil {
			break
		}
		if failed := h.undo(ctx, h.t.sent > sent); failed != nil {
			discard(ctx, h.c)
			return backends.Results{}, h.failed(ctx, errors.Join(failed, err))
		}
		if try == core.MaxTries || ctx.Err() != nil || !transient(err) && !errors.Is(err, core.ErrAgain) || !core.Pause(ctx, core.RetryPause<<try) {
			return backends.Results{}, h.failed(ctx, err)
		}
	}
	t := h.t
	h.t = nil
	err := t.commit(ctx)
	switch {
	case backends.Retryable(err):
		return backends.Results{}, fmt.Errorf("%w: %w", backends.ErrTxLost, err)
	case err != nil:
		return backends.Results{}, lockedOut(h.s.Outcome(ctx, err))
	}
	return k.Committed(), nil
}

// undo rolls back to the savepoint. sent is true if the server got any statements since then.
// It has its own time limit, because ctx may have ended.
func (h *openTx) undo(ctx context.Context, sent bool) error {
	if h.c.IsClosed() {
		return errors.New("the connection was lost")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	last := *h.t
	*h.t = *h.newTx()
	h.t.o, h.t.epoch, h.t.fired = last.o, last.epoch, last.fired
	if !sent {
		h.t.owners, h.t.kept = last.kept, last.kept
		return nil
	}
	_, err := h.c.Exec(ctx, toSavepoint)
	return err
}

// Rollback implements backends.OpenTx.
func (h *openTx) Rollback(ctx context.Context) error {
	if h.c.IsClosed() {
		return h.failed(ctx, errors.New("it was lost before"))
	}
	if h.c.PgConn().TxStatus() != 'I' {
		ctx, done := h.s.Bound(ctx)
		defer done()
		if _, err := h.c.Exec(ctx, "ROLLBACK"); err != nil {
			return h.failed(ctx, err)
		}
	}
	h.t = nil
	return nil
}

// Ping implements backends.OpenTx.
func (h *openTx) Ping(ctx context.Context) error {
	ctx, done := h.s.Bound(ctx)
	defer done()
	return h.failed(ctx, h.c.Ping(ctx))
}

// Open implements backends.OpenTx.
func (h *openTx) Open() bool { return h.t != nil && !h.c.IsClosed() }

// Close implements backends.OpenTx.
func (h *openTx) Close() { discard(context.Background(), h.c) }
