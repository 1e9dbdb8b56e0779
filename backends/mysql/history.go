package mysql

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Clock implements core.Historian.
func (t *tx) Clock(ctx context.Context) (time.Time, error) {
	t.askNow()
	err := t.Flush(ctx)
	return t.now.Time(), err
}

// AddHour implements core.Historian.
func (t *tx) AddHour(row *backends.HourTotals) {
	t.wrote = true
	t.Add(t.s.sql.addHour, core.HourValues(row)...)
	t.makeRoom(1 << 10)
}

// ForgetHours implements core.Historian.
func (t *tx) ForgetHours(before int64) { t.Add(t.s.sql.forgetHours, before) }
