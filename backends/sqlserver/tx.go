package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// tx is a transaction under way. Pieces queue up and go to the server together.
type tx struct {
	s     *Store
	c     *sql.Conn
	slot  *txSlot
	o     core.TxOptions
	calls []call
	wrong error // of a call that could not be queued
	wrote bool  // something was written, so that its commit has a number

	asked   bool    // the query about the sidecar was queued
	alive   bool    // its result: the sidecar that the transaction claims for is alive
	returns []int64 // of o.Queues
	fair    []bool  // in the same way: whether they have group_ready
}

var _ interface {
	core.Tx
	core.LockFinder
	core.KeyLockFinder
	core.Expirer
	core.Retainer
	core.Gatekeeper
	core.Grouper
} = (*tx)(nil)

const (
	rollbackFor = 2 * time.Second
	commitSQL   = "COMMIT TRANSACTION;"
	rollbackSQL = "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;"
)

// Transact implements core.Driver.
func (a access) Transact(ctx context.Context, o core.TxOptions, f func(ctx context.Context, tx core.Tx) error) error {
	return core.Transact(ctx, func() (*tx, error) { return a.begin(ctx, o) }, f)
}

// begin takes a connection and starts a transaction. It first proves what can be proven about the queues, because
// that needs a connection of its own: a transaction that waited for a second connection could wait forever.
func (s *Store) begin(ctx context.Context, o core.TxOptions) (*tx, error) {
	s.prove(ctx, o.Queues)
	l, err := s.takeSlot(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.db.Conn(ctx)
	if err != nil {
		s.giveSlot(l)
		return nil, err
	}
	if s.unverified.Swap(false) && !s.server.babelfish {
		s.checkSequence(ctx, c)
	}
	t := &tx{s: s, c: c, slot: l, o: o}
	if _, err := c.ExecContext(ctx, s.sql.begin); err != nil {
		t.Rollback(ctx, err)
		return nil, err
	}
	return t, nil
}

// add queues a piece. read receives its result sets.
func (t *tx) add(p *piece, read []reader, args ...any) {
	t.calls = append(t.calls, call{p, args, read})
}

// run sends a piece after the queued ones.
func (t *tx) run(ctx context.Context, p *piece, read []reader, args ...any) error {
	t.add(p, read, args...)
	return t.send(ctx)
}

// brief reports whether the transaction does not wait long for what others have locked. Other transactions wait as
// long as head.sql allows.
func (t *tx) waitsBriefly() bool { return t.o.LimitsLockWaits() && !t.o.WaitForLocks }

// send sends the queued pieces, in one batch as far as they fit together. The last piece of each batch numbers the
// commit of a transaction that wrote.
func (t *tx) send(ctx context.Context) error {
	calls, wrong := t.calls, t.wrong
	t.calls, t.wrong = nil, nil
	if wrong != nil {
		return wrong
	}
	for len(calls) > 0 {
		n := together(calls)
		wrote := int64(0)
		some := append(t.s.sql.knowing(calls[:n]), call{t.s.sql.mark, []any{t.s.handle, t.slot.id, t.slot.number}, []reader{one(&wrote)}})
		if t.waitsBriefly() {
			some = append([]call{{piece: t.s.sql.brief}}, some...)
		}
		began := time.Now()
		err := t.s.sql.carryOut(ctx, t.c, some)
		t.s.Meter.RoundTrip(began)
		t.wrote = t.wrote || wrote > 0
		if err != nil {
			if t.o.LimitsLockWaits() || slices.ContainsFunc(some, func(c call) bool { return strings.Contains(c.text, "NOWAIT") }) {
				err = lockedOut(err)
			}
			return err
		}
		calls = calls[n:]
	}
	return nil
}

// maxParameters is the maximum number of parameters of a batch: sp_executesql takes 2100.
const maxParameters = 2000

// together returns how many of the calls go into one batch. The variables of a piece that occurs twice would clash.
func together(calls []call) int {
	seen, parameters := map[string]bool{}, 0
	for n, c := range calls {
		if parameters += len(c.params); seen[c.name] || n > 0 && parameters > maxParameters {
			return n
		}
		seen[c.name] = true
	}
	return len(calls)
}

// Flush implements core.Tx. A transaction that claims also queries whether its sidecar is alive and, after the
// claims, how often jobs of their queues were returned.
func (t *tx) Flush(ctx context.Context) error {
	if t.o.Sidecar != 0 && (!t.asked || len(t.calls) > 0 && len(t.o.Queues) > 0) {
		t.ask()
	}
	if err := t.send(ctx); err != nil {
		return err
	}
	return t.evicted()
}

// ask queues the query about the sidecar and the queues of the claims.
func (t *tx) ask() {
	t.asked, t.returns, t.fair = true, make([]int64, len(t.o.Queues)), make([]bool, len(t.o.Queues))
	t.add(t.s.sql.host, []reader{one(&t.alive), each(func(rows *sql.Rows) error {
		var n int
		var returns int64
		var gated, fair bool
		if err := rows.Scan(&n, &returns, &gated, &fair); err != nil {
			return err
		}
		if n < 0 || n >= len(t.returns) {
			return noItem(n, len(t.returns))
		}
		if t.returns[n], t.fair[n] = returns, fair; gated {
			t.returns[n] = -1 - returns
		}
		return nil
	})}, int64(t.o.Sidecar), listOf(t.o.Queues))
}

func (t *tx) evicted() error {
	if t.asked && !t.alive {
		return backends.ErrEvicted
	}
	return nil
}

// Rollback implements core.Tx.
func (t *tx) Rollback(ctx context.Context, cause error) {
	t.rollback(ctx, cause)
	t.s.giveSlot(t.slot)
}

// rollback ends the transaction: by a ROLLBACK if the connection is still good, or else by closing it. It has its own
// timeout, because ctx may have ended. XACT_ABORT has ended the transaction after most errors.
func (t *tx) rollback(ctx context.Context, cause error) {
	defer t.close()
	if broken(cause) {
		t.abandon()
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	if _, err := t.c.ExecContext(ctx, rollbackSQL); err != nil {
		t.s.log.Debug("rollback failed", "event", "rollback_failed", "address", t.s.place, "error", err)
		t.abandon()
	}
}

// close returns the connection to the pool.
func (t *tx) close() {
	if err := t.c.Close(); err != nil && !errors.Is(err, sql.ErrConnDone) {
		t.s.log.Debug("can't return a connection to the pool", "event", "connection_return_failed", "address", t.s.place, "error", err)
	}
}

// abandon closes the connection and marks its row of qsidecar_commits as abandoned: the server can keep the transaction,
// with the lock on that row, until it notices.
func (t *tx) abandon() {
	discard(t.c)
	flush(t.s.db, t.s.o.MaxConnections-1)
	t.slot.abandoned = true
}

// Commit implements core.Tx. If the reply is lost, another connection finds out whether the number of the commit
// exists.
func (t *tx) Commit(ctx context.Context) error {
	for len(t.calls) > 0 || t.wrong != nil { // answers can add notes
		if err := t.Flush(ctx); err != nil {
			t.Rollback(ctx, err)
			return err
		}
	}
	defer t.s.giveSlot(t.slot)
	hook := t.s.fault.Load()
	if hook != nil {
		(*hook)(true)
	}
	_, err := t.c.ExecContext(ctx, commitSQL)
	if hook != nil && err == nil {
		(*hook)(false)
		err = t.c.PingContext(ctx)
	}
	if err != nil {
		t.abandon()
	}
	t.close()
	if err == nil || !t.wrote {
		return nil
	}
	return t.s.findOut(ctx, t.slot, err)
}

// Read implements core.Driver. Each query is a batch of its own, outside of any transaction.
func (a access) Read(ctx context.Context, f func(ctx context.Context, r core.Reader) error) error {
	return f(ctx, inspection(a))
}

// once carries out one batch outside of any transaction. It tries once.
func (s *Store) once(ctx context.Context, calls ...call) error {
	began := time.Now()
	err := s.sql.carryOut(ctx, s.db, calls)
	s.Meter.RoundTrip(began)
	if err != nil && broken(err) {
		flush(s.db, s.o.MaxConnections-1)
	}
	return err
}
