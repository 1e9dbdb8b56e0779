package memory

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// AddHistory implements backends.Historian.
func (b *Backend) AddHistory(ctx context.Context, now time.Time, rows []backends.HourTotals) error {
	if err := b.fault(); err != nil {
		return err
	}
	return b.do(ctx, func() error {
		for _, r := range rows {
			r.Hour = backends.HourOf(time.Unix(r.Hour*3600+1800, 0).Add(b.now.Sub(now)))
			i, found := slices.BinarySearchFunc(b.hours, r, func(x, y backends.HourTotals) int {
				return cmp.Or(cmp.Compare(x.Hour, y.Hour), cmp.Compare(x.Queue, y.Queue))
			})
			if found {
				b.hours[i].Add(&r.Totals)
			} else {
				b.hours = slices.Insert(b.hours, i, r)
			}
		}
		oldest := backends.HourOf(b.now) - backends.HistoryHours + 1
		b.hours = slices.DeleteFunc(b.hours, func(h backends.HourTotals) bool { return h.Hour < oldest })
		return nil
	})
}

// History implements backends.Historian.
func (b *Backend) History(ctx context.Context, queue string) (rows []backends.HourTotals, err error) {
	err = b.do(ctx, func() error {
		for _, h := range b.hours {
			if queue == "" || h.Queue == queue {
				rows = append(rows, h)
			}
		}
		return nil
	})
	return rows, err
}
