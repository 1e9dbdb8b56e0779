package protocol

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Limits of schedules.
const (
	MaxCron       = 255 // bytes
	MaxZone       = 128 // bytes
	MaxEveryMS    = 366 * 86_400_000
	MaxSplayMS    = 86_400_000
	MaxNameSource = MaxQueueName // bytes of the name of a schedule, and of its source
)

// Schedule is a schedule. A declaration has the definition alone.
type Schedule struct {
	Name     string
	Queue    string // in replies; a request has its own field
	Cron     string
	EveryMS  int64
	Zone     string // the field "tz"
	SplayMS  int64
	Payload  []byte // in replies of `schedules`: only of the schedule that the request names; nil: absent
	Headers  map[string]string
	Priority int64
	Missed   string // empty: one
	Overlap  string // empty: allow
	Source   string
	Version  int64 // 0: none

	// The state, in replies.
	Paused      bool
	NextAt      Opt[int64]
	LastAt      Opt[int64]
	LastJob     string
	Upcoming    []int64
	ClockChange *ClockChange
}

// ClockChange is a change of a time zone's clock that moves occurrences of a schedule.
type ClockChange struct {
	At      int64
	Skipped bool // the clock passes over occurrences; otherwise it repeats an hour with some
}

// Declared is what became of a declaration.
type Declared struct {
	Outcome     string // created, updated, unchanged or ignored
	Differences []Difference
	NextAt      Opt[int64]
}

// Difference is a field of a schedule that a declaration changes. From and To are for people.
type Difference struct{ Field, From, To string }

// The values of the field "do" of change_schedule.
const (
	DoRun    = "run"
	DoPause  = "pause"
	DoResume = "resume"
	DoDelete = "delete"
)

func oneOf(field, value string, known ...string) *Error {
	if !slices.Contains(known, value) {
		return BadField(field, "%s can't be %q: use %s", field, value, strings.Join(known, " or "))
	}
	return nil
}

func checkScheduleName(field, name string) *Error {
	if CheckQueueName(field, name) != nil {
		return BadField(field, "%q can't be a %s: use 1 to %d of A-Z a-z 0-9 . _ : / - and do not start with . or -", cut(name, maxShownName), field, MaxNameSource)
	}
	return nil
}

// The positions of fields in a definition that requests without one have, too.
const (
	sName    = 0
	sSource  = 10
	sVersion = 11
)

// definition returns the fields of a definition. Only requests have limits.
func definition(limited bool) []field[Schedule] {
	text := func(name string, most int, at func(*Schedule) *string, check func(v string) *Error) field[Schedule] {
		if !limited {
			return isOptWord(name, at)
		}
		f := isText(name, most, at)
		if check == nil {
			return f
		}
		return checked(f, func(s *Schedule) *Error { return check(*at(s)) })
	}
	number := func(name string, least, most int64, at func(*Schedule) *int64) field[Schedule] {
		if !limited {
			least, most = -anyInt, anyInt
		}
		return isInt(name, least, most, at)
	}
	return []field[Schedule]{
		sName: text("name", MaxNameSource, func(s *Schedule) *string { return &s.Name }, func(v string) *Error { return checkScheduleName("name", v) }),
		text("cron", MaxCron, func(s *Schedule) *string { return &s.Cron }, nil),
		number("every_ms", 0, MaxEveryMS, func(s *Schedule) *int64 { return &s.EveryMS }),
		text("tz", MaxZone, func(s *Schedule) *string { return &s.Zone }, nil),
		number("splay_ms", 0, MaxSplayMS, func(s *Schedule) *int64 { return &s.SplayMS }),
		isBytes("payload", func(s *Schedule) *[]byte { return &s.Payload }),
		isHeaders("headers", func(s *Schedule) *map[string]string { return &s.Headers }),
		number("priority", MinPriority, MaxPriority, func(s *Schedule) *int64 { return &s.Priority }),
		text("missed", maxShownName, func(s *Schedule) *string { return &s.Missed }, func(v string) *Error { return oneOf("missed", v, "one", "all", "skip") }),
		text("overlap", maxShownName, func(s *Schedule) *string { return &s.Overlap }, func(v string) *Error { return oneOf("overlap", v, "allow", "skip") }),
		sSource:  text("source", MaxNameSource, func(s *Schedule) *string { return &s.Source }, func(v string) *Error { return checkScheduleName("source", v) }),
		sVersion: number("version", 0, MaxSafeInt, func(s *Schedule) *int64 { return &s.Version }),
	}
}

var scheduleMessage = newMessage(definition(true))

// isDefinition is the schedule of a request. The decoder notes which fields it has, as each op takes others.
func isDefinition(s string) field[Request] {
	f := isMap(s, scheduleMessage, func(r *Request) *Schedule { return r.Schedule }, nil)
	f.read = func(d *decoder, r *Request) (err *Error) {
		if err := d.expectKind(s, kindMap); err != nil {
			return err
		}
		r.Schedule = new(Schedule)
		d.given, err = scheduleMessage.read(d, r.Schedule)
		return err
	}
	return f
}

// checkGiven rejects a field of the request's schedule that the op doesn't take.
func checkGiven(r *Request, given presence) *Error {
	if r.Schedule == nil {
		return nil
	}
	extra := given &^ ops[r.Op].given
	for i := range scheduleMessage.fields {
		if name := scheduleMessage.fields[i].name.plain; extra.has(i) {
			return BadField(name, "%s takes no field %q in its schedule: declare another definition with the op %s", r.Op, name, OpSchedule)
		}
	}
	return nil
}

var clockChangeMessage = newMessage([]field[ClockChange]{
	number("at", func(c *ClockChange) *int64 { return &c.At }),
	isBool("skipped", func(c *ClockChange) *bool { return &c.Skipped }),
})

var scheduleViewMessage = newMessage(append(definition(false),
	isWord("queue", func(s *Schedule) *string { return &s.Queue }),
	isBool("paused", func(s *Schedule) *bool { return &s.Paused }),
	optNumber("next_at", func(s *Schedule) *Opt[int64] { return &s.NextAt }),
	optNumber("last_at", func(s *Schedule) *Opt[int64] { return &s.LastAt }),
	isOptWord("last_job", func(s *Schedule) *string { return &s.LastJob }),
	isTimes("upcoming", func(s *Schedule) *[]int64 { return &s.Upcoming }),
	isMap("clock_change", clockChangeMessage, func(s *Schedule) *ClockChange { return s.ClockChange }, func(s *Schedule, c *ClockChange) { s.ClockChange = c }),
))

var differenceMessage = newMessage([]field[Difference]{
	isWord("field", func(d *Difference) *string { return &d.Field }),
	isWord("from", func(d *Difference) *string { return &d.From }),
	isWord("to", func(d *Difference) *string { return &d.To }),
})

var declaredMessage = newMessage([]field[Declared]{
	isWord("outcome", func(d *Declared) *string { return &d.Outcome }),
	isList("differences", 0, math.MaxInt, differenceMessage, func(d *Declared) *[]Difference { return &d.Differences }, needs(differenceMessage, "field")),
	optNumber("next_at", func(d *Declared) *Opt[int64] { return &d.NextAt }),
})

// isTimes is a list of numbers. It is present if it isn't nil.
func isTimes[M any](s string, at func(*M) *[]int64) field[M] {
	return field[M]{
		name: newName(s),
		has:  func(m *M) bool { return *at(m) != nil },
		read: func(d *decoder, m *M) *Error {
			to := at(m)
			return d.list(s, 0, MaxList,
				func(n int) { *to = make([]int64, 0, min(n, MaxList)) },
				func(int) *Error {
					v, err := d.integer(s, -anyInt, anyInt)
					*to = append(*to, v)
					return err
				})
		},
		write: func(e *encoder, n *name, m *M) {
			e.name(n)
			e.startList(len(*at(m)))
			for _, v := range *at(m) {
				e.element()
				e.integer(v)
			}
			e.endList()
		},
	}
}

func checkSchedule(r *Request, _ presence) *Error {
	switch s := r.Schedule; {
	case s.Name == "":
		return missing("name")
	case s.Cron == "" && s.EveryMS == 0:
		return BadField("cron", "the schedule %s has no time: give cron or every_ms", s.Name)
	case s.Cron != "" && s.EveryMS != 0:
		return BadField("cron", "cron and every_ms exclude each other")
	}
	return nil
}

func checkSchedules(r *Request, p presence) *Error {
	switch with := p & bits(fAfter, fMax); {
	case p.has(fSchedule) && r.Schedule.Name == "":
		return missing("name")
	case p.has(fSchedule) && with != 0:
		name := firstName(with)
		return BadField(name, "%s goes with a list, not with one schedule", name)
	case p.has(fAfter):
		return checkScheduleName("after", r.After)
	}
	return nil
}

func checkChangeSchedule(r *Request, _ presence) *Error {
	if r.Schedule.Name == "" {
		return missing("name")
	}
	if r.Schedule.Source == "" && r.Schedule.Version != 0 {
		return BadField("version", "version goes with a source: name it, or leave version out")
	}
	return nil
}

// String is the schedule's times in a few words.
func (s *Schedule) String() string {
	text := s.Cron
	if s.EveryMS > 0 {
		text = fmt.Sprintf("every %d s", s.EveryMS/1000)
	}
	if s.Zone != "" {
		text += " " + s.Zone
	}
	return text
}
