package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// findOut finds out whether the commit numbered s.number happened although COMMIT
// returned cause. Either the number is in the database, or happened stores the number of a
// later commit, so that it never will be (otherwise a recovery could restore frames
// of an unsynced commit). findOut returns nil if the commit happened.
func (s *Store) findOut(ctx context.Context, cause error) error {
	if s.writer != nil {
		s.discard(&s.writer) // the state of the connection can be wrong
	}
	for try := 0; ; try++ {
		happened, err := s.happened(ctx)
		if err == nil {
			s.log.Warn("commit outcome resolved", "event", "commit_outcome_resolved", "path", s.path, "committed", happened, "error", cause)
			if happened {
				return nil
			}
			return backends.Unavailable(fmt.Errorf("%s: the commit failed: %w", s.path, cause))
		}
		if ctx.Err() != nil {
			s.log.Error("commit outcome unknown", "event", "commit_outcome_unknown", "path", s.path, "error", errors.Join(cause, err))
			return backends.ErrUnknownOutcome
		}
		timer := time.NewTimer(10 * pause(try))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// happened queries the number once. If the commit is missing, it commits a later number: the answer can't change any more.
func (s *Store) happened(ctx context.Context) (happened bool, err error) {
	if err := s.begin(ctx, &s.writer, s.openWriter); err != nil {
		return false, err
	}
	var last int64
	err = s.writer.query(context.Background(), s.sql.marked, func(r row) error {
		last = r.int(0)
		return nil
	}, s.handle)
	if err == nil && last >= s.number { // greater: an earlier call of look stored it, and its COMMIT returned an error too
		s.rollback(&s.writer)
		if last > s.number {
			s.number = last
			return false, nil
		}
		return true, nil
	}
	if err == nil {
		_, err = s.writer.exec(context.Background(), s.sql.mark, s.handle, s.number+1, s.now().UnixMilli())
	}
	if err == nil {
		_, err = s.writer.exec(context.Background(), "COMMIT")
	}
	if err != nil {
		s.discard(&s.writer)
		return false, err
	}
	s.number++
	return false, nil
}
