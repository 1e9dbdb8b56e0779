package textfmt

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

var errDuration = errors.New("write a duration as 10s, 5m, 2h, 7d or 1h30m")

var units = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
}

// ParseDuration reads 500ms, 10s, 5m, 2h, 7d and sums such as 1h30m. It rejects a
// number without a unit, except 0.
func ParseDuration(s string) (time.Duration, error) {
	if s == "0" {
		return 0, nil
	}
	if positive, ok := strings.CutPrefix(s, "-"); ok && positive != "" && positive[0] >= '0' && positive[0] <= '9' {
		return 0, fmt.Errorf("%s must not be negative", s)
	}
	var sum time.Duration
	for rest := s; rest != "" || s == ""; {
		n := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if n <= 0 {
			return 0, fmt.Errorf("%q is not a duration: %w", s, errDuration)
		}
		u := len(rest)
		if i := strings.IndexFunc(rest[n:], func(r rune) bool { return r >= '0' && r <= '9' }); i >= 0 {
			u = n + i
		}
		unit, ok := units[rest[n:u]]
		if !ok {
			return 0, fmt.Errorf("%q is not a duration: %w", s, errDuration)
		}
		v, err := strconv.ParseInt(rest[:n], 10, 64)
		if err != nil || v > int64((1<<63-1-sum)/unit) {
			return 0, fmt.Errorf("%q is too long a duration", s)
		}
		sum += time.Duration(v) * unit
		rest = rest[u:]
	}
	return sum, nil
}

// FormatDuration returns the shortest form that ParseDuration reads as d.
func FormatDuration(d time.Duration) string {
	for _, u := range []string{"d", "h", "m", "s"} {
		if d > 0 && d%units[u] == 0 {
			return strconv.FormatInt(int64(d/units[u]), 10) + u
		}
	}
	if d == 0 {
		return "0s"
	}
	return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
}
