package sqlserver

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Clock implements core.Historian.
func (t *tx) Clock(ctx context.Context) (now time.Time, err error) {
	err = t.run(ctx, t.s.sql.clock, []reader{one(&now)})
	return now, err
}

// Clock is the same outside of a transaction.
func (q inspection) Clock(ctx context.Context) (now time.Time, err error) {
	err = q.once(ctx, call{q.sql.clock, nil, []reader{one(&now)}})
	return now, err
}

// AddHour implements core.Historian.
func (t *tx) AddHour(row *backends.HourTotals) { t.add(t.s.sql.addHour, nil, core.HourValues(row)...) }

// ForgetHours implements core.Historian.
func (t *tx) ForgetHours(before int64) { t.add(t.s.sql.forgetHours, nil, before) }
