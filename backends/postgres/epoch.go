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

// A server that crashed forgets the transactions whose commits had not reached its disk, and
// reuses their numbers. So pg_xact_status of such a number can describe another transaction.
// The same happens when a standby takes over. In both cases the row of qsidecar_epoch is lost,
// because its table is unlogged. When the Store asks for a commit's outcome, it compares the
// epoch with the one that the commit's session or transaction read. A row is
// SYSTEM/TIMELINE/RANDOM, so it also shows whether one server is the successor of another.
//
// A server whose files were replaced by those of an earlier clean shutdown (a snapshot of a volume) keeps the row, and
// reuses the numbers too. So an epoch is ROW/START: each start of the server begins one.
//
// Such a server also loses positions and assigns the same ones again. The Store therefore resets its
// cursors when the epoch changes. It reads a session's epoch before the session's first use, so no
// claim in the session can rely on a cursor of another epoch. Behind a pooler, the first
// transaction of an epoch still can. The next scan of access.FindDue finds the jobs that it missed.

// succeeds reports whether the server of epoch a is the server of epoch b or its successor.
func succeeds(a, b string) bool {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	if len(x) != len(y) || x[0] != y[0] { // the system, or the row of a plain epoch, which a crash loses
		return false
	}
	return len(x) < 4 || x[1] >= y[1] // timelines are hexadecimal, with 8 digits
}

// ofAnother reports whether an epoch is of another server than the one with this system identifier, if that is known.
func ofAnother(epoch, system string) bool {
	x := strings.Split(epoch, "/")
	return len(x) == 4 && system != "" && x[0] != system
}

// epochs is a Store's state about epochs.
type epochs struct {
	missing atomic.Bool // a transaction in a pooler's session found no epoch
	entered atomic.Bool // an epoch was entered, and no transaction in a pooler's session has checked the sequence since

	mu      sync.Mutex
	current string // the latest epoch that a session read
}

// enter resets the cursors if the epoch differs from the current one. Behind a pooler, the next transaction then checks the sequence.
func (s *Store) enter(epoch string) {
	s.epochs.mu.Lock()
	defer s.epochs.mu.Unlock()
	if epoch == "" || epoch == s.epochs.current {
		return
	}
	if s.epochs.current != "" {
		s.log.Warn("claim positions reset", "event", "claim_positions_reset", "address", s.place)
	}
	s.epochs.current = epoch
	s.epochs.entered.Store(true)
	s.Cursors.Reset()
}

// beganIn returns the event at which the cursors place a transaction that begins now. It returns
// Never if the transaction's session is of another epoch than the cursors.
func (s *Store) beganIn(epoch string) cursor.Event {
	s.epochs.mu.Lock()
	defer s.epochs.mu.Unlock()
	if !s.pooled && epoch != s.epochs.current {
		return cursor.Never
	}
	return s.Cursors.Now()
}

// readEpoch reads the epoch through q, which must stay in one session, and stores a new epoch if
// there is none, or only that of another server. It returns "" if the table doesn't exist yet or can't be written.
func (s *Store) readEpoch(ctx context.Context, q single) (epoch string, err error) {
	for range 3 {
		err = q.QueryRow(ctx, s.sql.epoch, pgx.QueryExecModeExec).Scan(&epoch)
		system := s.primaries.system()
		switch {
		case err == nil && ofAnother(epoch, system):
			_, err = q.Exec(ctx, s.sql.otherEpoch, pgx.QueryExecModeExec, system)
		case errors.Is(err, pgx.ErrNoRows):
			if _, err = q.Exec(ctx, s.sql.newEpoch, pgx.QueryExecModeExec, random()); fromServer(err) && !noEpochs(err) {
				_, err = q.Exec(ctx, s.sql.plainEpoch, pgx.QueryExecModeExec, random())
			}
		case err == nil:
			return epoch, nil
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

// noEpochs reports whether the table or schema doesn't exist, or the server is read-only.
func noEpochs(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains([]string{"42P01", "3F000", "25006"}, pgErr.Code)
}

// readEpoch makes the transaction read the epoch. Behind a pooler, each transaction can be in another session.
func (t *tx) readEpoch() {
	t.each(t.s.sql.epoch, func(rows pgx.Rows) error { return rows.Scan(&t.epoch) })
}

// ensureEpoch stores an epoch if the session of c found none when it was opened. Behind a pooler, it
// does so if any transaction found none.
func (s *Store) ensureEpoch(ctx context.Context, c *pgx.Conn) {
	x := sessionOf(c)
	if s.pooled && !s.epochs.missing.Load() || !s.pooled && x.epoch != "" {
		return
	}
	var q single = c
	if s.pooled {
		q = settled{s, c}
	}
	epoch, err := s.readEpoch(ctx, q)
	if err != nil || epoch == "" {
		s.log.Debug("can't read the server's epoch", "event", "epoch_unavailable", "address", s.place, "error", err) // the next transaction retries
		return
	}
	s.enter(epoch)
	if x.epoch = epoch; !s.pooled {
		c.PgConn().CustomData()[sessionKey] = x
	}
	s.epochs.missing.Store(false)
}
