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
func (o *openTx) Do(ctx context.Context, statements ...*backends.Statement) error {
	ctx, done := o.s.Bound(ctx)
	defer done()
	if o.t == nil {
		o.begin()
	}
	return o.failed(ctx, o.t.Do(ctx, statements...))
}

// begin queues the start of the transaction. Its settings end with the transaction: behind a
// pooler, another client can get the session next.
func (o *openTx) begin() {
	o.t = o.newTx()
	o.t.begin()
	o.t.add("SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '"+millis(o.idle)+"', true), pg_catalog.set_config('lock_timeout', '500', true)", nil)
}

func (o *openTx) newTx() *tx {
	return &tx{s: o.s, c: o.c, release: func() { discard(context.Background(), o.c) }, batch: &pgx.Batch{}, epoch: sessionOf(o.c).epoch, present: o.present}
}

// present returns what makes statements read the time at which they run. qsidecar_now returns when the transaction began, which can be
// long ago.
func present(schema string) *strings.Replacer {
	began := quoteName(schema) + ".qsidecar_now()"
	now := "(" + began + " + (pg_catalog.statement_timestamp() - pg_catalog.now()))"
	return strings.NewReplacer(began, now, dialect.New(schema).SidecarTable("qsidecar_now")+"()", now)
}

// failed classifies an error. A lost connection returns ErrTxLost: nothing is written before COMMIT.
func (o *openTx) failed(ctx context.Context, err error) error {
	if err == nil || !o.c.IsClosed() {
		return lockedOut(o.s.Outcome(ctx, err))
	}
	if o.t != nil {
		o.s.orphans.add(o.c) // the server may not have noticed it yet
		o.t = nil
	}
	return fmt.Errorf("%w: %w", backends.ErrTxLost, err)
}

const (
	savepoint   = "SAVEPOINT qsidecar"
	toSavepoint = "ROLLBACK TO SAVEPOINT qsidecar"
)

// CommitWith implements backends.OpenTx.
func (o *openTx) CommitWith(ctx context.Context, b backends.CommitContent, hooks backends.TxHooks) (backends.Results, error) {
	ctx, done := o.s.Bound(ctx)
	defer done()
	if o.t == nil {
		return backends.Results{}, backends.ErrTxLost
	}
	k := o.s.NewCommit(b, hooks)
	o.t.o = k.Options()
	for try := 1; ; try++ {
		sent := o.t.sent
		o.t.add(savepoint, nil)
		if sql := lockTimeout(o.t.o); sql != "" {
			o.t.add(sql, nil)
		}
		err := k.Run(ctx, o.t)
		if err == nil && !o.t.asked {
			err = o.t.Flush(ctx)
		}
		if err == nil {
			break
		}
		if failed := o.undo(ctx, o.t.sent > sent); failed != nil {
			discard(ctx, o.c)
			return backends.Results{}, o.failed(ctx, errors.Join(failed, err))
		}
		if try == core.MaxTries || ctx.Err() != nil || !transient(err) && !errors.Is(err, core.ErrAgain) || !core.Pause(ctx, core.RetryPause<<try) {
			return backends.Results{}, o.failed(ctx, err)
		}
	}
	t := o.t
	o.t = nil
	err := t.commit(ctx)
	switch {
	case backends.Retryable(err):
		return backends.Results{}, fmt.Errorf("%w: %w", backends.ErrTxLost, err)
	case err != nil:
		return backends.Results{}, lockedOut(o.s.Outcome(ctx, err))
	}
	return k.Committed(), nil
}

// undo rolls back to the savepoint. sent is true if the server got any statements since then.
// It has its own time limit, because ctx may have ended.
func (o *openTx) undo(ctx context.Context, sent bool) error {
	if o.c.IsClosed() {
		return errors.New("the connection was lost")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	last := *o.t
	*o.t = *o.newTx()
	o.t.o, o.t.epoch, o.t.fired = last.o, last.epoch, last.fired
	if !sent {
		o.t.owners, o.t.kept = last.kept, last.kept
		return nil
	}
	_, err := o.c.Exec(ctx, toSavepoint)
	return err
}

// Rollback implements backends.OpenTx.
func (o *openTx) Rollback(ctx context.Context) error {
	if o.c.IsClosed() {
		return o.failed(ctx, errors.New("it was lost before"))
	}
	if o.c.PgConn().TxStatus() != 'I' {
		ctx, done := o.s.Bound(ctx)
		defer done()
		if _, err := o.c.Exec(ctx, "ROLLBACK"); err != nil {
			return o.failed(ctx, err)
		}
	}
	o.t = nil
	return nil
}

// Ping implements backends.OpenTx.
func (o *openTx) Ping(ctx context.Context) error {
	ctx, done := o.s.Bound(ctx)
	defer done()
	return o.failed(ctx, o.c.Ping(ctx))
}

// Open implements backends.OpenTx.
func (o *openTx) Open() bool { return o.t != nil && !o.c.IsClosed() }

// Close implements backends.OpenTx.
func (o *openTx) Close() { discard(context.Background(), o.c) }
