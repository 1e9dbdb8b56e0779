package sqlite

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Clock implements core.Historian.
func (t *tx) Clock(context.Context) (time.Time, error) { return time.UnixMilli(t.now), nil }

// AddHour implements core.Historian.
func (t *tx) AddHour(row *backends.HourTotals) {
	t.do(func() error { return t.one(t.sql.addHour, core.HourValues(row)...) })
}

// ForgetHours implements core.Historian.
func (t *tx) ForgetHours(before int64) {
	t.do(func() error {
		_, err := t.exec(t.sql.forgetHours, before)
		return err
	})
}
