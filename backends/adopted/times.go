package adopted

import (
	"fmt"

	"github.com/qsidecar/qsidecar/backends"
)

// Seconds and Milliseconds are what Table.Unit may be.
const (
	Seconds      int64 = 1000
	Milliseconds int64 = 1
)

// The least values that a column has to hold for times of this century.
const (
	mostSeconds = 1<<31 - 1
	mostMillis  = 1 << 41
)

// The years 1 to 9999, in milliseconds since 1970.
const (
	firstMillis = -62135596800000
	lastMillis  = 253402300799999
)

// unit is how many milliseconds one is in a column of whole numbers, where that holds times
// as those since 1970. 0: nothing says it, or the column is of another type. A column that
// has no room for milliseconds counts seconds.
func (t *table) unit(c backends.Column) int64 {
	switch {
	case c.Kind != backends.NumberColumn:
		return 0
	case t.Unit == 0 && c.Most > 0 && c.Most < mostMillis:
		return Seconds
	}
	return t.Unit
}

// unfitTime says why a column can't hold the times of its role, and what to do; empty: it can.
func (t *table) unfitTime(c backends.Column) (why, do string) {
	is := fmt.Sprintf("the column %s is of the type %s", c.Name, declared(c))
	switch {
	case c.Kind == backends.TimeColumn || c.TimeText:
		return "", ""
	case c.Kind != backends.NumberColumn:
		return is + ", which can't hold times", "name a column of a type that can: " + timeTypes
	case t.unit(c) == 0:
		return is + ", which doesn't tell whether it counts seconds or milliseconds since 1970", "set times: seconds, or times: milliseconds"
	case c.Most > 0 && c.Most < mostSeconds:
		return is + ", which holds at most " + fmt.Sprint(c.Most) + ": too little for seconds since 1970", "name another column"
	case t.unit(c) == Milliseconds && c.Most > 0 && c.Most < mostMillis:
		return is + ", which holds at most " + fmt.Sprint(c.Most) + ": too little for milliseconds since 1970", "set times: seconds if it counts those, or name another column"
	}
	return "", ""
}

// timeTypes are the types that fit, for people.
const timeTypes = "a date with a time (timestamp, datetime), whole numbers of seconds or milliseconds since 1970 (int, bigint), or on SQLite TEXT"

// since is an instant, in milliseconds, in units of the column.
func (t *table) since(ms string, unit int64) string {
	if unit == Seconds {
		ms = "(" + ms + ") / 1000"
	}
	return t.g.Integer(ms)
}

// clock is the present time as a value of the column, in the owner's clock.
func (t *table) clock(c backends.Column) string {
	if unit := t.unit(c); unit > 0 {
		return t.since(t.g.NowMillis(), unit)
	}
	return t.g.Now(c, t.UTC)
}

// later is a time so many milliseconds (argument n) after the present. What is cut from a
// time to come is added before, and from one that is past it is taken away.
func (t *table) later(c backends.Column, n int) string {
	unit := t.unit(c)
	if unit == 0 {
		return t.g.NowPlus(c, t.UTC, n)
	}
	ms := t.g.NowMillis() + " + " + t.g.IntArg(n)
	if unit > 1 {
		ms += fmt.Sprintf(" + CASE WHEN %s > 0 THEN %d ELSE %d END", t.g.IntArg(n), unit-1, 1-unit)
	}
	return t.since(ms, unit)
}

// instant is a time from milliseconds since 1970 (argument n).
func (t *table) instant(c backends.Column, n int) string {
	if unit := t.unit(c); unit > 0 {
		return t.since(fmt.Sprintf("%s + %d", t.g.IntArg(n), unit-1), unit)
	}
	return t.g.FromMillis(c, t.UTC, n)
}

// millis is the column's time as milliseconds since 1970. What lies outside the years 1 to
// 9999 is NULL.
func (t *table) millis(c backends.Column) string {
	unit := t.unit(c)
	if unit == 0 {
		return t.g.ToMillis(c, t.UTC)
	}
	name := t.g.Name(c.Name)
	return fmt.Sprintf("CASE WHEN %s BETWEEN %d AND %d THEN %s * %d END", name, firstMillis/unit, lastMillis/unit, t.g.Integer(name), unit)
}

// yet is the condition that the column's time is yet to come.
func (t *table) yet(c backends.Column) string {
	if c.Kind == backends.TextColumn {
		return t.millis(c) + " > " + t.g.NowMillis()
	}
	return t.g.Name(c.Name) + " > " + t.clock(c)
}

// passed is the condition that the column's time is not after the present, or not after
// so many milliseconds (argument n > 0) from it. Texts that name the same time need not be
// equal: with and without a T, fractions and a zone.
func (t *table) passed(c backends.Column, n int) string {
	switch {
	case c.Kind == backends.TextColumn && n > 0:
		return t.millis(c) + " <= " + t.g.NowMillis() + " + " + t.g.IntArg(n)
	case c.Kind == backends.TextColumn:
		return t.millis(c) + " <= " + t.g.NowMillis()
	case n > 0:
		return t.g.Name(c.Name) + " <= " + t.later(c, n)
	}
	return t.g.Name(c.Name) + " <= " + t.clock(c)
}
