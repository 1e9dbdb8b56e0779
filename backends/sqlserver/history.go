package sqlserver

import (
	"context"
	"database/sql"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Clock implements core.Historian.
func (t *tx) Clock(ctx context.Context) (now time.Time, err error) {
	err = t.run(ctx, t.s.sql.clock, []reader{one(&now)})
	return now, err
}

// AddHour implements core.Historian.
func (t *tx) AddHour(row *backends.HourTotals) { t.add(t.s.sql.addHour, nil, core.HourValues(row)...) }

// ForgetHours implements core.Historian.
func (t *tx) ForgetHours(before int64) { t.add(t.s.sql.forgetHours, nil, before) }

// Hours implements core.Reader.
func (q inspection) Hours(ctx context.Context, queue string) (all []backends.HourTotals, err error) {
	err = q.once(ctx, call{q.sql.hours, []any{queue}, []reader{each(func(rows *sql.Rows) error {
		var h backends.HourTotals
		err := rows.Scan(core.HourColumns(&h)...)
		all = append(all, h)
		return err
	})}})
	return all, err
}
