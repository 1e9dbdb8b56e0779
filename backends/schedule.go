package backends

import (
	"context"
	"errors"
	"time"
)

// Scheduler is a Backend that keeps schedules. They are in the database, so that all sidecars agree.
//
// A schedule stores one job for each of its occurrences. One transaction moves Schedule.NextAt from the value that it read to the
// next one, and stores the job. So sidecars need no leader: of two that find the same occurrence, one moves nothing.
type Scheduler interface {
	// Schedules returns schedules by name, byte by byte.
	Schedules(ctx context.Context, l ScheduleList) ([]Schedule, error)

	// DeclareSchedule stores a definition, or finds that it is stored already. With dry it changes nothing, and returns
	// what it would do. The fields below "the state" in s are ignored. The error is a *ScheduleError if the definition
	// can't be stored.
	//
	// The same definition again leaves NextAt alone, and every definition leaves Paused alone. Other times set NextAt to the
	// first of them after now.
	DeclareSchedule(ctx context.Context, s Schedule, dry bool) (Declared, error)

	// ChangeSchedule carries out an operator's command. The error is ErrNoSuchSchedule if there is no such schedule.
	// With ScheduleRun it returns the id of the job.
	ChangeSchedule(ctx context.Context, c ScheduleCommand) (job string, err error)

	// FireSchedules stores the jobs of occurrences that are due, of at most ScheduleBatch schedules. Any number of sidecars
	// can call it at the same time. An occurrence that the database refuses doesn't stop the others. expiry is that of the
	// jobs of each queue.
	FireSchedules(ctx context.Context, expiry QueueExpiry) (FiredSchedules, error)
}

// QueueExpiry returns the Expiry of the jobs of a queue that have none of their own. nil: they have none.
type QueueExpiry func(queue string) Expiry

// Of calls the function, if there is one.
func (q QueueExpiry) Of(queue string) (e Expiry) {
	if q != nil {
		e = q(queue)
	}
	return e
}

// ScheduleList selects schedules.
type ScheduleList struct {
	Queue string // empty: all queues
	Name  string // this schedule alone, with its payload and its headers; empty: all, without them
	After string // only those behind this name
	Max   int
}

// Schedule is a schedule. Times are whole milliseconds.
type Schedule struct {
	Name  string // unique in the database
	Queue string

	// When it runs: see package occurrence. It has either Cron or Every.
	Cron  string
	Every time.Duration
	Zone  string
	Splay time.Duration

	// The job.
	Payload  []byte
	Headers  map[string]string
	Priority int16

	Missed  MissedPolicy
	Overlap OverlapPolicy

	// Source is the name of what declares it, such as an application. Version orders the definitions of a source: one with a lower version is
	// ignored, and one with the same version can't have another content. 0: it has no version, and the last one is valid.
	Source  string
	Version int64

	// The state.
	Paused  bool
	NextAt  time.Time // when the next job is stored; zero: never, because it is paused
	LastAt  time.Time // the last occurrence that stored a job; zero: none has
	LastJob string    // the id of that job

	// Found out by Schedules.
	Upcoming []time.Time // the next jobs, at most UpcomingTimes
	Change   *ClockChange
}

// ClockChange is a change of a time zone's clock that moves occurrences.
type ClockChange struct {
	At      time.Time
	Skipped bool // the clock passes over occurrences, which run right after it; otherwise it repeats an hour with some
}

// MissedPolicy is what becomes of the occurrences of a time in which no sidecar ran: if the first of them is more than
// ScheduleGrace late.
type MissedPolicy string

// The policies of missed occurrences.
const (
	MissedOne  MissedPolicy = "one"  // the last of them stores a job
	MissedAll  MissedPolicy = "all"  // the last MostMissed of them store a job each
	MissedSkip MissedPolicy = "skip" // none stores a job
)

// OverlapPolicy is what becomes of an occurrence while the job of the one before isn't finished.
type OverlapPolicy string

// The policies of overlapping occurrences.
const (
	OverlapAllow OverlapPolicy = "allow"
	OverlapSkip  OverlapPolicy = "skip" // it stores no job
)

const (
	// ScheduleGrace is how late an occurrence is before it counts as missed.
	ScheduleGrace = 10 * time.Second
	// MostMissed is how many occurrences MissedAll makes up for.
	MostMissed = 100
	// ScheduleBatch is how many schedules one transaction advances.
	ScheduleBatch = 50
	// UpcomingTimes is how many times Schedule.Upcoming has.
	UpcomingTimes = 5
	// MaxSchedules is how many schedules a database has.
	MaxSchedules = 10_000
	// MaxSchedulePayload is the most bytes of Schedule.Payload.
	MaxSchedulePayload = 64 << 10
)

// Headers of the jobs of schedules.
const (
	ScheduleHeader   = "qsidecar-schedule"   // the name
	OccurrenceHeader = "qsidecar-occurrence" // the time in UTC, as in RFC 3339, without the splay
)

// Declared is what became of a definition.
type Declared struct {
	Outcome DeclareOutcome
	Changes []FieldChange // of DeclareUpdated
	NextAt  time.Time     // zero: it is paused
}

// DeclareOutcome is what a declaration did.
type DeclareOutcome string

// The outcomes of declarations.
const (
	DeclareCreated   DeclareOutcome = "created"
	DeclareUpdated   DeclareOutcome = "updated"
	DeclareUnchanged DeclareOutcome = "unchanged"
	DeclareIgnored   DeclareOutcome = "ignored" // the database has a higher version
)

// FieldChange is a field of a definition that a declaration changes, as the protocol names it. From and To are for people.
type FieldChange struct{ Field, From, To string }

// ScheduleCommand is an operator's command on a schedule.
type ScheduleCommand struct {
	Kind        ScheduleCommandKind
	Queue, Name string

	// ScheduleDelete: only if the schedule has this source, and at most this version; OfSource false: in any case.
	OfSource bool
	Source   string
	Version  int64

	Expiry QueueExpiry // ScheduleRun
}

// ScheduleCommandKind is what a command on a schedule does.
type ScheduleCommandKind string

// The commands on schedules.
const (
	ScheduleRun    ScheduleCommandKind = "run"    // stores a job now; NextAt stays as it is
	SchedulePause  ScheduleCommandKind = "pause"  // its occurrences store no jobs
	ScheduleResume ScheduleCommandKind = "resume" // the next occurrence after now stores a job
	ScheduleDelete ScheduleCommandKind = "delete"
)

// FiredSchedules is what a call of FireSchedules did.
type FiredSchedules struct {
	Fired []FiredSchedule
	Ready []string // the queues of the new jobs
	More  bool     // others are due: call again at once
}

// FiredSchedule is what became of the occurrences of a schedule that were due.
type FiredSchedule struct {
	Name, Queue string
	Jobs        []string // the ids of the new jobs
	Missed      int64    // occurrences that stored no job because of MissedPolicy. If they are very many, only some are counted
	Overlapped  bool     // occurrences stored no job because of OverlapSkip
}

// ErrNoSuchSchedule means that a queue has no schedule of that name, or that it isn't the one of ScheduleCommand.OfSource.
var ErrNoSuchSchedule = errors.New("the queue has no such schedule")

// ScheduleError means that a schedule can't have a definition. Nothing was changed.
type ScheduleError struct {
	Field string // as the protocol names it; empty: no single one
	Err   error
}

// Error implements error.
func (e *ScheduleError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ScheduleError) Unwrap() error { return e.Err }
