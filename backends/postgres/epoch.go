package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// A server that crashed forgets the transactions whose commits had not reached its
// disk, and gives their numbers to others: what pg_xact_status says of such a
// number is about somebody else. So does a standby that took over. Both lose the
// row of qsidecar_epoch, whose table is not logged. A commit's outcome that is asked
// for is judged by the epoch that its session, or its transaction, saw. An epoch is
// SYSTEM/TIMELINE/RANDOM: it also tells whether one server is the successor of another.
//
// Such a server also loses positions and gives the same ones again, so cursors are reset
// when the epoch changes. A session's epoch is read before its first use. No claim in the
// session can therefore rely on a cursor of another epoch. Behind a pooler, the first
// transaction of an epoch still can; the next look finds what it missed.

const (
	epochSQL = `SELECT epoch FROM {s}.qsidecar_epoch`
	// newEpochSQL begins one where there is none. It is its own transaction.
	newEpochSQL = `INSERT INTO {s}.qsidecar_epoch (one, epoch)
		SELECT 1, system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '/' || $1 FROM pg_control_system()
		ON CONFLICT (one) DO NOTHING`
	// plainEpochSQL is for servers that do not tell their identity. The outcome of a commit
	// stays unknown there if the server crashed.
	plainEpochSQL = `INSERT INTO {s}.qsidecar_epoch (one, epoch) VALUES (1, $1) ON CONFLICT (one) DO NOTHING`
)

// succeeds reports whether the server of epoch a is that of b, or took over from it.
func succeeds(a, b string) bool {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	return len(x) == 3 && len(y) == 3 && x[0] == y[0] && x[1] >= y[1] // timelines are hexadecimal, of 8 digits
}

// epochs is how a Store knows the time between two crashes.
type epochs struct {
	read    string
	missing atomic.Bool // a transaction of a pooler's session saw none

	mu      sync.Mutex
	current string // the latest that was seen
}

// enter resets the cursors if the epoch differs from the current one.
func (s *Store) enter(epoch string) {
	s.epochs.mu.Lock()
	defer s.epochs.mu.Unlock()
	if epoch == "" || epoch == s.epochs.current {
		return
	}
	if s.epochs.current != "" {
		s.log.Warn("the server crashed, or another took over: claims look at whole queues again", "place", s.place)
	}
	s.epochs.current = epoch
	s.Cursors.Reset()
}

// beganIn is for the cursors to know a transaction by that begins now: Never where its
// session is of another epoch than theirs.
func (s *Store) beganIn(epoch string) cursor.Event {
	s.epochs.mu.Lock()
	defer s.epochs.mu.Unlock()
	if !s.pooled && epoch != s.epochs.current {
		return cursor.Never
	}
	return s.Cursors.Now()
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
		if _, err = q.Exec(ctx, in(s.o.Schema, newEpochSQL), pgx.QueryExecModeExec, random()); fromServer(err) && !noEpochs(err) {
			_, err = q.Exec(ctx, in(s.o.Schema, plainEpochSQL), pgx.QueryExecModeExec, random())
		}
		if err != nil {
			break
		}
	}
	if noEpochs(err) {
		return "", nil
	}
	return epoch, err
}

// noEpochs: there is no such table or schema, or the server only reads.
func noEpochs(err error) bool {
	said, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains([]string{"42P01", "3F000", "25006"}, said.Code)
}

// readEpoch has a transaction of a session that may be another each time see the epoch.
func (t *tx) readEpoch() {
	t.each(t.s.epochs.read, func(rows pgx.Rows) error { return rows.Scan(&t.epoch) })
}

// ensureEpoch begins one where a session saw none: of the Store's own, when it was opened.
func (s *Store) ensureEpoch(ctx context.Context, c *pgx.Conn) {
	x := sessionOf(c)
	if s.pooled && !s.epochs.missing.Load() || !s.pooled && x.epoch != "" {
		return
	}
	epoch, err := s.readEpoch(ctx, c)
	if err != nil || epoch == "" {
		s.log.Debug("the server has no epoch", "place", s.place, "error", err) // the next one tries again
		return
	}
	s.enter(epoch)
	if x.epoch = epoch; !s.pooled {
		c.PgConn().CustomData()[sessionKey] = x
	}
	s.epochs.missing.Store(false)
}
