package postgres

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// The limits of times in the protocol: years 1 to 9999. PostgreSQL also has earlier and later times,
// and infinity. Rows from before the tables had a CHECK can hold them.
var (
	earliest = time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC) // the zero time means "none"
	latestAt = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// instant scans a time that must not prevent a row from being read. It clamps the time to the
// limits of the protocol.
type instant struct{ to *time.Time }

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (i instant) ScanTimestamptz(v pgtype.Timestamptz) error {
	switch {
	case !v.Valid:
		*i.to = time.Time{}
	case v.InfinityModifier == pgtype.NegativeInfinity || v.InfinityModifier == pgtype.Finite && v.Time.Before(earliest):
		*i.to = earliest
	case v.InfinityModifier == pgtype.Infinity || v.Time.After(latestAt):
		*i.to = latestAt
	default:
		*i.to = v.Time
	}
	return nil
}

// maybe does the same for a column that can be NULL.
type maybe struct{ to **time.Time }

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (m maybe) ScanTimestamptz(v pgtype.Timestamptz) error {
	*m.to = nil
	if v.Valid {
		*m.to = new(time.Time)
		return instant{*m.to}.ScanTimestamptz(v)
	}
	return nil
}
