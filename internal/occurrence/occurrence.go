package occurrence

import (
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
	"time"

	"github.com/netresearch/go-cron"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/timezones"
)

// Rule is when a schedule runs. It has either Cron or Every.
type Rule struct {
	Cron  string        // five fields, or @hourly, @daily, @weekly, @monthly or @yearly
	Every time.Duration // an interval from 1970 on, in whole seconds, so that no restart moves it
	Zone  string        // of Cron: a name of the IANA database; empty: UTC
	Splay time.Duration // the schedule's times are later by a part of this, which its name decides
	Name  string        // of the schedule
}

// Limits of a Rule.
const (
	MinEvery = time.Second
	MaxEvery = 366 * 24 * time.Hour
	MaxSplay = 24 * time.Hour
)

// Times are the times of a schedule.
type Times struct {
	zone    *time.Location
	wall    cron.Schedule // nil: every
	fixed   bool          // the minute and the hour are given
	hourly  bool          // it runs in each hour
	every   time.Duration
	latency time.Duration // the part of the splay
}

// searched is for how many years a time is searched for. 29 February is missing for eight years around 2100.
const searched = 12

var parser = cron.MustNewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.DowOrDom | cron.Descriptor |
	cron.DowNth | cron.DowLast | cron.DomL | cron.DomW).WithMaxSearchYears(searched)

var (
	descriptors = []string{"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"}
	lastDay     = regexp.MustCompile(`^([0-7]|[A-Za-z]{3})L$`) // the usual form of the library's 5#L
	badField    = regexp.MustCompile(`(^|,)(,|$)|\*-|-\*`)     // the library passes over these
)

// Error is why a rule isn't one.
type Error struct {
	Field string // cron, every, tz or splay
	Err   error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

func wrong(field, format string, args ...any) error {
	return &Error{field, fmt.Errorf(format, args...)}
}

// Parse checks a rule. Its error is an *Error.
func Parse(r Rule) (*Times, error) {
	t := &Times{every: r.Every}
	switch {
	case r.Cron == "" && r.Every == 0:
		return nil, wrong("cron", "it has no time: set cron or every")
	case r.Cron != "" && r.Every != 0:
		return nil, wrong("every", "it has both cron and every: set one of them")
	case r.Splay < 0 || r.Splay > MaxSplay || r.Splay%time.Second != 0:
		return nil, wrong("splay", "the splay %v isn't one: use whole seconds, at most %v", r.Splay, MaxSplay)
	case r.Cron == "" && r.Zone != "":
		return nil, wrong("tz", "a time zone has no meaning for every: remove tz, or use cron")
	case r.Cron == "" && (r.Every < MinEvery || r.Every > MaxEvery || r.Every%time.Second != 0):
		return nil, wrong("every", "the interval %v isn't one: use whole seconds from %v to %v", r.Every, MinEvery, MaxEvery)
	}
	if r.Splay > 0 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(r.Name))
		t.latency = time.Duration(h.Sum64()%uint64(r.Splay/time.Second)) * time.Second
	}
	if r.Cron == "" {
		return t, nil
	}
	var err error
	if t.zone, err = timezones.Load(r.Zone); err != nil {
		return nil, &Error{"tz", err}
	}
	if t.wall, t.fixed, t.hourly, err = parse(r.Cron); err != nil {
		return nil, wrong("cron", "the cron expression %q: %w", r.Cron, err)
	}
	if t.wall.Next(time.Unix(0, 0).UTC()).IsZero() {
		return nil, wrong("cron", "the cron expression %q never runs: its month has no such day", r.Cron)
	}
	return t, nil
}

func parse(text string) (s cron.Schedule, fixed, hourly bool, err error) {
	fields := strings.Fields(text)
	switch {
	case len(fields) == 0:
		return nil, false, false, errors.New("it is empty")
	case strings.HasPrefix(strings.ToLower(fields[0]), "@every"):
		return nil, false, false, errors.New("@every isn't known here: use every")
	case strings.HasPrefix(fields[0], "@"):
		for _, d := range descriptors {
			if len(fields) == 1 && fields[0] == d {
				s, err = parser.Parse(d)
				return s, d != "@hourly", d == "@hourly", err
			}
		}
		return nil, false, false, fmt.Errorf("it isn't known: use five fields, or one of %s", strings.Join(descriptors, ", "))
	case strings.Contains(fields[0], "="):
		return nil, false, false, errors.New("the time zone doesn't belong into it: use tz")
	case len(fields) != 5:
		return nil, false, false, fmt.Errorf("it has %s: use five (minute, hour, day of the month, month, day of the week)", textfmt.Plural(int64(len(fields)), "field"))
	}
	for i, f := range fields {
		if badField.MatchString(f) {
			return nil, false, false, fmt.Errorf("the field %q isn't a list of values, ranges and steps", f)
		}
		if m := lastDay.FindStringSubmatch(f); i == 4 && m != nil {
			fields[i] = m[1] + "#L"
		}
	}
	s, err = parser.Parse(strings.Join(fields, " "))
	return s, !strings.HasPrefix(fields[0], "*") && !strings.HasPrefix(fields[1], "*"), fields[1] == "*" || fields[1] == "*/1", err
}

// Next returns the first time after an instant. Zero: there is none.
func (t *Times) Next(after time.Time) time.Time {
	n := t.next(after.Add(-t.latency))
	if n.IsZero() {
		return n
	}
	return n.Add(t.latency).UTC()
}

// Nominal returns the occurrence that Next returned, without the splay.
func (t *Times) Nominal(next time.Time) time.Time { return next.Add(-t.latency) }

func (t *Times) next(after time.Time) time.Time {
	if t.wall == nil {
		ms, every := after.UnixMilli(), t.every.Milliseconds()
		n := ms/every + 1
		if ms < 0 && ms%every != 0 {
			n--
		}
		return time.UnixMilli(n * every)
	}
	end := after.AddDate(searched, 0, 0)
	for at := after; at.Before(end); {
		found, until := t.nextBefore(at)
		if !found.IsZero() || until.IsZero() {
			return found
		}
		// The zone changes at `until` and nothing runs before that. The times that the clock passes over run at this instant.
		if skips, from, to := t.skipped(until); skips && !t.hourly && !t.first(from.Add(-time.Second), to).IsZero() {
			return until
		}
		if t.runsAt(until) {
			return until
		}
		at = until
	}
	return time.Time{}
}

// nextBefore returns the first time after an instant and before the next change of the zone, and that change.
func (t *Times) nextBefore(after time.Time) (found, until time.Time) {
	start, until := t.bounds(after)
	wall, offset := t.onWall(after), t.offset(after)
	if t.fixed && !start.IsZero() {
		if back := t.offset(start.Add(-time.Second)) - offset; back > 0 { // what the clock repeats ran already
			wall = later(wall, t.onWall(start).Add(back-time.Second))
		}
	}
	next := t.wall.Next(wall)
	if next.IsZero() {
		return next, until
	}
	if found = next.Add(-offset); !until.IsZero() && !found.Before(until) {
		return time.Time{}, until
	}
	return found, until
}

// bounds returns two instants between which the zone doesn't change: the last one at or before `at`, and one after it. Zero: there is none.
// Go takes each year of a rule such as that of Europe/Berlin for 365 days long. On the last day of a leap year it returns the beginning
// of that day as the end, too.
func (t *Times) bounds(at time.Time) (start, until time.Time) {
	start, until = at.In(t.zone).ZoneBounds()
	if !until.IsZero() && !until.After(at) {
		until = at.Add(24 * time.Hour)
	}
	return start, until
}

// skipped returns the times on the wall that the change passes over.
func (t *Times) skipped(change time.Time) (skips bool, from, to time.Time) {
	by := t.offset(change) - t.offset(change.Add(-time.Second))
	to = t.onWall(change)
	return by > 0, to.Add(-by), to
}

// runsAt reports whether the first instant after a change is one of the times.
func (t *Times) runsAt(change time.Time) bool {
	back := t.offset(change.Add(-time.Second)) - t.offset(change)
	wall := t.onWall(change)
	return (back <= 0 || !t.fixed) && t.wall.Next(wall.Add(-time.Second)).Equal(wall)
}

// first returns the first time on the wall after one and before another one.
func (t *Times) first(after, before time.Time) time.Time {
	if n := t.wall.Next(after); n.Before(before) {
		return n
	}
	return time.Time{}
}

// onWall is what the clock on the wall shows, as if it were UTC.
func (t *Times) onWall(at time.Time) time.Time { return at.UTC().Add(t.offset(at)) }

func (t *Times) offset(at time.Time) time.Duration {
	_, seconds := at.In(t.zone).Zone()
	return time.Duration(seconds) * time.Second
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// Change is a change of the zone's clock that moves occurrences.
type Change struct {
	At      time.Time
	Skipped bool // the clock passes over occurrences; otherwise it repeats some
}

// NextChange returns the first change of the clock after an instant, and before another one, that moves occurrences.
func (t *Times) NextChange(after, before time.Time) (c Change, found bool) {
	if t.wall == nil {
		return c, false
	}
	for at := after; ; {
		_, until := t.bounds(at)
		if until.IsZero() || !until.Before(before) {
			return c, false
		}
		skips, from, to := t.skipped(until)
		if !skips {
			from, to = to, from
		}
		if from.Before(to) && !(skips && t.hourly) && !t.first(from.Add(-time.Second), to).IsZero() {
			return Change{until, skips}, true
		}
		at = until
	}
}
