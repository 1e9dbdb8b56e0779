package dialect

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// A batch has two clocks: @now is UTC, and @adopt_here is the time in the server's own zone,
// which is @adopt_zone minutes ahead of it. A time that was stored before a change to or from
// summer time is read an hour off after it.

// fraction matches types with a number of digits of a second.
var fraction = regexp.MustCompile(`^datetime(?:2|offset)\(([0-7])\)$`)

// unit returns the resolution of the column's type in nanoseconds, if it is more than a microsecond, or else 0. Two
// times of a datetime are at least a little less than ten milliseconds apart. Hundredths of a second are exact.
func unit(c backends.Column) int64 {
	switch c.Type {
	case "smalldatetime":
		return 60_000_000_000
	case "datetime":
		return 10_000_000
	}
	digits := 7
	if m := fraction.FindStringSubmatch(c.Type); m != nil {
		digits, _ = strconv.Atoi(m[1]) // one digit
	}
	n := int64(1_000_000_000)
	for range digits {
		n /= 10
	}
	if n <= 1000 {
		return 0
	}
	return n
}

func offset(c backends.Column) bool { return strings.HasPrefix(c.Type, "datetimeoffset") }

// now returns the current time by the clock of the table's owner.
func now(utc bool) string {
	if utc {
		return "@now"
	}
	return "@adopt_here"
}

// at returns an instant of the owner's clock as a value of the column, cut to its resolution. The server would round
// it, and the value could be later than the clock.
func at(c backends.Column, utc bool, instant string) string {
	switch n := unit(c); {
	case n > 1_000_000_000:
		instant = "DATEADD(minute, DATEDIFF(minute, '1970-01-01', " + instant + "), '1970-01-01')"
	case n > 0:
		instant = fmt.Sprintf("DATEADD(nanosecond, -(DATEPART(nanosecond, %s) %% %d), %[1]s)", instant, n)
	}
	if offset(c) {
		zone := "'+00:00'"
		if !utc {
			zone = "@adopt_zone"
		}
		instant = "TODATETIMEOFFSET(" + instant + ", " + zone + ")"
	}
	return "CONVERT(" + c.Type + ", " + instant + ")"
}

// following returns an instant plus an argument in milliseconds. It adds the part that at will cut from an instant in
// the future.
func following(c backends.Column, n int, instant string) string {
	ms := mark(markNumber, n)
	instant = fmt.Sprintf("DATEADD(millisecond, CONVERT(int, %s %% 60000), DATEADD(minute, CONVERT(int, %[1]s / 60000), %s))", ms, instant)
	if lacks := unit(c)/1000 - 1; lacks > 0 {
		instant = fmt.Sprintf("DATEADD(microsecond, CASE WHEN %s > 0 THEN %d ELSE 0 END, %s)", ms, lacks, instant)
	}
	return instant
}

// Now implements backends.Dialect.
func (d Dialect) Now(c backends.Column, utc bool) string { return at(c, utc, now(utc)) }

// NowPlus implements backends.Dialect.
func (d Dialect) NowPlus(c backends.Column, utc bool, n int) string {
	return at(c, utc, following(c, n, now(utc)))
}

// NowMinus implements backends.Dialect. The present clock, one that was set back, showed earlier values at any time before.
func (d Dialect) NowMinus(c backends.Column, utc bool, n int) string {
	ms := mark(markNumber, n)
	return at(c, utc, fmt.Sprintf("DATEADD(millisecond, -CONVERT(int, %s %% 60000), DATEADD(minute, -CONVERT(int, %[1]s / 60000), %s))", ms, now(utc)))
}

// FromMillis implements backends.Dialect.
func (d Dialect) FromMillis(c backends.Column, utc bool, n int) string {
	epoch := "CONVERT(datetime2(6), '1970-01-01')"
	if !utc {
		epoch = "DATEADD(minute, @adopt_zone, " + epoch + ")"
	}
	return at(c, utc, following(c, n, epoch))
}

// ToMillis implements backends.Dialect.
func (d Dialect) ToMillis(c backends.Column, utc bool) string {
	value := d.Name(c.Name)
	switch {
	case offset(c):
		return sinceEpoch("CONVERT(datetime2(6), SWITCHOFFSET(" + value + ", '+00:00'))")
	case utc:
		return sinceEpoch(value)
	}
	return "(" + sinceEpoch(value) + " - @adopt_zone * 60000)"
}

func sinceEpoch(instant string) string {
	return "DATEDIFF_BIG(millisecond, '1970-01-01', " + instant + ")"
}

// NowMillis implements backends.Dialect.
func (d Dialect) NowMillis() string { return sinceEpoch("@now") }
