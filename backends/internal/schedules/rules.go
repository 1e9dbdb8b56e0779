package schedules

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/occurrence"
	"github.com/qsidecar/qsidecar/internal/textfmt"
)

// TimesOf returns the times of a schedule.
func TimesOf(s *backends.Schedule) (*occurrence.Times, error) {
	return occurrence.Parse(occurrence.Rule{Cron: s.Cron, Every: s.Every, Zone: s.Zone, Splay: s.Splay, Name: s.Name})
}

// Check completes a definition with the defaults, and checks it.
func Check(s *backends.Schedule) error {
	if s.Missed == "" {
		s.Missed = backends.MissedOne
	}
	if s.Overlap == "" {
		s.Overlap = backends.OverlapAllow
	}
	if s.Payload == nil {
		s.Payload = []byte{}
	}
	if len(s.Payload) > backends.MaxSchedulePayload {
		return &backends.ScheduleError{Field: "payload", Err: fmt.Errorf("the payload of the schedule %s has %d bytes, and at most %d are allowed: store where the job finds more",
			s.Name, len(s.Payload), backends.MaxSchedulePayload)}
	}
	if _, err := TimesOf(s); err != nil {
		e := &backends.ScheduleError{Err: fmt.Errorf("the schedule %s: %w", s.Name, err)}
		if wrong, ok := errors.AsType[*occurrence.Error](err); ok {
			e.Field = fields[wrong.Field]
		}
		return e
	}
	return nil
}

// fields are the fields of a request by those of a rule.
var fields = map[string]string{"cron": "cron", "every": "every_ms", "tz": "tz", "splay": "splay_ms"}

// Declare returns the schedule after a declaration. was is nil if there is none. The declaration was checked.
func Declare(was *backends.Schedule, to backends.Schedule, now time.Time) (s backends.Schedule, d backends.Declared, err error) {
	times, err := TimesOf(&to)
	if err != nil {
		return s, d, err
	}
	if was == nil {
		to.Paused, to.LastAt, to.LastJob = false, time.Time{}, ""
		to.NextAt = times.Next(now)
		return to, backends.Declared{Outcome: backends.DeclareCreated, NextAt: to.NextAt}, nil
	}
	s = *was
	d.NextAt = was.NextAt
	changes, timing := compare(was, &to)
	switch {
	case was.Source != to.Source:
		return s, d, &backends.ScheduleError{Field: "source", Err: fmt.Errorf("the schedule %s belongs to the source %q, not to %q: use another name, or delete it first", to.Name, was.Source, to.Source)}
	case was.Queue != to.Queue: // a right to the new queue isn't one to the old queue
		return s, d, &backends.ScheduleError{Field: "queue", Err: fmt.Errorf("the schedule %s belongs to the queue %s, not to %s: use another name, or delete it first", to.Name, was.Queue, to.Queue)}
	case to.Version < was.Version:
		d.Outcome = backends.DeclareIgnored
		return s, d, nil
	case to.Version == was.Version && to.Version > 0 && len(changes) > 0:
		return s, d, &backends.ScheduleError{Field: "version", Err: fmt.Errorf("the schedule %s is stored in version %d with another %s: use a higher version", to.Name, was.Version, changes[0].Field)}
	case to.Version == was.Version && len(changes) == 0:
		d.Outcome = backends.DeclareUnchanged
		return s, d, nil
	}
	to.Paused, to.NextAt, to.LastAt, to.LastJob = was.Paused, was.NextAt, was.LastAt, was.LastJob
	if timing && !to.Paused {
		to.NextAt = times.Next(now)
	}
	if d.Outcome = backends.DeclareUpdated; len(changes) == 0 {
		changes = append(changes, backends.FieldChange{Field: "version", From: fmt.Sprint(was.Version), To: fmt.Sprint(to.Version)})
	}
	d.Changes, d.NextAt = changes, to.NextAt
	return to, d, nil
}

// compare returns the fields that differ, and whether the times do.
func compare(a, b *backends.Schedule) (changes []backends.FieldChange, timing bool) {
	add := func(field, from, to string, equal, time bool) {
		if !equal {
			changes, timing = append(changes, backends.FieldChange{Field: field, From: from, To: to}), timing || time
		}
	}
	text := func(field, from, to string, time bool) { add(field, from, to, from == to, time) }
	text("cron", a.Cron, b.Cron, true)
	text("every_ms", ms(a.Every), ms(b.Every), true)
	text("tz", a.Zone, b.Zone, true)
	text("splay_ms", ms(a.Splay), ms(b.Splay), true)
	add("payload", shown(a.Payload), shown(b.Payload), string(a.Payload) == string(b.Payload), false)
	add("headers", headers(a.Headers), headers(b.Headers), maps.Equal(a.Headers, b.Headers), false)
	text("priority", fmt.Sprint(a.Priority), fmt.Sprint(b.Priority), false)
	text("missed", string(a.Missed), string(b.Missed), false)
	text("overlap", string(a.Overlap), string(b.Overlap), false)
	return changes, timing
}

func ms(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprint(d.Milliseconds())
}

// mostShown is how many bytes of a payload a difference shows.
const mostShown = 200

func shown(payload []byte) string {
	return textfmt.Cut(strings.ToValidUTF8(string(payload), "�"), mostShown)
}

func headers(all map[string]string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		list = append(list, key+"="+all[key])
	}
	return textfmt.Cut(strings.Join(list, " "), mostShown)
}

// Due is what becomes of the occurrences that are due.
type Due struct {
	Occurrences []time.Time // those that store a job
	Missed      int64       // those that make none
	Next        time.Time
}

// Plan decides about the occurrences from s.NextAt until now.
func Plan(s *backends.Schedule, now time.Time) (d Due, err error) {
	times, err := TimesOf(s)
	if err != nil {
		return d, err
	}
	d.Next = times.Next(now)
	last, earlier := latest(times, s.NextAt, now, backends.MostMissed)
	if now.Sub(s.NextAt) > backends.ScheduleGrace {
		keep := map[backends.MissedPolicy]int{backends.MissedOne: 1, backends.MissedAll: backends.MostMissed}[s.Missed]
		drop := max(0, len(last)-keep)
		d.Missed = earlier + int64(drop)
		last = last[drop:]
	}
	for _, at := range last {
		d.Occurrences = append(d.Occurrences, times.Nominal(at))
	}
	return d, nil
}

// mostCounted is how many occurrences before the last ones are counted.
const mostCounted = 10_000

// latest returns the last n times from one until another one, and how many are before these. If they are very many, it counts some
// of them only, so that the end of a long outage costs no time.
func latest(t *occurrence.Times, from, until time.Time, n int) (last []time.Time, earlier int64) {
	for window := time.Minute; ; window *= 10 {
		start := until.Add(-window)
		whole := !start.After(from)
		if whole {
			start = from.Add(-time.Millisecond)
		}
		last = nil
		for at := t.Next(start); !at.IsZero() && !at.After(until); at = t.Next(at) {
			last = append(last, at)
		}
		if earlier = int64(max(0, len(last)-n)); whole || earlier >= mostCounted {
			return last[max(0, len(last)-n):], earlier
		}
		if len(last) >= n && window > 24*time.Hour {
			return last[len(last)-n:], earlier
		}
	}
}

// Job is the job of an occurrence.
func Job(s *backends.Schedule, occurrence time.Time) backends.NewJob {
	h := maps.Clone(s.Headers)
	if h == nil {
		h = map[string]string{}
	}
	h[backends.ScheduleHeader] = s.Name
	h[backends.OccurrenceHeader] = occurrence.UTC().Format(time.RFC3339)
	return backends.NewJob{Queue: s.Queue, Payload: s.Payload, Priority: s.Priority, Headers: h}
}

// Describe completes a schedule with what its times are.
func Describe(s *backends.Schedule, now time.Time) {
	times, err := TimesOf(s)
	if err != nil {
		return // a later program stored it
	}
	at := s.NextAt
	if at.IsZero() {
		at = times.Next(now)
	}
	for ; len(s.Upcoming) < backends.UpcomingTimes && !at.IsZero(); at = times.Next(at) {
		s.Upcoming = append(s.Upcoming, at)
	}
	if c, found := times.NextChange(now, now.AddDate(1, 0, 0)); found {
		s.Change = &backends.ClockChange{At: c.At.UTC(), Skipped: c.Skipped}
	}
}

// Resume returns when a schedule that was paused runs next.
func Resume(s *backends.Schedule, now time.Time) (time.Time, error) {
	times, err := TimesOf(s)
	if err != nil {
		return time.Time{}, err
	}
	return times.Next(now), nil
}

// Allows reports whether a command can change the schedule.
func Allows(c *backends.ScheduleCommand, s *backends.Schedule) bool {
	return s != nil && s.Queue == c.Queue && (!c.OfSource || s.Source == c.Source && s.Version <= c.Version)
}

var errTooMany = &backends.ScheduleError{Err: errors.New("the database has 10000 schedules, and more are not allowed: delete some")}
