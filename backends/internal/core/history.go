package core

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// AddHistory implements backends.Historian. All sidecars lock the rows in the same order. A crash can undo it, because it
// doesn't wait for the disk.
func (s *Store) AddHistory(ctx context.Context, now time.Time, rows []backends.HourTotals) error {
	return s.Write(ctx, TxOptions{Unsynced: true}, func(ctx context.Context, tx Tx) error {
		clock, err := tx.Clock(ctx)
		if err != nil {
			return err
		}
		all := shiftHours(rows, now, clock)
		for i := range all {
			tx.AddHour(&all[i])
		}
		tx.ForgetHours(backends.HourOf(clock) - backends.HistoryHours + 1)
		return tx.Flush(ctx)
	})
}

// shiftHours returns the rows by the hours of the database's clock, in the order of hours and queues. The middle of an hour
// decides, so a clock that is fast or slow by less than half an hour changes nothing.
func shiftHours(rows []backends.HourTotals, now, clock time.Time) []backends.HourTotals {
	all := slices.Clone(rows)
	for i := range all {
		middle := time.Unix(all[i].Hour*3600+1800, 0)
		all[i].Hour = backends.HourOf(clock.Add(-now.Sub(middle)))
	}
	slices.SortStableFunc(all, func(a, b backends.HourTotals) int {
		return cmp.Or(cmp.Compare(a.Hour, b.Hour), cmp.Compare(a.Queue, b.Queue))
	})
	return all
}

// History implements backends.Historian.
func (s *Store) History(ctx context.Context, queue string) (rows []backends.HourTotals, err error) {
	err = s.read(ctx, func(ctx context.Context, r Reader) (err error) {
		rows, err = r.Hours(ctx, queue)
		return err
	})
	return rows, err
}

// HourValues returns the values of a row in the order of its columns.
func HourValues(h *backends.HourTotals) []any {
	v := []any{h.Hour, h.Queue, h.Ready, h.Enqueued, h.Acked, h.Failed}
	for _, n := range h.Runs {
		v = append(v, n)
	}
	return v
}

// HourColumns returns where to store the columns of a row.
func HourColumns(h *backends.HourTotals) []any {
	to := []any{&h.Hour, &h.Queue, &h.Ready, &h.Enqueued, &h.Acked, &h.Failed}
	for i := range h.Runs {
		to = append(to, &h.Runs[i])
	}
	return to
}

// HourOf returns the row of a queue. number returns a column.
func HourOf(queue string, number func(column int) int64) (h backends.HourTotals) {
	for i, to := range HourColumns(&h) {
		if n, ok := to.(*int64); ok {
			*n = number(i)
		}
	}
	h.Queue = queue
	return h
}
