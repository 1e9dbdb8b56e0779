package session

import (
	"database/sql/driver"
	"fmt"
	"time"
)

// Instant is a time as the tables store it: µs since 1970, UTC. 0 means none.
type Instant int64

const instantForm = "2006-01-02 15:04:05.000000"

// SQL returns the instant as a DATETIME(6), or NULL.
func (i Instant) SQL() any {
	if i == 0 {
		return driver.Value(nil)
	}
	return time.UnixMicro(int64(i)).UTC().Format(instantForm)
}

// Time returns the instant; 0 is the zero time.
func (i Instant) Time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(i)).UTC()
}

// After returns the instant that is ms milliseconds later, or 0 if ms is 0 or less.
func (i Instant) After(ms int64) Instant {
	if ms <= 0 {
		return 0
	}
	return i + Instant(ms)*1000
}

// Earlier returns the earlier of two instants. 0 means none, so the other one is returned.
func Earlier(x, y Instant) Instant {
	if x == 0 || y != 0 && y < x {
		return y
	}
	return x
}

// parseInstant parses a DATETIME(6) as the server writes it.
func parseInstant(v []byte) Instant {
	if len(v) < len("2006-01-02 15:04:05") {
		panic(fmt.Sprintf("mysql: %q should be a time", v))
	}
	n := func(from, to int) (n int) {
		for _, c := range v[from:to] {
			n = 10*n + int(c-'0')
		}
		return n
	}
	micros := 0
	if len(v) > 20 {
		micros = n(20, len(v))
		for range len(instantForm) - len(v) {
			micros *= 10
		}
	}
	return Instant(time.Date(n(0, 4), time.Month(n(5, 7)), n(8, 10), n(11, 13), n(14, 16), n(17, 19), 1000*micros, time.UTC).UnixMicro())
}
