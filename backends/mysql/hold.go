package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

var _ backends.TxClaimer = (*Store)(nil)

// heldTx is a connection outside of the pools. Its transaction is open for as long as a worker runs the
// job. It has a line of its own.
type heldTx struct {
	s *Store
	c *conn
	t *tx // nil: no transaction is open
}

// NoOpenTx implements backends.TxClaimer.
func (s *Store) NoOpenTx() error {
	if !s.server.skips {
		return fmt.Errorf("%s has no SKIP LOCKED, so each claim would wait for rows that others have locked (MariaDB has it since 10.6)", s.server.name())
	}
	return nil
}

// OpenTx implements backends.TxClaimer.
func (s *Store) OpenTx(ctx context.Context, idle time.Duration) (backends.OpenTx, error) {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.open(ctx, newLine())
	if err != nil {
		return nil, s.Outcome(ctx, err)
	}
	seconds := max(int(idle.Seconds()), 1)
	set := fmt.Sprintf("SET SESSION wait_timeout = %d", seconds)
	if s.server.maria {
		set += fmt.Sprintf(", SESSION idle_transaction_timeout = %d", seconds)
	}
	if err := c.exec(ctx, set); err != nil {
		c.close()
		return nil, s.Outcome(ctx, err)
	}
	return &heldTx{s: s, c: c}, nil
}

// Do implements backends.SQL.
func (h *heldTx) Do(ctx context.Context, statements ...*backends.Statement) error {
	ctx, done := h.s.Bound(ctx)
	defer done()
	if h.t == nil {
		h.t = &tx{s: h.s, c: h.c, ctx: ctx}
	}
	return h.failed(ctx, h.t.Do(ctx, statements...))
}

// failed gives an error its kind. No COMMIT was sent, so nothing is written.
func (h *heldTx) failed(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case h.c.bad:
		h.t = nil
		return fmt.Errorf("%w: %w", backends.ErrTxLost, err)
	case isCode(err, codeLockWait, codeNoWait):
		return &backends.LockedError{Err: errors.New("it was not had within a second")}
	}
	return h.s.Outcome(ctx, err)
}

const (
	savepoint   = "SAVEPOINT qsidecar"
	toSavepoint = "ROLLBACK TO SAVEPOINT qsidecar"
)

// CommitWith implements backends.OpenTx.
func (h *heldTx) CommitWith(ctx context.Context, b backends.Batch, hooks backends.TxHooks) (backends.Results, error) {
	ctx, done := h.s.Bound(ctx)
	defer done()
	if h.t == nil {
		return backends.Results{}, backends.ErrTxLost
	}
	k := h.s.NewCommit(b, hooks)
	k.LookAtAll() // an open transaction needs more statements than that of Ack
	h.t.o = k.Options()
	for try := 1; ; try++ {
		sent := h.t.sent
		h.t.add(savepoint)
		if h.t.o.AdoptedClaims && len(h.t.o.Queues) == 0 {
			h.t.requireAlive(h.t.o.Sidecar)
		}
		err := k.Run(ctx, h.t)
		if err == nil {
			err = h.t.Flush(ctx)
		}
		if err == nil {
			break
		}
		if failed := h.undo(ctx, h.t.sent > sent); failed != nil { // the server rolled back the whole transaction, or the connection is lost
			h.t, h.c.bad = nil, true
			return backends.Results{}, fmt.Errorf("%w: %w", backends.ErrTxLost, errors.Join(failed, err))
		}
		if err = h.failed(ctx, err); try == core.MaxTries || ctx.Err() != nil || !h.s.transient(err) || !core.Pause(ctx, core.RetryPause<<try) {
			return backends.Results{}, err
		}
	}
	return h.commit(ctx, k)
}

// commit ends the transaction. It also inserts or refreshes the line's row, because the janitor can have
// deleted it while the worker ran the job.
func (h *heldTx) commit(ctx context.Context, k *core.Commit) (backends.Results, error) {
	t, l := h.t, h.c.line
	h.t = nil
	if t.wrote {
		t.add(h.s.sql.joinLine, l.handle, int64(l.number))
	}
	err := h.s.commit(ctx, t)
	switch {
	case err == nil:
		h.s.queues.add(t.named, t.namedAt, t.c.server)
		return k.Committed(), nil
	case errors.Is(err, backends.ErrUnknownOutcome), backends.IsRefused(err):
		return backends.Results{}, err
	}
	if err = h.s.Outcome(ctx, err); backends.IsRefused(err) {
		return backends.Results{}, err
	}
	return backends.Results{}, fmt.Errorf("%w: %w", backends.ErrTxLost, err)
}

// undo rolls back to the savepoint. sent reports whether the server received the savepoint. undo uses its
// own timeout, because ctx can be over.
func (h *heldTx) undo(ctx context.Context, sent bool) error {
	if h.c.bad {
		return errors.New("the connection was lost")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	*h.t = tx{s: h.s, c: h.c, ctx: h.t.ctx, o: h.t.o, begun: true, wrote: h.t.wrote}
	if !sent {
		return nil
	}
	err := h.c.exec(ctx, toSavepoint)
	return err
}

// Rollback implements backends.OpenTx.
func (h *heldTx) Rollback(ctx context.Context) error {
	h.t = nil
	if h.c.bad {
		return backends.ErrTxLost
	}
	ctx, done := h.s.Bound(ctx)
	defer done()
	err := h.c.exec(ctx, "ROLLBACK")
	return h.failed(ctx, err)
}

// Ping implements backends.OpenTx.
func (h *heldTx) Ping(ctx context.Context) error {
	ctx, done := h.s.Bound(ctx)
	defer done()
	err := h.c.exec(ctx, "DO 0")
	return h.failed(ctx, err)
}

// Open implements backends.OpenTx.
func (h *heldTx) Open() bool { return h.t != nil && !h.c.bad }

// Close implements backends.OpenTx.
func (h *heldTx) Close() { h.c.close() }
