package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

var _ backends.TxClaimer = (*Store)(nil)

// openTx is a connection outside of the pools. Its transaction is open for as long as a worker runs the
// job. It has a Counter of its own.
type openTx struct {
	s *Store
	c *session.Conn
	t *tx // nil: no transaction is open
}

// NoOpenTx implements backends.TxClaimer.
func (s *Store) NoOpenTx() error {
	if !s.dialer.Server.SkipLocked {
		return fmt.Errorf("%s has no SKIP LOCKED, so each claim would wait for rows that others have locked (MariaDB has it since 10.6)", s.dialer.Server.Name())
	}
	return nil
}

// OpenTx implements backends.TxClaimer.
func (s *Store) OpenTx(ctx context.Context, idle time.Duration) (backends.OpenTx, error) {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.dialer.Open(ctx, session.NewCounter())
	if err != nil {
		return nil, s.Outcome(ctx, err)
	}
	seconds := max(int((idle+time.Second-1)/time.Second), 1) // rounded up: the lock must not end before idle is over
	set := fmt.Sprintf("SET SESSION wait_timeout = %d", seconds)
	if s.dialer.Server.Maria {
		for _, kind := range []string{"", "write_", "readonly_"} {
			set += fmt.Sprintf(", SESSION idle_%stransaction_timeout = %d", kind, seconds)
		}
	}
	if err := c.Exec(ctx, set); err != nil {
		c.Close()
		return nil, s.Outcome(ctx, err)
	}
	return &openTx{s: s, c: c}, nil
}

// Do implements backends.SQL.
func (o *openTx) Do(ctx context.Context, statements ...*backends.Statement) error {
	ctx, done := o.s.Bound(ctx)
	defer done()
	if o.t == nil {
		o.t = &tx{s: o.s, c: o.c, o: core.TxOptions{AdoptedClaims: true}}
	}
	o.t.ctx = ctx
	return o.failed(ctx, o.t.Do(ctx, statements...))
}

// failed gives an error its kind. No COMMIT was sent, so nothing is written.
func (o *openTx) failed(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case o.c.Bad:
		o.t = nil
		return fmt.Errorf("%w: %w", backends.ErrTxLost, err)
	case session.IsCode(err, codeLockWait, codeNoWait):
		return &backends.LockedError{Err: errors.New("the lock was not free within a second")}
	}
	return o.s.Outcome(ctx, err)
}

// CommitWith implements backends.OpenTx.
func (o *openTx) CommitWith(ctx context.Context, b backends.CommitContent, hooks backends.TxHooks) (backends.Results, error) {
	ctx, done := o.s.Bound(ctx)
	defer done()
	if o.t == nil {
		return backends.Results{}, backends.ErrTxLost
	}
	k := o.s.NewCommit(b, hooks)
	k.ReadAllRows() // an open transaction needs more statements than that of Ack
	o.t.o, o.t.ctx = k.Options(), ctx
	for try := 1; ; try++ {
		sent := o.t.sent
		o.t.Add("SAVEPOINT qsidecar")
		o.t.checkSidecar()
		err := k.Run(ctx, o.t)
		if err == nil {
			err = o.t.Flush(ctx)
		}
		if err == nil {
			break
		}
		if failed := o.undo(ctx, o.t.sent > sent); failed != nil { // the server rolled back the whole transaction, or the connection is lost
			o.t, o.c.Bad = nil, true
			return backends.Results{}, fmt.Errorf("%w: %w", backends.ErrTxLost, errors.Join(failed, err))
		}
		if err = o.failed(ctx, err); try == core.MaxTries || ctx.Err() != nil || !transient(err) && !errors.Is(err, core.ErrAgain) || !core.Pause(ctx, core.RetryPause<<try) {
			return backends.Results{}, err
		}
	}
	return o.commit(ctx, k)
}

// commit ends the transaction.
func (o *openTx) commit(ctx context.Context, k *core.Commit) (backends.Results, error) {
	t := o.t
	o.t = nil
	err := o.s.commit(ctx, t)
	switch {
	case err == nil:
		o.s.queues.add(t.named, t.namedAt, t.c)
		return k.Committed(), nil
	case errors.Is(err, backends.ErrUnknownOutcome), backends.IsRefused(err):
		return backends.Results{}, err
	}
	if err = o.s.Outcome(ctx, err); backends.IsRefused(err) {
		return backends.Results{}, err
	}
	return backends.Results{}, fmt.Errorf("%w: %w", backends.ErrTxLost, err)
}

// undo rolls back to the savepoint. sent reports whether the server received the savepoint. undo uses its
// own timeout, because ctx can be over.
func (o *openTx) undo(ctx context.Context, sent bool) error {
	if o.c.Bad {
		return errors.New("the connection was lost")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	*o.t = tx{s: o.s, c: o.c, ctx: o.t.ctx, o: o.t.o, begun: true, wrote: o.t.wrote}
	if !sent {
		return nil
	}
	return o.c.Exec(ctx, "ROLLBACK TO SAVEPOINT qsidecar")
}

// Rollback implements backends.OpenTx.
func (o *openTx) Rollback(ctx context.Context) error {
	o.t = nil
	if o.c.Old { // a new session has the server's present max_allowed_packet
		o.c.Close()
	}
	if o.c.Bad {
		return backends.ErrTxLost
	}
	ctx, done := o.s.Bound(ctx)
	defer done()
	return o.failed(ctx, o.c.Exec(ctx, o.s.sql.rollback))
}

// Ping implements backends.OpenTx.
func (o *openTx) Ping(ctx context.Context) error {
	ctx, done := o.s.Bound(ctx)
	defer done()
	return o.failed(ctx, o.c.Exec(ctx, "DO 0"))
}

// Open implements backends.OpenTx.
func (o *openTx) Open() bool { return o.t != nil && !o.c.Bad }

// Close implements backends.OpenTx.
func (o *openTx) Close() { o.c.Close() }
