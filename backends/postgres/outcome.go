package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// findOut asks for the outcome of a transaction whose COMMIT got no reply, until a server gives a
// reliable answer or ctx ends. The transaction's session can still be committing: findOut waits for it. Or it waits for
// a COMMIT that never comes: findOut terminates it.
func (s *Store) findOut(ctx context.Context, t *tx, cause error) error {
	ctx, cancel := core.OutcomeContext(ctx)
	defer cancel()
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		a, err := s.ask(ctx, t.status.xid)
		if err == nil {
			switch a.meaning(t.epoch) {
			case happened:
				s.log.Warn("commit outcome resolved", "event", "commit_outcome_resolved", "address", s.place, "committed", true, "error", cause)
				return nil
			case neverHappened:
				s.log.Warn("commit outcome resolved", "event", "commit_outcome_resolved", "address", s.place, "committed", false, "error", cause)
				if pgErr, ok := errors.AsType[*pgconn.PgError](cause); ok && kindOf(pgErr.Code) == refused {
					return cause // a trigger's own SQLSTATE, for example
				}
				return backends.Unavailable(fmt.Errorf("%s: the connection broke before the commit: %w", s.place, cause))
			case unknowable:
				s.log.Error("commit outcome unknown", "event", "commit_outcome_unknown", "reason", "the server restarted, failed over or forgot the transaction",
					"address", s.place, "xid", t.status.xid, "error", cause)
				return backends.ErrUnknownOutcome
			case stillOpen:
				err = s.terminate(ctx, t.status.xid, t.epoch)
			case noEpoch:
				_, err = s.readEpoch(ctx, s.single()) // stores one
			}
		}
		if !core.Pause(ctx, wait) {
			s.log.Error("commit outcome unknown", "event", "commit_outcome_unknown", "address", s.place, "error", errors.Join(cause, err))
			return backends.ErrUnknownOutcome
		}
	}
}

// terminate ends the session of a transaction that began in an epoch, if it waits for a statement. The statement compares the epoch
// itself: after a failover the new primary can have given the transaction's number to another session. A session that commits can wait
// for a synchronous standby. To end it would end that wait: the transaction would be committed, although no standby has it.
func (s *Store) terminate(ctx context.Context, xid, epoch string) error {
	_, err := s.single().Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE backend_xid::text::bigint = $1::text::bigint % 4294967296 AND state = 'idle in transaction' AND $2 = (`+s.sql.epoch+`)`, xid, epoch)
	return err
}

// asked is the answer of one server about a transaction.
type asked struct {
	standby bool
	epoch   string // of the server; see epoch.go
	status  string // as pg_xact_status names it, or statusFuture; "" if the server has forgotten it
}

// statusFuture is the status of a number that the server never assigned.
const statusFuture = "in the future"

// ask reads the epoch and the status in one transaction. Two transactions could reach two servers,
// behind a pooler or an address that moves.
func (s *Store) ask(ctx context.Context, xid string) (a asked, err error) {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return a, err
	}
	defer c.Release()
	t := &tx{s: s, c: c.Conn(), batch: &pgx.Batch{}}
	defer t.leave(ctx)
	t.start(s.sql.beginRead)
	t.each("SELECT pg_is_in_recovery()", func(rows pgx.Rows) error { return rows.Scan(&a.standby) })
	t.each(s.sql.epoch, func(rows pgx.Rows) error { return rows.Scan(&a.epoch) })
	t.each(`SELECT coalesce(pg_xact_status($1::text::xid8), '')`, func(rows pgx.Rows) error { return rows.Scan(&a.status) }, xid)
	err = t.send(ctx)
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == "22023" {
		a.status, err = statusFuture, nil
	}
	return a, err
}

// meaning is what an answer means for a transaction that read an epoch.
type meaning int

const (
	undecided meaning = iota // ask another server, or this one later
	happened
	neverHappened
	unknowable
	stillOpen // the transaction is in progress
	noEpoch   // the server has no epoch yet
)

// meaning applies this rule: if a server never assigned a number, assigns it again, or calls it
// aborted, then this server did not commit the transaction. So nothing was written if this is the
// transaction's server, even after a crash or a restart with older files, or a standby that took over from it. A standby
// may not have replayed everything yet. An old primary never had the commits of its successor. In another epoch,
// a number that is committed can belong to another transaction.
func (a asked) meaning(epoch string) meaning {
	same := a.epoch == epoch
	switch {
	case a.standby:
		return undecided
	case a.epoch == "":
		return noEpoch
	case same && a.status == "committed":
		return happened
	case same && a.status == "in progress":
		return stillOpen
	case epoch == "", a.status == "committed", a.status == "":
		return unknowable
	case same || succeeds(a.epoch, epoch):
		return neverHappened
	case succeeds(epoch, a.epoch):
		return undecided // an old primary; the address shouldn't lead to it for long
	}
	return unknowable
}
