package condition

import (
	"fmt"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// The years 1 to 9999, in milliseconds since 1970.
const (
	firstMillis = -62135596800000
	lastMillis  = 253402300799999
)

// inUnits is a time in milliseconds, in units of a column of whole numbers.
func (t *Table) inUnits(ms string, unit int64) string {
	if unit == mapping.Seconds {
		ms = "(" + ms + ") / 1000"
	}
	return t.Dialect.Integer(ms)
}

// Now is the present time as a value of the column, in the owner's clock.
func (t *Table) Now(c backends.Column) string {
	if unit := t.TimeUnit(c); unit > 0 {
		return t.inUnits(t.Dialect.NowMillis(), unit)
	}
	return t.Dialect.Now(c, t.UTC)
}

// NowPlus is the time that many milliseconds (argument n) after the present. If units are coarser than milliseconds, it is
// rounded up.
func (t *Table) NowPlus(c backends.Column, n int) string {
	unit := t.TimeUnit(c)
	if unit == 0 {
		return t.Dialect.NowPlus(c, t.UTC, n)
	}
	ms := t.Dialect.NowMillis() + " + " + t.Dialect.IntArg(n)
	if unit > 1 {
		ms += fmt.Sprintf(" + CASE WHEN %s > 0 THEN %d ELSE 0 END", t.Dialect.IntArg(n), unit-1)
	}
	return t.inUnits(ms, unit)
}

// FromMillis is a time from milliseconds since 1970 (argument n), rounded up.
func (t *Table) FromMillis(c backends.Column, n int) string {
	if unit := t.TimeUnit(c); unit > 0 {
		return t.inUnits(fmt.Sprintf("%s + %d", t.Dialect.IntArg(n), unit-1), unit)
	}
	return t.Dialect.FromMillis(c, t.UTC, n)
}

// ToMillis is the column's time as milliseconds since 1970. Numbers outside the years 1 to 9999
// are NULL.
func (t *Table) ToMillis(c backends.Column) string {
	unit := t.TimeUnit(c)
	if unit == 0 {
		return t.Dialect.ToMillis(c, t.UTC)
	}
	name := t.Quote(c)
	return fmt.Sprintf("CASE WHEN %s BETWEEN %d AND %d THEN %s * %d END", name, firstMillis/unit, lastMillis/unit, t.Dialect.Integer(name), unit)
}

// isFuture is the condition that the column's time is after the present.
func (t *Table) isFuture(c backends.Column) string {
	if c.Kind == backends.TextColumn {
		return t.ToMillis(c) + " > " + t.Dialect.NowMillis()
	}
	return t.Quote(c) + " > " + t.Now(c)
}

// IsPast is the condition that the column's time is not after the present. Texts are compared as
// milliseconds, because different texts can name the same time.
func (t *Table) IsPast(c backends.Column) string {
	if c.Kind == backends.TextColumn {
		return t.ToMillis(c) + " <= " + t.Dialect.NowMillis()
	}
	return t.Quote(c) + " <= " + t.Now(c)
}

// IsOlder is the condition that the column's time is at least as many milliseconds before the present as argument n.
func (t *Table) IsOlder(c backends.Column, n int) string {
	ago := t.Dialect.NowMillis() + " - " + t.Dialect.IntArg(n)
	unit := t.TimeUnit(c)
	switch {
	case c.Kind == backends.TextColumn:
		return t.ToMillis(c) + " <= " + ago
	case unit == 0:
		return t.Quote(c) + " <= " + t.Dialect.NowMinus(c, t.UTC, n)
	case unit > 1: // the column is rounded down
		ago += fmt.Sprintf(" - %d", unit-1)
	}
	return t.Quote(c) + " <= " + t.inUnits(ago, unit)
}
