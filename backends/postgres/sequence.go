package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Logical replication copies rows and no sequences. So a server that took over by it can have a sequence that is behind the ids, as
// after a restore of the tables alone. Then most inserts are refused, and the others reuse ids that keys and failures still name.
// Sidecars survive such a change of the server. So each session of the pool compares the sequence with the tables before its first use.
// It waits for a lock on a table only briefly. Heartbeats have a session of their own, which doesn't read these tables.

// BehindSQL returns the sequence's last number if a table has a later id.
func (s *Store) BehindSQL() string { return s.sql.behind }

// RepairSQL sets the sequence.
func (s *Store) RepairSQL() string { return s.sql.repair }

// checkSequence repairs the sequence if it is behind the ids. It reports whether an insert can succeed now, also because another
// sidecar repaired it or is about to. An error is logged: claims and settles need no new numbers.
func (s *Store) checkSequence(ctx context.Context, c *pgx.Conn) (ok bool) {
	was, err := s.repairSequence(ctx, c)
	switch {
	case noEpochs(err), isLockTimeout(err): // the tables don't exist yet, the server is read-only, or locks are in the way, and a later session repeats it
	case err != nil && (was || fromServer(err)):
		s.log.Error("can't repair the sequence", "event", "sequence_repair_failed", "address", s.place,
			"fix", in(s.o.Schema, "GRANT UPDATE ON SEQUENCE {s}.qsidecar_sequence TO the role, or run: ")+s.sql.repair, "error", err)
	}
	return err == nil || isLockTimeout(err)
}

func isLockTimeout(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "55P03"
}

func (s *Store) repairSequence(ctx context.Context, c *pgx.Conn) (was bool, err error) {
	behind, err := s.sequenceBehind(ctx, c)
	if err != nil || !behind {
		return false, err
	}
	var now int64
	err = s.underSequenceLock(ctx, c, &now, s.sql.repair)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42501" {
		err = s.drawNumbers(ctx, c, &now)
	}
	if err == nil {
		s.log.Warn("sequence repaired", "event", "sequence_repaired", "address", s.place, "number", now)
		s.Cursors.Reset() // jobs can have got positions that claims have passed
	}
	return true, err
}

// maxDraws bounds the numbers that are drawn, in millions. That takes about a minute.
const maxDraws = 100

// drawNumbers draws numbers until the sequence isn't behind.
func (s *Store) drawNumbers(ctx context.Context, c *pgx.Conn, now *int64) error {
	for range maxDraws {
		if err := s.underSequenceLock(ctx, c, now, s.sql.draw); err != nil {
			return err
		}
		if behind, err := s.sequenceBehind(ctx, c); err != nil || !behind {
			return err
		}
	}
	return errors.New("the role can't set the sequence, and too many numbers are missing to draw them")
}

// sequenceBehind reports whether the sequence is behind the ids.
func (s *Store) sequenceBehind(ctx context.Context, c *pgx.Conn) (behind bool, err error) {
	begin := s.sql.begin
	if s.pooled {
		begin = s.beginPooled()
	}
	results, err := c.PgConn().Exec(ctx, begin+"; "+briefWait+"; "+s.sql.behind+"; COMMIT").ReadAll()
	if err != nil {
		(&tx{s: s, c: c}).leave(ctx)
		return false, err
	}
	return len(results[len(results)-2].Rows) > 0, nil
}

// underSequenceLock runs sql, which returns a number, unless another sidecar has repaired the sequence.
func (s *Store) underSequenceLock(ctx context.Context, c *pgx.Conn, number *int64, sql string) error {
	return settled{s, c}.do(ctx, func(c *pgx.Conn) error {
		for _, sql := range []string{briefWait, s.sql.lockSequence} {
			if _, err := c.Exec(ctx, sql, pgx.QueryExecModeExec); err != nil {
				return err
			}
		}
		var last int64
		switch err := c.QueryRow(ctx, s.sql.behind, pgx.QueryExecModeExec).Scan(&last); {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err != nil:
			return err
		}
		return c.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(number)
	})
}

// idTaken reports whether an INSERT of a job failed because its new id exists.
func (s *Store) idTaken(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "23505" && pgErr.SchemaName == s.o.Schema && pgErr.ConstraintName == "qsidecar_jobs_pkey"
}

// repairIDs is called after an error of idTaken. It reports whether another try can succeed.
func (s *Store) repairIDs(ctx context.Context) bool {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return false
	}
	defer c.Release()
	return s.checkSequence(ctx, c.Conn())
}
