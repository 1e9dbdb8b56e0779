package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// findOut determines the outcome of a commit whose answer got lost. It ends the session that ran the
// commit, and then reads the number of the last commit of the Counter. If the commit did not happen, it
// stores a higher number as a seal. A COMMIT that is still on its way to the server then finds that
// number, and fails.
func (s *Store) findOut(ctx context.Context, l *session.Counter, cause error) error {
	ctx, cancel := core.OutcomeContext(ctx)
	defer cancel()
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		happened, err := s.findOutOnce(ctx, l)
		if err == nil {
			s.log.Warn("commit outcome resolved", "event", "commit_outcome_resolved", "address", s.place, "committed", happened, "error", cause)
			if happened {
				return nil
			}
			if session.OfMember(cause) {
				return fmt.Errorf("%w: %w", core.ErrAgain, cause)
			}
			if e, ok := errors.AsType[*mysql.MySQLError](cause); ok && kindOf(e) == refused {
				return cause
			}
			return backends.Unavailable(fmt.Errorf("%s: the connection broke before the commit: %w", s.place, cause))
		}
		if !core.Pause(ctx, wait) {
			s.log.Error("commit outcome unknown", "event", "commit_outcome_unknown", "address", s.place, "error", errors.Join(cause, err))
			l.Renew()
			return backends.ErrUnknownOutcome
		}
	}
}

// outOfStep reports whether the number in the Counter's row is not that of its last commit. After a failover that lost
// commits, or the restore of a backup, it isn't. Then the Counter gets another row.
func (s *Store) outOfStep(ctx context.Context, c *session.Conn) (bool, error) {
	l := c.Counter
	stored := l.Number // the next commit inserts a missing row
	if err := c.Each(ctx, func(r *session.Result) { stored = uint64(r.Int(0)) }, s.sql.committed, l.Handle); err != nil || stored == l.Number {
		return false, err
	}
	s.log.Warn("commit number repaired", "event", "commit_number_repaired", "address", s.place, "number", l.Number, "stored", stored)
	l.Renew()
	return true, nil
}

// findOutOnce makes one attempt to find out.
func (s *Store) findOutOnce(ctx context.Context, l *session.Counter) (happened bool, err error) {
	c, err := s.dialer.Dial(ctx, l)
	if err != nil {
		return false, err
	}
	defer c.Close()
	if err := c.KillUnlessCommitting(ctx, l.Abandoned, s.dialer.Server.Maria); err != nil {
		return false, err
	}
	var p session.Script
	seal := l.Number + 2
	last := seal // no row has it before, so a missing row is inserted
	found := false
	p.Add(s.sql.begin)
	p.Each(func(r *session.Result) { found, last = true, uint64(r.Int(0)) }, s.sql.marked, l.Handle)
	if err := c.Run(ctx, &p); err != nil {
		return false, err
	}
	if last == l.Number+1 {
		l.Number++
		return true, nil
	}
	if !found || last != seal { // otherwise it is the seal of an earlier attempt whose answer got lost
		if err := s.seal(ctx, c, l.Handle, seal, last); err != nil {
			return false, err
		}
	}
	l.Number = seal
	return false, nil
}

// seal commits a new number in place of the number before. It returns an error unless the table has the new number.
func (s *Store) seal(ctx context.Context, c *session.Conn, handle int64, number, before uint64) error {
	var p session.Script
	stored := int64(0)
	p.Add(s.sql.seal, handle, int64(number), int64(before))
	p.Add(s.sql.commit)
	p.Int(&stored, s.sql.committed, handle)
	if err := c.Run(ctx, &p); err != nil {
		return err
	}
	if uint64(stored) != number {
		return fmt.Errorf("%s: the number of the last commit changed to %d", s.place, stored)
	}
	return nil
}
