package sqlserver

import (
	"context"
	"database/sql"
	"slices"
	"strings"
)

// A copy or a restore of the tables alone, and ALTER SEQUENCE … RESTART, leave a sequence that is behind the ids. Then most inserts are
// refused, and the others reuse ids that keys and failures still name. Sidecars survive such a change of the server. So a new
// connection of the pool compares the sequence with the tables before its first transaction.

// BehindSQL returns the sequence's last number and the highest id, and RepairSQL draws the numbers between them.
func (s *Store) BehindSQL() string { return s.sql.behind }

// RepairSQL returns the sequence's new last number.
func (s *Store) RepairSQL() string { return s.sql.draw }

// numbersAtOnce is how many ids one number of the sequence stands for.
const numbersAtOnce = 1000

// Behind reports whether the sequence is behind the ids. A sequence that was never used has the same last number as one that was used
// once, so it can also be behind if this returns false. The error of the first INSERT shows that.
func Behind(last, highest int64) bool { return highest >= last+numbersAtOnce }

// checkSequence repairs the sequence if it is behind. An error is logged: claims and settles need no new numbers.
func (s *Store) checkSequence(ctx context.Context, c querier) {
	var last, highest int64
	err := s.plain(ctx, c, s.BehindSQL(), func(rows *sql.Rows) error { return rows.Scan(&last, &highest) })
	if err == nil && Behind(last, highest) {
		s.repairSequence(ctx, c)
	} else if err != nil {
		s.log.Debug("can't compare the sequence with the ids", "event", "sequence_unread", "address", s.place, "error", err)
	}
}

// repairSequence reports whether the sequence is above all ids now.
func (s *Store) repairSequence(ctx context.Context, c querier) bool {
	var last int64
	if err := s.plain(ctx, c, s.RepairSQL(), func(rows *sql.Rows) error { return rows.Scan(&last) }); err != nil {
		if fromServer(err) && whenAgain(err) == never {
			s.log.Error("can't repair the sequence", "event", "sequence_repair_failed", "address", s.place,
				"fix", in(s.o.Schema, "GRANT UPDATE ON {s}.qsidecar_sequence TO the role, or run: "+s.RepairSQL()), "error", err)
		}
		return false
	}
	s.log.Warn("sequence repaired", "event", "sequence_repaired", "address", s.place, "number", last)
	s.Cursors.Reset() // jobs can have got positions that claims have passed
	return true
}

// idTaken reports whether an INSERT of a job failed because its new id exists.
func idTaken(err error) bool {
	return slices.Contains(numbers(err), 2627) && strings.Contains(err.Error(), "qsidecar_jobs_id")
}
