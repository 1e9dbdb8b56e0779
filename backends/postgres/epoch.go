package postgres

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A server that crashed forgets the transactions whose commits had not reached its
// disk, and gives their numbers to others: what pg_xact_status says of such a
// number is about somebody else. So does a standby that took over. Both lose the
// row of qsidecar_epoch. A commit's outcome that is asked for is believed where
// the row is still the one that its session, or its transaction, saw.

const (
	epochSQL = `SELECT epoch FROM {s}.qsidecar_epoch`
	// newEpochSQL begins one where there is none. It is its own transaction.
	newEpochSQL = `INSERT INTO {s}.qsidecar_epoch (one, epoch) VALUES (1, $1) ON CONFLICT (one) DO NOTHING`
)

// epochs is how a Store knows the time between two crashes.
type epochs struct {
	read    string
	missing atomic.Bool // a transaction of a pooler's session saw none
}

// readEpoch reads it by q, whose session stays the same, and begins one where
// there is none. Empty: there is no table for it yet, or it cannot be written.
func (s *Store) readEpoch(ctx context.Context, q interface {
	querier
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}) (epoch string, err error) {
	for range 2 {
		err = q.QueryRow(ctx, s.epochs.read, pgx.QueryExecModeExec).Scan(&epoch)
		if err == nil || !errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if _, err = q.Exec(ctx, in(s.o.Schema, newEpochSQL), pgx.QueryExecModeExec, random()); err != nil {
			break
		}
	}
	if said := (*pgconn.PgError)(nil); errors.As(err, &said) {
		switch said.Code {
		case "42P01", "3F000", "25006", "0A000": // no such table or schema; a server that only reads
			return "", nil
		}
	}
	return epoch, err
}

// seeEpoch has a transaction of a session that may be another each time see the epoch.
func (t *tx) seeEpoch() {
	t.each(t.s.epochs.read, func(rows pgx.Rows) error { return rows.Scan(&t.epoch) })
}

// mindEpoch begins one where a pooler's session saw none.
func (s *Store) mindEpoch(ctx context.Context, c *pgx.Conn) {
	if !s.epochs.missing.Load() {
		return
	}
	if epoch, err := s.readEpoch(ctx, c); err != nil || epoch == "" {
		s.log.Debug("the server has no epoch", "place", s.place, "error", err) // the next one tries again
		return
	}
	s.epochs.missing.Store(false)
}

// sameServer reports whether no crash and no failover came between a transaction
// that saw the epoch and now.
func (s *Store) sameServer(ctx context.Context, epoch string) (bool, error) {
	now, err := s.readEpoch(ctx, s.pool)
	return epoch != "" && now == epoch, err
}
